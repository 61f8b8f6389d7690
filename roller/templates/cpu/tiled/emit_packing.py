"""Packing: panels, which gather a staged load element by element (weights, matrix operands, implicit GEMM)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from roller.expr import StridedRun, stride_between_neighbours
from roller.te.emit_tvm_expressions import Expr, emit_load
from roller.templates.cpu.decisions import HALVED, run_copied_in_vectors
from roller.templates.cpu.emit.axis_tiling_plans import tile_start_coordinate
from roller.templates.cpu.emit.copy_every_second_element import emit_copy_of_every_second
from roller.templates.cpu.emit.copy_grouped_axis_runs import (
    emit_axis_address,
    emit_loop_over_run,
    emit_row_major_address,
    emit_tile_by_runs,
    indices_of_address,
)
from roller.templates.cpu.emit.register_block_transpose import can_transpose_in_registers, emit_block_transpose
from roller.templates.cpu.emit.tir_loop_constructors import (
    Buffer,
    LoopBuilder,
    Stmt,
    addressed_extents,
    bind_value,
    copy_elements,
    int32_index,
    read_element,
    sequence_of_statements,
    smaller_extent,
    unravel_counter,
    write_element,
)
from roller.templates.cpu.tiled.emit_load_staging_plans import PanelPlan

#: Number of elements of a reduction axis to transpose at a time, so that the lines read and written stay in L1.
_TRANSPOSE_BLOCK = 16


def emit_panel_packing(
    nest: LoopBuilder,
    plan: PanelPlan,
    source: Buffer,
    panel: Buffer,
    first: Mapping[str, Expr],
    count: Mapping[str, Any],
) -> Stmt:
    """Return the statement that fills ``panel`` with ``count`` tiles, starting at tile ``first``."""
    counts = [count[s.name] for s in plan.spatial]

    def one(tiles: tuple[Expr, ...]) -> Stmt:
        starts = {s.name: tile_start_coordinate(s, first[s.name] + t) for s, t in zip(plan.spatial, tiles, strict=True)}
        return _emit_panel_tile_copy(nest, plan, source, panel, tiles, starts)

    if not plan.upfront:
        return nest.grid(counts, one)
    total = 1
    for c in counts:
        total *= c
    return nest.loop(total, lambda t: one(unravel_counter(t, counts)), "parallel", "pack")


def _emit_panel_tile_copy(
    nest: LoopBuilder,
    plan: PanelPlan,
    source: Buffer,
    panel: Buffer,
    tiles: tuple[Expr, ...],
    starts: Mapping[str, Expr],
) -> Stmt:
    """Return the statement that copies one combination of register tiles."""
    load, shape = plan.load, addressed_extents(source, plan.load.index)
    reduction = [r.name for r in plan.reduction]
    inner = [s.name for s in plan.spatial]
    extents = {**{r.name: r.extent for r in plan.reduction}, **{s.name: s.tile for s in plan.spatial}}
    tensors = {load.tensor: lambda *index: read_element(source, *index)}

    def store(at: Mapping[str, Expr]) -> Stmt:
        env = {**at, **{n: starts[n] + at[n] for n in inner}}
        return write_element(panel, emit_load(load, env, tensors), *tiles, *plan.steps(at), *(at[n] for n in inner))

    def nested(order: list[str], at: dict[str, Expr], vector: str | None) -> Stmt:
        if not order:
            return store(at)
        name, kind = order[0], "serial"
        if name == vector:
            return _emit_vector_loop(nest, plan, name, lambda v: store({**at, name: v}))
        return nest.loop(extents[name], lambda v: nested(order[1:], {**at, name: v}, vector), kind)

    strides = {n: stride_between_neighbours(load.index, shape, n) for n in (*reduction, *inner)}
    last = inner[-1] if inner else None
    contiguous = next((n for n in reversed(reduction) if strides[n] == 1), None)
    if last is not None and strides[last] != 1 and contiguous is not None and extents[contiguous] > 1:
        others = [n for n in (*reduction, *inner[:-1]) if n != contiguous]
        lanes = plan.spatial[-1].lanes
        if strides[last] is None or load.guard or not can_transpose_in_registers(source, panel, lanes):
            return emit_transpose_by_blocks(nest, others, contiguous, last, extents, store)

        def block(at: Mapping[str, Expr]) -> Stmt:
            def place(r: int) -> tuple[Expr, ...]:
                env = {**at, **{n: starts[n] + at[n] for n in inner}, last: starts[last] + (at[last] + r)}
                return indices_of_address(source, emit_row_major_address(load.index, shape, env))

            def target(c: int) -> tuple[Expr, ...]:
                step = {**at, contiguous: at[contiguous] + c}
                return (*tiles, *plan.steps(step), *(at[n] for n in inner))

            return emit_block_transpose(nest, lanes, source, place, panel, target)

        return emit_transpose_by_shuffles(nest, others, contiguous, last, extents, lanes, block, store)
    axis = plan.spatial[-1] if plan.spatial and strides[plan.spatial[-1].name] is None and not load.guard else None
    run = run_copied_in_vectors(load.index, shape, axis.name, axis.extent, axis.lanes) if axis is not None else None
    if run is not None:
        return _emit_panel_tile_by_runs(nest, plan, run, source, panel, tiles, starts)
    guarded = any(last in b.index.axes for b in load.guard)
    vector = last if last is not None and strides[last] == 1 and not guarded else None
    return nested([*reduction, *inner], {}, vector)


def _emit_panel_tile_by_runs(
    nest: LoopBuilder, plan: PanelPlan, run: StridedRun, source: Buffer, panel: Buffer, tiles: tuple[Expr, ...],
    starts: Mapping[str, Expr],
) -> Stmt:  # fmt: skip
    """Return the statement that copies one combination of register tiles whose innermost axis jumps between runs."""
    shape, last = addressed_extents(source, plan.load.index), plan.spatial[-1]
    extents = [*(r.extent for r in plan.reduction), *(s.tile for s in plan.spatial[:-1])]
    names = [*(r.name for r in plan.reduction), *(s.name for s in plan.spatial[:-1])]

    def rows(first: Expr, length: int | Expr, base: Expr) -> Stmt:
        def row(at: tuple[Expr, ...]) -> Stmt:
            env = dict(zip(names, at, strict=True))
            env = {**env, **{n: starts[n] + env[n] for n in starts if n in env}, last.name: int32_index(0)}
            place = base + emit_row_major_address(plan.load.index, shape, env)

            to = (*tiles, *plan.steps(env), *at[len(plan.reduction) :])
            if run.step == 1 and not isinstance(length, int) and panel.ty.dtype == source.ty.dtype:
                return copy_elements(panel, (*to, first), source, indices_of_address(source, place), length)

            def element(x: Expr) -> Stmt:
                return write_element(
                    panel, read_element(source, *indices_of_address(source, place + x * run.step)), *to, first + x
                )

            if run.step == HALVED and panel.ty.dtype == source.ty.dtype:
                return emit_copy_of_every_second(
                    nest, length, last.lanes, (source, place), (panel, (*to, first)), element
                )
            return emit_loop_over_run(nest, length, last.lanes, element, run.step)

        return nest.grid(extents, row)

    def piece(first: Expr, length: int | Expr) -> Stmt:
        base = emit_axis_address(plan.load.index, shape, last.name, starts[last.name] + first)
        return bind_value(base, "base", lambda b: rows(first, length, b))

    return emit_tile_by_runs(nest, run, starts[last.name], last, lambda: piece(int32_index(0), last.tile), piece)


def _emit_vector_loop(nest: LoopBuilder, plan: PanelPlan, name: str, body: Any) -> Stmt:
    spatial = next(s for s in plan.spatial if s.name == name)
    lanes = spatial.lanes if spatial.lanes > 1 else 1
    if lanes == 1:
        return nest.loop(spatial.tile, body)
    parts = spatial.tile // lanes
    return nest.loop(parts, lambda u: nest.loop(lanes, lambda v: body(u * lanes + v), "vector"), "unroll")


def emit_transpose_by_blocks(
    nest: LoopBuilder, others: list[str], contiguous: str, last: str, extents: Mapping[str, int], store: Any
) -> Stmt:
    """Return a loop nest that copies and transposes in blocks of ``contiguous``, with ``last`` inside them."""
    block = min(_TRANSPOSE_BLOCK, extents[contiguous])
    blocks = -(-extents[contiguous] // block)

    def inside(at: dict[str, Expr]) -> Stmt:
        def one(b: Expr) -> Stmt:
            size = smaller_extent(block, block if extents[contiguous] % block == 0 else extents[contiguous] - b * block)
            return nest.loop(
                extents[last],
                lambda j: nest.loop(size, lambda k: store({**at, contiguous: b * block + k, last: j})),
            )

        return nest.loop(blocks, one)

    def around(names: list[str], at: dict[str, Expr]) -> Stmt:
        if not names:
            return inside(at)
        return nest.loop(extents[names[0]], lambda v: around(names[1:], {**at, names[0]: v}))

    return around(others, {})


def emit_transpose_by_shuffles(
    nest: LoopBuilder,
    others: list[str],
    contiguous: str,
    last: str,
    extents: Mapping[str, int],
    lanes: int,
    block: Callable[[Mapping[str, Expr]], Stmt],
    store: Callable[[Mapping[str, Expr]], Stmt],
) -> Stmt:
    """Return a loop nest that transposes square blocks and copies the rest of ``contiguous`` element by element."""
    whole, rest = divmod(extents[contiguous], lanes)

    def panel(outer: tuple[Expr, ...]) -> Stmt:
        at = dict(zip(others, outer, strict=True))

        def square(b: tuple[Expr, ...]) -> Stmt:
            return block({**at, contiguous: b[0] * lanes, last: b[1] * lanes})

        def element(b: tuple[Expr, ...]) -> Stmt:
            return store({**at, contiguous: b[0] + whole * lanes, last: b[1]})

        return sequence_of_statements(
            nest.grid([whole, extents[last] // lanes], square) if whole else None,
            nest.grid([rest, extents[last]], element) if rest else None,
        )

    return nest.grid([extents[n] for n in others], panel)
