"""The graph of this checkout, built once in a process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tools.affected.import_graph import Graph, Repository, build_graph

ROOT = Path(__file__).resolve().parents[2]


@cache
def repository() -> Repository:
    """Return the files of this checkout."""
    return Repository(ROOT)


@cache
def graph() -> Graph:
    """Return what each of them reaches."""
    return build_graph(repository())
