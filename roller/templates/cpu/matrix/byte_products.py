"""Sums of byte products: the load packed for the lanes, and the axis whose bytes form words."""

from __future__ import annotations

import numpy as np

from roller.core.matrix_instruction_fragment import Fragment
from roller.expr import Call, Cast, Load, Scalar, Stage, strided_run_along
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.cpu.common.candidate_axes_and_task_shapes import candidate_vector_axes
from roller.templates.cpu.staging_and_contiguity_checks import words_are_readable
from roller.tile.geometry import Access, Geometry
from roller.tile.structures import MATRIX, structure_of

#: Dtypes of the operands in memory.
BYTES = ("int8", "uint8")


def factors_of_byte_product(stage: Stage) -> tuple[Load, Load] | None:
    """Return the two loads whose product a stage sums in int32, or ``None`` for other stages."""
    if stage.combiner != "sum" or stage.acc_dtype != "int32" or not isinstance(stage.body, Call):
        return None
    if stage.body.fn != "mul":
        return None
    one, other = (_load_widened_to_int32(f) for f in stage.body.args)
    return None if one is None or other is None or one.tensor == other.tensor else (one, other)


def _load_widened_to_int32(factor: Scalar) -> Load | None:
    """Return the load if a factor is a load, possibly converted to int32; otherwise return ``None``."""
    if isinstance(factor, Cast) and factor.dtype == "int32":
        factor = factor.arg
    return factor if isinstance(factor, Load) else None


def supported_fragments(spec: DeviceSpec) -> list[Fragment]:
    """Return the instructions whose features the processor's target lists."""
    # Among instructions with one row, only the fastest is kept: with the same tiles and smaller panels, it is never
    # slower.
    features, rates = spec.target.get("features", "").split(), spec.compute.ops_per_cycle_per_unit
    here = [f for f in spec.fragments if f.arch in features]
    vectors = [f for f in here if f.m == 1]
    best = max(vectors, key=lambda f: rates[f"{f.rate}.{f.operand}"], default=None)
    return [f for f in here if f.m > 1 or f is best]


def byte_product_axes(geometry: Geometry, spec: DeviceSpec, fragment: Fragment) -> list[tuple[str, str, str]]:
    """Return the axes along which an instruction's rows, lanes and words may run, as tuples ``(m, n, k)``."""
    # Lanes run along an axis that indexes one operand only. Words run along the reduction axis in which the other
    # operand has contiguous words, else along the axis that wastes the least.
    expr = geometry.expr
    loads = factors_of_byte_product(expr.anchor)
    if fragment not in supported_fragments(spec) or not structure_of(geometry).reuses or loads is None:
        return []
    if any(expr.tensors[x.tensor].dtype not in BYTES for x in loads) or len(geometry.loads) != len(loads):
        return []
    found = []
    for v in candidate_vector_axes(geometry, MATRIX):
        if geometry.extents[v] < fragment.n or sum(bool(a.uses[v]) for a in geometry.loads) != 1:
            continue
        packed, other = sorted(geometry.loads, key=lambda a: not a.uses[v])
        k = _reduction_axis_of_words(geometry, packed, other, fragment)
        m = _row_axis(geometry, packed, other, v)
        alone = bool(other.uses[m] and not packed.uses[m])
        if k is not None and (alone or fragment.m == 1):
            found.append((geometry.names[m], geometry.names[v], geometry.names[k]))
    return found


def _reduction_axis_of_words(geometry: Geometry, packed: Access, other: Access, fragment: Fragment) -> int | None:
    """Return the reduction axis that is divided into words, or ``None`` if there is none."""
    axes = [int(a) for a in np.flatnonzero(~geometry.spatial & packed.uses & other.uses) if geometry.extents[a] > 1]

    def order(a: int) -> tuple[bool, float, int]:
        extent = int(geometry.extents[a])
        size = fragment.depth(extent)
        return not words_are_readable(other, a, fragment), -(-extent // size) * fragment.k / extent, -extent

    return min(axes, key=order, default=None)


def _row_axis(geometry: Geometry, packed: Access, other: Access, v: int) -> int:
    """Return the longest axis along which rows reuse the lanes' operand; for a single row, return any axis."""
    axes = [int(a) for a in np.flatnonzero(geometry.spatial) if a != v]
    return max(axes, key=lambda a: (bool(other.uses[a] and not packed.uses[a]), int(geometry.extents[a])), default=v)


def broadcast_and_packed_operands(batch: TileBatch) -> tuple[Access, Access]:
    """Return the operand whose words are broadcast to all lanes, and the operand packed for the lanes."""
    v = batch.vector_axis
    assert v is not None
    packed, other = sorted(batch.geometry.loads, key=lambda a: not a.uses[v])
    return other, packed


def needs_sign_move(batch: TileBatch) -> bool:
    """Return whether one operand is offset by 128: both are signed or both unsigned, but one of each is needed."""
    a, b = broadcast_and_packed_operands(batch)
    return a.tensor.dtype == b.tensor.dtype and not (batch.fragment and batch.fragment.accepts_any_signs)


def rows_are_equidistant(access: Access, axis: int) -> bool:
    """Return whether rows of a tensor along an axis are equidistant in memory."""
    run = strided_run_along(access.index, access.tensor.shape, access.axis_names[axis], int(access.axis_extents[axis]))
    return run is not None and run.length >= access.axis_extents[axis] and run.step > 0
