"""Reductions of one stage at one point, or across the lanes of a spatial axis.

A compiler may not reassociate float sums, so lanes are explicit: along a contiguous reduction axis, lanes of several
accumulators hold partial results, which a fixed tree combines; along a contiguous spatial axis, each lane is an output.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roller.expr import COMBINERS, FUNCTIONS, Axis, Call, Stage, walk_scalar_tree
from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import Expr, constant, emit_combine_step
from roller.te.opaque_floats import emit_any_maximum
from roller.templates.cpu.emit.axis_tiling_plans import power_of_two_below
from roller.templates.cpu.emit.interleave_vector_functions import TOGETHER, interleave_vector_loops
from roller.templates.cpu.emit.mathlib import replace_math_library_calls
from roller.templates.cpu.emit.tir_loop_constructors import (
    Buffer,
    LoopBuilder,
    Stmt,
    allocate_buffer,
    declare_buffer,
    divide_extent,
    int32_index,
    read_element,
    sequence_of_statements,
    write_element,
)

Value = Callable[[Mapping[str, Any]], Expr]
Env = Mapping[str, Any]

#: Number of independent accumulators, which hide the latency of an addition (4 cycles, two additions per cycle).
_ACCUMULATORS = 4


@dataclass(frozen=True)
class ReductionEmitter:
    """Emits the reduction of ``stage``; ``value`` emits its body, and ``before`` what must precede each value.

    A maximum that ``loses_nan`` may return any number if an element is NaN.
    """

    nest: LoopBuilder
    stage: Stage
    value: Value
    lanes: int
    before: Callable[[Mapping[str, Any]], Stmt] | None = None
    loses_nan: bool = False

    def _combine(self, a: Expr, b: Expr) -> Expr:
        how = self.stage.combiner or "sum"
        return emit_any_maximum(a, b) if self.loses_nan else emit_combine_step(how, a, b)

    @property
    def count_accumulators(self) -> int:
        """Number of vectors of partial results; for expensive values, only as many as are computed interleaved."""
        # More accumulators would take registers from the computation of the values.
        functions = (FUNCTIONS[n.fn] for n in walk_scalar_tree(self.stage.body) if isinstance(n, Call))
        is_long = self.before is not None or any(f.instruction_class == "special" for f in functions)
        return TOGETHER if is_long else _ACCUMULATORS

    def _neutral_element(self) -> Expr:
        return constant(COMBINERS[self.stage.combiner or "sum"].neutral, self.stage.acc_dtype)

    def _accumulate(self, buffer: Buffer, index: Sequence[Expr], env: Env) -> Stmt:
        value = self.value(env).astype(self.stage.acc_dtype)
        step = write_element(buffer, self._combine(read_element(buffer, *index), value), *index)
        return step if self.before is None else sequence_of_statements(self.before(env), step)

    def point(
        self, env: Env, vector: Axis | None, finish: Callable[[Expr], Stmt], span: tuple[Any, Any] | None = None
    ) -> Stmt:
        """Reduce one point with lane-wise partial results along ``vector`` and pass the result to ``finish``."""
        others = [a for a in self.stage.reduction_axes if a is not vector]
        scalar = declare_buffer("total", (1,), self.stage.acc_dtype, scope="local")
        zero = (int32_index(0),)
        start = write_element(scalar, self._neutral_element(), *zero)

        def around(inner: Callable[[dict[str, Any]], Stmt]) -> Stmt:
            return self.nest.grid(
                [a.extent for a in others],
                lambda at: inner({**env, **{a.name: x for a, x in zip(others, at, strict=True)}}),
            )

        if vector is None or self.lanes == 1 or (span is None and vector.extent < self.lanes):
            loop: Any = self.stage.reduction_axes if vector is None else (vector,)
            if vector is None:
                others = []
                body = self.nest.grid(
                    [a.extent for a in loop],
                    lambda at: self._accumulate(
                        scalar, zero, {**env, **{a.name: x for a, x in zip(loop, at, strict=True)}}
                    ),
                )
            else:
                first, length = span or (0, vector.extent)
                body = around(
                    lambda e: self.nest.loop(
                        length, lambda k: self._accumulate(scalar, zero, {**e, vector.name: first + k})
                    )
                )
            return sequence_of_statements(allocate_buffer(scalar), start, body, finish(read_element(scalar, *zero)))
        return sequence_of_statements(
            allocate_buffer(scalar), start, self._lanes(env, vector, span, scalar, around, finish)
        )

    def _lanes(
        self, env: Env, vector: Axis, span: tuple[Any, Any] | None, scalar: Buffer,
        around: Callable[[Callable[[dict[str, Any]], Stmt]], Stmt], finish: Callable[[Expr], Stmt],
    ) -> Stmt:  # fmt: skip
        """Emit lane-wise partial results: a wide main loop, single vectors, then elements."""
        n, lanes = self.nest, self.lanes
        first, length = span or (0, vector.extent)
        wide = self.count_accumulators * lanes
        acc = declare_buffer("acc", (wide,), self.stage.acc_dtype, scope="local")
        neutral = self._neutral_element()

        def each(body: Callable[[Expr], Stmt]) -> Stmt:
            return n.loop(
                self.count_accumulators,
                lambda u: n.loop(lanes, lambda x: body(u * lanes + x), "vector", "lane"),
                "unroll",
            )

        blocks, rest = divide_extent(length, wide)
        vectors, tail = divide_extent(rest, lanes)
        halves = self._partial_tail_vectors(tail)

        def body(e: dict[str, Any]) -> Stmt:
            def at(k: Any) -> dict[str, Any]:
                return {**e, vector.name: first + k}

            done, ended = blocks * wide, blocks * wide + vectors * lanes
            main = _statement_unless_zero(
                blocks,
                lambda: n.loop(
                    blocks,
                    lambda b: each(lambda x: self._accumulate(acc, (x,), at(b * wide + x))),
                ),
            )
            single = self._single_vectors(vectors, acc, lambda b, x: at(done + b * lanes + x))
            return sequence_of_statements(
                main,
                *(self._split_interleaved(acc, main) if main is not None and len(e) == len(env) else []),
                *single,
                *self._reduce_tail(tail, halves, scalar, lambda k: at(ended + k)),
            )  # fmt: skip

        return sequence_of_statements(
            allocate_buffer(acc),
            *(allocate_buffer(b) for _, _, b in halves),
            each(lambda x: write_element(acc, neutral, x)),
            *(n.loop(w, functools.partial(_store_at_place, b, neutral), "vector", "lane") for _, w, b in halves),
            around(body),
            self._fold(acc, halves, scalar),
            finish(read_element(scalar, int32_index(0))),
        )

    def _split_interleaved(self, acc: Buffer, main: Stmt) -> list[Stmt]:
        """Return statements that store accumulators, which ``main`` stores together if interleaved, one by one."""
        # LLVM cuts a vector that is stored as a whole and loaded in parts into elements.
        body = replace_math_library_calls(main)
        if self.count_accumulators != TOGETHER or interleave_vector_loops(body).same_as(body):
            return []
        whole = self.nest.variable("pair", _load_vector(acc, TOGETHER * self.lanes))
        parts = [
            tirx.BufferStore(
                acc, _part_of_vector(whole, u * self.lanes, self.lanes), [_ramp(u * self.lanes, self.lanes)]
            )
            for u in range(TOGETHER)
        ]
        return [tirx.Bind(whole, _load_vector(acc, TOGETHER * self.lanes)), *parts]

    def _single_vectors(self, count: Any, acc: Buffer, at: Callable[[Any, Expr], Env]) -> list[Stmt]:
        """Reduce the vectors after the wide loop, each into a separate accumulator if their number is known."""
        n, lanes = self.nest, self.lanes

        def one(b: Any, u: int) -> Stmt:
            return n.loop(lanes, lambda x: self._accumulate(acc, (u * lanes + x,), at(b, x)), "vector", "lane")

        if isinstance(count, int):
            return [one(b, b % self.count_accumulators) for b in range(count)]
        return [n.loop(count, lambda b: one(b, 0))]

    def _partial_tail_vectors(self, tail: Any) -> list[tuple[int, int, Buffer]]:
        """Return the partial vectors of a known tail: first element, width and accumulator."""
        out, done, width = [], 0, self.lanes // 2
        while isinstance(tail, int) and width > 1:
            if tail - done >= width:
                buffer = declare_buffer(f"part{width}", (width,), self.stage.acc_dtype, scope="local")
                out.append((done, width, buffer))
                done += width
            width //= 2
        return out

    def _reduce_tail(
        self, count: Any, halves: Sequence[tuple[int, int, Buffer]], scalar: Buffer, at: Callable[[Any], Env]
    ) -> list[Stmt]:
        """Reduce the elements after the vectors: partial vectors, then single elements."""
        n = self.nest

        def part(first: int, width: int, buffer: Buffer) -> Stmt:
            return n.loop(width, lambda x: self._accumulate(buffer, (x,), at(first + x)), "vector", "lane")

        done = sum(width for _, width, _ in halves)
        rest = count - done
        elements = n.loop(rest, lambda k: self._accumulate(scalar, (int32_index(0),), at(done + k)))
        return [*(part(*h) for h in halves), *([] if isinstance(rest, int) and not rest else [elements])]

    def _fold(self, acc: Buffer, halves: Sequence[tuple[int, int, Buffer]], scalar: Buffer) -> Stmt:
        """Combine the lanes by halving, in registers: a fixed tree, which gives the same bits on every run."""
        steps, parts = list[Stmt](), {w: b for _, w, b in halves}

        value = _load_vector(acc, self.lanes)
        for u in range(1, self.count_accumulators):
            value = self._combine(value, _load_vector(acc, self.lanes, u * self.lanes))
        width = self.lanes
        while width > 1:
            whole = self.nest.variable("fold", value)
            steps.append(tirx.Bind(whole, value))
            width //= 2
            low, high = (_part_of_vector(whole, first, width) for first in (0, width))
            value = self._combine(low, high)
            if width in parts:
                value = self._combine(value, _load_vector(parts[width], width))
        zero = int32_index(0)
        return sequence_of_statements(
            *steps, write_element(scalar, self._combine(read_element(scalar, zero), value), zero)
        )

    def across(self, vector: Axis, finish: Callable[[Env, Expr], Stmt], env: Env, start: Expr, width: int) -> Stmt:
        """Reduce ``width`` adjacent outputs along the spatial axis ``vector`` at once."""
        lanes = power_of_two_below(min(self.lanes, width))
        acc = declare_buffer("acc", (width,), self.stage.acc_dtype, scope="local")

        def each(body: Callable[[Expr], Stmt]) -> Stmt:
            return self.nest.loop(
                width // lanes,
                lambda u: self.nest.loop(lanes, lambda x: body(u * lanes + x), "vector", "lane"),
                "unroll",
            )

        axes = self.stage.reduction_axes
        body = self.nest.grid(
            [a.extent for a in axes],
            lambda at: each(
                lambda x: self._accumulate(
                    acc, (x,), {**env, **{a.name: k for a, k in zip(axes, at, strict=True)}, vector.name: start + x}
                )
            ),
        )
        return sequence_of_statements(
            allocate_buffer(acc),
            each(lambda x: write_element(acc, self._neutral_element(), x)),
            body,
            each(lambda x: finish({**env, vector.name: start + x}, read_element(acc, x))),
        )


def _ramp(first: int, width: int) -> Expr:
    return tirx.Ramp(int32_index(first), int32_index(1), width)


def _load_vector(buffer: Buffer, width: int, first: int = 0) -> Expr:
    return tirx.BufferLoad(buffer, [_ramp(first, width)])


def _part_of_vector(vector: Expr, first: int, width: int) -> Expr:
    return tirx.Shuffle([vector], [tirx.const(x, "int32") for x in range(first, first + width)])


def _store_at_place(buffer: Buffer, value: Expr, place: Expr) -> Stmt:
    return write_element(buffer, value, place)


def _statement_unless_zero(count: Any, body: Callable[[], Stmt]) -> Stmt | None:
    return None if isinstance(count, int) and count == 0 else body()
