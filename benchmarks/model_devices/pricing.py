"""Predictions of published kernels: at the tile that ran where it is known, else the best program's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import roller
from benchmarks.model_devices.cases import Case, roofline_s
from roller.hardware import DeviceSpec

#: Programs among which the best one is taken where inputs are warm; construction takes all as cold.
AMONG = 8


@dataclass(frozen=True)
class Priced:
    """A case with what is predicted of it (seconds), what bounds it, and a plain roofline."""

    case: Case
    predicted_s: float
    bottleneck: str
    roofline_s: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_s / self.case.measured_s

    @property
    def roofline_ratio(self) -> float:
        """Roofline over measured."""
        return self.roofline_s / self.case.measured_s


def priced(cases: Iterable[Case], specs: dict[str, DeviceSpec]) -> Iterator[Priced]:
    """Yield the predictions of cases, whose specifications are given by name."""
    for case in cases:
        spec, expr = specs[case.spec], case.expression()
        if case.tiles is not None:
            estimate = roller.predict(expr, spec, case.tiles, stages=case.stages, policy=case.policy)
        elif case.policy is not None:
            estimate = roller.predict(expr, spec, policy=case.policy)
        else:
            found = roller.construct(expr, spec, top_k=AMONG if case.warm else 1)
            priced_again = (roller.predict(expr, spec, c.program, warm=case.warm) for c in found)
            estimate = min(priced_again, key=lambda e: e.seconds) if case.warm else found[0].estimate
        yield Priced(case, estimate.seconds, estimate.bottleneck, roofline_s(expr, spec))
