"""Construct with two checkouts in turn, operator by operator: their times under the same load, and their programs."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: A process of one checkout: reads ``[row, device, top_k]`` per line, answers processor seconds and programs.
_WORKER = """
import functools, json, sys, time, roller
load = functools.cache(roller.load_spec)
for line in sys.stdin:
    row, device, top_k = json.loads(line)
    spec = load(device)
    expr = roller.ops.from_spec(row, batch=1 if spec.kind == "cpu" else None)
    start = time.process_time()
    found = roller.construct(expr, spec, top_k)
    print(json.dumps([time.process_time() - start, [(str(c.program), c.estimate.seconds) for c in found]]), flush=True)
"""


@dataclass(frozen=True)
class Paired:
    """One operator on one device: processor time of this checkout and of the other, and whether they agree."""

    id: str
    ms: float
    other_ms: float
    same: bool


class _Checkout:
    """A process that constructs with one checkout."""

    def __init__(self, path: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(path), "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER], cwd=path, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def construct(self, row: Mapping[str, Any], device: str, top_k: int) -> tuple[float, Any]:
        """Return processor milliseconds, and programs with their predicted seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps([dict(row), device, top_k]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{row['id']} on {device}: the process of a checkout ended")
        seconds, found = json.loads(line)
        return seconds * 1e3, found

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def compare(
    rows: Sequence[Mapping[str, Any]], devices: Sequence[str], top_k: int, other: Path
) -> dict[str, list[Paired]]:
    """Return per device what both checkouts needed; each operator is constructed by both before the next."""
    if not (other / "roller" / "__init__.py").is_file():
        raise SystemExit(f"--against: {other} is no checkout of roller")
    checkouts = [_Checkout(Path(__file__).resolve().parent.parent), _Checkout(other.resolve())]
    found: dict[str, list[Paired]] = {}
    for device in devices:
        for c in checkouts:
            c.construct(rows[0], device, top_k)  # imports and first-use tables
        found[device] = []
        for n, row in enumerate(rows):
            order = (0, 1) if n % 2 else (1, 0)  # neither always has the warmer caches
            said = {k: checkouts[k].construct(row, device, top_k) for k in order}
            found[device].append(Paired(str(row["id"]), said[0][0], said[1][0], said[0][1] == said[1][1]))
    for c in checkouts:
        c.close()
    return found


def paired_row(name: str, results: Sequence[Paired]) -> tuple[str, ...]:
    """Return the table's line of one device."""
    ours, theirs = (statistics.median(x) for x in zip(*((r.ms, r.other_ms) for r in results), strict=True))
    ratio = statistics.median(r.ms / r.other_ms for r in results)
    differ = [r.id for r in results if not r.same]
    return (name, f"{ours:.1f}", f"{theirs:.1f}", f"{ratio:.3f}", " ".join(differ) or "none")
