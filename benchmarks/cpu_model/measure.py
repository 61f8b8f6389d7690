"""Build, check and time random programs on this machine; one line of a journal per operator."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import roller
from benchmarks.cpu.cases import suite
from benchmarks.cpu_model.programs import Sample, random_programs
from roller.artifact import KernelArtifact
from roller.backends.cpu import CpuKernel
from roller.compiler import pipeline
from roller.errors import BuildError, LaunchError
from roller.hardware import DeviceSpec
from roller.runtime.build_pool import build_all
from roller.runtime.check import Oracle
from roller.runtime.random_inputs import random_inputs
from roller.tile.program import RProgram

#: Two operators or more of every class, with the batch that makes the fastest program take milliseconds.
OPERATORS: tuple[tuple[str, int | None], ...] = (
    ("M1", None), ("S509", None), ("C0", 2), ("C35", 1), ("C8", 2), ("C16", 2), ("D1", 4), ("D14", 4),
    ("E26", 8), ("E23", 8), ("P5", 4), ("R2", 8),
)  # fmt: skip
#: Turns of every program, and how long a turn is at least (seconds).
ROUNDS, TURN_S = 9, 4e-4


@dataclass(frozen=True)
class Timed:
    """One random program and the seconds it took: the fastest of its turns."""

    operator: str
    program: RProgram
    aligned: bool
    measured_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        program = self.program.to_dict()
        return {"operator": self.operator, "program": program, "aligned": self.aligned, "measured_s": self.measured_s}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Timed:
        """Rebuild from :meth:`to_dict` data."""
        return cls(data["operator"], RProgram.from_dict(data["program"]), data["aligned"], data["measured_s"])


def expression(operator: str, batch: int | None) -> roller.TensorExpr:
    """Return an operator of the suite at a batch."""
    case = next(c for c in suite() if c.id == operator)
    return case.expression(batch)


def measure_operator(operator: str, batch: int | None, spec: DeviceSpec, count: int, seed: int) -> list[Timed]:
    """Return the times of ``count`` random programs; a program that does not build or is wrong raises.

    Raises
    ------
    BuildError, LaunchError
        Where a program does not build, or computes a wrong result: the benchmark tests code generation as well.
    """
    expr = expression(operator, batch)
    samples = random_programs(expr, spec, count, seed)
    jobs = {str(n): s for n, s in enumerate(samples)}

    def build(sample: Sample) -> KernelArtifact:
        return pipeline.lower(sample.program, expr, spec)

    built = build_all(jobs, build)
    failed = {n: r.record.reason for n, r in built.items() if r.value is None}
    if failed:
        raise BuildError(f"{operator}: {len(failed)} programs did not build: {next(iter(failed.values()))}")
    inputs = random_inputs(expr, seed)
    oracle = Oracle(expr, inputs, seed)
    runs: list[Callable[[], object]] = []
    for n, r in built.items():
        assert r.value is not None
        run, result = CpuKernel(r.value).bind(*inputs)
        run()
        outcome = oracle.check(result if isinstance(result, tuple) else (result,))
        if not outcome.ok:
            raise LaunchError(f"{operator}: wrong result of {jobs[n].program}: {outcome.message}")
        runs.append(run)
    seconds = fastest(runs)
    return [Timed(operator, s.program, s.aligned, t) for s, t in zip(samples, seconds, strict=True)]


def fastest(runs: Sequence[Callable[[], object]], rounds: int = ROUNDS) -> list[float]:
    """Return the fastest turn (seconds per call) of every call; they take turns, so that a disturbance hits all."""
    best = [float("inf")] * len(runs)
    calls = [1] * len(runs)
    for round_ in range(rounds):
        for n, run in enumerate(runs):
            run()
            start = time.perf_counter()
            for _ in range(calls[n]):
                run()
            best[n] = min(best[n], (time.perf_counter() - start) / calls[n])
            if not round_:
                calls[n] = max(1, round(TURN_S / best[n]))
    return best


def append(journal: Path, timed: Sequence[Timed]) -> None:
    """Write the times of one operator behind the others, in one piece."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    with journal.open("a") as file:
        file.write("".join(json.dumps(t.to_dict()) + "\n" for t in timed))


def recorded(journal: Path) -> list[Timed]:
    """Return all times of a journal, in order."""
    return [Timed.from_dict(json.loads(line)) for line in journal.read_text().splitlines()] if journal.exists() else []
