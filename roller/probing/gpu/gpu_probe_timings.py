"""Times of GPU probes, measured on a device or read from a bundle's results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roller.errors import SpecError
from roller.hardware import DeviceSpec
from roller.probing.robust_window_statistics import MeasuredValue, median_of_fastest_windows
from roller.runtime.probe_plan_format import ProbeCase, ProbePlan

#: Results of a plan by case, as the device process reports them.
Results = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class TimedCase:
    """One case and its times."""

    case: ProbeCase
    steps: int  #: Number of steps ``n`` of the short run
    #: Times, in seconds, of the runs of ``n`` steps and of the runs of ``2n`` steps.
    once: tuple[float, ...]
    twice: tuple[float, ...]
    cycles: float | None = None  #: Number of cycles per step, if counted

    @property
    def step(self) -> MeasuredValue:
        """Time per step in seconds, from the difference between the runs, which cancels launch and start-up times."""
        return (
            median_of_fastest_windows(self.twice)
            .difference_from(median_of_fastest_windows(self.once))
            .times(1 / self.steps)
        )

    def drawn(self, rng: np.random.Generator) -> float:
        """Return the time per step, in seconds, from one random run of each kind, drawn from the faster halves."""
        short, long = (sorted(x)[: max(3, len(x) // 2)] for x in (self.once, self.twice))
        return max(1e-15, (float(rng.choice(long)) - float(rng.choice(short))) / self.steps)


class GpuSession:
    """State of the probes for one GPU; ``source`` runs a plan or looks up its results by case."""

    def __init__(self, spec: DeviceSpec, source: Callable[[ProbePlan], Results]) -> None:
        self.spec = spec
        self._source = source
        #: Clock under load (Hz) from the tiles probe; before it, the specification's.
        self.clock_hz = spec.clock_hz
        #: Messages about failed cases.
        self.remarks: list[str] = []

    def measure(self, plan: ProbePlan) -> dict[str, TimedCase]:
        """Return the successful cases of a plan, indexed by key; each failure becomes a remark."""
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
            good[case.key] = TimedCase(case, int(r["steps"]), tuple(r["once"]), tuple(r["twice"]), cycles)
        if not good:
            raise SpecError(
                f"probe '{plan.name}': no case succeeded: {self.remarks[-1]}. Correct what is named and repeat."
            )
        return good

    def taken(self) -> tuple[str, ...]:
        """Return the remarks since the last call, and clear them."""
        found, self.remarks = tuple(self.remarks), []
        return found


def mark_values_as_rejected(reason: object, doubts: dict[str, str], *paths: str) -> dict[str, MeasuredValue]:
    """Record ``reason`` in ``doubts`` for each path, and return values of infinite spread, which are not written."""
    doubts.update(dict.fromkeys(paths, str(reason)))
    return dict.fromkeys(paths, MeasuredValue(0.0, math.inf, 0))


def count_windows(timed: Sequence[TimedCase]) -> int:
    """Return the total number of windows in the cases."""
    return sum(len(t.once) + len(t.twice) for t in timed)
