"""Registers that hold the elements a thread loads of one tensor, filled in the widest vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from roller.codegen.gpu.access import depends, vectorizable
from roller.codegen.gpu.context import Context, Reader, promote
from roller.codegen.gpu.mapping import AxisMap, Registers, register_count, register_index, vector_loop
from roller.codegen.gpu.nest import Buffer, Expr, Stmt, buffer, dtype_name, load, loop, seq, store, with_buffers
from roller.expr import Index, Load, Stage
from roller.te.emit import emit_index


@dataclass(frozen=True)
class Fragment:
    """One load's elements of a thread.

    ``maps`` are the axes it moves with, the vector axis last; ``width`` elements along ``vector_axis`` are one access
    (1: single elements, and no such axis).
    """

    load: Load
    name: str
    maps: tuple[AxisMap, ...]
    buffer: Buffer
    vector_axis: str | None
    width: int

    def index(self, at: Registers) -> Expr:
        """Return the position of a register point."""
        return register_index(self.maps, at)

    def move(self, at: Registers, held: Buffer, place: Expr, *, leave: bool) -> Stmt:
        """Return the copy of one element or chunk to ``held`` (``leave``) or from there; ``place`` is where it lies."""
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

    def fill(self, ctx: Context, env: Mapping[str, Expr], at: Registers) -> Stmt:
        """Return the load of one element, or of the vectors of one chunk."""
        source, index, axis = ctx.buffers[self.load.tensor], self.index(at), self.vector_axis
        if axis is None:
            return store(self.buffer, load(source, *(emit_index(i, env) for i in self.load.index)), index)
        chunk = self.maps[-1].vector

        def piece(n: Expr) -> Stmt:
            first = n * self.width
            # Every vector is found anew: a quotient steps, and a remainder starts again, between those of a chunk.
            *rows, place = neighbour(self.load.index, env, axis)(first)
            return vector_loop(
                self.width, lambda v: store(self.buffer, load(source, *rows, place + v), index + first + v)
            )

        return loop("piece", chunk // self.width, piece, unroll=True)


def fragments(ctx: Context, wanted: Sequence[Load], maps: Sequence[AxisMap], prefix: str) -> list[Fragment]:
    """Return a fragment for every load, for the register tile of ``maps``."""
    found: list[Fragment] = []
    prefix = ctx.prefix(prefix)
    for n, ld in enumerate(wanted):
        mine = [m for m in maps if depends(ld, m.name)]
        vector = next((m for m in mine if m.vector > 1), None)
        width = vector.vector if vector is not None else 1
        tensor = ctx.tensors[ld.tensor]
        while (
            vector is not None and width > 1 and not vectorizable(ld.index, tensor, vector.name, vector.extent, width)
        ):
            width //= 2
        if vector is not None and width > 1:
            mine = [*(m for m in mine if m is not vector), vector]
        dtype = dtype_name(ctx.buffers[ld.tensor])
        held = buffer(f"{prefix}{n}", (register_count(mine),), dtype, "local")
        found.append(
            Fragment(ld, f"{prefix}{n}", tuple(mine), held, vector.name if vector and width > 1 else None, width)
        )
    return found


def element_reader(b: Buffer, index: Expr) -> Reader:
    """Return a reader of one register, whatever the indices it is called with."""
    return lambda *_: promote(load(b, index))


def neighbour(
    index: Sequence[Index], env: Mapping[str, Expr], axis: str, prefix: Sequence[Expr] = ()
) -> Callable[[Expr], list[Expr]]:
    """Return the function that gives the place of the ``n``-th neighbour of ``env`` along an axis."""
    return lambda n: [*prefix, *(emit_index(i, {**env, axis: env[axis] + n}) for i in index)]


def vector_store(
    target: Buffer, where: Callable[[Expr], Sequence[Expr]], value: Callable[[Expr], Expr], count: int,
    width: int | None = None,
) -> Stmt:  # fmt: skip
    """Return the store of ``count`` values in vectors of ``width`` along the target's last dimension.

    ``where(n)`` is the index of value ``n``: neighbours beyond a vector need not be neighbours in memory.
    """
    wide = width or count
    out = buffer("out", (wide,), dtype_name(target), "local")

    def piece(n: Expr) -> Stmt:
        fill = loop("e", wide, lambda e: store(out, value(n * wide + e), e), unroll=True)
        *rows, place = where(n * wide)
        return seq([fill, vector_loop(wide, lambda v: store(target, load(out, v), *rows, place + v))])

    return with_buffers([out], loop("piece", count // wide, piece, unroll=True))


def store_width(s: Stage, m: AxisMap | None) -> int:
    """Widest vector (elements) along an axis that every chunk of a stage's output is made of."""
    width = m.vector if m is not None else 1
    while m is not None and width > 1 and not vectorizable(s.store, s.output, m.name, m.extent, width):
        width //= 2
    return width


__all__ = ["Fragment", "element_reader", "fragments", "store_width", "vector_store"]
