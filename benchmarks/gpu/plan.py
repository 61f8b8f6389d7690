"""What a benchmark bundle holds beside its kernels: the rows, their sets, what was changed; standard library only."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from roller.errors import ArtifactError

PLAN = "benchmark.json"
FORMAT, VERSION = "roller-gpu-plan", 1


@dataclass(frozen=True)
class Planned:
    """One operator of the benchmark.

    Parameters
    ----------
    row
        As in ``operators.yaml``, with a reduced batch where ``notes`` says so.
    sets
        Classes it is reported in.
    notes
        What differs from the published row, and why.
    compiled
        Whether it belongs to the subset that ``torch.compile`` is tuned for.
    left_out
        Why the bundle holds no kernel of it; empty where it does.
    """

    row: Mapping[str, Any]
    sets: tuple[str, ...]
    notes: tuple[str, ...] = ()
    compiled: bool = False
    left_out: str = ""

    @property
    def id(self) -> str:
        """Its name in the tables."""
        return str(self.row["id"])


def write_plan(folder: Path, bundle: str, planned: Sequence[Planned]) -> None:
    """Write the plan into a bundle whose manifest has the checksum ``bundle``."""
    rows = [asdict(p) for p in planned]
    text = json.dumps({"format": FORMAT, "version": VERSION, "bundle": bundle, "operators": rows}, indent=1)
    (folder / PLAN).write_text(text + "\n", encoding="utf-8")


def read_plan(folder: Path, bundle: str) -> list[Planned]:
    """Return the plan of a bundle.

    Raises
    ------
    ArtifactError
        Where it is missing, damaged, or belongs to another bundle.
    """
    path = folder / PLAN
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if (data["format"], data["version"], data["bundle"]) != (FORMAT, VERSION, bundle):
            raise ValueError("it belongs to another bundle or version")
        return [
            Planned(r["row"], tuple(r["sets"]), tuple(r["notes"]), bool(r["compiled"]), r["left_out"])
            for r in data["operators"]
        ]
    except (OSError, KeyError, TypeError, ValueError) as err:
        raise ArtifactError(
            f"{path}: expected the plan of this bundle ({err}). Make it with `python -m benchmarks.gpu prepare`."
        ) from err


def write_atomic(path: Path, data: Any) -> None:
    """Write JSON; the file appears whole or not at all.

    Raises
    ------
    ArtifactError
        Where the path cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError as err:
        raise ArtifactError(f"{path}: cannot write ({err.strerror}). Choose a writable path.") from err
