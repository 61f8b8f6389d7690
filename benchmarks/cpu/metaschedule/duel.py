"""Both kernels of an operator in turn: Roller's, and the best few that MetaSchedule found."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import roller
from benchmarks.cpu.environment import foreign_s, load_average
from benchmarks.cpu.measure import ROLLER
from benchmarks.cpu.metaschedule import journal
from benchmarks.cpu.metaschedule.subjects import BATCH, Task, kind_of, subject
from benchmarks.cpu.race import Call, Pace, race, settle
from roller.artifact import KernelArtifact, Launch
from roller.expr import TensorExpr
from roller.runtime.random_inputs import random_inputs
from roller_runtime.core.kernel_argument import Argument

#: Programs of MetaSchedule that are measured again, and that race: it measured on a machine with other work, so its
#: first need not be its best.
CONSIDERED, FINALISTS = 10, 3
_HEATS = Pace(rounds=3)
#: Compilations of which the median counts.
_COMPILATIONS = 3
#: Bytes TVM lays arrays out at, and its own programs rely on.
_ALIGNMENT = 64
_SEED = 20220711
#: Results may differ by so much of the largest element: sums in another order.
_AGREE = 1e-3


@dataclass
class Record:
    """One operator; ``reason`` says why there is no race.

    ``tuning`` is what :class:`journal.Totals` holds; ``considered`` are the tuner's own seconds by contender, named
    by their rank; ``seconds`` are of the race.
    ``foreign`` is how many processors others kept busy during the race.
    """

    id: str
    kind: str
    batch: int
    expression: str = ""
    tuning: dict[str, Any] = field(default_factory=dict)
    top_k: int = 10
    top_k_s: float | None = None
    top_k_processor_s: float | None = None
    top_1_s: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    considered: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    best: str = ""
    ratio: dict[str, float] = field(default_factory=dict)
    restless: int = 0
    load: float = 0.0
    foreign: float = 0.0
    program: str = ""
    reason: str = ""

    @property
    def quotient(self) -> float | None:
        """Seconds of tuning over seconds of Roller's compilation, by the clock."""
        return self.tuning["seconds"] / self.top_k_s if self.tuning and self.top_k_s else None

    @property
    def processor_quotient(self) -> float | None:
        """The same in seconds of processors, which do not grow with what else the machine does."""
        used = self.top_k_processor_s
        return self.tuning["processor_s"] / used if self.tuning and used else None


def duel(task: Task, root: Path, pace: Pace, top_k: int = 10) -> Record:
    """Compile with Roller, build MetaSchedule's best, compare results and race."""
    from benchmarks.cpu.metaschedule.tuner import best_of

    case = subject(task.id)
    expr = case.expression(BATCH)
    record = Record(task.id, kind_of(case), BATCH, str(expr), load=load_average(), top_k=top_k)
    record.tuning = asdict(journal.totals(journal.read(task.folder(root))))
    found = best_of(task, root, CONSIDERED) if record.tuning["trials"] else []
    kernel, record.top_k_s, record.top_k_processor_s = compiled(expr, top_k)
    record.top_1_s = compiled(expr, 1)[1]
    record.program = str(kernel.program)
    if not found:
        record.reason = "MetaSchedule has no program that runs; tune it first (without --race-only)"
        return record
    artifacts = {ROLLER: kernel.artifact}
    for n, one in enumerate(found, 1):
        artifacts[f"metaschedule {n}"] = as_artifact(one.module, expr, kernel.artifact, task)
        record.considered[f"metaschedule {n}"] = one.seconds
    inputs = [aligned(a) for a in random_inputs(expr, _SEED)]
    bound = {name: _bound(artifact, inputs, expr) for name, artifact in artifacts.items()}
    record.skipped = different({name: out for name, (_, out) in bound.items()})
    calls = {name: run for name, (run, _) in bound.items() if name not in record.skipped}
    if len(calls) == 1:
        record.reason = "no program of MetaSchedule computes the operator"
        return record
    return _raced(record, calls, pace)


def compiled(expr: TensorExpr, top_k: int) -> tuple[roller.CompiledKernel, float, float]:
    """Return the first of several kernels, and medians of what they took: seconds, and seconds of processors."""
    kernels, seconds, processors = [], [], []
    for _ in range(_COMPILATIONS):
        settle(Pace().settle_s)
        start, used = time.perf_counter(), sum(os.times()[:4])
        kernels.append(roller.compile(expr, device="cpu", top_k=top_k, cache=False))
        seconds.append(time.perf_counter() - start)
        processors.append(sum(os.times()[:4]) - used)
    return kernels[0], statistics.median(seconds), statistics.median(processors)


def aligned(array: np.ndarray) -> np.ndarray:
    """Return a copy that begins where TVM's own arrays do.

    Examples
    --------
    >>> aligned(np.ones(3, np.float32)).ctypes.data % 64
    0
    """
    room = np.zeros(array.nbytes + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    out: np.ndarray = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def as_artifact(module: Any, expr: TensorExpr, mine: KernelArtifact, task: Task) -> KernelArtifact:
    """Return a scheduled program as an artifact, so that one launcher and one thread pool run both kernels."""
    from roller.templates.cpu.emit.build_library import ENTRY, build_library

    tensors = [("input", t) for t in expr.inputs] + [("output", t) for t in expr.output_tensors]
    arguments = tuple(Argument(t.name, role, t.shape, t.dtype) for role, t in tensors)
    launch = Launch(str(module), ENTRY, tuple(a.name for a in arguments))
    binary = build_library(module, task.mcpu, task.threads)
    target = {**mine.target, "mcpu": task.mcpu, "cores": task.threads}
    return replace(mine, target=target, launches=(launch,), arguments=arguments, binary=binary)


def _bound(artifact: KernelArtifact, inputs: list[np.ndarray], expr: TensorExpr) -> tuple[Call, np.ndarray]:
    """Return a kernel's bare call and its output, computed once."""
    from roller.backends.cpu.launcher import CpuKernel

    output = expr.output_tensors[0]
    out = aligned(np.zeros(output.shape, output.dtype))
    run, _ = CpuKernel(artifact).bind(*inputs, out=out)
    run()
    return run, out


def different(outputs: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return who computes something else than Roller's kernel, which was checked when it was compiled."""
    expected = outputs[ROLLER].astype(np.float64)
    limit = _AGREE * max(float(np.abs(expected).max()), 1e-30)
    return {
        name: f"computes something else: off by more than {_AGREE} of the largest"
        for name, found in outputs.items()
        if not np.abs(found - expected).max() <= limit  # a NaN is different too
    }


def _raced(record: Record, calls: Mapping[str, Call], pace: Pace) -> Record:
    """Find MetaSchedule's fastest in a few heats, then race them with Roller's."""
    theirs = {n: c for n, c in calls.items() if n != ROLLER}
    heats = race(theirs, _HEATS)
    names = sorted(theirs, key=heats.median_s)[:FINALISTS]
    others_s, start = foreign_s(), time.perf_counter()
    outcome = race({n: calls[n] for n in (ROLLER, *names)}, pace)
    record.foreign = max(0.0, foreign_s() - others_s) / (time.perf_counter() - start)
    record.seconds = {n: outcome.median_s(n) for n in outcome.times}
    record.best, record.restless = outcome.best(names), outcome.restless
    record.ratio = asdict(outcome.ratio(record.best, ROLLER))
    return record
