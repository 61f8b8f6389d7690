"""Template for reductions over sliding windows (depthwise convolution, pooling): threads process input rows one by one.

A thread sums a strip of outputs along the slide: it loads every input row under the strip once, adds it to the outputs
whose windows contain it, and writes an output after its last row. Registers hold one row, the outputs in flight and the
weights (:mod:`roller.tile.sliding_windows`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from roller.errors import BuildError
from roller.expr import COMBINERS, Load, Stage
from roller.te.compat import dtype_of
from roller.te.emit_tvm_expressions import constant, emit_bounds, emit_combine_step, emit_index, emit_scalar
from roller.templates.gpu.common.stored_results import StoredResults, axes_in_store_order, fits_one_kernel
from roller.templates.gpu.emit.axis_map import AxisMap, axis_map, vector_loop
from roller.templates.gpu.emit.kernel_tensor_context import (
    KernelContext,
    Reader,
    bounds_to_check,
    compute_dtype,
    convert_to_output_dtype,
    promote_narrow_float,
    replace_loads_by_names,
)
from roller.templates.gpu.emit.staged_tiles import StagedTile, TileDomain, emit_tile_copy, value_outside_tensor
from roller.templates.gpu.emit.tir_statements import (
    Buffer,
    Expr,
    Stmt,
    allocate_buffers_around,
    declare_buffer,
    dtype_name,
    guarded_value,
    if_all,
    int32_literal,
    kernel_under_thread_axes,
    load,
    loop,
    nested_loops,
    sequence_of,
    store,
    thread_axis,
    unravel_index,
)
from roller.tile import RProgram
from roller.tile.scratchpad_bytes import STATIC_SHARED_BYTES
from roller.tile.sliding_windows import RowBox, row_box, slide_of
from roller.tile.staged_tile_layout import program_layout, window_halo
from roller.tile.vector_access_widths import widest_vector_elements
from roller_runtime.core.dtypes import DTYPE_BYTES

#: Number of elements in the widest load of a thread.
_WIDEST = 8


class WindowKernel:
    """State of one window kernel while it is written."""

    def __init__(self, ctx: KernelContext, stage: Stage, program: RProgram) -> None:
        slide = slide_of(stage)
        if slide is None:
            raise BuildError(f"{ctx.expr.name}: structure 'window' needs a reduction over windows of one operand.")
        self.ctx, self.stage, self.program, self.slide = ctx, stage, program, slide
        self.maps: tuple[AxisMap, ...] = tuple(
            axis_map(program, a, interleaved=False) for a in axes_in_store_order(stage)
        )
        self.by_name = {m.name: m for m in self.maps}
        self.block = thread_axis("blockIdx.x", math.prod(m.steps for m in self.maps))
        self.threads = math.prod(m.threads for m in self.maps)
        self.thread = thread_axis("threadIdx.x", self.threads)
        blocks = unravel_index(self.block.var, [m.steps for m in self.maps])
        lanes = unravel_index(self.thread.var, [m.threads for m in self.maps])
        self.base = {m.name: b * m.tile for m, b in zip(self.maps, blocks, strict=True)}
        #: Start of a thread's outputs within those of the block; ``start`` is their start in the tensor.
        self.lane = {m.name: t * m.registers for m, t in zip(self.maps, lanes, strict=True)}
        self.start = {m.name: self.base[m.name] + self.lane[m.name] for m in self.maps}
        self.domain = TileDomain.of(stage, program)
        self.register = program.tile("register")
        self.fragment: RowBox = row_box(slide, self.register)
        self.inner = [m for m in self.maps if m.name != slide.axis]
        self.points = math.prod(m.registers for m in self.inner)
        self.acc = declare_buffer("acc", (self.register[slide.axis] * self.points,), stage.acc_dtype, "local")
        self.tile = self._staged_tile() if slide.source.tensor in program.staged else None
        self.lead, self.width, self.chunks = self._row_vector_lead_width_and_count()
        row = math.prod(self.fragment.extents[:-1]) * self.width * self.chunks
        self.row = declare_buffer("row", (row,), compute_dtype(self._dtype(slide.source)), "local")
        self.weights = {ld: self._weight_buffer(n, ld) for n, ld in enumerate(slide.others)}

    def _dtype(self, ld: Load) -> str:
        return self.ctx.expr.tensors[ld.tensor].dtype

    # ---- operands

    def _staged_tile(self) -> StagedTile:
        ld = self.slide.source
        tensor = self.ctx.expr.tensors[ld.tensor]
        layout = program_layout(self.program, ld)
        padding = dict(self.program.storage_padding).get(ld.tensor, 0)
        elements = math.prod(layout.extents[:-1]) * (layout.extents[-1] + padding)
        dtype = tensor.dtype if self.ctx.is_in_global_memory(ld.tensor) else compute_dtype(tensor.dtype)
        scope = "shared" if elements * DTYPE_BYTES[dtype] <= STATIC_SHARED_BYTES else "shared.dyn"
        target = declare_buffer("tile0", (elements,), dtype, scope)
        return StagedTile(ld, tensor, layout, padding, value_outside_tensor(ld, self.stage), target, elements)

    def _row_vector_lead_width_and_count(self) -> tuple[int, int, int]:
        """Return the number of elements before a row's fragment, and the width and number of the fragment's vectors."""
        extent, ld = self.fragment.extents[-1], self.slide.source
        if self.tile is not None:
            rows = window_halo(self.program)
            return rows.lead, rows.width, rows.chunks
        last, tensor = ld.index[-1], self.ctx.expr.tensors[ld.tensor]
        if len(last.terms) == 1 and self.ctx.is_in_global_memory(ld.tensor) and last.terms[0].axis in self.by_name:
            m = self.by_name[last.terms[0].axis]
            width = math.gcd(_WIDEST, m.registers, widest_vector_elements(ld.index, tensor, m.name, m.extent))
            return 0, width, extent // width
        return 0, 1, extent

    def _weight_buffer(self, n: int, ld: Load) -> tuple[Buffer, tuple[tuple[str, int], ...]]:
        """Return the registers for an operand that a thread keeps, and the axes that index the registers."""
        moving = dict.fromkeys(a for i in ld.index for a in i.axes)  # in the tensor's order, which allows vectors
        axes = tuple((a, self.register[a]) for a in moving)
        size = math.prod(e for _, e in axes)
        return declare_buffer(f"weight{n}", (size,), compute_dtype(self._dtype(ld)), "local"), axes

    def _load_weights(self, ld: Load) -> Stmt:
        target, axes = self.weights[ld]
        width = self._weight_width(ld)
        points = [*axes[:-1], (axes[-1][0], axes[-1][1] // width)] if width > 1 else axes

        def one(place: dict[str, Expr]) -> Stmt:
            at = {**place, axes[-1][0]: place[axes[-1][0]] * width} if width > 1 else place
            env = {**{a: int32_literal(0) for a in self.stage.extents}, **self.start}
            env.update({a: env[a] + v for a, v in at.items()})
            conditions = [
                env[a] < self.by_name[a].extent for a, _ in axes if a in self.by_name and self._may_overhang(a)
            ]
            conditions += emit_bounds(ld.guard, env)
            where = [emit_index(i, env) for i in ld.index]
            if width > 1:
                source = self.ctx.buffers[ld.tensor]
                return _load_in_vector(
                    target, _row_major_position(axes, at), width, lambda v: load(source, *where[:-1], where[-1] + v)
                )
            value = self.ctx.readers()[ld.tensor](*where)
            outside = constant(ld.outside, compute_dtype(self._dtype(ld)))
            return store(target, guarded_value(conditions, value, outside), _row_major_position(axes, at))

        return nested_loops(points, one, unroll=True)

    def _weight_width(self, ld: Load) -> int:
        """Return the number of elements of a kept operand that a thread loads at once."""
        last = ld.index[-1].terms if ld.index else ()
        if (
            len(last) != 1
            or last[0].axis not in self.by_name
            or not self.ctx.is_in_global_memory(ld.tensor)
            or ld.guard
        ):
            return 1
        m, tensor = self.by_name[last[0].axis], self.ctx.expr.tensors[ld.tensor]
        return math.gcd(_WIDEST, m.registers, widest_vector_elements(ld.index, tensor, m.name, m.extent))

    def _may_overhang(self, axis: str) -> bool:
        """Return whether a thread that starts inside an axis may reach beyond its end."""
        m = self.by_name[axis]
        return m.extent % m.registers != 0

    def _load_row(self, offset: int) -> Stmt:
        """Return the loads of the row ``offset`` elements below the strip's first row."""
        positions = [(f"p{d}", n) for d, n in enumerate(self.fragment.extents[:-1])]

        def one(at: dict[str, Expr]) -> Stmt:
            place = [at[name] * step for (name, _), step in zip(positions, self.fragment.steps[:-1], strict=True)]
            index = _row_major_position([*positions, ("p", self.chunks)], at) * self.width
            position = at["p"] * self.width
            if self.tile is None:
                return self._in_place(offset, [*place, position * self.fragment.steps[-1]], index)
            local = {**{a: int32_literal(0) for a in self.stage.extents}, **self.lane}
            where = [emit_index(i, local) for i in self.tile.layout.dims]
            moved = [
                w + p for w, p in zip(where, [*place, position * self.fragment.steps[-1] - self.lead], strict=True)
            ]
            moved[self.slide.dim] = moved[self.slide.dim] + offset
            flat = sum((w * p for w, p in zip(moved, self.tile.pitch, strict=True)), int32_literal(0))
            target = self.tile.target
            return _load_in_vector(self.row, index, self.width, lambda v: load(target, flat + v))

        return nested_loops([*positions, ("p", self.chunks)], one, unroll=True)

    def _in_place(self, offset: int, place: Sequence[Expr], index: Expr) -> Stmt:
        ld, tensor = self.slide.source, self.ctx.expr.tensors[self.slide.source.tensor]
        env = {**{a: int32_literal(0) for a in self.stage.extents}, **self.start}
        # Threads beyond an axis have exited: only the last register tile of an axis may reach beyond it.
        reach = {a: n if a not in self.by_name else -(-n // self.by_name[a].registers) * self.by_name[a].registers
                 for a, n in self.stage.extents.items()}  # fmt: skip
        conditions: list[Expr] = []
        where = []
        for d, (i, p) in enumerate(zip(ld.index, place, strict=True)):
            value = emit_index(i, env) + p + (offset if d == self.slide.dim else 0)
            guards = [b for b in ld.guard if b.index == i]
            low, high = max([0, *(b.low for b in guards)]), min([tensor.shape[d], *(b.high for b in guards)])
            conditions += bounds_to_check(i, value, reach, low, high)
            where.append(value)
        outside = constant(value_outside_tensor(ld, self.stage), dtype_name(self.row))
        if self.width == 1:
            value = self.ctx.readers()[ld.tensor](*where)
            return store(self.row, guarded_value(conditions, value, outside), index)
        source = self.ctx.buffers[ld.tensor]
        copy = _load_in_vector(self.row, index, self.width, lambda v: load(source, *where[:-1], where[-1] + v))
        fill = loop("e", self.width, lambda v: store(self.row, outside, index + v), unroll=True)
        return if_all(conditions, copy, fill)

    # ---- arithmetic

    def _add_row_to_output(self, output: int, tap: int) -> Stmt:
        """Add the row to one output of the strip, with the weights of one tap of the slide's window."""
        taps = [(a.name, a.extent) for a in self.stage.reduction_axes if a.name != self.slide.window]
        names: dict[Load, str] = {self.slide.source: "row", **{ld: b.name for ld, (b, _) in self.weights.items()}}
        body = replace_loads_by_names(self.stage.body, names)
        combiner = self.stage.combiner or "sum"
        extents = [*self.fragment.extents[:-1], self.chunks * self.width]

        def one(at: dict[str, Expr]) -> Stmt:
            local = {**at, self.slide.axis: int32_literal(output), self.slide.window: int32_literal(tap)}
            coordinates = [emit_index(i, local) for i in self.fragment.dims]
            coordinates[-1] = coordinates[-1] + self.lead
            total: Expr = int32_literal(0)
            for c, n in zip(coordinates, extents, strict=True):
                total = total * n + c
            readers: dict[str, Reader] = {"row": _element_reader(self.row, total)}
            for target, axes in self.weights.values():
                readers[target.name] = _element_reader(target, _row_major_position(axes, local))
            env = {a: self.start[a] + local[a] if a in self.start else local[a] for a in self.stage.extents}
            value = emit_scalar(body, env, readers).astype(self.stage.acc_dtype)
            index = self._accumulator_index(output, at)
            return store(self.acc, emit_combine_step(combiner, load(self.acc, index), value), index)

        return nested_loops([*taps, *((m.name, m.registers) for m in self.inner)], one, unroll=True)

    def _accumulator_index(self, output: int, at: Mapping[str, Expr]) -> Expr:
        return _row_major_position([(m.name, m.registers) for m in self.inner], at) + output * self.points

    def _clear_output_accumulators(self, output: int) -> Stmt:
        neutral = constant(COMBINERS[self.stage.combiner or "sum"].neutral, self.stage.acc_dtype)
        points = [(m.name, m.registers) for m in self.inner]
        return nested_loops(
            points, lambda at: store(self.acc, neutral, self._accumulator_index(output, at)), unroll=True
        )

    # ---- the result

    def kernel(self, result: Stage, target: Buffer) -> Stmt:
        """Return the whole kernel, which copies the tile, loads the weights, and then processes row by row."""
        walk = [self._load_weights(ld) for ld in self.slide.others]
        for offset, adds in self.slide.rows(self.register[self.slide.axis]):
            walk.append(self._load_row(offset))
            for output, tap in adds:
                walk += [self._clear_output_accumulators(output)] if tap == 0 else []
                walk.append(self._add_row_to_output(output, tap))
                walk += [self._write(result, target, output)] if tap == self.slide.taps - 1 else []
        inside = [self.start[m.name] < m.extent for m in self.maps if m.padded]
        registers = [self.acc, self.row, *(b for b, _ in self.weights.values())]
        body = allocate_buffers_around(registers, if_all(inside, sequence_of(walk)))
        if self.tile is not None:
            copy = emit_tile_copy(
                self.ctx, self.tile, self.domain, self._staged_tile_start(), self.thread.var, self.threads
            )
            body = allocate_buffers_around([self.tile.target], sequence_of([copy, body]))
        return kernel_under_thread_axes((self.block, self.thread), body)

    def _staged_tile_start(self) -> dict[str, Expr]:
        return {**{a.name: int32_literal(0) for a in self.stage.reduction_axes}, **self.base}

    def _write(self, result: Stage, target: Buffer, output: int) -> Stmt:
        """Write one output of the strip at all its points: the stage's result or, if there is one, the epilogue's."""
        fast = self.maps[-1]
        width = (
            1 if fast.name == self.slide.axis else StoredResults.of(result).vector(fast.name, fast.extent, fast.vector)
        )
        wide = width > 1
        out = declare_buffer("out", (width,), dtype_name(target), "local")
        points = [(m.name, m.registers // (width if m is fast else 1)) for m in self.inner]

        def value(at: Mapping[str, Expr], env: Mapping[str, Expr]) -> Expr:
            acc = convert_to_output_dtype(load(self.acc, self._accumulator_index(output, at)), self.stage)
            if result is self.stage:
                return acc
            readers = self.ctx.readers({self.stage.name: lambda *_: promote_narrow_float(acc)})
            return convert_to_output_dtype(emit_scalar(result.body, env, readers), result)

        def one(found: dict[str, Expr]) -> Stmt:
            at = {**found, self.slide.axis: int32_literal(output)}
            if wide:
                at[fast.name] = at[fast.name] * width
            env = {a: s + at[a] for a, s in self.start.items()}
            inside = [env[m.name] < m.extent for m in self.maps if self._may_overhang(m.name)]
            where = [emit_index(i, env) for i in result.store]
            if not wide:
                return if_all(inside, store(target, value(at, env), *where))

            def element(v: int) -> Stmt:
                moved = {**at, fast.name: at[fast.name] + v}
                return store(out, value(moved, {**env, fast.name: env[fast.name] + v}), int32_literal(v))

            fill = [element(v) for v in range(width)]
            write = vector_loop(width, lambda v: store(target, load(out, v), *where[:-1], where[-1] + v))
            return allocate_buffers_around([out], if_all(inside, sequence_of([*fill, write])))

        return nested_loops(points, one, unroll=True)


def window_kernel(ctx: KernelContext, stage: Stage, epilogue: Stage | None, program: RProgram) -> Stmt:
    """Return the kernel of a window reduction and its optional element-wise epilogue."""
    result = epilogue or stage
    return WindowKernel(ctx, stage, program).kernel(result, ctx.buffers[result.name])


def _row_major_position(axes: Sequence[tuple[str, int]], at: Mapping[str, Expr]) -> Expr:
    """Return the row-major position of ``at`` over the extents of ``axes``."""
    total: Expr = int32_literal(0)
    for name, extent in axes:
        total = total * extent + at[name]
    return total


def _load_in_vector(target: Buffer, index: Expr, width: int, element: Callable[[Expr], Expr]) -> Stmt:
    """Load ``width`` elements at once into registers; half types are converted one by one after the load."""
    if width == 1:
        return store(target, promote_narrow_float(element(int32_literal(0))), index)
    dtype = dtype_of(element(int32_literal(0)))
    if dtype == dtype_name(target):
        return vector_loop(width, lambda v: store(target, element(v), index + v))
    raw = declare_buffer("raw", (width,), dtype, "local")
    convert = loop("e", width, lambda v: store(target, promote_narrow_float(load(raw, v)), index + v), unroll=True)
    return allocate_buffers_around(
        [raw], sequence_of([vector_loop(width, lambda v: store(raw, element(v), v)), convert])
    )


def _element_reader(source: Buffer, index: Expr) -> Reader:
    return lambda: load(source, index)


def kernels(ctx: KernelContext, program: RProgram, stages: Sequence[Stage]) -> list[Stmt] | None:
    """Return the kernel for a whole expression, or ``None`` if it needs further kernels."""
    if len(stages) < len(ctx.expr.stages) or not fits_one_kernel(ctx.expr):
        return None
    return [window_kernel(ctx, ctx.expr.anchor, ctx.expr.epilogue, program)]
