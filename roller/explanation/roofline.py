"""Position of a program on its device's roofline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.tile.program import RProgram


@dataclass(frozen=True)
class Roofline:
    """A program's position on its device's roofline."""

    #: Number of operations (a multiply-add counts as two), and bytes of inputs and outputs, each counted once.
    flops: float
    compulsory_bytes: float
    peak_flops_per_s: float  #: Peak of the pipe used: the matrix unit, or multiply-adds
    bandwidth_bytes_per_s: float  #: Bandwidth of the slowest layer
    pipe: str  #: Name of the pipe's rate in the specification
    seconds: float  #: Predicted time in seconds
    clock_hz: float  #: Clock for which the peak holds

    @property
    def intensity(self) -> float:
        """Operations per compulsory byte."""
        return self.flops / self.compulsory_bytes

    @property
    def ridge(self) -> float:
        """Intensity of the ridge point; programs of higher intensity are compute-bound."""
        return self.peak_flops_per_s / self.bandwidth_bytes_per_s

    @property
    def roof_s(self) -> float:
        """Lower bound on a direct program's time in seconds: all operations, or all compulsory bytes, at peak rate."""
        return max(self.flops / self.peak_flops_per_s, self.compulsory_bytes / self.bandwidth_bytes_per_s)

    @property
    def share(self) -> float:
        """Ratio of the lower bound to the predicted time."""
        return self.roof_s / self.seconds

    @property
    def bound(self) -> str:
        """The roof that limits the program: ``"arithmetic"`` or ``"memory"``."""
        return "arithmetic" if self.intensity >= self.ridge else "memory"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        made = {n: getattr(self, n) for n in ("intensity", "ridge", "roof_s", "share", "bound")}
        return {**vars(self), **made}


def roofline(expr: TensorExpr, program: RProgram, spec: DeviceSpec, seconds: float) -> Roofline:
    """Return a program's position on the roofline at its predicted time."""
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
