"""Times of the kernels for a range, and the choice of the fastest kernel that is proven correct for a call."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from roller.artifact import KernelArtifact
from roller.compiler.dynamic.dynamic_size_box import Sizes
from roller.compiler.dynamic.symbolic_programs import SymbolicProgram
from roller.errors import NoCandidateError
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec

_LOG = logging.getLogger("roller")
#: Factor on the corrected prediction for an unmeasured kernel: such kernels were not near the best.
UNMEASURED = 1.1
#: Distance between logarithms of sizes at which a measurement's weight falls to a quarter.
_APART = 0.05


class RangeKernel(Protocol):
    """Protocol of a kernel for a range of sizes on any kind of device."""

    @property
    def program(self) -> SymbolicProgram: ...  # noqa: D102

    @property
    def artifact(self) -> KernelArtifact: ...  # noqa: D102

    def takes(self, sizes: Sizes) -> bool: ...  # noqa: D102

    def at(self, sizes: Sizes, expression: TensorExpr) -> KernelArtifact: ...  # noqa: D102


@dataclass(frozen=True)
class PricedKernel:
    """A checked kernel with its times."""

    kernel: RangeKernel
    places: tuple[Sizes, ...]  #: Sample sizes
    predicted: np.ndarray  #: Predicted seconds, shape ``(places,)``; infinite where unsupported
    measured: Mapping[int, float]  #: Measured seconds by index in ``places``
    #: Mean ratio of measured to predicted time over all kernels of the range, for kernels without measurements.
    usual: float = 1.0

    @property
    def seconds_at_samples(self) -> np.ndarray:
        """Seconds, shape ``(places,)``: measured, or predicted and corrected by measurements."""
        scale = [self.off(p) for p in self.places]
        return np.array(
            [self.measured.get(n, s * f) for n, (s, f) in enumerate(zip(self.predicted, scale, strict=True))]
        )

    def off(self, sizes: Sizes) -> float:
        """Return the ratio of measured to predicted time at the given sizes, estimated from nearby measurements."""
        if not self.measured:
            return self.usual * UNMEASURED
        names = list(self.places[0])
        logs = np.log(np.array([[self.places[n][x] for x in names] for n in self.measured], float))
        distance = np.abs(logs - np.log(np.array([sizes[x] for x in names], float))).sum(axis=1)
        return math.exp(
            distance_weighted_mean(distance, [math.log(t / self.predicted[n]) for n, t in self.measured.items()])
        )


def distance_weighted_mean(distances: Sequence[float] | np.ndarray, values: Sequence[float]) -> float:
    """Return the mean of values, weighted towards small distances (between logarithms of sizes)."""
    return float(np.average(values, weights=1.0 / (np.asarray(distances) + _APART) ** 2))


def mean_measured_to_predicted_ratio(
    predicted: Mapping[int, np.ndarray], measured: Mapping[int, Mapping[int, float]]
) -> float:
    """Return the geometric mean, over kernels and places, of measured over predicted time; 1 without measurements."""
    logs = [math.log(t / predicted[n][place]) for n, times in measured.items() for place, t in times.items()]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def seconds_by_kernel(priced: Sequence[PricedKernel], sizes: Sizes, spec: DeviceSpec) -> dict[int, float]:
    """Return predicted seconds, corrected by measurements, of the kernels that support the sizes, by position."""
    usable = [n for n, j in enumerate(priced) if j.kernel.takes(sizes)]
    programs = [priced[n].kernel.program for n in usable]
    found = zip(usable, spec.traits.module_for("compiler.dynamic").predicted(programs, sizes, spec), strict=True)
    return {n: s * priced[n].off(sizes) for n, s in found if math.isfinite(s)}


def rank_kernels_by_time(priced: Sequence[PricedKernel], sizes: Sizes, spec: DeviceSpec) -> list[int]:
    """Return the positions of the kernels that support the sizes, the likely fastest kernel first."""
    seconds = seconds_by_kernel(priced, sizes, spec)
    return sorted(seconds, key=lambda n: seconds[n])


def fastest_proven_kernel(
    priced: Sequence[PricedKernel], expression: TensorExpr, sizes: Sizes, spec: DeviceSpec
) -> int:
    """Return the position of the fastest kernel that is proven correct at the sizes."""
    reasons, device_module = [], spec.traits.module_for("compiler.dynamic")
    for row in rank_kernels_by_time(priced, sizes, spec):
        why = device_module.fault(priced[row].kernel, expression, sizes, spec)
        if not why:
            return row
        reasons.append(why)
        _LOG.log(device_module.UNUSED, "%s: a kernel of the range is not used: %s", expression.name, why)
    what = f" that is right: {'; '.join(reasons)}" if reasons else ""
    raise NoCandidateError(
        f"{expression.name}: shapes: expected a kernel for {dict(sizes)}, got none{what}. "
        "Compile for these shapes, or ranges without them."
    )
