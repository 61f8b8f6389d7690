"""Copies of operand tiles into the swizzled lines that warp groups read."""

from __future__ import annotations

from collections.abc import Mapping

from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import constant, emit_bounds, emit_index
from roller.templates.gpu.emit import device_functions as device
from roller.templates.gpu.emit.kernel_tensor_context import KernelContext
from roller.templates.gpu.emit.staged_tiles import TileDomain
from roller.templates.gpu.emit.tir_statements import (
    Buffer,
    Expr,
    Stmt,
    dtype_name,
    guarded_value,
    if_all,
    load,
    loop,
    store,
)
from roller.tile.vector_access_widths import is_vectorizable
from roller.tile.warp_group_tiles import CHUNK_BYTES, GroupTile

#: Number of a thread's copies that are unrolled together: their addresses occupy registers.
_UNROLLED = 8


def copy_group_tile(
    ctx: KernelContext, t: GroupTile, domain: TileDomain, base: Mapping[str, Expr], threads: tuple[Expr, int],
    target: Buffer,
    start: Expr,
) -> Stmt:  # fmt: skip
    """Return the cooperative copy of a tile to element ``start`` of the scratchpad, with zeros beyond the tensor."""
    thread, together = threads
    width = t.chunk if _chunks_are_aligned_runs(ctx, t, domain) else 1  # chunks are copied asynchronously
    columns = t.length // width
    total = t.lines * columns
    rounds = -(-total // together)
    groups = next(g for g in range(1, rounds + 1) if rounds % g == 0 and rounds // g <= _UNROLLED)

    def one(r: Expr) -> Stmt:
        flat = r * together + thread
        line, column = tirx.floordiv(flat, columns), tirx.floormod(flat, columns) * width
        position = t.position(line, tirx.floordiv(column, t.chunk)) + tirx.floormod(column, t.chunk)
        row, k = (line, column) if t.k_major else (column, line)
        env = {**base, t.axis: base[t.axis] + row, t.k_axis: base[t.k_axis] + k}
        inside = [env[a] < domain.real[a] for a in (t.axis, t.k_axis) if domain.overhangs(a)]
        inside += emit_bounds(t.load.guard, env)
        index = [emit_index(i, env) for i in t.load.index]
        body = _copy_elements(ctx, t, inside, index, target, start + position, width)
        return if_all([flat < total] if total % together else [], body)

    unrolled = rounds // groups
    return loop("copy", groups, lambda g: loop("c", unrolled, lambda c: one(g * unrolled + c), unroll=True))


def _copy_elements(
    ctx: KernelContext, t: GroupTile, inside: list[Expr], index: list[Expr], target: Buffer, offset: Expr, width: int
) -> Stmt:
    name = t.load.tensor
    if width > 1:
        source = device.address_of_element(ctx.buffers[name], *index)
        return device.copy_async(CHUNK_BYTES, device.address_of_element(target, offset), source, inside)
    dtype = dtype_name(target)
    value = (
        load(ctx.buffers[name], *index) if ctx.is_in_global_memory(name) else ctx.readers()[name](*index).astype(dtype)
    )
    return store(target, guarded_value(inside, value, constant(0.0, dtype)), offset)


def _chunks_are_aligned_runs(ctx: KernelContext, t: GroupTile, domain: TileDomain) -> bool:
    """Return whether every chunk is one aligned run of the tensor, wholly inside or outside it."""
    axis = t.along
    if (
        not ctx.is_in_global_memory(t.load.tensor)
        or ctx.is_scalar(t.load)
        or any(axis in b.index.axes for b in t.load.guard)
    ):
        return False
    return is_vectorizable(t.load.index, t.tensor, axis, domain.real[axis], t.chunk)
