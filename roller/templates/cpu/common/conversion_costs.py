"""Cost of converting narrow floats on a CPU, which computes with them in float32.

Panels and boxes hold float32, so packing converts an operand once; every load of the micro-kernel converts an operand
that is read in place, or from a panel that keeps the stored dtype.
"""

from __future__ import annotations

from roller.expr import Cast, Load, Stage, TensorExpr, walk_scalar_tree
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.cpu.common.lanes_and_cache_room import ops_per_cycle
from roller.templates.cpu.decisions import IN_PLACE, decisions_for_device
from roller.templates.cpu.narrow_floats import is_computed_in_float32
from roller.tile.geometry import Access
from roller_runtime.core.dtypes import DTYPES

#: Cost of converting a broadcast element relative to converting a vector: the element moves to a vector register, is
#: converted there, and is spread over the lanes. The ratio follows from the instructions that LLVM emits for our
#: templates on AVX-512.
BROADCAST_CONVERSIONS = 2.5


def load_conversion_cycles(access: Access, spec: DeviceSpec) -> float:
    """Return how many cycles it takes to convert one loaded vector of a tensor, or 0 if it is not converted."""
    return (
        spec.teu.lanes / ops_per_cycle(spec, "convert", access.tensor.dtype) if is_computed_in_float32(access) else 0.0
    )


def kernel_conversion_cycles(access: Access, batch: TileBatch, spec: DeviceSpec) -> float:
    """Return how many cycles a micro-kernel takes to convert one vector of an operand, or 0 if packing converts it."""
    d = decisions_for_device(batch, spec)
    return (
        load_conversion_cycles(access, spec)
        if d.panel_keeps_stored_dtype(access) or d.staging(access) == IN_PLACE
        else 0.0
    )


def store_conversion_cycles(expr: TensorExpr, spec: DeviceSpec) -> float:
    """Return how many cycles it takes to convert one vector of each result for storage."""
    narrow = (t.dtype for t in expr.output_tensors if DTYPES[t.dtype].is_narrow)
    return sum(spec.teu.lanes / ops_per_cycle(spec, "convert", dtype) for dtype in narrow)


def count_load_conversions(expr: TensorExpr, stage: Stage) -> int:
    """Return the number of conversions of loaded values in a stage's body, which packing makes unnecessary."""
    return sum(
        isinstance(n, Cast) and isinstance(n.arg, Load) and DTYPES[expr.tensors[n.arg.tensor].dtype].is_narrow
        for n in walk_scalar_tree(stage.body)
    )
