"""Position of a program in the roofline of its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.tile.program import RProgram


@dataclass(frozen=True)
class Roofline:
    """A program in the roofline of its device."""

    #: Operations (a multiply-add counts as two), and bytes of inputs and outputs, each counted once.
    flops: float
    compulsory_bytes: float
    peak_flops_per_s: float  #: Peak of the pipe used: the matrix unit, or multiply-adds
    bandwidth_bytes_per_s: float  #: Bandwidth of the slowest layer
    pipe: str  #: Name of the rate in the specification
    seconds: float  #: Predicted time
    clock_hz: float  #: Clock of the peak

    @property
    def intensity(self) -> float:
        """Operations per compulsory byte."""
        return self.flops / self.compulsory_bytes

    @property
    def ridge(self) -> float:
        """Intensity of the ridge point, above which arithmetic is the bound."""
        return self.peak_flops_per_s / self.bandwidth_bytes_per_s

    @property
    def roof_s(self) -> float:
        """Lower bound of direct programs: all operations, or all compulsory bytes, at peak rate."""
        return max(self.flops / self.peak_flops_per_s, self.compulsory_bytes / self.bandwidth_bytes_per_s)

    @property
    def share(self) -> float:
        """Ratio of the lower bound to the predicted time."""
        return self.roof_s / self.seconds

    @property
    def bound(self) -> str:
        """The binding roof: ``"arithmetic"`` or ``"memory"``."""
        return "arithmetic" if self.intensity >= self.ridge else "memory"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        made = {n: getattr(self, n) for n in ("intensity", "ridge", "roof_s", "share", "bound")}
        return {**vars(self), **made}


def roofline(expr: TensorExpr, program: RProgram, spec: DeviceSpec, seconds: float) -> Roofline:
    """Return the roofline position of a program at its predicted time."""
    f, dtype = program.fragment, program.expr.anchor.acc_dtype
    if f is not None:
        pipe = f"{f.rate}.{f.operand}"
        rate = spec.ops_per_s(f.rate, f.operand)
    else:
        rates = spec.compute.ops_per_cycle_per_unit
        pipe = f"fma.{dtype}" if f"fma.{dtype}" in rates else "fma"
        rate = spec.ops_per_s("fma", dtype)
    slowest = spec.home.bandwidth_bytes_per_s
    return Roofline(float(expr.flops), float(expr.compulsory_bytes), 2 * rate, slowest, pipe, seconds, spec.clock_hz)
