"""What floats of fewer than 32 bits cost on a CPU, which computes them in float32: conversions, where they happen.

Panels and boxes hold float32, so that an operand is converted once, as it is packed; one read in place, or from a panel
that keeps what is stored, is converted by every load of the micro-kernel.
"""

from __future__ import annotations

from roller.core.dtypes import DTYPES
from roller.expr import Cast, Load, Stage, TensorExpr, walk
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.templates.cpu.common.lanes import rate_of
from roller.templates.cpu.decide import IN_PLACE, decided
from roller.templates.cpu.narrow_floats import is_converted
from roller.tile.geometry import Access

#: Conversions of a vector that one of a broadcast element takes: it goes to a vector register on its own, is converted
#: there, and is spread over the lanes; instructions of our templates as LLVM writes them on AVX-512.
BROADCAST_CONVERSIONS = 2.5


def conversion_cycles(access: Access, spec: DeviceSpec) -> float:
    """Return cycles of converting one vector of a tensor's elements as it is loaded; 0 of one that needs no such."""
    return spec.teu.lanes / rate_of(spec, "convert", access.tensor.dtype) if is_converted(access) else 0.0


def kernel_conversion_cycles(access: Access, batch: TileBatch, spec: DeviceSpec) -> float:
    """Return cycles a micro-kernel takes to convert one vector of an operand that nobody has converted."""
    d = decided(batch, spec)
    return conversion_cycles(access, spec) if d.keeps_stored(access) or d.staging(access) == IN_PLACE else 0.0


def stored_cycles(expr: TensorExpr, spec: DeviceSpec) -> float:
    """Return cycles of converting one vector of every result as it is stored."""
    narrow = (t.dtype for t in expr.output_tensors if DTYPES[t.dtype].is_narrow)
    return sum(spec.teu.lanes / rate_of(spec, "convert", dtype) for dtype in narrow)


def loaded_conversions(expr: TensorExpr, stage: Stage) -> int:
    """Return the conversions in a stage's body that are of what a load brings: where it is packed, there are none."""
    return sum(
        isinstance(n, Cast) and isinstance(n.arg, Load) and DTYPES[expr.tensors[n.arg.tensor].dtype].is_narrow
        for n in walk(stage.body)
    )
