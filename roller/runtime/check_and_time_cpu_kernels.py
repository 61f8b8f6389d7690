"""Checks and times built CPU kernels on this machine, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from roller.artifact import KernelArtifact
from roller.backends.cpu.launcher import CpuKernel
from roller.errors import RollerError
from roller.expr import TensorExpr
from roller.runtime.candidate_records import Record
from roller.runtime.check import Oracle
from roller.runtime.guard_pages import find_out_of_bounds_access
from roller.runtime.random_inputs import random_inputs
from roller.runtime.time_candidate_kernels import Contender, time_candidates
from roller_runtime.timing.clock import Clock, ClockSample, system_or_trusting_clock
from roller_runtime.timing.measure_median import PATIENCE_S
from roller_runtime.timing.undisturbed_timing_windows import Timing, time_calls_together


def _fill_with_nan(out: np.ndarray) -> None:
    """Fill an output with NaN (-1 for integers): all bits are ones."""
    # The memory may hold the previous kernel's right result, which would hide elements that this one does not write.
    # The fill also touches all pages, so that the first run takes no longer than the next.
    out.reshape(-1).view(np.uint8).fill(0xFF)


class CpuBench:
    """Test bench of one expression on this machine; inputs and reference are computed once.

    Parameters
    ----------
    expression
        The user's expression, which defines the reference.
    oracle
        Reference for these inputs, if it was computed elsewhere.
    rotating_bytes
        Total size, in bytes, of the copies of the constants that calls use in turn. The constants then come from beyond
        a cache of this size, as in a model with other kernels in between, while inputs and outputs stay in the cache.
        0 for one copy.
    patience_s
        See :func:`roller.runtime.time_candidate_kernels.time_candidates`; ``PATIENCE_S`` by default.
    fenced
        Whether kernels were already checked for accesses outside their arrays.
    """

    def __init__(
        self,
        expression: TensorExpr,
        seed: int = 0,
        oracle: Oracle | None = None,
        rotating_bytes: int = 0,
        clock: Clock | None = None,
        patience_s: float | None = None,
        fenced: bool = False,
    ) -> None:
        self.expression, self.seed, self._oracle, self._fenced = expression, seed, oracle, fenced
        self._clock = clock or system_or_trusting_clock()
        self._patience_s = PATIENCE_S if patience_s is None else patience_s
        self.rotating_bytes = rotating_bytes

    @cached_property
    def inputs(self) -> list[np.ndarray]:
        """Random arrays, one per input."""
        return list(random_inputs(self.expression, self.seed))

    @cached_property
    def oracle(self) -> Oracle:
        """The float64 reference at sampled points."""
        return self._oracle or Oracle(self.expression, self.inputs, self.seed)

    def profile(
        self, artifacts: Mapping[str, KernelArtifact], timed: bool = True, budget_s: float = 0.06
    ) -> dict[str, Record]:
        """Check every artifact; if ``timed``, time the correct ones. See :func:`profile`."""
        try:
            return self._profile(artifacts, timed, budget_s)
        finally:
            self._clock.release()

    def _profile(self, artifacts: Mapping[str, KernelArtifact], timed: bool, budget_s: float) -> dict[str, Record]:
        records: dict[str, Record] = {}
        self.oracle.cover((a.program for a in artifacts.values()), self.inputs)
        doubt = self.oracle.doubt
        found = self.correct(artifacts, records, self.rotating_bytes if timed and len(artifacts) > 1 else 0)
        if not timed:
            records.update(
                {c.name: Record(c.name, "checked", doubt, build_s=_build_s(artifacts[c.name])) for c in found}
            )
            return records
        timings = time_candidates(
            found, budget_s=budget_s, clock=self._clock, patience_s=self._patience_s, expected=len(artifacts)
        )
        return records | {n: _record_of_timing(n, timing, doubt, artifacts[n]) for n, timing in timings.items()}

    def correct(
        self, artifacts: Mapping[str, KernelArtifact], records: dict[str, Record], rotating_bytes: int = 0
    ) -> Iterator[Contender]:
        """Yield correct kernels one at a time (each with its packed constants); add failures to ``records``."""
        # All artifacts of a compilation have the same constants.
        positions = {c.position for a in artifacts.values() for c in a.constants}
        values = {n: self.inputs[n].tobytes() for n in positions}
        for name, artifact in artifacts.items():
            constants = tuple(replace(c, values=values[c.position]) for c in artifact.constants)
            try:
                kernel = CpuKernel(replace(artifact, constants=constants))
                fault = (
                    find_out_of_bounds_access(kernel)
                    if not self._fenced and has_guarded_loads(artifact.program.expr)
                    else None
                )
                if fault is not None:
                    records[name] = Record(name, "wrong", fault, build_s=_build_s(artifact))
                    continue
                changing = [a for n, a in enumerate(self.inputs) if n not in values]
                run, result = kernel.bind(*changing)
                outputs = result if isinstance(result, tuple) else (result,)
                for out in outputs:
                    _fill_with_nan(out)
                first = self._sample_first_run(run)
            except RollerError as err:
                records[name] = Record(name, "failed", str(err), build_s=_build_s(artifact))
                continue
            outcome = self.oracle.check(outputs)
            if outcome.ok:
                if rotating_bytes and constants:
                    run, _ = kernel.bind(*changing, out=result, rotating_bytes=rotating_bytes)
                yield Contender(name, run, first.wall_s, _count_threads(artifact), first.quiet)
            else:
                records[name] = Record(name, "wrong", outcome.message, build_s=_build_s(artifact))

    def _sample_first_run(self, run: Callable[[], object]) -> ClockSample:
        """Run a kernel for the first time and return the sample."""
        self._clock.attend()
        return time_calls_together(run, self._clock)


def _record_of_timing(name: str, timing: Timing, unsure: str, artifact: KernelArtifact) -> Record:
    """Return the record of a timed kernel; ``unsure`` is the reason why it may still be wrong."""
    status = "doubtful" if timing.doubt else "measured" if timing.complete else "slower"
    reason = "; ".join(text for text in (timing.doubt, unsure) if text)
    return Record(name, status, reason, timing.median_s, _build_s(artifact), tied=timing.tied)


def _count_threads(artifact: KernelArtifact) -> int:
    return int(artifact.target.get("cores", 1)) if artifact.target.get("parallel", True) else 1


def has_guarded_loads(expression: TensorExpr) -> bool:
    """Return whether a load of the expression is guarded; compilers may get such accesses wrong."""
    return any(ld.guard for s in expression.stages for ld in s.loads)


def _build_s(artifact: KernelArtifact) -> float | None:
    seconds: float | None = artifact.build.get("build_s")
    return seconds


def profile(
    expression: TensorExpr, artifacts: Mapping[str, KernelArtifact], seed: int = 0, budget_s: float = 0.06
) -> dict[str, Record]:
    """Check every artifact on the same random inputs and time the correct ones."""
    # Constants are random too: with a caller's zeros, a wrong kernel could give the right result.
    return CpuBench(expression, seed).profile(artifacts, budget_s=budget_s)
