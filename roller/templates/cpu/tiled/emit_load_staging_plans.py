"""Plans of staged loads of a tiled program: copied as a box of the tensor, or gathered into a panel."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from roller.expr import Index, Load, Stage, Term
from roller.expr.scalar import axis_index
from roller.templates.cpu.emit.axis_tiling_plans import (
    ReductionPlan,
    SpatialPlan,
    block_coordinate_name,
    block_counter_name,
    coordinate_within_task_name,
    task_tile_counter_name,
    tile_coordinate_name,
    tile_counter_name,
)


@dataclass(frozen=True)
class BoxPlan:
    """A staged load copied as the box of the tensor that one task touches.

    Parameters
    ----------
    base
        First coordinate per dimension, as a function of the task's start coordinates.
    extents
        Extents of the largest box (elements).
    local
        Index into the box, over coordinates relative to the task's start; :func:`coordinate_within_task_name` names
        the axes.
    phases
        If above 1, the last dimension is stored as ``[phase][position]``, which makes strided vectors contiguous.
    vector_bytes
        Number of bytes in a vector of results, which is also the width of the copy; 0 without vectors.
    fixed
        Whether each dimension of the box, and its bounds, are the same at all sizes of a range.
    """

    load: Load
    base: tuple[Index, ...]
    extents: tuple[int, ...]
    local: tuple[Index, ...]
    bounds: tuple[tuple[int, int] | None, ...]
    phases: int = 1
    vector_bytes: int = 0
    fixed: tuple[bool, ...] = ()


def plan_box(
    load: Load, stage: Stage, spatial: tuple[SpatialPlan, ...], vector_axis: str | None, phases: int, padding: int,
    open_axes: Collection[str] = (),
) -> BoxPlan:  # fmt: skip
    """Return the plan of ``load`` as a box whose columns are sorted by ``phases`` of the vector axis."""
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
            terms.append(Term(coordinate_within_task_name(t.axis) if t.axis in sizes else t.axis, t.coef))
        base.append(Index(tuple(t for t in i.terms if t.axis in sizes), low))
        extents.append(span)
        local.append(Index(tuple(terms), i.const - low))
    if phases > 1 and vector_axis is not None:
        extents[-1] = -(-extents[-1] // phases)
        rest = [t for t in local[-1].terms if t.axis != coordinate_within_task_name(vector_axis)]
        position = (Term(coordinate_within_task_name(vector_axis)), *(Term(t.axis, 1, phases) for t in rest))
        local[-1:] = [Index(tuple(Term(t.axis, 1, 1, phases) for t in rest)), Index(position)]
    extents[-1] += padding
    lanes = max((s.lanes for s in spatial), default=1)
    vector_bytes = lanes * max(4, stage.output.itemsize_bytes) if lanes > 1 else 0
    fixed = tuple(set(open_axes).isdisjoint(i.axes) for i in load.index)
    fixed += fixed[-1:] if phases > 1 else ()
    return BoxPlan(load, tuple(base), tuple(extents), tuple(local), tuple(by_dim), phases, vector_bytes, fixed)


@dataclass(frozen=True)
class PanelPlan:
    """A staged load gathered into ``[tiles of each spatial axis][reduction axes][inner of each spatial axis]``.

    Parameters
    ----------
    upfront
        Whether the panel holds every tile and is packed once, in parallel, before the tasks (for constants, before
        the first call); otherwise, it holds one task's tiles.
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
        """The reduction axis that is divided into blocks, or ``None`` if none is."""
        # The block precedes the other reduction axes and the element in it follows them, so that the panel has the
        # order in which it is read.
        return self.reduction[-1] if self.reduction and self.reduction[-1].block else None

    def steps(self, at: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the position of a reduction step in the panel."""
        names, r = tuple(at[p.name] for p in self.reduction), self.blocked
        return names if r is None else (names[-1] // r.block, *names[:-1], names[-1] % r.block)

    @property
    def index(self) -> tuple[Index, ...]:
        """Index of the load's element in the panel."""
        steps, r = [r.name for r in self.reduction], self.blocked
        if r is not None:
            steps = [block_counter_name(r.name), *steps[:-1], block_coordinate_name(r.name)]
        return (
            *(
                axis_index(tile_counter_name(s.name) if self.upfront else task_tile_counter_name(s.name))
                for s in self.spatial
            ),
            *(axis_index(n) for n in steps),
            *(axis_index(tile_coordinate_name(s.name)) for s in self.spatial),
        )


def plan_panel(
    load: Load, spatial: tuple[SpatialPlan, ...], reduction: tuple[ReductionPlan, ...], upfront: bool
) -> PanelPlan:
    """Return the plan that gathers ``load`` with the vector axis innermost."""
    used = {x for i in (*load.index, *(b.index for b in load.guard)) for x in i.axes}
    mine = sorted((s for s in spatial if s.name in used), key=lambda s: s.lanes > 1)
    return PanelPlan(load, tuple(mine), tuple(r for r in reduction if r.name in used), upfront)
