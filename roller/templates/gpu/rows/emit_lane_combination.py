"""Combines the accumulators of the threads (lanes) that share a row.

Neighbouring lanes of a warp exchange by butterfly shuffles, after which all hold the same bits; several warps of one
row exchange once in the scratchpad. Other lanes store their accumulators there, and the first lane adds them in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from roller.te.compat import tirx
from roller.templates.gpu.common.lane_exchange import LaneExchange, accumulators_per_access, choose_lane_exchange
from roller.templates.gpu.emit.axis_map import vector_loop
from roller.templates.gpu.emit.tir_statements import (
    WARP,
    Buffer,
    Expr,
    Stmt,
    allocate_buffers_around,
    block_barrier,
    declare_buffer,
    dtype_name,
    if_all,
    int32_literal,
    load,
    loop,
    sequence_of,
    shuffle_xor,
    store,
)
from roller_runtime.core.dtypes import DTYPE_BYTES

#: Maximum product of parts and accumulators for which a lane's additions are unrolled.
_UNROLLED = 64
#: Combines two partial results.
Combine = Callable[[Expr, Expr], Expr]


@dataclass(frozen=True)
class RowLanes:
    """The threads of a row: ``lane`` of ``count``, in row ``row`` of ``rows``.

    Parameters
    ----------
    axis
        Thread axis of the lanes; ``None`` for a single lane.
    neighbours
        Whether lanes run along ``threadIdx.x``.
    """

    axis: Any
    count: int
    row: Expr
    rows: int
    neighbours: bool

    @property
    def lane(self) -> Expr:
        """Index of this thread among the threads of its row."""
        return self.axis.var if self.axis is not None else int32_literal(0)

    def combine(self, result: Buffer, size: int, function: Combine, *, everyone: bool) -> Stmt:
        """Combine ``result[0:size]`` over the lanes of a row, at least in the first lane (``everyone``: in all)."""
        way = int(choose_lane_exchange(self.count, self.rows, DTYPE_BYTES[dtype_name(result)], along=self.neighbours))
        if way == LaneExchange.ALONE:
            return sequence_of([])
        if way == LaneExchange.SHUFFLES:
            return self._combine_by_shuffles(result, size, function, self.count)
        if way == LaneExchange.WARPS:
            return self._combine_warps(result, size, function)
        return self._combine_in_scratchpad(result, size, function, everyone)

    def _combine_by_shuffles(self, result: Buffer, size: int, function: Combine, lanes: int) -> Stmt:
        """Combine ``result`` within groups of ``lanes`` neighbours in a warp."""

        def one(i: Expr) -> Stmt:
            found, distance = [], lanes // 2
            while distance:
                own = load(result, i)
                found.append(store(result, function(own, shuffle_xor(own, distance)), i))
                distance //= 2
            return sequence_of(found)

        return loop("exchange", size, one, unroll=True)

    def _combine_warps(self, result: Buffer, size: int, function: Combine) -> Stmt:
        warps = self.count // WARP
        parts = declare_buffer("parts", (size * self.rows * warps,), dtype_name(result), "shared")

        def place(i: Expr, warp: Expr) -> Expr:
            return (i * self.rows + self.row) * warps + warp

        leave = loop(
            "i", size, lambda i: store(parts, load(result, i), place(i, tirx.floordiv(self.lane, WARP))), unroll=True
        )
        leave = if_all([tirx.floormod(self.lane, WARP).equal(0)], leave)
        within = self._combine_by_shuffles(result, size, function, WARP)
        if warps & (warps - 1) == 0 and warps > 2:
            fetch = lambda i: store(result, load(parts, place(i, tirx.floormod(self.lane, warps))), i)  # noqa: E731
            gather = loop("i", size, fetch, unroll=True)
            return allocate_buffers_around(
                [parts],
                sequence_of(
                    [within, leave, block_barrier(), gather, self._combine_by_shuffles(result, size, function, warps)]
                ),
            )

        def add(i: Expr) -> Stmt:
            first = store(result, load(parts, place(i, int32_literal(0))), i)
            rest = loop(
                "w", warps - 1,
                lambda w: store(result, function(load(result, i), load(parts, place(i, w + 1))), i), unroll=True,
            )  # fmt: skip
            return sequence_of([first, rest])

        return allocate_buffers_around(
            [parts], sequence_of([within, leave, block_barrier(), loop("i", size, add, unroll=True)])
        )

    def _combine_in_scratchpad(self, result: Buffer, size: int, function: Combine, everyone: bool) -> Stmt:
        """Let the first lane add the others' accumulators, which move as vectors without bank conflicts."""
        dtype = dtype_name(result)
        width = int(accumulators_per_access(size, DTYPE_BYTES[dtype]))
        parts, total = (
            declare_buffer(n, (c * self.rows * size,), dtype, "shared")
            for n, c in (("parts", self.count), ("total", 1))
        )
        other = declare_buffer("other", (size,), dtype, "local")

        def move(target: Buffer, source: Buffer, to: Expr, start: Expr) -> Stmt:
            def piece(n: Expr) -> Stmt:
                return vector_loop(
                    width, lambda v: store(target, load(source, start + n * width + v), to + n * width + v)
                )

            return loop("piece", size // width, piece, unroll=True)

        def add(n: Expr) -> Stmt:
            fetch = move(other, parts, int32_literal(0), ((n + 1) * self.rows + self.row) * size)
            each = lambda i: store(result, function(load(result, i), load(other, i)), i)  # noqa: E731
            return sequence_of([fetch, loop("i", size, each, unroll=True)])

        gather = loop("lane", self.count - 1, add, unroll=self.count * size <= _UNROLLED)
        leave = move(parts, result, (self.lane * self.rows + self.row) * size, int32_literal(0))
        first = [self.lane.equal(0)]
        if not everyone:
            return allocate_buffers_around([parts, other], sequence_of([leave, block_barrier(), if_all(first, gather)]))
        publish = if_all(first, sequence_of([gather, move(total, result, self.row * size, int32_literal(0))]))
        fetch = move(result, total, int32_literal(0), self.row * size)
        return allocate_buffers_around(
            [parts, total, other], sequence_of([leave, block_barrier(), publish, block_barrier(), fetch])
        )
