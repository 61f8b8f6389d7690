"""Template of row reductions: reductions without reuse, alone or several in a row (softmax, norms, arg-reductions).

A block owns a tile of rows (the anchor's spatial axes). Threads along spatial axes own rows; threads
along reduction axes (lanes) share them and combine across the block. Every stage of the expression
runs over the same rows, so per-row results stay in registers; wide element-wise results are computed
where they are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roller.codegen.gpu.access import contiguous_axis, depends, vectorizable
from roller.codegen.gpu.context import Context, Reader, as_output, compute_dtype, named_loads, promote
from roller.codegen.gpu.mapping import (
    AxisMap,
    Registers,
    register_count,
    register_index,
    register_points,
    vector_loop,
)
from roller.codegen.gpu.nest import (
    Buffer,
    Expr,
    Stmt,
    all_reduce,
    buffer,
    kernel,
    load,
    loop,
    loops,
    num,
    seq,
    store,
    thread_axis,
    unravel,
    when,
    with_buffers,
)
from roller.expr import COMBINERS, Load, Stage
from roller.te.compat import tirx
from roller.te.emit import combine, constant, emit_index, emit_scalar


class Rows:
    """One kernel over a tile of rows.

    Parameters
    ----------
    ctx
        Tensors of the expression.
    anchor
        The stage whose spatial axes are the rows.
    rows, lanes
        Maps of the anchor's spatial axes (contiguous one last) and reduction axes.
    """

    def __init__(self, ctx: Context, anchor: Stage, rows: Sequence[AxisMap], lanes: Sequence[AxisMap]) -> None:
        self.ctx = ctx
        self.rows = tuple(rows)
        self.lane_maps = {m.name: m for m in lanes}
        self.lanes = math.prod(m.threads for m in lanes)
        self.anchor = anchor
        self.block = thread_axis("blockIdx.x", math.prod(m.steps for m in rows))
        self.row_threads = math.prod(m.threads for m in rows)
        self._bind()
        blocks = unravel(self.block.var, [m.steps for m in rows])
        self.base = {m.name: b * m.tile for m, b in zip(rows, blocks, strict=True)}
        parts = unravel(self.row_thread, [m.threads for m in rows])
        self.row_lane = {m.name: t for m, t in zip(rows, parts, strict=True)}
        self.results: dict[str, Buffer] = {}

    def _bind(self) -> None:
        """Lanes are neighbouring threads where the reduction is contiguous in memory, else rows are."""
        self.lane_axis: Any = None
        if self.lanes == 1:
            self.threads = [thread_axis("threadIdx.x", self.row_threads)]
            self.row_thread, self.lane = self.threads[0].var, num(0)
            return
        along = contiguous_axis(self.anchor, self.ctx.expr.tensors) in {a.name for a in self.anchor.reduction_axes}
        if self.row_threads == 1:
            self.lane_axis = thread_axis("threadIdx.x", self.lanes)
            self.threads, self.row_thread = [self.lane_axis], num(0)
        else:
            self.lane_axis = thread_axis("threadIdx.x" if along else "threadIdx.y", self.lanes)
            row_axis = thread_axis("threadIdx.y" if along else "threadIdx.x", self.row_threads)
            self.threads, self.row_thread = [self.lane_axis, row_axis], row_axis.var
        self.lane = self.lane_axis.var

    # ---- coordinates

    def _start(self, m: AxisMap, at: Registers) -> Expr:
        return self.base[m.name] + m.local(self.row_lane[m.name], at.chunk[m.name])

    def _row_env(self, at: Registers, *, vector: str | None = None) -> dict[str, Expr]:
        """Row coordinates, clamped into the tensor: rows beyond the end repeat the last one and are not written."""
        env = {}
        for m in self.rows:
            start = self._start(m, at)
            if m.padded and m.name == vector:
                start = tirx.min(start, num(m.extent - m.vector))
            value = start + at.offset[m.name]
            env[m.name] = tirx.min(value, num(m.extent - 1)) if m.padded and m.name != vector else value
        return env

    def _inside(self, at: Registers) -> list[Expr]:
        return [self._start(m, at) + at.offset[m.name] < m.extent for m in self.rows if m.padded]

    def _local_readers(self, at: Registers) -> dict[str, Reader]:
        index = register_index(self.rows, at)
        return {name: _row_value(b, index) for name, b in self.results.items()}

    # ---- stages

    def write(self, stages: Sequence[Stage]) -> Stmt:
        """Return the kernel that runs ``stages`` in order."""
        body: list[Stmt] = []
        for s in stages:
            names = {m.name for m in self.rows}
            if s.combiner is not None or {a.name for a in s.axes} == names:
                body.append(self._per_row(s))
            elif s.name in self.ctx.expr.outputs:
                body.append(self._wide(s))
        buffers = list(self.results.values())
        return kernel([self.block, *self.threads], with_buffers(buffers, seq(body)))

    def _per_row(self, s: Stage) -> Stmt:
        """Compute a stage with one result per row, kept in registers and written where it is an output."""
        dtype = s.acc_dtype if s.combiner is not None else compute_dtype(s.output.dtype)
        result = buffer(f"row_{len(self.results)}", (register_count(self.rows),), dtype, "local")
        if s.combiner is not None:
            body = [self._reduce(s, result)]
        else:

            def point(at: Registers) -> Stmt:
                readers = self.ctx.readers(self._local_readers(at))
                value = emit_scalar(s.body, self._row_env(at), readers).astype(dtype)
                return store(result, value, register_index(self.rows, at))

            body = [register_points(self.rows, point)]
        self.results[s.name] = result
        if s.name in self.ctx.expr.outputs or s.name in self.ctx.buffers:
            body.append(self._store_rows(s, result))
        return seq(body)

    def _store_rows(self, s: Stage, result: Buffer) -> Stmt:
        target = self.ctx.buffers[s.name]
        lane = [self.lane.equal(0)] if self.lanes > 1 else []
        vector = next((m for m in self.rows if vectorizable(s.store, s.output, m.name, m.extent, m.vector)), None)

        def point(at: Registers) -> Stmt:
            env = {m.name: self._start(m, at) + at.offset[m.name] for m in self.rows}
            where = [emit_index(i, env) for i in s.store]
            index = register_index(self.rows, at)
            if vector is None:
                return when([*lane, *self._inside(at)], store(target, as_output(load(result, index), s), *where))
            stride = register_count(self.rows[self.rows.index(vector) + 1 :])
            out = buffer("out", (vector.vector,), s.output.dtype, "local")

            def element(v: Expr) -> Stmt:
                return store(out, as_output(load(result, index + v * stride), s), v)

            fill = loop("e", vector.vector, element, unroll=True)
            write = vector_loop(vector.vector, lambda v: store(target, load(out, v), *where[:-1], where[-1] + v))
            return with_buffers([out], when([*lane, *self._inside(at)], seq([fill, write])))

        return register_points(self.rows, point, vector=vector.name if vector else None)

    # ---- reductions

    def _reduce(self, s: Stage, result: Buffer) -> Stmt:
        combiner = s.combiner or "sum"
        neutral = constant(COMBINERS[combiner], s.acc_dtype)
        init = register_points(self.rows, lambda at: store(result, neutral, register_index(self.rows, at)))
        maps = self._maps(s)
        lanes = self._lanes(maps)

        def chunk(steps: Mapping[str, Expr]) -> Stmt:
            return register_points(maps, lambda red: self._chunk(s, result, maps, lanes, steps, red), vector="*")

        body = [init, loops([(f"step_{i}", m.steps) for i, m in enumerate(maps)], chunk)]
        if self.lanes > 1:
            body.append(self._across(s, result, combiner))
        return seq(body)

    def _maps(self, s: Stage) -> tuple[AxisMap, ...]:
        """Lanes of the stage's own reduction axes: the program's where it names them, else all on the last."""
        axes = s.reduction_axes
        if all(a.name in self.lane_maps for a in axes) and len(axes) == len(self.lane_maps):
            return tuple(self.lane_maps[a.name] for a in axes)
        last = axes[-1]
        return (*(AxisMap(a.name, a.extent, 1, 1) for a in axes[:-1]), AxisMap(last.name, last.extent, self.lanes, 1))

    def _lanes(self, maps: Sequence[AxisMap]) -> dict[str, Expr]:
        parts = unravel(self.lane, [m.threads for m in maps])
        return {m.name: p for m, p in zip(maps, parts, strict=True)}

    def _chunk(
        self, s: Stage, result: Buffer, maps: Sequence[AxisMap], lanes: Mapping[str, Expr], steps: Mapping[str, Expr],
        red: Registers,
    ) -> Stmt:  # fmt: skip
        """Combine one chunk of every reduction axis into the accumulators of all rows."""
        start = {
            m.name: steps[f"step_{i}"] * m.tile + m.local(lanes[m.name], red.chunk[m.name]) for i, m in enumerate(maps)
        }
        vector, wide = self._vector(s, maps)
        if vector is not None and vector.name in start:
            others = [m for m in maps if m.vector > 1 and m.name != vector.name]
            inside = [start[m.name] < m.extent for m in maps if m.padded]

            def rest(offset: Mapping[str, Expr]) -> Stmt:
                at = {a: start[a] + offset.get(f"o_{a}", num(0)) for a in start}
                inner = register_points(self.rows, lambda r: self._update(s, result, r, at, vector, wide))
                return inner

            return when(inside, loops([(f"o_{m.name}", m.vector) for m in others], rest, unroll=True))

        def element(offset: Mapping[str, Expr]) -> Stmt:
            at = {a: start[a] + offset.get(f"o_{a}", num(0)) for a in start}
            inside = [at[m.name] < m.extent for m in maps if m.padded]
            name = vector.name if vector is not None else None
            points = register_points(self.rows, lambda r: self._update(s, result, r, at, vector, wide), vector=name)
            return when(inside, points)

        return loops([(f"o_{m.name}", m.vector) for m in maps if m.vector > 1], element, unroll=True)

    def _vector(self, s: Stage, maps: Sequence[AxisMap]) -> tuple[AxisMap | None, tuple[Load, ...]]:
        """Return the axis along which loads are vectors, and those loads."""
        for m in (*maps, *self.rows):
            if m.vector == 1 or m.extent % m.vector:
                continue
            wide = tuple(
                ld
                for ld in s.loads
                if ld.tensor in {t.name for t in self.ctx.expr.inputs}
                and not ld.guard
                and depends(ld, m.name)
                and vectorizable(ld.index, self.ctx.expr.tensors[ld.tensor], m.name, m.extent, m.vector)
            )
            if wide:
                return m, wide
        return None, ()

    def _update(
        self, s: Stage, result: Buffer, row: Registers, at: Mapping[str, Expr], vector: AxisMap | None,
        wide: Sequence[Load],
    ) -> Stmt:  # fmt: skip
        """Combine one point (or one vector of points) into one row's accumulator (or one per element)."""
        combiner = s.combiner or "sum"
        name = vector.name if vector is not None else None
        env = {**self._row_env(row, vector=name), **at}

        def update(v: Expr, frags: Mapping[str, Reader]) -> Stmt:
            here = row
            point = dict(env)
            if vector is not None:
                point[vector.name] = point[vector.name] + v
                if vector.name in row.offset:
                    here = Registers(row.chunk, {**row.offset, vector.name: v})
            readers = self.ctx.readers({**self._local_readers(here), **frags})
            body = named_loads(s.body, {ld: f"vec{n}" for n, ld in enumerate(wide)}) if frags else s.body
            value = emit_scalar(body, point, readers).astype(s.acc_dtype)
            index = register_index(self.rows, here)
            return store(result, combine(combiner, load(result, index), value), index)

        if vector is None:
            return update(num(0), {})
        return vector_reads(self.ctx, wide, env, vector.vector, lambda frags: loop(
            "e", vector.vector, lambda v: update(v, frags(v)), unroll=True
        ))  # fmt: skip

    def _across(self, s: Stage, result: Buffer, combiner: str) -> Stmt:
        """Combine the lanes of every row; all lanes get the result."""

        def row(at: Registers) -> Stmt:
            index = register_index(self.rows, at)
            total = buffer("total", (1,), s.acc_dtype, "local")
            neutral = constant(COMBINERS[combiner], s.acc_dtype)
            step = all_reduce(
                lambda x, y: combine(combiner, x, y), neutral, load(result, index), total, self.lane_axis.var
            )
            return with_buffers([total], seq([step, store(result, load(total, num(0)), index)]))

        return register_points(self.rows, row)

    # ---- element-wise results wider than a row

    def _wide(self, s: Stage) -> Stmt:
        names = {m.name for m in self.rows}
        axes = [a for a in s.spatial_axes if a.name not in names]
        total = math.prod(a.extent for a in axes)
        width = self._wide_vector(s, axes[-1].name, axes[-1].extent)
        wide = self._wide_loads(s, axes[-1].name, axes[-1].extent, width)
        target = self.ctx.buffers[s.name]
        per_step = self.lanes * width
        steps = -(-total // per_step)

        def step(n: Expr) -> Stmt:
            flat = (n * self.lanes + self.lane) * width
            columns = dict(zip((a.name for a in axes), unravel(flat, [a.extent for a in axes]), strict=True))
            inside = [flat < total] if total % per_step else []
            return when(inside, register_points(self.rows, lambda at: row(at, columns)))

        def row(at: Registers, columns: Mapping[str, Expr]) -> Stmt:
            env = {**{m.name: self._start(m, at) + at.offset[m.name] for m in self.rows}, **columns}
            where = [emit_index(i, env) for i in s.store]

            def value(v: Expr, frags: Mapping[str, Reader]) -> Expr:
                body = named_loads(s.body, {ld: f"vec{n}" for n, ld in enumerate(wide)}) if frags else s.body
                point = {**env, axes[-1].name: env[axes[-1].name] + v}
                return as_output(emit_scalar(body, point, self.ctx.readers({**self._local_readers(at), **frags})), s)

            if width == 1:
                return when(self._inside(at), store(target, value(num(0), {}), *where))
            out = buffer("out", (width,), s.output.dtype, "local")

            def compute(frags: Callable[[Expr], dict[str, Reader]]) -> Stmt:
                fill = loop("e", width, lambda v: store(out, value(v, frags(v)), v), unroll=True)
                write = vector_loop(width, lambda v: store(target, load(out, v), *where[:-1], where[-1] + v))
                return with_buffers([out], seq([fill, write]))

            return when(self._inside(at), vector_reads(self.ctx, wide, env, width, compute))

        return loop("column", steps, step)

    def _wide_vector(self, s: Stage, axis: str, extent: int) -> int:
        wanted = max([1, *(m.vector for m in self.lane_maps.values())])
        return wanted if wanted > 1 and vectorizable(s.store, s.output, axis, extent, wanted) else 1

    def _wide_loads(self, s: Stage, axis: str, extent: int, width: int) -> tuple[Load, ...]:
        inputs = {t.name: t for t in self.ctx.expr.inputs}
        return tuple(
            ld
            for ld in s.loads
            if ld.tensor in inputs and not ld.guard and vectorizable(ld.index, inputs[ld.tensor], axis, extent, width)
        )


def vector_reads(
    ctx: Context,
    wide: Sequence[Load],
    env: Mapping[str, Expr],
    width: int,
    body: Callable[[Callable[[Expr], dict[str, Reader]]], Stmt],
) -> Stmt:
    """Read one vector per load, then run ``body`` with readers of their elements."""
    frags = [buffer(f"vec{n}", (width,), ctx.expr.tensors[ld.tensor].dtype, "local") for n, ld in enumerate(wide)]
    reads = []
    for ld, frag in zip(wide, frags, strict=True):
        index = [emit_index(i, env) for i in ld.index]
        reads.append(vector_loop(width, _read(frag, ctx.buffers[ld.tensor], index)))

    def readers(v: Expr) -> dict[str, Reader]:
        return {f"vec{n}": _row_value(frag, v) for n, frag in enumerate(frags)}

    inner = body(readers)
    return with_buffers(frags, seq([*reads, inner])) if frags else inner


def _read(frag: Buffer, source: Buffer, index: list[Expr]) -> Callable[[Expr], Stmt]:
    return lambda v: store(frag, load(source, *index[:-1], index[-1] + v), v)


def _row_value(b: Buffer, index: Expr) -> Reader:
    return lambda *_: promote(load(b, index))
