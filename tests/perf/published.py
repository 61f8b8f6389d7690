"""The published measurements in ``benchmarks/reference``."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from benchmarks.tables import read_table

_BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def table(name: str) -> list[dict[str, str]]:
    """Rows of a published table."""
    with (_BENCHMARKS / "reference" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def columns(name: str) -> dict[str, np.ndarray]:
    """Columns of a published table of numbers."""
    rows = table(name)
    return {key: np.array([float(r[key]) for r in rows]) for key in rows[0]}


def operators() -> dict[str, dict[str, object]]:
    """The 119 operators by id."""
    return {r["id"]: r for r in read_table("operators.yaml")["operators"]}
