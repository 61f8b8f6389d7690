"""The tiled template's decisions: effective register tiles, tasks, and how each load is packed.

No axis is padded. A register tile never exceeds its axis, and the last tile of an axis starts at
``extent - tile``, overlapping its neighbour: the few points both compute get the same value twice,
so neither inner loops nor stores need a predicate and no panel holds padding that must be neutral.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from roller.expr import Axis, Index, Load, Stage, Term
from roller.expr.scalar import axis_index
from roller.perf.cpu.lanes import UNROLL_LIMIT, UNROLLED_BROADCASTS
from roller.tile import RProgram


@dataclass(frozen=True)
class SpatialPlan:
    """Tiling of one spatial axis.

    Parameters
    ----------
    name, extent
        The axis (elements).
    tile
        Effective register tile, at most ``extent`` (elements) but where lanes may lie beyond it.
    tiles
        Register tiles covering the axis; the last one may overlap its neighbour.
    per_task
        Register tiles of one task.
    lanes
        Elements of one vector; 1 except on the vector axis.
    """

    name: str
    extent: int
    tile: int
    tiles: int
    per_task: int
    lanes: int = 1

    @property
    def tasks(self) -> int:
        """Tasks along the axis."""
        return -(-self.tiles // self.per_task)


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


#: Lines of a windowed operand that stay in L1 from one tap of the window to the next, beside what streams through it.
_HELD_LINES = 128
#: Elements of a line of float32, and the shortest block that is worth its loop.
_LINE_ELEMENTS, _SHORTEST_BLOCK = 16, 4


def spatial_plans(program: RProgram) -> tuple[SpatialPlan, ...]:
    """Return one plan per spatial axis of the anchor, in order."""
    register, task = program.tile("register"), program.block_tile
    plans = []
    for a in program.expr.anchor.spatial_axes:
        tile, lanes = min(register[a.name], a.extent), 1
        if a.name == program.vector_axis:
            if a.extent < program.vector_elements and reads_past_the_end(program):
                lanes = 1 << (a.extent - 1).bit_length()
                plans.append(SpatialPlan(a.name, a.extent, lanes, 1, 1, lanes))
                continue
            lanes = power_of_two_below(min(program.vector_elements, tile))
            tile = tile // lanes * lanes
        tiles = -(-a.extent // tile)
        # As many tiles, but of equal size: 56 by 48 is two tiles of 32, which overlap least.
        even = -(-a.extent // tiles)
        tile = -(-even // lanes) * lanes
        covered = task[a.name] >= a.extent  # as effective tiles, which may be more than the program's
        per_task = tiles if covered else min(tiles, max(1, task[a.name] // register[a.name]))
        plans.append(SpatialPlan(a.name, a.extent, tile, tiles, per_task, lanes))
    return tuple(plans)


def reads_past_the_end(program: RProgram) -> bool:
    """Whether lanes may lie beyond the vector axis: all its operands are boxes of the task, which hold something there.

    A row of 11 is then one vector of 16 of which 11 elements are stored, instead of two overlapping ones of 8.
    """
    stage = program.expr.anchor
    loads = [ld for ld in stage.loads if any(program.vector_axis in i.axes for i in ld.index)]
    return program.structure == "tiled" and all(ld.tensor in program.staged and is_box(ld, stage) for ld in loads)


def reduction_order(stage: Stage) -> tuple[Axis, ...]:
    """Return the reduction axes, window axes (``kh``, ``kw``) outermost.

    A window axis shares its dimension with a spatial axis. Innermost, LLVM unrolls it fully and keeps the
    values neighbouring steps share in registers, which the accumulators need.
    """
    window = {x for ld in stage.loads for i in ld.index if len(i.axes) > 1 and not _digits(i, stage) for x in i.axes}
    return tuple(sorted(stage.reduction_axes, key=lambda a: a.name not in window))


def reduction_plans(program: RProgram, vectors: int) -> tuple[ReductionPlan, ...]:
    """Return one plan per reduction axis of the anchor, in order.

    Parameters
    ----------
    vectors
        Vector operations of one reduction step of the micro-kernel, which bounds unrolling.
    """
    layer = "l1" if "l1" in program.layers else "register"
    chunk = program.tile(layer)
    whole = layer == "register"
    plans: list[ReductionPlan] = []
    budget, inner, sizes = vectors, True, dict(program.tile("register"))
    for a in reversed(reduction_order(program.expr.anchor)):
        step = a.extent if whole else min(chunk[a.name], a.extent)
        budget *= a.extent
        sizes[a.name] = a.extent
        first = not plans
        unroll = inner and step == a.extent and budget <= UNROLL_LIMIT
        unroll = unroll and (first or _broadcasts(program, sizes) <= UNROLLED_BROADCASTS)
        inner = unroll
        plans.append(ReductionPlan(a.name, a.extent, step, unroll))
    plans.reverse()
    if len(plans) > 1 and plans[-1].chunks == 1 and not plans[-1].unroll:
        plans[-1] = replace(plans[-1], block=_block(program, plans[-1]))
    return tuple(plans)


def _broadcasts(program: RProgram, sizes: Mapping[str, int]) -> int:
    """Return the different broadcast values of a micro-kernel that covers ``sizes`` of the axes."""
    used = [{x for i in ld.index for x in i.axes} for ld in program.expr.anchor.loads]
    return sum(math.prod(sizes[x] for x in axes) for axes in used if program.vector_axis not in axes)


def _block(program: RProgram, inner: ReductionPlan) -> int:
    """Return the block of the innermost reduction axis that goes around the window axes; 0 where none is needed.

    The window is walked outside the inner axis, so every tap passes the whole inner axis; a block of it that fits L1
    is read from there by all taps but the first.
    """
    stage = program.expr.anchor
    sizes = {**{s.name: s.tile for s in spatial_plans(program)}, **{a.name: a.extent for a in stage.reduction_axes}}
    lines = 0
    for ld in stage.loads:
        if not all(i.is_affine for i in ld.index) or not any(len(i.axes) > 1 for i in ld.index):
            continue
        if {x for i in ld.index if len(i.axes) > 1 for x in i.axes} & {inner.name}:
            return 0
        spans = [1 + sum(abs(t.coef) * (sizes[t.axis] - 1) for t in i.terms if t.axis != inner.name) for i in ld.index]
        lines += math.prod(spans[:-1]) * (1 + spans[-1] // _LINE_ELEMENTS)
    if not lines:
        return 0
    block = max(_SHORTEST_BLOCK, _HELD_LINES // lines)
    blocks = -(-inner.extent // block)
    return -(-inner.extent // blocks) if blocks > 1 else 0


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


def _digits(index: Index, stage: Stage) -> bool:
    """Whether axes of one kind write the index like a number: channels in blocks, no window."""
    kinds = ({a.name: a.extent for a in axes} for axes in (stage.spatial_axes, stage.reduction_axes))
    return any(index.is_digits(k) for k in kinds)


def mixes_axes(load: Load, stage: Stage) -> bool:
    """Whether some dimension is a window or strides, so that a box holds less than a gather."""
    several = (i for i in load.index if len(i.terms) > 1)
    return any(t.coef != 1 for i in load.index if len(i.terms) == 1 for t in i.terms) or any(
        not _digits(i, stage) for i in several
    )


def is_box(load: Load, stage: Stage) -> bool:
    """Whether a staged load is copied as the box that its task touches: windows or strides, all forward."""
    forward = all(t.coef >= 0 for i in load.index for t in i.terms)
    return forward and mixes_axes(load, stage) and all(i.is_affine for i in load.index) and all(
        b.index in load.index for b in load.guard
    )  # fmt: skip


def halo_plan(
    load: Load, stage: Stage, spatial: tuple[SpatialPlan, ...], vector_axis: str | None, padding: int
) -> HaloPlan | None:
    """Return how to stage ``load`` as a box, or ``None`` where its accesses are not affine per dimension."""
    if not all(i.is_affine for i in load.index) or not mixes_axes(load, stage):
        return None
    by_dim: list[tuple[int, int] | None] = [None] * len(load.index)
    for b in load.guard:
        if b.index not in load.index:
            return None
        d = load.index.index(b.index)
        low, high = by_dim[d] or (b.low, b.high)
        by_dim[d] = (max(low, b.low), min(high, b.high))
    sizes = {s.name: max(s.tile, min(s.per_task * s.tile, s.extent)) for s in spatial}
    reduced = {a.name: a.extent for a in stage.reduction_axes}
    base, extents, local = [], [], []
    for i in load.index:
        low, span, terms = i.const, 1, []
        for t in i.terms:
            size = sizes.get(t.axis, reduced.get(t.axis, 1))
            span += abs(t.coef) * (size - 1)
            if t.axis in reduced:
                low += min(0, t.coef * (size - 1))
            elif t.coef < 0:
                return None  # a mirrored spatial axis would start its box at a run-time end
            terms.append(Term(relative(t.axis) if t.axis in sizes else t.axis, t.coef))
        base.append(Index(tuple(t for t in i.terms if t.axis in sizes), low))
        extents.append(span)
        local.append(Index(tuple(terms), i.const - low))
    plan = HaloPlan(load, tuple(base), tuple(extents), tuple(local), tuple(by_dim))
    plan = _with_phases(plan, vector_axis)
    return HaloPlan(plan.load, plan.base, (*plan.extents[:-1], plan.extents[-1] + padding), plan.local, plan.bounds,
                    plan.phases)  # fmt: skip


def _with_phases(plan: HaloPlan, vector_axis: str | None) -> HaloPlan:
    """De-interleave the last dimension where the vector axis strides over it and one other axis steps by one."""
    last = plan.local[-1]
    if vector_axis is None:
        return plan
    mine = [t for t in last.terms if t.axis == relative(vector_axis)]
    rest = [t for t in last.terms if t.axis != relative(vector_axis)]
    if len(mine) != 1 or mine[0].coef < 2 or last.const or len(rest) > 1 or any(t.coef != 1 for t in rest):
        return plan
    stride = mine[0].coef
    pitch = -(-plan.extents[-1] // stride)
    phase = tuple(Term(t.axis, 1, 1, stride) for t in rest)
    position = (Term(mine[0].axis), *(Term(t.axis, 1, stride) for t in rest))
    local = (*plan.local[:-1], Index(phase), Index(position))
    return HaloPlan(plan.load, plan.base, (*plan.extents[:-1], pitch), local, plan.bounds, stride)


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


#: A panel that several tasks would pack again is packed once up front unless it grows beyond this (bytes).
_UPFRONT_LIMIT_BYTES = 1 << 28


def panel_plan(
    load: Load,
    spatial: tuple[SpatialPlan, ...],
    reduction: tuple[ReductionPlan, ...],
    itemsize_bytes: int,
    constant: bool = False,
) -> PanelPlan:
    """Return how to gather ``load``: the vector axis innermost, up front where tasks would repeat the work.

    A ``constant`` is always packed up front: that is before the first call.
    """
    used = {x for i in (*load.index, *(b.index for b in load.guard)) for x in i.axes}
    mine = tuple(sorted((s for s in spatial if s.name in used), key=lambda s: s.lanes > 1))
    repeats = math.prod(s.tasks for s in spatial if s.name not in used)
    plan = PanelPlan(load, mine, tuple(r for r in reduction if r.name in used), True)
    shared = repeats > 1 and math.prod(plan.shape) * itemsize_bytes <= _UPFRONT_LIMIT_BYTES
    return PanelPlan(load, mine, plan.reduction, constant or shared)
