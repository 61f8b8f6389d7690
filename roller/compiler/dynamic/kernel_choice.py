"""What is known of the times of kernels of a range, and which of them takes a call: the first that is proven right."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from roller.artifact import KernelArtifact
from roller.compiler.dynamic.box import Sizes
from roller.compiler.dynamic.symbolic_programs import SymbolicProgram
from roller.errors import NoCandidateError
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec

_LOG = logging.getLogger("roller")
#: What a time that was not measured is taken for, over its prediction and what predictions are off by: such kernels
#: were not near the best.
UNMEASURED = 1.1
#: Distance of logarithms of sizes at which a measurement counts a quarter as much as at none.
_APART = 0.05


class RangeKernel(Protocol):
    """A kernel of all sizes from some on, as every kind of device has them."""

    @property
    def program(self) -> SymbolicProgram: ...  # noqa: D102

    @property
    def artifact(self) -> KernelArtifact: ...  # noqa: D102

    def takes(self, sizes: Sizes) -> bool: ...  # noqa: D102

    def at(self, sizes: Sizes, expression: TensorExpr) -> KernelArtifact: ...  # noqa: D102


@dataclass(frozen=True)
class PricedKernel:
    """A built kernel, and what is known of its times.

    Parameters
    ----------
    kernel
        Built and checked.
    places
        Sizes it was compared at.
    predicted
        Seconds ``(places,)``; infinite where it does not take them.
    measured
        Seconds by the position of a place.
    usual
        Measured over predicted seconds of all kernels of the range: what one that was never measured is off by.
    """

    kernel: RangeKernel
    places: tuple[Sizes, ...]
    predicted: np.ndarray
    measured: Mapping[int, float]
    usual: float = 1.0

    @property
    def everywhere(self) -> np.ndarray:
        """Seconds ``(places,)``: measured, or predicted as far off as where it was measured."""
        scale = [self.off(p) for p in self.places]
        return np.array(
            [self.measured.get(n, s * f) for n, (s, f) in enumerate(zip(self.predicted, scale, strict=True))]
        )

    def off(self, sizes: Sizes) -> float:
        """Return its time over the prediction at some sizes, as the nearest measurements say."""
        if not self.measured:
            return self.usual * UNMEASURED
        names = list(self.places[0])
        logs = np.log(np.array([[self.places[n][x] for x in names] for n in self.measured], float))
        distance = np.abs(logs - np.log(np.array([sizes[x] for x in names], float))).sum(axis=1)
        return math.exp(near_most(distance, [math.log(t / self.predicted[n]) for n, t in self.measured.items()]))


def near_most(distances: Sequence[float] | np.ndarray, values: Sequence[float]) -> float:
    """Return the mean of what was found at some distances (of logarithms of sizes), near ones counting most."""
    return float(np.average(values, weights=1.0 / (np.asarray(distances) + _APART) ** 2))


def usual_of(predicted: Mapping[int, np.ndarray], measured: Mapping[int, Mapping[int, float]]) -> float:
    """Return the geometric mean of measured over predicted seconds, by kernel and place; 1 where none was measured."""
    logs = [math.log(t / predicted[n][place]) for n, times in measured.items() for place, t in times.items()]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def fastest_first(judged: Sequence[PricedKernel], sizes: Sizes, spec: DeviceSpec) -> list[int]:
    """Return the positions of the kernels that take some sizes, the one that is likely fastest there first."""
    usable = [n for n, j in enumerate(judged) if j.kernel.takes(sizes)]
    programs = [judged[n].kernel.program for n in usable]
    found = zip(usable, spec.traits.module_for("compiler.dynamic").predicted(programs, sizes, spec), strict=True)
    seconds = {n: s * judged[n].off(sizes) for n, s in found if math.isfinite(s)}
    return sorted(seconds, key=lambda n: seconds[n])


def first_right(judged: Sequence[PricedKernel], expression: TensorExpr, sizes: Sizes, spec: DeviceSpec) -> int:
    """Return the position of the kernel for some sizes: the first that is shown to be right there."""
    reasons, room = [], spec.traits.module_for("compiler.dynamic")
    for row in fastest_first(judged, sizes, spec):
        why = room.fault(judged[row].kernel, expression, sizes, spec)
        if not why:
            return row
        reasons.append(why)
        _LOG.log(room.UNUSED, "%s: a kernel of the range is not used: %s", expression.name, why)
    what = f" that is right: {'; '.join(reasons)}" if reasons else ""
    raise NoCandidateError(
        f"{expression.name}: shapes: expected a kernel for {dict(sizes)}, got none{what}. "
        "Compile for these shapes, or ranges without them."
    )
