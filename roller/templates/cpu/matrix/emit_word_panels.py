"""Panels of words: consecutive bytes along a reduction axis are adjacent, lane by lane.

The layout is ``[tiles][words of the reduction][other elements of a tile][lane][element of the word]``. Missing elements
of the last word are zero. A panel may hold elements wider than the tensor's bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from roller.expr import Load, stride_between_neighbours, strided_run_along
from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import Expr, conjunction_of, constant, emit_bounds, emit_index, emit_load
from roller.templates.cpu.emit.axis_tiling_plans import (
    ReductionPlan,
    SpatialPlan,
    task_tile_counter_name,
    tile_counter_name,
    tile_start_coordinate,
)
from roller.templates.cpu.emit.tir_loop_constructors import (
    Buffer,
    LoopBuilder,
    Stmt,
    addressed_extents,
    int32_index,
    read_element,
    sequence_of_statements,
    unravel_counter,
    write_element,
)

Env = dict[str, Any]
#: Maximum word size (elements) that is copied without a loop.
_UNROLLED = 8


@dataclass(frozen=True)
class WordPanel:
    """A load gathered into words of a few elements.

    Parameters
    ----------
    spatial
        The spatial axes that index the load, ending with the lanes' axis.
    reduction
        The reduction axes that index the load, in loop order; the extent of ``along`` counts words.
    along, word
        Axis along which the elements of a word run, and the number of elements per word.
    extent
        Extent of the axis ``along`` (elements).
    upfront
        See :class:`~roller.templates.cpu.tiled.emit_load_staging_plans.PanelPlan`.
    """

    load: Load
    spatial: tuple[SpatialPlan, ...]
    reduction: tuple[ReductionPlan, ...]
    along: str
    word: int
    extent: int
    upfront: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the panel (elements)."""
        tiles = tuple(s.tiles if self.upfront else s.per_task for s in self.spatial)
        inner = [s.tile for s in self.spatial] or [1]
        return (*tiles, *(r.extent for r in self.reduction), *inner[:-1], inner[-1] * self.word)

    def place(self, env: Mapping[str, Any], step: Mapping[str, Any], inner: Mapping[str, Any]) -> tuple[Expr, ...]:
        """Return the index of the first element of a word, for a tile of ``env`` at a reduction step."""
        tile = tile_counter_name if self.upfront else task_tile_counter_name
        at = [inner[s.name] for s in self.spatial] or [int32_index(0)]
        tiles = (env[tile(s.name)] for s in self.spatial)
        return (*tiles, *(step[r.name] for r in self.reduction), *at[:-1], int32_index(at[-1]) * self.word)


def emit_adjacent_load(buffer: Buffer, index: tuple[Expr, ...], count: int) -> Expr:
    """Return ``count`` adjacent elements, starting at an index."""
    return tirx.BufferLoad(buffer, [*index[:-1], tirx.Ramp(index[-1], int32_index(1), count)])


def emit_word_packing(
    nest: LoopBuilder,
    plan: WordPanel,
    source: Buffer,
    panel: Buffer,
    first: Mapping[str, Expr],
    count: Mapping[str, Any],
) -> Stmt:
    """Return the statement that fills ``panel``; for the parameters, see ``emit_panel_packing``."""
    counts = [count[s.name] for s in plan.spatial]

    def one(tiles: tuple[Expr, ...]) -> Stmt:
        starts = {s.name: tile_start_coordinate(s, first[s.name] + t) for s, t in zip(plan.spatial, tiles, strict=True)}
        places = {(tile_counter_name if plan.upfront else task_tile_counter_name)(s.name): t
                  for s, t in zip(plan.spatial, tiles, strict=True)}  # fmt: skip
        return _emit_tile_copy(nest, plan, source, panel, starts, places)

    if not plan.upfront:
        return nest.grid(counts, one)
    total = 1
    for c in counts:
        total *= c
    return nest.loop(total, lambda t: one(unravel_counter(t, counts)), "parallel", "pack")


def _emit_tile_copy(
    nest: LoopBuilder,
    plan: WordPanel,
    source: Buffer,
    panel: Buffer,
    starts: Mapping[str, Expr],
    places: Mapping[str, Expr],
) -> Stmt:
    """Return the statement that copies one combination of register tiles."""
    lanes = plan.spatial[-1] if plan.spatial else None
    others = [r for r in plan.reduction if r.name != plan.along]
    rows = [s for s in plan.spatial if s is not lanes]
    whole, rest = divmod(plan.extent, plan.word)
    lacking = next(r.extent for r in plan.reduction if r.name == plan.along) - whole - bool(rest)
    copy = _choose_copy_method(plan, source)

    def step(at: tuple[Expr, ...], number: Expr, held: int) -> Stmt:
        reduced = {r.name: x for r, x in zip(others, at, strict=False)}
        inner = {s.name: x for s, x in zip(rows, at[len(others) :], strict=True)}
        env = {**reduced, **{n: starts[n] + x for n, x in inner.items()}, plan.along: number * plan.word}

        def words(lane: Expr, many: int) -> Stmt:
            mine, at_lane = dict(env), dict(inner)
            if lanes is not None:
                mine[lanes.name], at_lane[lanes.name] = starts[lanes.name] + lane, lane
            to = plan.place(places, {**reduced, plan.along: number}, at_lane)
            return copy(nest, plan, source, panel, mine, to, held, many)

        if lanes is None:
            return words(int32_index(0), 1)
        many = lanes.lanes if copy is _emit_interleaved_copy else 1
        return nest.loop(lanes.tile // many, lambda u: words(u * many, many))

    def around(at: tuple[Expr, ...]) -> Stmt:
        return sequence_of_statements(
            nest.loop(whole, lambda w: step(at, w, plan.word)) if whole else None,
            step(at, int32_index(whole), rest) if rest else None,
            nest.loop(lacking, lambda w: step(at, w + (whole + bool(rest)), 0)) if lacking else None,
        )

    return nest.grid([*(r.extent for r in others), *(s.tile for s in rows)], around)


Copy = Callable[[LoopBuilder, WordPanel, Buffer, Buffer, Env, tuple[Expr, ...], int, int], Stmt]


def _choose_copy_method(plan: WordPanel, source: Buffer) -> Copy:
    """Return the function that copies words: whole, interleaved for as many words as lanes, or byte by byte."""
    load, shape = plan.load, addressed_extents(source, plan.load.index)
    guarded = {n for b in load.guard for n in b.index.axes}
    run = strided_run_along(load.index, shape, plan.along, plan.extent)
    whole = plan.extent % plan.word == 0 and run is not None and run.step == 1 and run.length % plan.word == 0
    if whole and plan.along not in guarded:
        return _emit_whole_word_copy
    last = plan.spatial[-1] if plan.spatial else None
    if (
        last is not None
        and last.lanes > 1
        and not load.guard
        and stride_between_neighbours(load.index, shape, last.name) == 1
    ):
        return _emit_interleaved_copy
    return _emit_bytewise_copy


def _emit_whole_word_copy(
    nest: LoopBuilder,
    plan: WordPanel,
    source: Buffer,
    panel: Buffer,
    env: Env,
    to: tuple[Expr, ...],
    held: int,
    many: int,
) -> Stmt:
    if not held:
        return _emit_bytewise_copy(nest, plan, source, panel, env, to, held, many)
    load = plan.load
    word = emit_adjacent_load(source, tuple(emit_index(i, env) for i in load.index), plan.word)
    if load.guard:
        outside = tirx.Broadcast(constant(load.outside, str(source.ty.dtype)), plan.word)
        word = tirx.if_then_else(conjunction_of(emit_bounds(load.guard, env)), word, outside)
    return _store_elements(panel, word, to, plan.word)


def _emit_interleaved_copy(
    nest: LoopBuilder,
    plan: WordPanel,
    source: Buffer,
    panel: Buffer,
    env: Env,
    to: tuple[Expr, ...],
    held: int,
    many: int,
) -> Stmt:
    del nest
    zero = tirx.Broadcast(tirx.const(0, str(source.ty.dtype)), many)

    def row(n: int) -> Expr:
        at = {**env, plan.along: env[plan.along] + n}
        return emit_adjacent_load(source, tuple(emit_index(i, at) for i in plan.load.index), many) if n < held else zero

    mixed = [tirx.const(n * many + x, "int32") for x in range(many) for n in range(plan.word)]
    return _store_elements(panel, tirx.Shuffle([row(n) for n in range(plan.word)], mixed), to, plan.word * many)


def _store_elements(panel: Buffer, values: Expr, to: tuple[Expr, ...], count: int) -> Stmt:
    """Return the store of adjacent elements, converted to the panel's dtype."""
    kept = values.astype(f"{panel.ty.dtype}x{count}")
    return tirx.BufferStore(panel, kept, [*to[:-1], tirx.Ramp(to[-1], int32_index(1), count)])


def _emit_bytewise_copy(
    nest: LoopBuilder,
    plan: WordPanel,
    source: Buffer,
    panel: Buffer,
    env: Env,
    to: tuple[Expr, ...],
    held: int,
    many: int,
) -> Stmt:
    assert many == 1
    tensors = {plan.load.tensor: lambda *index: read_element(source, *index)}

    def byte(n: Expr, value: Expr) -> Stmt:
        return write_element(panel, value, *to[:-1], to[-1] + n)

    def loaded(n: Expr) -> Stmt:
        return byte(n, emit_load(plan.load, {**env, plan.along: env[plan.along] + n}, tensors))

    kind = "unroll" if plan.word <= _UNROLLED else "serial"
    zero = tirx.const(0, str(panel.ty.dtype))
    return sequence_of_statements(
        nest.loop(held, loaded, kind) if held else None,
        nest.loop(plan.word - held, lambda n: byte(n + held, zero), kind) if held < plan.word else None,
    )
