"""Micro-kernel for dot products (matrix-vector products, ``A @ B.T``): lanes along a contiguous reduction axis.

Rows of both operands are read in place, once per register tile. Every output has separate accumulators, whose lanes
are added by halves at the end, always in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from roller.errors import BuildError
from roller.expr import COMBINERS
from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import Expr, constant, emit_combine_step, emit_index
from roller.templates.cpu.emit.axis_tiling_plans import ReductionPlan, program_decisions, task_tile_counter_name
from roller.templates.cpu.emit.tir_loop_constructors import (
    Stmt,
    allocate_buffer,
    declare_buffer,
    divide_extent,
    if_then,
    int32_index,
    prefetch_element,
    read_element,
    sequence_of_statements,
    smaller_extent,
    write_element,
)
from roller.templates.cpu.tiled.emit import Env, TiledNest

#: Size (bytes) above which an operand is assumed to come from beyond a core's private caches.
_FAR_BYTES = 8 << 20
#: Minimum number of outputs per row of the streaming operand for which the rows of its next tile are prefetched.
_OUTPUTS_PER_ROW = 4


class DotProductNest(TiledNest):
    """A tiled program whose vectors run along a reduction axis."""

    def __post_init__(self) -> None:
        super().__post_init__()
        program = self.program
        if program.staged:
            raise BuildError(
                f"{program.expr.name}: expected operands read in place where vectors run along the reduction axis "
                f"'{program.vector_axis}', got staged={list(program.staged)}. Leave 'staged' empty."
            )
        self.along: ReductionPlan = next(r for r in self.reduction if r.name == program.vector_axis)
        decisions = program_decisions(program)
        self.lanes, self.chains = int(decisions.lanes[0]), int(decisions.chains[0])
        self.how = self.stage.combiner or "sum"
        shape = tuple(s.tile for s in self.order)
        self.wide = declare_buffer("wide", (*shape, self.chains, self.lanes), self.stage.acc_dtype, scope="local")

    def _micro_kernel(self, env: Env, chunk: Env) -> Stmt:
        neutral = constant(COMBINERS[self.how].neutral, self.stage.acc_dtype)
        first = chunk[self.along.name] * self.along.chunk if self.along.name in chunk else int32_index(0)
        left = self.along.extent - first if self.along.name in chunk else self.along.extent
        size = smaller_extent(self.along.chunk, left) if self.along.extent % self.along.chunk else self.along.chunk
        blocks, rest = divide_extent(size, self.lanes * self.chains)
        vectors, tail = divide_extent(rest, self.lanes)
        done = blocks * self.lanes * self.chains
        begin, end = self.each(lambda i: write_element(self.acc, neutral, *self._place(i))), self._write_back(env)
        if self.chunked:
            begin, end = self._emit_resume_and_keep(env, chunk, begin, end)
        run = self._loop_over_other_reductions(chunk, lambda at: sequence_of_statements(
            self._vectors(env, at, blocks, self.chains, first),
            self._vectors(env, at, vectors, 1, first + done),
        ))  # fmt: skip
        return sequence_of_statements(
            allocate_buffer(self.acc),
            allocate_buffer(self.wide),
            begin,
            self.each(
                lambda i: self._loop_over_chain_lanes(
                    lambda q, x: write_element(self.wide, neutral, *i, q, x), self.chains
                )
            ),
            run,
            self.each(self._fold),
            self._loop_over_other_reductions(
                chunk, lambda at: self._emit_partial_vector(env, at, tail, first + done + vectors * self.lanes)
            ),
            end,
        )

    def _emit_resume_and_keep(self, env: Env, chunk: Env, begin: Stmt, end: Stmt) -> tuple[Stmt, Stmt]:
        """Return a chunk's start (``begin``, or resuming the last chunk) and its end (``end``, or keeping results)."""
        place = tuple(env[task_tile_counter_name(s.name)] for s in self.spatial)
        resume = self.each(
            lambda i: write_element(self.acc, read_element(self.partial, *place, *self._place(i)), *self._place(i))
        )
        keep = self.each(
            lambda i: write_element(self.partial, read_element(self.acc, *self._place(i)), *place, *self._place(i))
        )
        first, last = self._ends(chunk)
        return if_then(first, begin, resume), if_then(last, end, keep)

    @staticmethod
    def _place(inner: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return inner or (int32_index(0),)

    def _loop_over_other_reductions(self, chunk: Env, body: Callable[[Env], Stmt]) -> Stmt:
        """Loop over the other reduction axes of one chunk."""
        others = [r for r in self.reduction if r is not self.along]
        first = {r.name: chunk[r.name] * r.chunk if r.name in chunk else int32_index(0) for r in others}
        sizes = [
            smaller_extent(r.chunk, r.extent - first[r.name]) if r.extent % r.chunk else int32_index(r.chunk)
            for r in others
        ]
        return self.nest.grid(
            [int(r.extent) if r.chunks == 1 else n for r, n in zip(others, sizes, strict=True)],
            lambda at: body({r.name: first[r.name] + x for r, x in zip(others, at, strict=True)}),
        )

    def _loop_over_chain_lanes(self, body: Callable[[Expr, Expr], Stmt], chains: int) -> Stmt:
        """Run ``body`` on every lane of every chain."""
        return self.nest.loop(
            chains,
            lambda q: self.nest.loop(self.lanes, lambda x: body(q, x), "vector", "lane"),
            "unroll",
        )

    def _vectors(self, env: Env, at: Env, count: int | Expr, chains: int, first: Expr) -> Stmt | None:
        """Emit ``count`` steps of ``chains`` vectors, each for every output; return ``None`` if ``count`` is 0."""
        if isinstance(count, int) and count == 0:
            return None

        def step(block: Expr) -> Stmt:
            def output(inner: tuple[Expr, ...]) -> Stmt:
                def lane(q: Expr, x: Expr) -> Stmt:
                    k = first + (block * (chains * self.lanes) + (q * self.lanes + x))
                    value = self._value({**env, **at, self.along.name: k}, inner)
                    return write_element(
                        self.wide,
                        emit_combine_step(self.how, read_element(self.wide, *inner, q, x), value),
                        *inner,
                        q,
                        x,
                    )

                return self._loop_over_chain_lanes(lane, chains)

            return self.each(output)

        ahead = self._ahead(env, at) if chains == self.chains else None
        if ahead is None:
            return self.nest.loop(count, step, name="k")
        return self.nest.loop(
            count, lambda b: sequence_of_statements(ahead(first + b * (chains * self.lanes)), step(b)), name="k"
        )

    def _ahead(self, env: Env, at: Env) -> Callable[[Expr], Stmt] | None:
        """Return a function that prefetches far operands' lines for the next tile, or ``None`` if none helps."""
        # The outermost axis streams. Every tile starts at different rows, where the hardware prefetcher restarts, and
        # it does not look far enough ahead if much is computed per line.
        s = self._axes_in_loop_order()[0] if self.spatial else None
        outputs = math.prod(p.tile for p in self.spatial)
        if s is None or outputs < _OUTPUTS_PER_ROW * s.tile:
            return None
        moved = [ld for ld in self.stage.loads if any(s.name in i.axes for i in ld.index)]
        far = [ld for ld in moved if self.program.expr.tensors[ld.tensor].nbytes >= _FAR_BYTES]
        after = smaller_extent(env[s.name] + s.tile, int32_index(s.extent - s.tile))

        def lines(k: Expr) -> Stmt:
            rows = ({**env, **at, s.name: after + r, self.along.name: k} for r in range(s.tile))
            return sequence_of_statements(*(
                prefetch_element(self.buffers[ld.tensor], *(emit_index(i,
                    row) for i in ld.index)) for row in rows for ld in far
            ))  # fmt: skip

        return lines if far else None

    def _emit_partial_vector(self, env: Env, at: Env, count: int | Expr, first: Expr) -> Stmt:
        """Emit the elements that do not fill a vector."""

        def step(k: Expr) -> Stmt:
            def output(inner: tuple[Expr, ...]) -> Stmt:
                value, place = self._value({**env, **at, self.along.name: first + k}, inner), self._place(inner)
                return write_element(
                    self.acc, emit_combine_step(self.how, read_element(self.acc, *place), value), *place
                )

            return self.each(output)

        return self.nest.loop(count, step, name="k")

    def _fold(self, inner: tuple[Expr, ...]) -> Stmt:
        """Combine the chains of one output, then the lanes by halves, and add the total to the output's result."""
        steps, place = [], self._place(inner)
        lanes = self.lanes
        index = [int32_index(0) if lanes == 1 else tirx.Ramp(int32_index(0), int32_index(1), lanes)]
        value = tirx.BufferLoad(self.wide, [*inner, int32_index(0), *index])
        for q in range(1, self.chains):
            value = emit_combine_step(self.how, value, tirx.BufferLoad(self.wide, [*inner, int32_index(q), *index]))
        while lanes > 1:
            whole = tirx.Var("lanes", f"{self.stage.acc_dtype}x{lanes}")
            steps.append(tirx.Bind(whole, value))
            lanes //= 2
            low, high = (
                tirx.Shuffle([whole], [tirx.const(x + half, "int32") for x in range(lanes)]) for half in (0, lanes)
            )
            value = emit_combine_step(self.how, low, high)
        return sequence_of_statements(
            *steps, write_element(self.acc, emit_combine_step(self.how, read_element(self.acc, *place), value), *place)
        )
