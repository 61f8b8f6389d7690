"""A thread's reads of the staged tiles into registers, and their widths.

The template makes reads wide itself: the compiler finds neighbours only if it can prove an address's alignment, and
storage padding or slots of a pipeline hide that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from roller.core.dtypes import DTYPE_BYTES
from roller.expr import Load
from roller.templates.gpu.emit.context import compute_dtype, promote
from roller.templates.gpu.emit.mapping import AxisMap, register_count, vector_loop
from roller.templates.gpu.emit.nest import Buffer, Expr, Stmt, buffer, dtype_name, load, loop, seq, store, with_buffers
from roller.templates.gpu.emit.staging import Domain, StagedTile
from roller.tile.access import VECTOR_BYTES


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
        return cls(load, name, maps, depth, buffer(name, (register_count(maps) * depth,), dtype, "local"))


def vector_map(tile: StagedTile, maps: tuple[AxisMap, ...], domain: Domain) -> AxisMap | None:
    """Return the axis along which a thread's chunks are aligned vectors of the scratchpad tile, if any."""
    for m in maps:
        if m.vector > 1 and (m.interleaved or m.registers % m.vector == 0) and _runs(tile, m.name, m.vector, domain):
            return m
    return None


def depth_of(tile: StagedTile | None, axis: str, width: int, domain: Domain) -> int:
    """Return the number of ``width`` successive points of a reduction axis that one read delivers: all, or one."""
    return width if tile is not None and width > 1 and _runs(tile, axis, width, domain) else 1


def _runs(tile: StagedTile, axis: str, width: int, domain: Domain) -> bool:
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
    """Read ``width`` neighbours of the scratchpad at once and ``put(v, value)`` them into registers."""
    if compute_dtype(dtype) == dtype:
        return vector_loop(width, lambda v: put(v, element(v)))
    # Half types are converted after the read: a conversion within the read would cause ``width`` reads of two bytes.
    raw = buffer("narrow", (width,), dtype, "local")
    read = vector_loop(width, lambda v: store(raw, element(v), v))
    return with_buffers([raw], seq([read, loop("e", width, lambda v: put(v, promote(load(raw, v))), unroll=True)]))
