"""Registers that hold the elements that a thread loads from one tensor, filled with the widest vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from roller.expr import Index, Load, Tensor
from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import emit_index
from roller.templates.gpu.emit.axis_map import (
    AxisMap,
    RegisterPoint,
    count_register_elements,
    register_index_of_point,
    vector_loop,
)
from roller.templates.gpu.emit.kernel_tensor_context import KernelContext, Reader, promote_narrow_float
from roller.templates.gpu.emit.padding_mask_analysis import depends_on_axis
from roller.templates.gpu.emit.tir_statements import (
    Buffer,
    Expr,
    Stmt,
    allocate_buffers_around,
    declare_buffer,
    dtype_name,
    int32_literal,
    load,
    loop,
    sequence_of,
    store,
)
from roller.tile.memory_strides import row_major_strides
from roller.tile.misaligned_row_starts import RowShift
from roller.tile.vector_access_widths import access_elements_of_chunk


@dataclass(frozen=True)
class RegisterTile:
    """Registers for a thread's elements of one load.

    Parameters
    ----------
    maps
        Maps of the axes on which the load depends, ending with the vector axis.
    vector_axis, width
        Axis and number of elements of one access; ``None`` and 1 for single elements.
    """

    load: Load
    name: str
    maps: tuple[AxisMap, ...]
    buffer: Buffer
    vector_axis: str | None
    width: int

    def index(self, at: RegisterPoint) -> Expr:
        """Return the position of a register point."""
        return register_index_of_point(self.maps, at)

    def move(self, at: RegisterPoint, held: Buffer, place: Expr, *, leave: bool) -> Stmt:
        """Return the copy of one element or chunk to ``held`` at ``place`` if ``leave`` is set, else from there."""
        chunk = 1 if self.vector_axis is None else self.maps[-1].vector
        index, width = self.index(at), min(self.width, chunk)

        def piece(n: Expr) -> Stmt:
            def element(v: Expr) -> Stmt:
                here, there = index + n * width + v, place + n * width + v
                return (
                    store(held, load(self.buffer, here), there)
                    if leave
                    else store(self.buffer, load(held, there), here)
                )

            return vector_loop(width, element)

        return loop("piece", chunk // width, piece, unroll=True)

    def fill(self, ctx: KernelContext, env: Mapping[str, Expr], at: RegisterPoint) -> Stmt:
        """Return the load of one element, or of the vectors of one chunk."""
        source, index, axis = ctx.buffers[self.load.tensor], self.index(at), self.vector_axis
        if axis is None:
            return store(self.buffer, load(source, *(emit_index(i, env) for i in self.load.index)), index)
        chunk = self.maps[-1].vector

        def piece(n: Expr) -> Stmt:
            first = n * self.width
            # Every vector's position is computed separately, because quotients and remainders of an index may change
            # within a chunk.
            where = index_of_neighbour(self.load.index, env, axis)
            where = provably_aligned_positions(where, source, self.width) if self.maps[-1].slack else where
            *rows, place = where(first)
            return vector_loop(
                self.width, lambda v: store(self.buffer, load(source, *rows, place + v), index + first + v)
            )

        return loop("piece", chunk // self.width, piece, unroll=True)

    def load_one_element(self, ctx: KernelContext, env: Mapping[str, Expr], at: RegisterPoint, n: Expr) -> Stmt:
        """Return the load of only element ``n`` of a chunk."""
        axis = self.vector_axis
        assert axis is not None
        places = index_of_neighbour(self.load.index, env, axis)(n)
        return store(self.buffer, load(ctx.buffers[self.load.tensor], *places), self.index(at) + n)


def register_tiles_of_loads(
    ctx: KernelContext, wanted: Sequence[Load], maps: Sequence[AxisMap], prefix: str, shift: RowShift | None = None
) -> list[RegisterTile]:
    """Return registers for each load over the register tile of ``maps``, by position if rows have a ``shift``."""
    found: list[RegisterTile] = []
    prefix = ctx.prefix(prefix)
    for n, ld in enumerate(wanted):
        # The column of a position depends on the row.
        also = shift.start.axes if shift is not None and depends_on_axis(ld, shift.axis) else ()
        mine = [m for m in maps if depends_on_axis(ld, m.name) or m.name in also]
        vector = next((m for m in mine if m.vector > 1), None)
        tensor = ctx.tensors[ld.tensor]
        width = widest_vector_of_access(ld.index, tensor, vector, shift)
        if vector is not None and width > 1:
            mine = [*(m for m in mine if m is not vector), vector]
        dtype = dtype_name(ctx.buffers[ld.tensor])
        held = declare_buffer(f"{prefix}{n}", (count_register_elements(mine),), dtype, "local")
        found.append(
            RegisterTile(ld, f"{prefix}{n}", tuple(mine), held, vector.name if vector and width > 1 else None, width)
        )
    return found


def reader_of_one_register(b: Buffer, index: Expr) -> Reader:
    """Return a reader of one register that ignores its indices."""
    return lambda *_: promote_narrow_float(load(b, index))


def index_of_neighbour(
    index: Sequence[Index], env: Mapping[str, Expr], axis: str, prefix: Sequence[Expr] = ()
) -> Callable[[Expr], list[Expr]]:
    """Return the function from ``n`` to the index of the ``n``-th neighbour of ``env`` along an axis."""
    return lambda n: [*prefix, *(emit_index(i, {**env, axis: env[axis] + n}) for i in index)]


def provably_aligned_positions(
    where: Callable[[Expr], list[Expr]], target: Buffer, width: int
) -> Callable[[Expr], list[Expr]]:
    """Return ``where`` with positions that TVM can prove to be multiples of ``width`` (elements)."""
    # The alignment follows from remainders of row starts, which TVM's analysis of divisors does not track; where TVM
    # cannot prove alignment, it gathers the elements.
    steps = row_major_strides([int(n) for n in target.shape])

    def place(n: Expr) -> list[Expr]:
        flat = sum((i * step for i, step in zip(where(n), steps, strict=True)), start=int32_literal(0))
        return [*(int32_literal(0) for _ in steps[1:]), tirx.floordiv(flat, width) * width]

    return place


def store_in_vectors(
    target: Buffer, where: Callable[[Expr], Sequence[Expr]], value: Callable[[Expr], Expr], count: int,
    width: int | None = None,
) -> Stmt:  # fmt: skip
    """Return the store of ``count`` values in vectors of ``width`` along the target's last dimension."""
    wide = width or count  # values in different vectors need not be neighbours in memory
    out = declare_buffer("out", (wide,), dtype_name(target), "local")

    def piece(n: Expr) -> Stmt:
        fill = loop("e", wide, lambda e: store(out, value(n * wide + e), e), unroll=True)
        *rows, place = where(n * wide)
        return sequence_of([fill, vector_loop(wide, lambda v: store(target, load(out, v), *rows, place + v))])

    return allocate_buffers_around([out], loop("piece", count // wide, piece, unroll=True))


def widest_vector_of_access(
    index: Sequence[Index], tensor: Tensor, m: AxisMap | None, shift: RowShift | None = None
) -> int:
    """Return the widest vector (elements) along an axis that divides all chunks of an access."""
    if m is None:
        return 1
    if m.slack and shift is not None:
        return shift.vector_elements(index, tensor)
    return access_elements_of_chunk(tuple(index), tensor, m.name, m.extent, m.vector)


__all__ = [
    "RegisterTile",
    "widest_vector_of_access",
    "provably_aligned_positions",
    "reader_of_one_register",
    "register_tiles_of_loads",
    "store_in_vectors",
]
