"""A thread's reads of the staged tiles into registers, and the widths of the reads.

The template makes reads wide itself: the compiler finds neighbours only if it can prove an address's alignment, and
storage padding or slots of a pipeline hide that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from roller.expr import Load
from roller.templates.gpu.emit.axis_map import AxisMap, count_register_elements, vector_loop
from roller.templates.gpu.emit.kernel_tensor_context import compute_dtype, promote_narrow_float
from roller.templates.gpu.emit.staged_tiles import StagedTile, TileDomain
from roller.templates.gpu.emit.tir_statements import (
    Buffer,
    Expr,
    Stmt,
    allocate_buffers_around,
    declare_buffer,
    dtype_name,
    load,
    loop,
    sequence_of,
    store,
)
from roller.tile.access import VECTOR_BYTES
from roller_runtime.core.dtypes import DTYPE_BYTES


@dataclass(frozen=True)
class OperandFragment:
    """Registers for a load: ``depth`` innermost reduction points, read at once, per register point of ``maps``."""

    load: Load
    name: str
    maps: tuple[AxisMap, ...]
    depth: int
    target: Buffer

    @classmethod
    def of(cls, load: Load, name: str, maps: tuple[AxisMap, ...], depth: int, dtype: str) -> OperandFragment:
        """Declare the registers of a load."""
        return cls(
            load, name, maps, depth, declare_buffer(name, (count_register_elements(maps) * depth,), dtype, "local")
        )


def vector_axis_of_tile(tile: StagedTile, maps: tuple[AxisMap, ...], domain: TileDomain) -> AxisMap | None:
    """Return the axis along which a thread's chunks are aligned vectors of the scratchpad tile, or ``None`` if none."""
    for m in maps:
        if (
            m.vector > 1
            and (m.interleaved or m.registers % m.vector == 0)
            and _is_aligned_run(tile, m.name, m.vector, domain)
        ):
            return m
    return None


def points_per_read(tile: StagedTile | None, axis: str, width: int, domain: TileDomain) -> int:
    """Return the number of ``width`` successive points of a reduction axis that one read delivers: all, or one."""
    return width if tile is not None and width > 1 and _is_aligned_run(tile, axis, width, domain) else 1


def _is_aligned_run(tile: StagedTile, axis: str, width: int, domain: TileDomain) -> bool:
    """Return whether aligned chunks of ``width`` along an axis are always aligned vectors of the tile."""
    dtype = dtype_name(tile.target)
    if width * DTYPE_BYTES[dtype] > VECTOR_BYTES:
        return False
    for d, (i, pitch) in enumerate(zip(tile.layout.dims, tile.pitch, strict=True)):
        for x in i.terms:
            if x.axis == axis:
                if d != len(tile.layout.dims) - 1 or x.coef != 1:
                    return False
            elif domain.tile[x.axis] > 1 and x.coef * pitch % width:
                return False
        if i.const * pitch % width:
            return False
    return any(x.axis == axis for x in tile.layout.dims[-1].terms)


def read_vector(width: int, element: Callable[[Expr], Expr], dtype: str, put: Callable[[Expr, Expr], Stmt]) -> Stmt:
    """Read ``width`` neighbours from the scratchpad at once and store each in registers with ``put(v, value)``."""
    if compute_dtype(dtype) == dtype:
        return vector_loop(width, lambda v: put(v, element(v)))
    # Half types are converted after the read: a conversion within the read would cause ``width`` reads of two bytes.
    raw = declare_buffer("narrow", (width,), dtype, "local")
    read = vector_loop(width, lambda v: store(raw, element(v), v))
    return allocate_buffers_around(
        [raw], sequence_of([read, loop("e", width, lambda v: put(v, promote_narrow_float(load(raw, v))), unroll=True)])
    )
