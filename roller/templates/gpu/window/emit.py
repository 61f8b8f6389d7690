"""Template for reductions over sliding windows (depthwise convolution, pooling): threads walk input rows.

A thread sums a strip of outputs along the slide: it loads every input row below the strip once, adds it to the outputs
whose windows contain it, and writes an output after its last row. Registers hold one row, the outputs in flight and the
weights (:mod:`roller.tile.windows`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from roller.core.dtypes import DTYPE_BYTES
from roller.errors import BuildError
from roller.expr import COMBINERS, Load, Stage
from roller.te.compat import dtype_of
from roller.te.emit import combine, constant, emit_bounds, emit_index, emit_scalar
from roller.templates.gpu.common.stores import Results, is_alone, store_order
from roller.templates.gpu.emit.context import (
    Context,
    Reader,
    as_output,
    compute_dtype,
    index_conditions,
    named_loads,
    promote,
)
from roller.templates.gpu.emit.mapping import AxisMap, axis_map, vector_loop
from roller.templates.gpu.emit.nest import (
    Buffer,
    Expr,
    Stmt,
    buffer,
    dtype_name,
    guarded,
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
from roller.templates.gpu.emit.staging import Domain, StagedTile, copy_tile, fill_value
from roller.tile import RProgram
from roller.tile.layout import program_layout, window_halo
from roller.tile.scratchpad import STATIC_SHARED_BYTES
from roller.tile.vectors import widest_vector
from roller.tile.windows import RowBox, fragment_of, slide_of

#: Number of elements in the widest load of a thread.
_WIDEST = 8


class Window:
    """State of one window kernel while it is written."""

    def __init__(self, ctx: Context, stage: Stage, program: RProgram) -> None:
        slide = slide_of(stage)
        if slide is None:
            raise BuildError(f"{ctx.expr.name}: structure 'window' needs a reduction over windows of one operand.")
        self.ctx, self.stage, self.program, self.slide = ctx, stage, program, slide
        self.maps: tuple[AxisMap, ...] = tuple(axis_map(program, a, interleaved=False) for a in store_order(stage))
        self.by_name = {m.name: m for m in self.maps}
        self.block = thread_axis("blockIdx.x", math.prod(m.steps for m in self.maps))
        self.threads = math.prod(m.threads for m in self.maps)
        self.thread = thread_axis("threadIdx.x", self.threads)
        blocks = unravel(self.block.var, [m.steps for m in self.maps])
        lanes = unravel(self.thread.var, [m.threads for m in self.maps])
        self.base = {m.name: b * m.tile for m, b in zip(self.maps, blocks, strict=True)}
        #: Where a thread's outputs start within the block's, and in the tensor.
        self.lane = {m.name: t * m.registers for m, t in zip(self.maps, lanes, strict=True)}
        self.start = {m.name: self.base[m.name] + self.lane[m.name] for m in self.maps}
        self.domain = Domain.of(stage, program)
        self.register = program.tile("register")
        self.fragment: RowBox = fragment_of(slide, self.register)
        self.inner = [m for m in self.maps if m.name != slide.axis]
        self.points = math.prod(m.registers for m in self.inner)
        self.acc = buffer("acc", (self.register[slide.axis] * self.points,), stage.acc_dtype, "local")
        self.tile = self._staged() if slide.source.tensor in program.staged else None
        self.lead, self.width, self.chunks = self._row_reads()
        row = math.prod(self.fragment.extents[:-1]) * self.width * self.chunks
        self.row = buffer("row", (row,), compute_dtype(self._dtype(slide.source)), "local")
        self.weights = {ld: self._weight_buffer(n, ld) for n, ld in enumerate(slide.others)}

    def _dtype(self, ld: Load) -> str:
        return self.ctx.expr.tensors[ld.tensor].dtype

    # ---- operands

    def _staged(self) -> StagedTile:
        ld = self.slide.source
        tensor = self.ctx.expr.tensors[ld.tensor]
        layout = program_layout(self.program, ld)
        padding = dict(self.program.storage_padding).get(ld.tensor, 0)
        elements = math.prod(layout.extents[:-1]) * (layout.extents[-1] + padding)
        dtype = tensor.dtype if self.ctx.in_memory(ld.tensor) else compute_dtype(tensor.dtype)
        scope = "shared" if elements * DTYPE_BYTES[dtype] <= STATIC_SHARED_BYTES else "shared.dyn"
        target = buffer("tile0", (elements,), dtype, scope)
        return StagedTile(ld, tensor, layout, padding, fill_value(ld, self.stage), target, elements)

    def _row_reads(self) -> tuple[int, int, int]:
        """Return the number of elements before a row's fragment, and the width and number of its vectors."""
        extent, ld = self.fragment.extents[-1], self.slide.source
        if self.tile is not None:
            rows = window_halo(self.program)
            return rows.lead, rows.width, rows.chunks
        last, tensor = ld.index[-1], self.ctx.expr.tensors[ld.tensor]
        if len(last.terms) == 1 and self.ctx.in_memory(ld.tensor) and last.terms[0].axis in self.by_name:
            m = self.by_name[last.terms[0].axis]
            width = math.gcd(_WIDEST, m.registers, widest_vector(ld.index, tensor, m.name, m.extent))
            return 0, width, extent // width
        return 0, 1, extent

    def _weight_buffer(self, n: int, ld: Load) -> tuple[Buffer, tuple[tuple[str, int], ...]]:
        """Return the registers for an operand that a thread keeps, and the axes with which it moves in them."""
        moving = dict.fromkeys(a for i in ld.index for a in i.axes)  # in the tensor's order, which allows vectors
        axes = tuple((a, self.register[a]) for a in moving)
        size = math.prod(e for _, e in axes)
        return buffer(f"weight{n}", (size,), compute_dtype(self._dtype(ld)), "local"), axes

    def _load_weights(self, ld: Load) -> Stmt:
        target, axes = self.weights[ld]
        width = self._weight_width(ld)
        points = [*axes[:-1], (axes[-1][0], axes[-1][1] // width)] if width > 1 else axes

        def one(place: dict[str, Expr]) -> Stmt:
            at = {**place, axes[-1][0]: place[axes[-1][0]] * width} if width > 1 else place
            env = {**{a: num(0) for a in self.stage.extents}, **self.start}
            env.update({a: env[a] + v for a, v in at.items()})
            conditions = [env[a] < self.by_name[a].extent for a, _ in axes if a in self.by_name and self._ragged(a)]
            conditions += emit_bounds(ld.guard, env)
            where = [emit_index(i, env) for i in ld.index]
            if width > 1:
                source = self.ctx.buffers[ld.tensor]
                return _fetch(target, _flat(axes, at), width, lambda v: load(source, *where[:-1], where[-1] + v))
            value = self.ctx.readers()[ld.tensor](*where)
            outside = constant(ld.outside, compute_dtype(self._dtype(ld)))
            return store(target, guarded(conditions, value, outside), _flat(axes, at))

        return loops(points, one, unroll=True)

    def _weight_width(self, ld: Load) -> int:
        """Return the number of elements of a kept operand that a thread loads at once."""
        last = ld.index[-1].terms if ld.index else ()
        if len(last) != 1 or last[0].axis not in self.by_name or not self.ctx.in_memory(ld.tensor) or ld.guard:
            return 1
        m, tensor = self.by_name[last[0].axis], self.ctx.expr.tensors[ld.tensor]
        return math.gcd(_WIDEST, m.registers, widest_vector(ld.index, tensor, m.name, m.extent))

    def _ragged(self, axis: str) -> bool:
        """Return whether a thread that starts inside an axis may reach beyond its end."""
        m = self.by_name[axis]
        return m.extent % m.registers != 0

    def _load_row(self, offset: int) -> Stmt:
        """Return the loads of the row ``offset`` elements below the strip's first row."""
        positions = [(f"p{d}", n) for d, n in enumerate(self.fragment.extents[:-1])]

        def one(at: dict[str, Expr]) -> Stmt:
            place = [at[name] * step for (name, _), step in zip(positions, self.fragment.steps[:-1], strict=True)]
            index = _flat([*positions, ("p", self.chunks)], at) * self.width
            position = at["p"] * self.width
            if self.tile is None:
                return self._in_place(offset, [*place, position * self.fragment.steps[-1]], index)
            local = {**{a: num(0) for a in self.stage.extents}, **self.lane}
            where = [emit_index(i, local) for i in self.tile.layout.dims]
            moved = [
                w + p for w, p in zip(where, [*place, position * self.fragment.steps[-1] - self.lead], strict=True)
            ]
            moved[self.slide.dim] = moved[self.slide.dim] + offset
            flat = sum((w * p for w, p in zip(moved, self.tile.pitch, strict=True)), num(0))
            target = self.tile.target
            return _fetch(self.row, index, self.width, lambda v: load(target, flat + v))

        return loops([*positions, ("p", self.chunks)], one, unroll=True)

    def _in_place(self, offset: int, place: Sequence[Expr], index: Expr) -> Stmt:
        ld, tensor = self.slide.source, self.ctx.expr.tensors[self.slide.source.tensor]
        env = {**{a: num(0) for a in self.stage.extents}, **self.start}
        # Threads beyond an axis have exited: only the last register tile of an axis may reach beyond it.
        reach = {a: n if a not in self.by_name else -(-n // self.by_name[a].registers) * self.by_name[a].registers
                 for a, n in self.stage.extents.items()}  # fmt: skip
        conditions: list[Expr] = []
        where = []
        for d, (i, p) in enumerate(zip(ld.index, place, strict=True)):
            value = emit_index(i, env) + p + (offset if d == self.slide.dim else 0)
            guards = [b for b in ld.guard if b.index == i]
            low, high = max([0, *(b.low for b in guards)]), min([tensor.shape[d], *(b.high for b in guards)])
            conditions += index_conditions(i, value, reach, low, high)
            where.append(value)
        outside = constant(fill_value(ld, self.stage), dtype_name(self.row))
        if self.width == 1:
            value = self.ctx.readers()[ld.tensor](*where)
            return store(self.row, guarded(conditions, value, outside), index)
        source = self.ctx.buffers[ld.tensor]
        copy = _fetch(self.row, index, self.width, lambda v: load(source, *where[:-1], where[-1] + v))
        fill = loop("e", self.width, lambda v: store(self.row, outside, index + v), unroll=True)
        return when(conditions, copy, fill)

    # ---- arithmetic

    def _add(self, output: int, tap: int) -> Stmt:
        """Add the row to one output of the strip, with weights of one tap of the slide's window."""
        taps = [(a.name, a.extent) for a in self.stage.reduction_axes if a.name != self.slide.window]
        names: dict[Load, str] = {self.slide.source: "row", **{ld: b.name for ld, (b, _) in self.weights.items()}}
        body = named_loads(self.stage.body, names)
        combiner = self.stage.combiner or "sum"
        extents = [*self.fragment.extents[:-1], self.chunks * self.width]

        def one(at: dict[str, Expr]) -> Stmt:
            local = {**at, self.slide.axis: num(output), self.slide.window: num(tap)}
            coordinates = [emit_index(i, local) for i in self.fragment.dims]
            coordinates[-1] = coordinates[-1] + self.lead
            total: Expr = num(0)
            for c, n in zip(coordinates, extents, strict=True):
                total = total * n + c
            readers: dict[str, Reader] = {"row": _element(self.row, total)}
            for target, axes in self.weights.values():
                readers[target.name] = _element(target, _flat(axes, local))
            env = {a: self.start[a] + local[a] if a in self.start else local[a] for a in self.stage.extents}
            value = emit_scalar(body, env, readers).astype(self.stage.acc_dtype)
            index = self._accumulator(output, at)
            return store(self.acc, combine(combiner, load(self.acc, index), value), index)

        return loops([*taps, *((m.name, m.registers) for m in self.inner)], one, unroll=True)

    def _accumulator(self, output: int, at: Mapping[str, Expr]) -> Expr:
        return _flat([(m.name, m.registers) for m in self.inner], at) + output * self.points

    def _clear(self, output: int) -> Stmt:
        neutral = constant(COMBINERS[self.stage.combiner or "sum"].neutral, self.stage.acc_dtype)
        points = [(m.name, m.registers) for m in self.inner]
        return loops(points, lambda at: store(self.acc, neutral, self._accumulator(output, at)), unroll=True)

    # ---- the result

    def kernel(self, result: Stage, target: Buffer) -> Stmt:
        """Return the whole kernel: copy, weights, then row by row."""
        walk = [self._load_weights(ld) for ld in self.slide.others]
        for offset, adds in self.slide.rows(self.register[self.slide.axis]):
            walk.append(self._load_row(offset))
            for output, tap in adds:
                walk += [self._clear(output)] if tap == 0 else []
                walk.append(self._add(output, tap))
                walk += [self._write(result, target, output)] if tap == self.slide.taps - 1 else []
        inside = [self.start[m.name] < m.extent for m in self.maps if m.padded]
        registers = [self.acc, self.row, *(b for b, _ in self.weights.values())]
        body = with_buffers(registers, when(inside, seq(walk)))
        if self.tile is not None:
            copy = copy_tile(self.ctx, self.tile, self.domain, self._copy_base(), self.thread.var, self.threads)
            body = with_buffers([self.tile.target], seq([copy, body]))
        return kernel((self.block, self.thread), body)

    def _copy_base(self) -> dict[str, Expr]:
        return {**{a.name: num(0) for a in self.stage.reduction_axes}, **self.base}

    def _write(self, result: Stage, target: Buffer, output: int) -> Stmt:
        """Write one output of the strip, for all its points: the stage itself or its epilogue."""
        fast = self.maps[-1]
        width = 1 if fast.name == self.slide.axis else Results.of(result).vector(fast.name, fast.extent, fast.vector)
        wide = width > 1
        out = buffer("out", (width,), dtype_name(target), "local")
        points = [(m.name, m.registers // (width if m is fast else 1)) for m in self.inner]

        def value(at: Mapping[str, Expr], env: Mapping[str, Expr]) -> Expr:
            acc = as_output(load(self.acc, self._accumulator(output, at)), self.stage)
            if result is self.stage:
                return acc
            readers = self.ctx.readers({self.stage.name: lambda *_: promote(acc)})
            return as_output(emit_scalar(result.body, env, readers), result)

        def one(found: dict[str, Expr]) -> Stmt:
            at = {**found, self.slide.axis: num(output)}
            if wide:
                at[fast.name] = at[fast.name] * width
            env = {a: s + at[a] for a, s in self.start.items()}
            inside = [env[m.name] < m.extent for m in self.maps if self._ragged(m.name)]
            where = [emit_index(i, env) for i in result.store]
            if not wide:
                return when(inside, store(target, value(at, env), *where))

            def element(v: int) -> Stmt:
                moved = {**at, fast.name: at[fast.name] + v}
                return store(out, value(moved, {**env, fast.name: env[fast.name] + v}), num(v))

            fill = [element(v) for v in range(width)]
            write = vector_loop(width, lambda v: store(target, load(out, v), *where[:-1], where[-1] + v))
            return with_buffers([out], when(inside, seq([*fill, write])))

        return loops(points, one, unroll=True)


def window_kernel(ctx: Context, stage: Stage, epilogue: Stage | None, program: RProgram) -> Stmt:
    """Return the kernel of a window reduction and its optional element-wise epilogue."""
    result = epilogue or stage
    return Window(ctx, stage, program).kernel(result, ctx.buffers[result.name])


def _flat(axes: Sequence[tuple[str, int]], at: Mapping[str, Expr]) -> Expr:
    """Return the row-major position of ``at`` over the extents of ``axes``."""
    total: Expr = num(0)
    for name, extent in axes:
        total = total * extent + at[name]
    return total


def _fetch(target: Buffer, index: Expr, width: int, element: Callable[[Expr], Expr]) -> Stmt:
    """Load ``width`` elements at once into registers; half types are converted one by one after the load."""
    if width == 1:
        return store(target, promote(element(num(0))), index)
    dtype = dtype_of(element(num(0)))
    if dtype == dtype_name(target):
        return vector_loop(width, lambda v: store(target, element(v), index + v))
    raw = buffer("raw", (width,), dtype, "local")
    convert = loop("e", width, lambda v: store(target, promote(load(raw, v)), index + v), unroll=True)
    return with_buffers([raw], seq([vector_loop(width, lambda v: store(raw, element(v), v)), convert]))


def _element(source: Buffer, index: Expr) -> Reader:
    return lambda: load(source, index)


def kernels(ctx: Context, program: RProgram, stages: Sequence[Stage]) -> list[Stmt] | None:
    """Return the kernel for a whole expression, or ``None`` if it needs further kernels."""
    if len(stages) < len(ctx.expr.stages) or not is_alone(ctx.expr):
        return None
    return [window_kernel(ctx, ctx.expr.anchor, ctx.expr.epilogue, program)]
