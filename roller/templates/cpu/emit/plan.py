"""The tiled template's plans: tiles of axes, and how each load is packed, as ``decide.py`` says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roller.expr import SPATIAL, Index, Load, Stage, Term
from roller.expr.scalar import axis_index
from roller.perf import batch_of
from roller.te.compat import tirx
from roller.te.emit import Expr
from roller.templates.cpu.decide import Decisions, decide
from roller.tile import RProgram


@dataclass(frozen=True)
class SpatialPlan:
    """Tiling of one spatial axis.

    Parameters
    ----------
    name, extent
        The axis (elements); an expression where a call says it.
    tile
        Effective register tile, at most ``extent`` (elements) but where lanes may lie beyond it.
    tiles
        Register tiles covering the axis; the last one may overlap its neighbour.
    per_task
        Register tiles of one task.
    lanes
        Elements of one vector; 1 except on the vector axis.
    segments
        Where tiles end besides the end of the axis: none lies in two segments.
    """

    name: str
    extent: int | Expr
    tile: int
    tiles: int | Expr
    per_task: int
    lanes: int = 1
    segments: tuple[int, ...] = ()

    @property
    def tasks(self) -> int | Expr:
        """Tasks along the axis."""
        return (self.tiles + (self.per_task - 1)) // self.per_task

    @property
    def is_whole(self) -> bool:
        """Whether tiles are known to end with the axis, so that none is shifted back."""
        tiles = self.tiles
        return self.tile == 1 or (isinstance(tiles, int) and (tiles * self.tile == self.extent or tiles == 1))

    @property
    def tasks_are_equal(self) -> bool:
        """Whether every task is known to have as many tiles."""
        return self.per_task == 1 or (isinstance(self.tiles, int) and self.tiles % self.per_task == 0)

    @property
    def task_elements(self) -> int:
        """Elements of the largest task (at least a tile)."""
        whole = self.per_task * self.tile
        return max(self.tile, min(whole, self.extent)) if isinstance(self.extent, int) else whole

    def of_extent(self, extent: int | Expr) -> SpatialPlan:
        """Return the same tiles of another extent, not below a tile; it may be known at run time only."""
        return replace(self, extent=extent, tiles=(extent + (self.tile - 1)) // self.tile)

    def opened(self) -> SpatialPlan:
        """Return the same plan with a number that code must not be made for: it is written as if it were unknown."""
        return self.of_extent(tirx.IntImm("int32", self.extent))


@dataclass(frozen=True)
class ReductionPlan:
    """Tiling of one reduction axis: ``chunks`` pieces of ``chunk`` elements (the last may be shorter).

    A ``block`` below ``extent`` says that blocks of so many elements go around the window axes.
    """

    name: str
    extent: int
    chunk: int
    unroll: bool
    block: int = 0

    @property
    def chunks(self) -> int:
        """Number of pieces."""
        return -(-self.extent // self.chunk)


def power_of_two_below(n: int) -> int:
    """Return the largest power of two not above ``n``."""
    return 1 << (n.bit_length() - 1)


def decisions_of(program: RProgram) -> Decisions:
    """Return what was decided on a program, as arrays of one row."""
    found = program._memo.get("decisions")
    if found is None:
        found = program._memo["decisions"] = decide(batch_of([program]), program.vector_elements)
    decisions: Decisions = found
    return decisions


def spatial_plans(program: RProgram) -> tuple[SpatialPlan, ...]:
    """Return one plan per spatial axis of the anchor, in order."""
    d = decisions_of(program)
    lanes = {program.vector_axis: int(d.lanes[0])}
    sizes = np.stack([d.tile[0], d.tiles[0], d.per_task[0]], axis=1).tolist()
    plans = (
        SpatialPlan(a.name, a.extent, tile, tiles, per_task, lanes.get(a.name, 1), d.segments.get(n, ()))
        for n, (a, (tile, tiles, per_task)) in enumerate(zip(program.axes, sizes, strict=True))
        if a.kind == SPATIAL
    )
    return tuple(p.opened() if p.name in program.open_axes else p for p in plans)


def at_run_time(plans: tuple[SpatialPlan, ...], last: Stage, shape: Sequence[int | Expr]) -> tuple[SpatialPlan, ...]:
    """Return plans whose extents are those of the result's dimensions where only a call says them."""
    said = {i.axes[0]: n for i, n in zip(last.store, shape, strict=True) if not isinstance(n, int)}
    return tuple(p.of_extent(said[p.name]) if p.name in said else p for p in plans)


def reduction_plans(program: RProgram) -> tuple[ReductionPlan, ...]:
    """Return one plan per reduction axis of the anchor, in the order they are looped over."""
    d = decisions_of(program)
    order = d.batch.geometry.reduction_order
    return tuple(
        ReductionPlan(
            program.axes[a].name, program.axes[a].extent, int(d.chunk[0, a]), bool(d.unrolled[0, a]),
            int(d.block[0]) if a == order[-1] else 0,
        )
        for a in order
    )  # fmt: skip


@dataclass(frozen=True)
class HaloPlan:
    """A staged load copied as the box of the tensor that one task touches.

    ``base[d]`` is the first coordinate of dimension ``d`` (over the task's start coordinates),
    ``extents[d]`` the largest box; ``local`` addresses the box by the coordinates relative to the
    task's start, where :func:`relative` names the axes. With ``phases > 1`` the last dimension is
    stored de-interleaved, ``[phase][position]``, so that a strided vector access becomes contiguous.
    """

    load: Load
    base: tuple[Index, ...]
    extents: tuple[int, ...]
    local: tuple[Index, ...]
    bounds: tuple[tuple[int, int] | None, ...]
    phases: int = 1


def relative(name: str) -> str:
    """Name of an axis's coordinate relative to the start of its task."""
    return f"{name}.task"


def halo_plan(
    load: Load, stage: Stage, spatial: tuple[SpatialPlan, ...], vector_axis: str | None, phases: int, padding: int
) -> HaloPlan:
    """Return how to stage ``load`` as a box whose columns are sorted by ``phases`` of the vector axis."""
    by_dim: list[tuple[int, int] | None] = [None] * len(load.index)
    for b in load.guard:
        d = load.index.index(b.index)
        low, high = by_dim[d] or (b.low, b.high)
        by_dim[d] = (max(low, b.low), min(high, b.high))
    sizes = {s.name: s.task_elements for s in spatial}
    reduced = {a.name: a.extent for a in stage.reduction_axes}
    base, extents, local = [], [], []
    for i in load.index:
        low, span, terms = i.const, 1, []
        for t in i.terms:
            size = sizes.get(t.axis, reduced.get(t.axis, 1))
            span += abs(t.coef) * (size - 1)
            if t.axis in reduced:
                low += min(0, t.coef * (size - 1))
            terms.append(Term(relative(t.axis) if t.axis in sizes else t.axis, t.coef))
        base.append(Index(tuple(t for t in i.terms if t.axis in sizes), low))
        extents.append(span)
        local.append(Index(tuple(terms), i.const - low))
    if phases > 1 and vector_axis is not None:
        extents[-1] = -(-extents[-1] // phases)
        rest = [t for t in local[-1].terms if t.axis != relative(vector_axis)]
        position = (Term(relative(vector_axis)), *(Term(t.axis, 1, phases) for t in rest))
        local[-1:] = [Index(tuple(Term(t.axis, 1, 1, phases) for t in rest)), Index(position)]
    extents[-1] += padding
    return HaloPlan(load, tuple(base), tuple(extents), tuple(local), tuple(by_dim), phases)


def tile_of(name: str) -> str:
    """Name of an axis's register-tile counter."""
    return f"{name}.tile"


def task_tile_of(name: str) -> str:
    """Name of an axis's register-tile counter inside its task."""
    return f"{name}.task_tile"


def inner_of(name: str) -> str:
    """Name of an axis's coordinate inside its register tile."""
    return f"{name}.inner"


def block_of(name: str) -> str:
    """Name of a reduction axis's block counter."""
    return f"{name}.block"


def in_block(name: str) -> str:
    """Name of a reduction axis's coordinate inside its block."""
    return f"{name}.in_block"


@dataclass(frozen=True)
class PanelPlan:
    """A staged load gathered into ``[tiles of each spatial axis][reduction axes][inner of each spatial axis]``.

    An innermost reduction axis in blocks is two: the block goes before the others, the element in it stays behind them,
    so that the panel lies in the order in which it is read.

    ``upfront`` panels hold every tile and are packed once, in parallel, before the tasks (those of constants
    before the first call); the others hold one task's tiles.
    """

    load: Load
    spatial: tuple[SpatialPlan, ...]
    reduction: tuple[ReductionPlan, ...]
    upfront: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the panel buffer (elements)."""
        tiles = tuple(s.tiles if self.upfront else s.per_task for s in self.spatial)
        steps = tuple(r.extent for r in self.reduction)
        r = self.blocked
        if r is not None:
            steps = (-(-r.extent // r.block), *steps[:-1], r.block)
        return (*tiles, *steps, *(s.tile for s in self.spatial))

    @property
    def blocked(self) -> ReductionPlan | None:
        """The reduction axis that is in blocks."""
        return self.reduction[-1] if self.reduction and self.reduction[-1].block else None

    def steps(self, at: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the place of a reduction step in the panel."""
        names, r = tuple(at[p.name] for p in self.reduction), self.blocked
        return names if r is None else (names[-1] // r.block, *names[:-1], names[-1] % r.block)

    @property
    def index(self) -> tuple[Index, ...]:
        """Address of the load's element in the panel."""
        steps, r = [r.name for r in self.reduction], self.blocked
        if r is not None:
            steps = [block_of(r.name), *steps[:-1], in_block(r.name)]
        return (
            *(axis_index(tile_of(s.name) if self.upfront else task_tile_of(s.name)) for s in self.spatial),
            *(axis_index(n) for n in steps),
            *(axis_index(inner_of(s.name)) for s in self.spatial),
        )


def panel_plan(
    load: Load, spatial: tuple[SpatialPlan, ...], reduction: tuple[ReductionPlan, ...], upfront: bool
) -> PanelPlan:
    """Return how to gather ``load``: the vector axis innermost."""
    used = {x for i in (*load.index, *(b.index for b in load.guard)) for x in i.axes}
    mine = sorted((s for s in spatial if s.name in used), key=lambda s: s.lanes > 1)
    return PanelPlan(load, tuple(mine), tuple(r for r in reduction if r.name in used), upfront)
