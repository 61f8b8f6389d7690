"""Reductions split over tasks, for few outputs and deep reductions.

Each part reduces a share of the chunks into a common buffer; the parts are combined afterwards in order, so a program
always gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from roller.errors import BuildError
from roller.te.emit_tvm_expressions import Expr, emit_combine_step
from roller.templates.cpu.dots.emit import DotProductNest
from roller.templates.cpu.emit.axis_tiling_plans import program_decisions, tile_start_coordinate
from roller.templates.cpu.emit.tir_loop_constructors import (
    Buffer,
    EmittedNests,
    Stmt,
    allocate_buffer,
    declare_buffer,
    int32_index,
    read_element,
    sequence_of_statements,
    smaller_extent,
    unravel_counter,
    write_element,
)
from roller.templates.cpu.rows.emit import emit_rows_body
from roller.templates.cpu.tiled.emit import Env, TiledNest, emit_tiled_nests
from roller.tile import RProgram


class _SplitReductionNest(TiledNest):
    """Parts of the reduction as separate tasks; a mixin for a template that emits one part."""

    def __post_init__(self) -> None:
        super().__post_init__()
        program, name = self.program, self.program.expr.name
        if program.staged:
            raise BuildError(
                f"{name}: expected operands read in place where the reduction is split over tasks, got "
                f"staged={list(program.staged)}. Leave 'staged' empty, or split_k 1."
            )
        decisions = program_decisions(program)
        along = program.axis_names[int(decisions.split_axis[0])]
        self.along = next(r for r in self.reduction if r.name == along)
        if self.along.chunks < 2:
            raise BuildError(
                f"{name}: expected several chunks of a reduction to split, got one. Make the l1 tile smaller, or "
                "split_k 1."
            )
        self.share, self.parts = int(decisions.share[0]), int(decisions.parts[0])
        extents = (s.extent for s in self.order)
        self.results = declare_buffer("parts", (self.parts, *extents), self.stage.acc_dtype)
        self.part: Expr | None = None

    def function_body(self) -> Stmt:
        """Return the nest for a call: the parts of all tasks in parallel, then the combination of the parts."""
        tasks = [self.parts, *(s.tasks for s in self.spatial)]
        main = self.nest.loop(
            math.prod(tasks), lambda t: self._emit_part_task(unravel_counter(t, tasks)), "parallel", "task"
        )
        self.part, shape = None, tuple(s.tile for s in self.order) or (1,)
        self.acc = declare_buffer("total", shape, self.stage.acc_dtype, scope="local")  # allocated once each
        zero = {s.name: int32_index(0) for s in self.spatial}
        start = {s.name: tile_start_coordinate(s, int32_index(0)) for s in self.spatial}
        last = self._tiles(zero, {s.name: s.tiles for s in self.spatial}, start, {})
        return sequence_of_statements(allocate_buffer(self.results), main, last)

    def _emit_part_task(self, at: tuple[Expr, ...]) -> Stmt:
        self.part = at[0]
        return self._task(at[1:])

    def _chunks(self, body: Callable[[Env], Stmt]) -> Stmt:
        """Loop over this part's chunks."""
        others = [r for r in self.reduction if r.chunks > 1 and r is not self.along]
        assert self.part is not None
        first = self.part * self.share
        count = (
            self.share if self.along.chunks % self.share == 0 else smaller_extent(self.share, self.along.chunks - first)
        )

        def chunk(at: tuple[Expr, ...]) -> Stmt:
            rest = {r.name: c for r, c in zip(others, at[1:], strict=True)}
            return body({self.along.name: first + at[0], **rest})

        return self.nest.grid([count, *(r.chunks for r in others)], chunk)

    def _span(self, name: str) -> tuple[int | Expr, int | Expr]:
        """Return the first and the last chunk of an axis in a task."""
        if name != self.along.name or self.part is None:
            return super()._span(name)
        first = self.part * self.share
        return first, smaller_extent(first + self.share, int32_index(self.along.chunks)) - 1

    def _micro_kernel(self, env: Env, chunk: Env) -> Stmt:
        return super()._micro_kernel(env, chunk) if self.part is not None else self._combined(env)

    def _write_back(self, env: Env) -> Stmt:
        """Store the results of a part; combined results go through the epilogue."""
        part = self.part
        if part is None:
            return super()._write_back(env)
        return self.each(
            lambda i: write_element(self.results, self._result(i), part, *self._coordinates_in_parts(env, i))
        )

    def _result(self, inner: tuple[Expr, ...]) -> Expr:
        return read_element(self.acc, *(inner or (int32_index(0),)))

    def _coordinates_in_parts(self, env: Env, inner: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(env[s.name] + x for s, x in zip(self.order, inner, strict=True))

    def _combined(self, env: Env) -> Stmt:
        """Combine the parts of one register tile in order and store the result."""

        def taken(part: int | Expr, inner: tuple[Expr, ...]) -> Expr:
            return read_element(self.results, int32_index(part), *self._coordinates_in_parts(env, inner))

        def add(inner: tuple[Expr, ...], part: Expr) -> Stmt:
            value = emit_combine_step(self.stage.combiner or "sum", self._result(inner), taken(part, inner))
            return write_element(self.acc, value, *(inner or (int32_index(0),)))

        return sequence_of_statements(
            allocate_buffer(self.acc),
            self.each(lambda i: write_element(self.acc, taken(0, i), *(i or (int32_index(0),)))),
            self.nest.loop(self.parts - 1, lambda p: self.each(lambda i: add(i, p + 1)), name="part"),
            self._write_back(env),
        )


class _SplitDotProductNest(_SplitReductionNest, DotProductNest):
    """Parts of dot products as separate tasks."""


def emit_tiled_or_split(program: RProgram, buffers: dict[str, Buffer], cores: int) -> EmittedNests:
    """Return the loop nests of a tiled program; see :func:`_emit_whole_or_split`."""
    return _emit_whole_or_split(program, buffers, cores, emit_tiled_nests, _SplitReductionNest)


def emit_dot_products_or_split(program: RProgram, buffers: dict[str, Buffer], cores: int) -> EmittedNests:
    """Return the loop nests of a program of dot products; see :func:`_emit_whole_or_split`."""
    return _emit_whole_or_split(
        program, buffers, cores, lambda p, b: DotProductNest(p, b).nests(), _SplitDotProductNest
    )


def _emit_whole_or_split(
    program: RProgram,
    buffers: dict[str, Buffer],
    cores: int,
    whole: Callable[[RProgram, dict[str, Buffer]], EmittedNests],
    split: type[_SplitReductionNest],
) -> EmittedNests:
    """Return the loop nests of a reduction, from ``whole`` or, with ``program.split_k`` parts, from ``split``."""
    # A single point is reduced in parts, because a register tile of one element would use only one core.
    anchor = program.expr.anchor
    if anchor.combiner is not None and all(a.extent == 1 for a in anchor.spatial_axes):
        return EmittedNests(emit_rows_body(program, buffers, cores))
    return whole(program, buffers) if program.split_k == 1 else EmittedNests(split(program, buffers).function_body())
