"""What tuning cost, as JSON lines: a line per batch of trials, so that a run that was stopped loses at most one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

NAME = "journal.jsonl"


@dataclass(frozen=True)
class Batch:
    """Trials measured together: how many, how many failed, seconds they took, the best trial's seconds.

    ``processor_s`` are seconds of processors, of all processes of the tuner: they do not depend on what else runs.
    ``best_s`` is ``None`` where all failed; ``import_s`` is what the process took to load what it needs, the same in
    every batch of one process.
    """

    trials: int
    failures: int
    seconds: float
    processor_s: float
    best_s: float | None
    import_s: float = 0.0
    load: float = 0.0


@dataclass(frozen=True)
class Totals:
    """All batches of an operator. ``import_s`` is the longest of its processes: nobody needs to load things twice."""

    trials: int = 0
    failures: int = 0
    seconds: float = 0.0
    processor_s: float = 0.0
    best_s: float | None = None
    import_s: float = 0.0
    load: float = 0.0


def totals(batches: Iterable[Batch]) -> Totals:
    """Return the sums over batches.

    Examples
    --------
    >>> found = totals([Batch(64, 2, 30.0, 50.0, 0.002), Batch(64, 0, 20.0, 35.0, 0.001)])
    >>> found.trials, found.failures, found.seconds, found.best_s
    (128, 2, 50.0, 0.001)
    """
    batches = list(batches)
    found = [b.best_s for b in batches if b.best_s is not None]
    return Totals(
        sum(b.trials for b in batches),
        sum(b.failures for b in batches),
        sum(b.seconds for b in batches),
        sum(b.processor_s for b in batches),
        min(found, default=None),
        max((b.import_s for b in batches), default=0.0),
        max((b.load for b in batches), default=0.0),
    )


def read(folder: Path) -> list[Batch]:
    """Return the batches of a folder; a line that a kill cut short is passed over."""
    path, found = folder / NAME, []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(Batch(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found


def add(folder: Path, batch: Batch) -> None:
    """Append a batch, on a line of its own even after one that was cut short."""
    path = folder / NAME
    cut = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    with path.open("a") as file:
        file.write(("\n" if cut else "") + json.dumps(asdict(batch)) + "\n")
