"""Kernels for 3x3 windows by Winograd's algorithm (:mod:`roller.tile.winograd`): transforms and product.

Workspaces are ``U[e][c][f]``, ``V[e][c][t]`` and ``M[e][f][t]``, where ``e`` is the index of an element of the
transformed tile and ``t`` the index of an output tile; channels or filters that are contiguous in the image or output
are also contiguous in ``V`` or ``M``. One kernel transforms both operands, and each of its blocks transforms either
filters or images; constant filters are transformed before all calls. A thread transforms one tile of one channel or
filter. The tiled template computes the product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from roller.errors import BuildError
from roller.expr import OFFSET_ELEMENTS, Stage, Tensor
from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import constant, emit_index, emit_scalar
from roller.templates.emit.winograd_transform_products import multiply_by_inverse_transform, multiply_by_transform
from roller.templates.gpu.emit.axis_map import vector_loop
from roller.templates.gpu.emit.kernel_tensor_context import KernelContext, convert_to_output_dtype, promote_narrow_float
from roller.templates.gpu.emit.reduction_kernels import tiled_kernels
from roller.templates.gpu.emit.tir_statements import (
    Buffer,
    Expr,
    Stmt,
    allocate_buffers_around,
    declare_buffer,
    guarded_value,
    if_all,
    int32_literal,
    kernel_under_thread_axes,
    load,
    loop,
    sequence_of,
    store,
    thread_axis,
    unravel_index,
)
from roller.templates.gpu.tiled.emit import TiledKernel
from roller.tile import RProgram
from roller.tile.vector_access_widths import is_vectorizable
from roller.tile.winograd import WINDOW, Matrix, winograd_matrices
from roller.tile.winograd_batched_product import CHANNEL, FILTER, THREADS, TILE, WinogradProduct, batched_product

#: Extents of a part of a kernel, of which the last varies fastest, and the function that returns the statement of one
#: point's thread.
TransformPart: TypeAlias = tuple[tuple[int, int], Callable[[Expr, Expr], Stmt]]

_DTYPE = "float32"


def winograd_kernels(ctx: KernelContext, program: RProgram) -> list[Stmt]:
    """Return the kernels of a program of a ``winograd`` structure, in launch order."""
    expr = program.expr
    found = batched_product(expr, program.structure)
    if found is None:
        raise BuildError(
            f"{expr.name}: structure '{program.structure}' expected a float32 sum over channels and a sliding "
            "3x3 window of stride and dilation 1. Use structure 'tiled'."
        )
    for t in found.expr.tensors.values():
        if t.elements >= OFFSET_ELEMENTS:
            raise BuildError(
                f"{expr.name}: workspace of {t.shape}: expected fewer than 2**31 elements, got {t.elements}. "
                "Use structure 'tiled', or split the operator along its images."
            )
    return _WinogradKernels(ctx, program, found).kernels()


class _WinogradKernels:
    """One lowering: the workspaces and the kernels that connect them."""

    def __init__(self, ctx: KernelContext, program: RProgram, found: WinogradProduct) -> None:
        self.ctx, self.program, self.found, self.form = ctx, program, found, found.form
        self.m, self.side = found.m, found.m + WINDOW - 1
        self.last = program.expr.epilogue or program.expr.anchor
        self.inverse, self.filter_matrix, self.image_matrix = winograd_matrices(found.m)
        self.constant = self.form.filters.tensor in program.constants
        self.weights = self._declare_transformed(self.form.filters.tensor, constant=self.constant)
        self.image, self.products = (
            self._declare_transformed(self.form.image.tensor),
            self._declare_transformed(program.expr.anchor.name),
        )

    def _declare_transformed(self, name: str, constant: bool = False) -> Buffer:
        """Declare the transformed tensor of ``name``: a workspace, or a panel if it never changes."""
        tensor = self.found.expr.tensors[name]
        fresh = f"{name}_transformed"
        while fresh in self.ctx.buffers or fresh in self.ctx.expr.tensors:
            fresh += "_"
        declare = self.ctx.panel if constant else self.ctx.workspace
        return declare(Tensor(fresh, tensor.shape, tensor.dtype))

    def kernels(self) -> list[Stmt]:
        """Return all kernels in launch order."""
        inner = replace(self.ctx, expr=self.found.expr, buffers={}, workspaces=[], panels=[])
        names = (self.form.filters.tensor, self.form.image.tensor, self.found.expr.anchor.name)
        mine = dict(zip(names, (self.weights, self.image, self.products), strict=True))
        inner.buffers = {**self.ctx.buffers, **mine}
        multiply = tiled_kernels(inner, self.found.expr.anchor, None, self.found.inner(self.program), TiledKernel)
        self.ctx.own_barriers |= inner.own_barriers
        for t in inner.workspaces:
            self.ctx.workspaces.append(t)
            self.ctx.buffers[t.name] = inner.buffers[t.name]
        transforms = [self._transform_filters(), self._transform_images()]
        if self.constant:
            self.ctx.prepare = _kernel_of_parts(transforms[:1])
            transforms = transforms[1:]
        return [_kernel_of_parts(transforms), *multiply, _kernel_of_parts([self._transform_outputs()])]

    def _product_axis_extent(self, axis: str) -> int:
        """Return the extent of an axis of the product, including repeated tiles or filters."""
        return self.found.expr.anchor.extents[axis]

    def _transform_filters(self) -> TransformPart:
        """Return the transform for one 3x3 filter of one channel per thread."""
        form, source = self.form, self.ctx.buffers[self.form.filters.tensor]
        (_, kh, _), (_, kw, _) = form.slides
        filters = self.program.expr.anchor.extents[form.filter]

        def body(channel: Expr, row: Expr) -> Stmt:
            at = {
                form.channel: channel,
                form.filter: _clamp_padded_index(row, filters, self._product_axis_extent(FILTER)),
            }

            def get(y: int, x: int) -> Expr:
                return load(
                    source,
                    *(emit_index(i, {**at, kh: int32_literal(y), kw: int32_literal(x)}) for i in form.filters.index),
                )

            def place(e: int, value: Expr) -> Stmt:
                return store(self.weights, value, int32_literal(e), channel, row)

            return self._two_sided_product(self.filter_matrix, get, WINDOW, multiply_by_transform, place)

        return (self._product_axis_extent(CHANNEL), self._product_axis_extent(FILTER)), body

    def _transform_images(self) -> TransformPart:
        """Return the input transform for one output tile of one channel per thread."""
        found, form, source = self.found, self.form, self.ctx.buffers[self.form.image.tensor]

        def transform(channel: Expr, row: Expr) -> Stmt:
            place = _clamp_padded_index(row, found.tiles, self._product_axis_extent(TILE))
            units = dict(
                zip((a for a, _ in found.units), unravel_index(place, [n for _, n in found.units]), strict=True)
            )

            def get(y: int, x: int) -> Expr:
                index = [emit_index(i, {**units, form.channel: channel}) if len(i.terms) < 2 else None
                         for i in form.image.index]  # fmt: skip
                conditions = []
                for (axis, _, d), offset in zip(form.slides, (y, x), strict=True):
                    index[d] = units[axis] * self.m + (form.image.index[d].const + offset)
                    conditions += self._inside(d, index[d], offset, axis)
                return guarded_value(conditions, load(source, *index), constant(0.0, _DTYPE))

            def write(e: int, value: Expr) -> Stmt:
                where = (row, channel) if found.channels_last else (channel, row)
                return store(self.image, value, int32_literal(e), *where)

            return self._two_sided_product(self.image_matrix, get, self.side, multiply_by_transform, write)

        if found.channels_last:
            return (self._product_axis_extent(TILE), self._product_axis_extent(CHANNEL)), lambda t, c: transform(c, t)
        return (self._product_axis_extent(CHANNEL), self._product_axis_extent(TILE)), transform

    def _inside(self, dimension: int, value: Expr, offset: int, axis: str) -> list[Expr]:
        """Return the bounds of a sliding dimension that some tile exceeds at ``offset`` of its input."""
        index, image = self.form.image.index[dimension], self.form.image
        guards = [b for b in image.guard if b.index == index]
        low = max([0, *(b.low for b in guards)])
        high = min([self.program.expr.tensors[image.tensor].shape[dimension], *(b.high for b in guards)])
        first = index.const + offset
        last = first + (dict(self.found.units)[axis] - 1) * self.m
        return ([value >= low] if first < low else []) + ([value < high] if last >= high else [])

    def _two_sided_product(
        self,
        matrix: Matrix,
        get: Callable[[int, int], Expr],
        size: int,
        apply: Callable[[Matrix, Sequence[Expr]], list[Expr]],
        place: Callable[[int, Expr], Stmt],
    ) -> Stmt:
        """Return ``matrix @ values @ matrix^T`` in registers; ``place`` takes the elements row by row."""
        height = len(matrix)
        given = declare_buffer("given", (size * size,), _DTYPE, "local")
        half = declare_buffer("half", (height * size,), _DTYPE, "local")
        fetch = [store(given, get(y, x), int32_literal(y * size + x)) for y in range(size) for x in range(size)]

        def column(j: Expr) -> Stmt:
            values = apply(matrix, [load(given, i * size + j) for i in range(size)])
            return sequence_of([store(half, v, i * size + j) for i, v in enumerate(values)])

        rows = []
        for i in range(height):
            values = apply(matrix, [load(half, int32_literal(i * size + j)) for j in range(size)])
            rows += [place(i * height + j, v) for j, v in enumerate(values)]
        return allocate_buffers_around(
            [given, half], sequence_of([*fetch, loop("j", size, column, unroll=True), *rows])
        )

    def _transform_outputs(self) -> TransformPart:
        """Return the back transform for one tile of one filter per thread, with results stored through the epilogue."""
        found, form = self.found, self.form
        filters = self.program.expr.anchor.extents[form.filter]
        result = declare_buffer("result", (self.m * self.m,), _DTYPE, "local")

        def back(row: Expr, tile: Expr) -> Stmt:
            where = (tile, row) if found.filters_last else (row, tile)

            def get(y: int, x: int) -> Expr:
                return load(self.products, int32_literal(y * self.side + x), *where)

            units = dict(
                zip((a for a, _ in found.units), unravel_index(tile, [n for _, n in found.units]), strict=True)
            )
            both = self._two_sided_product(
                self.inverse,
                get,
                self.side,
                multiply_by_inverse_transform,
                lambda e, v: store(result, v, int32_literal(e)),
            )
            return allocate_buffers_around(
                [result], sequence_of([both, self._store(result, {**units, form.filter: row})])
            )

        if found.filters_last:
            return (found.tiles, filters), lambda t, f: back(f, t)
        return (filters, found.tiles), back

    def _store(self, result: Buffer, units: dict[str, Expr]) -> Stmt:
        """Store a thread's tile, clipped at the ends of rows and columns; aligned rows are stored as vectors."""
        extents, last, m = self.program.expr.anchor.extents, self.last, self.m
        (rows, _, _), (columns, _, _) = self.form.slides
        target = self.ctx.buffers[last.name]
        corner = {a: units[a] * m for a in (rows, columns)}

        def env(y: int, x: int) -> dict[str, Expr]:
            return {**units, rows: corner[rows] + y, columns: corner[columns] + x}

        def value(y: int, x: int) -> Expr:
            one = load(result, int32_literal(y * m + x))
            if last is self.program.expr.anchor:
                return convert_to_output_dtype(one, last)
            readers = self.ctx.readers({self.program.expr.anchor.name: lambda *_: promote_narrow_float(one)})
            return convert_to_output_dtype(emit_scalar(last.body, env(y, x), readers), last)

        def inside(axis: str, at: Expr) -> list[Expr]:
            return [at < extents[axis]] if extents[axis] % m else []

        wide = is_vectorizable(last.store, last.output, columns, extents[columns], m)
        out: list[Stmt] = []
        for y in range(m):
            if wide:
                vector = declare_buffer(f"row{y}", (m,), last.output.dtype, "local")
                where = [emit_index(i, env(y, 0)) for i in last.store]
                body = [store(vector, value(y, x), int32_literal(x)) for x in range(m)]
                line = allocate_buffers_around([vector], sequence_of([*body, _store_row(target, vector, m, where)]))
            else:
                line = sequence_of([
                    if_all(inside(columns, corner[columns] + x),
                         store(target, value(y, x), *(emit_index(i, env(y, x)) for i in last.store)))
                    for x in range(m)
                ])  # fmt: skip
            out.append(if_all(inside(rows, corner[rows] + y), line))
        return sequence_of(out)


def _store_row(target: Buffer, vector: Buffer, width: int, where: Sequence[Expr]) -> Stmt:
    """Store ``width`` elements as one vector that starts at ``where``."""
    return vector_loop(width, lambda v: store(target, load(vector, v), *where[:-1], where[-1] + v))


def _clamp_padded_index(value: Expr, count: int, padded: int) -> Expr:
    """Return ``value``, clamped to ``count - 1`` if the padded extent is larger than ``count``."""
    return value if count == padded else tirx.min(value, int32_literal(count - 1))


def _kernel_of_parts(parts: Sequence[TransformPart]) -> Stmt:
    """Return a kernel with one thread per point of each part; the blocks of the parts follow one another."""
    counts = [-(-math.prod(extents) // THREADS) for extents, _ in parts]
    block, thread = thread_axis("blockIdx.x", sum(counts)), thread_axis("threadIdx.x", THREADS)
    out: Stmt | None = None
    for n, (extents, body) in reversed(list(enumerate(parts))):
        first, total = sum(counts[:n]), math.prod(extents)
        flat = (block.var - first if first else block.var) * THREADS + thread.var
        mine = if_all([flat < total] if total % THREADS else [], body(*unravel_index(flat, extents)))
        out = mine if out is None else if_all([block.var < first + counts[n]], mine, out)
    return kernel_under_thread_axes((block, thread), out)


def kernels(ctx: KernelContext, program: RProgram, stages: Sequence[Stage]) -> list[Stmt]:
    """Return the transforms and the product of a whole expression."""
    del stages
    return winograd_kernels(ctx, program)
