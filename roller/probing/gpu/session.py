"""The times a GPU's probes ask for: measured when asked on a device, or read from what a bundle brought home."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roller.errors import SpecError
from roller.hardware import DeviceSpec
from roller.probing.measured import Measured, best_of
from roller.runtime.probe_format import Case, ProbePlan

#: Results of a plan: per case, what the device process answered.
Results = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Timed:
    """One case and its times.

    Parameters
    ----------
    case
        The case.
    steps
        Steps ``n`` of the short run.
    once, twice
        Seconds of each run of ``n`` and of ``2n`` steps.
    cycles
        Cycles of a step, where counted.
    """

    case: Case
    steps: int
    once: tuple[float, ...]
    twice: tuple[float, ...]
    cycles: float | None = None

    @property
    def step(self) -> Measured:
        """Seconds of a step: what ``n`` steps more take longer, so that launch and start-up cancel."""
        return best_of(self.twice).minus(best_of(self.once)).times(1 / self.steps)

    def drawn(self, rng: np.random.Generator) -> float:
        """Return seconds of a step from one run of each kind, of the faster half."""
        short, long = (sorted(x)[: max(3, len(x) // 2)] for x in (self.once, self.twice))
        return max(1e-15, (float(rng.choice(long)) - float(rng.choice(short))) / self.steps)


class GpuSession:
    """What the probes of one device know.

    Parameters
    ----------
    spec
        Its specification before.
    source
        Plan -> results by case; runs it, or looks it up.
    """

    def __init__(self, spec: DeviceSpec, source: Callable[[ProbePlan], Results]) -> None:
        self.spec = spec
        self._source = source
        #: Clock the tiles probe found under load (Hz); the specification's until then.
        self.clock_hz = spec.clock_hz
        #: What a person should know: cases that failed, and why.
        self.remarks: list[str] = []

    def measure(self, plan: ProbePlan) -> dict[str, Timed]:
        """Return the cases of a plan that ran and were right, by key; each other is a remark."""
        results = self._source(plan)
        good = {}
        for case in plan.cases:
            r = results.get(case.key, {"status": "missing", "reason": "was not run"})
            if r["status"] != "measured":
                self.remarks.append(f"{case.key}: {r['status']}: {r['reason']}")
                continue
            cycles = None
            if r.get("cycles"):
                short, long = (float(np.median(c)) for c in r["cycles"])
                cycles = (long - short) / r["steps"]
            good[case.key] = Timed(case, int(r["steps"]), tuple(r["once"]), tuple(r["twice"]), cycles)
        if not good:
            raise SpecError(
                f"probe '{plan.name}': no case succeeded: {self.remarks[-1]}. Correct what is named and repeat."
            )
        return good

    def taken(self) -> tuple[str, ...]:
        """Return the remarks since the last time, and forget them."""
        found, self.remarks = tuple(self.remarks), []
        return found


def doubted(reason: object, doubts: dict[str, str], *paths: str) -> dict[str, Measured]:
    """Return values that must not be written, and note why."""
    doubts.update(dict.fromkeys(paths, str(reason)))
    return dict.fromkeys(paths, Measured(0.0, math.inf, 0))


def samples_of(timed: Sequence[Timed]) -> int:
    """Return the windows behind some cases."""
    return sum(len(t.once) + len(t.twice) for t in timed)
