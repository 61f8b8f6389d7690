"""Template for 3x3 windows using Winograd's algorithm: transform, multiply and transform back, fused per task.

Filters are transformed once, in parallel, into panels ``[element][panel][channel][lanes]``. A task (a box of output
tiles and some panels) computes ``V[element][tile][channel]`` and ``M[element][tile][filter]`` in the core's cache.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from roller.errors import BuildError
from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import Expr, constant, emit_index, emit_scalar
from roller.templates.cpu.emit.blocked_lanes import AxisDigits
from roller.templates.cpu.emit.tir_loop_constructors import (
    Buffer,
    EmittedNests,
    LoopBuilder,
    Stmt,
    allocate_buffer,
    clamp_expression,
    declare_buffer,
    element_reader,
    if_then,
    int32_index,
    read_element,
    sequence_of_statements,
    serialize_loops,
    smaller_extent,
    unravel_counter,
    write_element,
)  # fmt: skip
from roller.templates.cpu.winograd.emit_filter_prefetches import emit_filter_prefetches
from roller.templates.cpu.winograd.emit_task_starts import (
    Coordinates,
    Units,
    count_groups_of_task,
    count_units_of_task,
    first_unit_of_group,
    first_unit_of_piece,
    first_unit_of_task,
    number_of_coordinate,
    task_count_and_coordinates,
)
from roller.templates.emit.winograd_transform_products import multiply_by_inverse_transform, multiply_by_transform
from roller.tile import RProgram
from roller.tile.winograd import WINDOW, Matrix, WinogradPlan, winograd_matrices

_DTYPE = "float32"


@dataclass
class _WinogradLowering:
    """One lowering: the plan, the private buffers, and the pieces of the loop nest."""

    program: RProgram
    buffers: dict[str, Buffer]
    nest: LoopBuilder = field(default_factory=LoopBuilder)

    def __post_init__(self) -> None:
        expr = self.program.expr
        register, task = self.program.tile("register"), self.program.block_tile
        lanes, opened = self.program.vector_elements, self.program.open_axes
        plan = WinogradPlan.of(expr, self.program.structure, register, task, lanes, opened)
        if plan is None:
            raise BuildError(
                f"{expr.name}: structure '{self.program.structure}' expected a float32 sum over channels and a sliding "
                "3x3 window of stride and dilation 1. Use structure 'tiled'."
            )
        self.plan: WinogradPlan = plan
        self.inverse, self.filter_matrix, self.image_matrix = winograd_matrices(plan.m)
        last = expr.epilogue or expr.anchor
        loads = [i for ld in last.loads for i in ld.index] if last is not expr.anchor else []
        self.channel = AxisDigits.of(plan.form.channel, plan.form.image.index)
        self.filter = AxisDigits.of(plan.form.filter, [*last.store, *loads])
        self.store = tuple(self.filter.index(i) for i in last.store)
        self.last = last
        elements = plan.side**2
        rows, columns = plan.tiled[-2:]
        box = [plan.m * t.box + WINDOW - 1 for t in (rows, columns)]
        cl = plan.channel_lanes
        name = f"{plan.form.filters.tensor}_transformed"
        while name in self.buffers:
            name += "_"
        self.weights = declare_buffer(name, (elements, plan.panels.units, plan.channels, plan.width), _DTYPE)
        self.patch = declare_buffer("patch", (*box, cl), _DTYPE)
        # Rows are part of a flat dimension: TVM would drop their unused ends, which keep rows out of the same cache
        # sets.
        self.image = declare_buffer("image", (elements, plan.tiles * plan.channel_pitch), _DTYPE)
        self.products = declare_buffer("products", (elements, plan.tiles, plan.panels.box, plan.width), _DTYPE)
        kernel = (plan.tiles_per_micro_kernel, plan.width)
        self.acc = declare_buffer("acc", kernel, _DTYPE, scope="local")
        self.window = declare_buffer("window", (WINDOW, WINDOW, plan.lanes), _DTYPE, scope="local")
        self.half_window = declare_buffer("half_window", (plan.side, WINDOW, plan.lanes), _DTYPE, scope="local")
        self.half = declare_buffer("half", (plan.side, plan.side, cl), _DTYPE, scope="local")
        self.half_out = declare_buffer("half_out", (plan.m, plan.side, plan.lanes), _DTYPE, scope="local")
        self.result = declare_buffer("result", (plan.m, plan.m, plan.width), _DTYPE, scope="local")

    def nests(self) -> EmittedNests:
        """Return the nest of a call; a separate nest transforms constant filters before the first call."""
        plan = self.plan
        parts = [plan.panels.units, plan.channels]
        pack = self.nest.loop(
            math.prod(parts), lambda t: self._emit_filter_transform(*unravel_counter(t, parts)), "parallel", "filters"
        )
        count, tasks = task_count_and_coordinates((*plan.tiled, plan.panels))
        main = self.nest.loop(count, lambda t: self._task(tasks(t)), "parallel", "task")
        name = plan.form.filters.tensor
        if plan.tasks == 1 and not self.program.open_axes:  # as in the price, a program of one task wakes no worker
            pack = serialize_loops(pack)
        if name not in self.program.constants:
            return EmittedNests(sequence_of_statements(allocate_buffer(self.weights), pack, main))
        again = {ld.tensor for s in self.program.expr.stages if s is not self.program.expr.anchor for ld in s.loads}
        return EmittedNests(main, (self.weights,), pack, frozenset({name} - again))

    def _lanes(self, lanes: int, body: Callable[[Expr], Stmt]) -> Stmt:
        return self.nest.loop(lanes, body, "vector", "lane")

    def _emit_filter_transform(self, panel: Expr, channel: Expr) -> Stmt:
        """Transform the filters of one panel and channel."""
        plan, form, source = self.plan, self.plan.form, self.buffers[self.plan.form.filters.tensor]
        start = first_unit_of_piece(panel, plan.width, plan.filters)
        (_, kh, _), (_, kw, _) = form.slides

        def vector(u: Expr) -> Stmt:
            def load(at: Coordinates) -> Stmt:
                env = {kh: at[0], kw: at[1], form.channel: channel}

                def lane(x: Expr) -> Stmt:
                    index = [
                        emit_index(k, {**env, form.filter: start + u * plan.lanes + x}) for k in form.filters.index
                    ]
                    return write_element(self.window, read_element(source, *index), *at, x)

                return self._lanes(plan.lanes, lane)

            def get(i: Expr, j: Expr, x: Expr) -> Expr:
                return read_element(self.window, i, j, x)

            def place(i: Expr, j: Expr, x: Expr, value: Expr) -> Stmt:
                return write_element(self.weights, value, i * plan.side + j, panel, channel, u * plan.lanes + x)

            sizes = (WINDOW, WINDOW, plan.lanes)
            copy = self.nest.grid([WINDOW, WINDOW], load)
            both = self._emit_two_sided_product(
                self.filter_matrix, get, self.half_window, sizes, place, multiply_by_transform
            )
            return sequence_of_statements(allocate_buffer(self.window), allocate_buffer(self.half_window), copy, both)

        return self.nest.loop(plan.width // plan.lanes, vector)

    def _emit_two_sided_product(
        self,
        matrix: Matrix,
        get: Callable[[Expr, Expr, Expr], Expr],
        half: Buffer,
        sizes: tuple[int, int, int],
        place: Callable[[Expr, Expr, Expr, Expr], Stmt],
        apply: Callable[[Matrix, Sequence[Expr]], list[Expr]],
    ) -> Stmt:
        """Emit ``matrix @ values @ matrix^T``: columns from ``get`` to ``half``, then rows to ``place``."""
        height, columns, lanes = sizes

        def column(j: Expr, x: Expr) -> Stmt:
            values = apply(matrix, [get(int32_index(i), j, x) for i in range(height)])
            return sequence_of_statements(*(write_element(half, v, int32_index(i), j, x) for i, v in enumerate(values)))

        def row(i: Expr, x: Expr) -> Stmt:
            values = apply(matrix, [read_element(half, i, int32_index(j), x) for j in range(columns)])
            return sequence_of_statements(*(place(i, int32_index(j), x, v) for j, v in enumerate(values)))

        return sequence_of_statements(
            self.nest.loop(columns, lambda j: self._lanes(lanes, lambda x: column(j, x))),
            self.nest.loop(len(matrix), lambda i: self._lanes(lanes, lambda x: row(i, x))),
        )

    def _task(self, task: Coordinates) -> Stmt:
        plan = self.plan
        axes = (*plan.tiled, plan.panels)
        starts = tuple(first_unit_of_task(t, a) for t, a in zip(task, axes, strict=True))
        own = tuple(count_units_of_task(s, a) for s, a in zip(starts, plan.tiled, strict=False))

        def image(at: Coordinates) -> Stmt:
            return self.nest.loop(plan.channel_vectors, lambda v: self._image(starts, own[-2:], at, v))

        transform = sequence_of_statements(allocate_buffer(self.patch), self.nest.grid(own[:-2], image))
        multiply = self.nest.loop(plan.side**2, lambda e: self._multiply(e, starts[-1], own))
        back = self.nest.grid(own, lambda t: self._outputs(t, starts))
        return sequence_of_statements(
            allocate_buffer(self.image), allocate_buffer(self.products), transform, multiply, back
        )

    def _image(self, starts: Coordinates, own: Units, batch: Coordinates, vector: Expr) -> Stmt:
        """Copy one image's box of ``own`` tiles along each axis, for a vector of channels, and transform the tiles."""
        plan = self.plan
        channel = first_unit_of_piece(vector, plan.channel_lanes, plan.channels)
        at = {a.name: starts[n] + batch[n] for n, a in enumerate(plan.tiled[:-2])}

        def tile(where: Coordinates) -> Stmt:
            number = self._flat((*batch, *where))
            y, x = (w * plan.m for w in where)

            def get(i: Expr, j: Expr, lane: Expr) -> Expr:
                return read_element(self.patch, y + i, x + j, lane)

            def place(i: Expr, j: Expr, lane: Expr, value: Expr) -> Stmt:
                return write_element(self.image, value, i * plan.side + j, number * plan.channel_pitch + channel + lane)

            sizes = (plan.side, plan.side, plan.channel_lanes)
            both = self._emit_two_sided_product(self.image_matrix, get, self.half, sizes, place, multiply_by_transform)
            return sequence_of_statements(allocate_buffer(self.half), both)

        copy = self._emit_image_box_copy(at, (starts[-3] * plan.m, starts[-2] * plan.m), own, channel)
        return sequence_of_statements(copy, self.nest.grid(own, tile))

    def _emit_image_box_copy(self, batch: dict[str, Expr], corner: Coordinates, own: Units, channel: Expr) -> Stmt:
        """Fill ``patch`` with one image's box of ``own`` tiles, with channels as lanes and zeros outside."""
        form = self.plan.form
        source = self.buffers[form.image.tensor]
        shape = [int(n) for n in source.ty.shape]
        height, width = (n * self.plan.m + (WINDOW - 1) for n in own)
        lanes = int(self.patch.ty.shape[-1])
        base, valid = [], []
        for (_, _, d), c in zip(form.slides, corner, strict=True):
            base.append(c + form.image.index[d].const)
            bounds = [b for b in form.image.guard if b.index == form.image.index[d]]
            valid.append((max([0, *(b.low for b in bounds)]), min([shape[d], *(b.high for b in bounds)])))
        zero = constant(0.0, _DTYPE)

        def fill(y: Expr, x: Expr) -> Stmt:
            return self._lanes(lanes, lambda v: write_element(self.patch, zero, y, x, v))

        def copy(y: Expr, x: Expr) -> Stmt:
            def lane(v: Expr) -> Stmt:
                at = {**batch, **self.channel.at(channel, v)}
                index = [emit_index(self.channel.index(i), at) if len(i.terms) < 2 else None for i in form.image.index]
                index[form.slides[0][2]], index[form.slides[1][2]] = base[0] + y, base[1] + x
                return write_element(self.patch, read_element(source, *index), y, x, v)

            return self._lanes(lanes, lane)

        (low, high), (left, right) = valid
        first = clamp_expression(left - base[1], 0, width)
        end = clamp_expression(right - base[1], first, width)

        def row(y: Expr) -> Stmt:
            inside = sequence_of_statements(
                self.nest.loop(first, lambda x: fill(y, x)),
                self.nest.loop(end - first, lambda x: copy(y, first + x)),
                self.nest.loop(width - end, lambda x: fill(y, end + x)),
            )
            return if_then(
                tirx.all(base[0] + y >= low, base[0] + y < high), inside, self.nest.loop(width, lambda x: fill(y, x))
            )

        return self.nest.loop(height, row)

    def _flat(self, at: Coordinates) -> Expr:
        """Return the index of a tile within its task."""
        return number_of_coordinate(at, [a.box for a in self.plan.tiled])

    def _multiply(self, element: Expr, first_panel: Expr, own: Units) -> Stmt:
        """Multiply one element of all transformed tiles of a task, with ``own`` tiles along every axis."""
        plan = self.plan
        groups = [count_groups_of_task(n, a) for n, a in zip(own, plan.tiled, strict=True)]

        def kernel(panel: Expr) -> Stmt:
            return self.nest.grid(groups, lambda g: self._micro_kernel(element, first_panel + panel, panel, g, own))

        return self.nest.loop(plan.panels.box, kernel)

    def _micro_kernel(self, element: Expr, panel: Expr, place: Expr, group: Coordinates, own: Units) -> Stmt:
        """Sum over the channels for one group of tiles and one panel, with accumulators in registers."""
        plan = self.plan
        starts = tuple(first_unit_of_group(g, n, a) for g, n, a in zip(group, own, plan.tiled, strict=True))

        def each(body: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
            """Run ``body`` on the accumulator's row, the tile and the filter of every element."""

            def vectors(at: Coordinates) -> Stmt:
                row = number_of_coordinate(at, [a.group for a in plan.tiled])
                tile = self._flat(tuple(s + i for s, i in zip(starts, at, strict=True)))
                vector = functools.partial(self._lanes, plan.lanes)
                return self.nest.loop(
                    plan.width // plan.lanes,
                    lambda u: vector(lambda x: body(row, tile, u * plan.lanes + x)),
                    "unroll",
                )

            return self.nest.grid([a.group for a in plan.tiled], vectors, "unroll")

        def step(c: Expr) -> Stmt:
            def fma(row: Expr, tile: Expr, x: Expr) -> Stmt:
                value = read_element(self.image, element, tile * plan.channel_pitch + c) * read_element(
                    self.weights, element, panel, c, x
                )
                return write_element(self.acc, read_element(self.acc, row, x) + value, row, x)

            return sequence_of_statements(*(h(c) for h in hints), each(fma))

        constant_filters = plan.form.filters.tensor in self.program.constants
        turn = number_of_coordinate(group, [a.groups for a in plan.tiled])
        hints = emit_filter_prefetches(plan, self.weights, element, (panel, place), turn) if constant_filters else []

        return sequence_of_statements(
            allocate_buffer(self.acc),
            each(lambda row, tile, x: write_element(self.acc, constant(0.0, _DTYPE), row, x)),
            self.nest.loop(plan.channels, step, name="c"),
            each(
                lambda row, tile, x: write_element(
                    self.products, read_element(self.acc, row, x), element, tile, place, x
                )
            ),
        )

    def _outputs(self, tile: Coordinates, starts: Coordinates) -> Stmt:
        """Transform one tile of each panel back and store it."""
        plan = self.plan
        number = self._flat(tile)

        def panel(p: Expr) -> Stmt:
            def vector(u: Expr) -> Stmt:
                def get(i: Expr, j: Expr, x: Expr) -> Expr:
                    return read_element(self.products, i * plan.side + j, number, p, u * plan.lanes + x)

                def place(i: Expr, j: Expr, x: Expr, value: Expr) -> Stmt:
                    return write_element(self.result, value, i, j, u * plan.lanes + x)

                sizes = (plan.side, plan.side, plan.lanes)
                both = self._emit_two_sided_product(
                    self.inverse, get, self.half_out, sizes, place, multiply_by_inverse_transform
                )
                return sequence_of_statements(allocate_buffer(self.half_out), both)

            back = self.nest.loop(plan.width // plan.lanes, vector)
            where = {a.name: s + t for a, s, t in zip(plan.tiled, starts, tile, strict=False)}
            where[plan.form.filter] = first_unit_of_piece(starts[-1] + p, plan.width, plan.filters)
            return sequence_of_statements(allocate_buffer(self.result), back, self._store(where))

        return self.nest.loop(plan.panels.box, panel)

    def _store(self, where: dict[str, Expr]) -> Stmt:
        """Store one tile of outputs of one panel, clipped at the ends of rows and columns."""
        plan, form = self.plan, self.plan.form
        extents = self.program.expr.anchor.extents
        (rows, _, _), (columns, _, _) = form.slides
        corner = {rows: where[rows] * plan.m, columns: where[columns] * plan.m}

        def element(f: Expr, y: Expr, x: Expr, lane: Expr | None = None) -> Stmt:
            at = self.filter.at(where[form.filter] + f, int32_index(0) if lane is None else lane)
            env = {**where, **at, rows: corner[rows] + y, columns: corner[columns] + x}
            return self._store_element(read_element(self.result, y, x, f if lane is None else f + lane), env)

        if self.filter.contiguous(self.last.store, self.last.output.shape):
            sizes = [smaller_extent(plan.m, extents[a] - corner[a]) for a in (rows, columns)]
            vectors = plan.width // plan.lanes
            return self.nest.grid(
                [*sizes, vectors],
                lambda at: self._lanes(plan.lanes, lambda x: element(at[2] * plan.lanes, at[0], at[1], x)),
            )
        whole = self.nest.loop(
            plan.width,
            lambda f: self.nest.loop(plan.m, lambda y: self._lanes(plan.m, lambda x: element(f, y, x)), "unroll"),
        )
        if all(extents[a] % plan.m == 0 and a not in self.program.open_axes for a in (rows, columns)):
            return whole
        sizes = [smaller_extent(plan.m, extents[a] - corner[a]) for a in (rows, columns)]
        clipped = self.nest.grid([plan.width, *sizes], lambda at: element(at[0], at[1], at[2]))
        inside = tirx.all(*(corner[a] + plan.m <= extents[a] for a in (rows, columns)))
        return if_then(inside, whole, clipped)

    def _store_element(self, value: Expr, env: dict[str, Expr]) -> Stmt:
        """Store one element through the epilogue."""
        anchor, last = self.program.expr.anchor, self.last
        out = value
        if last is not anchor:
            tensors: dict[str, Callable[..., Any]] = {n: element_reader(b) for n, b in self.buffers.items()}
            tensors[anchor.name] = lambda *_: value
            out = emit_scalar(self.filter.body(last.body), env, tensors)
        return write_element(self.buffers[last.name], out, *(emit_index(i, env) for i in self.store))


def emit_winograd_nests(program: RProgram, buffers: dict[str, Buffer], cores: int) -> EmittedNests:
    """Return the loop nests of a program of a ``winograd`` structure."""
    del cores
    return _WinogradLowering(program, buffers).nests()
