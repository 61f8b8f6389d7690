"""Plans of register tiles: the tiling of each axis of a program, from its decisions (``decisions.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from roller.expr import SPATIAL, Stage
from roller.perf import batch_of
from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import Expr
from roller.templates.cpu.decisions import CpuDecisions, decisions_for_lanes
from roller.templates.cpu.emit.tir_loop_constructors import int32_index
from roller.templates.cpu.window_clipping import register_tiles_per_segment
from roller.tile import RProgram


@dataclass(frozen=True)
class SpatialPlan:
    """Tiling of one spatial axis.

    Parameters
    ----------
    extent
        Extent of the axis (elements); an expression if it is known only at run time.
    tile
        Extent of the effective register tile (elements), at most ``extent`` unless lanes may exceed it.
    tiles
        Number of register tiles that cover the axis; the last one may overlap its neighbour.
    per_task
        Number of register tiles per task.
    lanes
        Number of elements per vector; 1 except on the vector axis.
    segments
        Positions where tiles end in addition to the end of the axis: no tile crosses them.
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
        """Number of tasks along the axis."""
        return (self.tiles + (self.per_task - 1)) // self.per_task

    @property
    def is_whole(self) -> bool:
        """Whether tiles are known to end with the axis, so that none is shifted back."""
        tiles = self.tiles
        return self.tile == 1 or (isinstance(tiles, int) and (tiles * self.tile == self.extent or tiles == 1))

    @property
    def tasks_are_equal(self) -> bool:
        """Whether every task is known to have the same number of tiles."""
        return self.per_task == 1 or (isinstance(self.tiles, int) and self.tiles % self.per_task == 0)

    @property
    def task_elements(self) -> int:
        """Number of elements along the axis in the largest task (at least a tile)."""
        whole = self.per_task * self.tile
        return max(self.tile, min(whole, self.extent)) if isinstance(self.extent, int) else whole

    def with_extent(self, extent: int | Expr) -> SpatialPlan:
        """Return the same tiles over a different extent of at least a tile, which may be known only at run time."""
        return replace(self, extent=extent, tiles=(extent + (self.tile - 1)) // self.tile)

    def opened(self) -> SpatialPlan:
        """Return the plan with an opaque extent, as if it were known only at run time."""
        return self.with_extent(tirx.IntImm("int32", self.extent))


@dataclass(frozen=True)
class ReductionPlan:
    """Tiling of one reduction axis: ``chunks`` chunks of ``chunk`` elements, the last of which may be shorter.

    Parameters
    ----------
    block
        Length (elements) of the blocks that a loop outside the window axes visits; 0 without such blocks.
    """

    name: str
    extent: int
    chunk: int
    unroll: bool
    block: int = 0

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-self.extent // self.chunk)


def power_of_two_below(n: int) -> int:
    """Return the largest power of two not exceeding ``n``."""
    return 1 << (n.bit_length() - 1)


def tile_start_coordinate(plan: SpatialPlan, tile: Expr) -> Expr:
    """Return the first coordinate of a register tile; the last tile ends with the axis or its segment."""
    if plan.segments:
        start, number = int32_index(0), 0
        for (first, end), tiles in zip(
            pairwise(plan.segments), register_tiles_per_segment(plan.segments, plan.tile), strict=True
        ):
            here = tirx.min(first + (tile - number) * plan.tile, int32_index(end - plan.tile))
            start, number = tirx.Select(tile >= number, here, start) if number else here, number + tiles
        return start
    if plan.is_whole:
        return tile * plan.tile
    return tirx.min(tile * plan.tile, int32_index(plan.extent - plan.tile))


def program_decisions(program: RProgram) -> CpuDecisions:
    """Return the decisions for a program as arrays of one row."""
    found = program._memo.get("decisions")
    if found is None:
        found = program._memo["decisions"] = decisions_for_lanes(batch_of([program]), program.vector_elements)
    decisions: CpuDecisions = found
    return decisions


def spatial_plans(program: RProgram) -> tuple[SpatialPlan, ...]:
    """Return one plan per spatial axis of the anchor, in order."""
    d = program_decisions(program)
    lanes = {program.vector_axis: int(d.lanes[0])}
    sizes = np.stack([d.tile[0], d.tiles[0], d.per_task[0]], axis=1).tolist()
    plans = (
        SpatialPlan(a.name, a.extent, tile, tiles, per_task, lanes.get(a.name, 1), d.segments.get(n, ()))
        for n, (a, (tile, tiles, per_task)) in enumerate(zip(program.axes, sizes, strict=True))
        if a.kind == SPATIAL
    )
    return tuple(p.opened() if p.name in program.open_axes else p for p in plans)


def plans_with_run_time_extents(
    plans: tuple[SpatialPlan, ...], last: Stage, shape: Sequence[int | Expr]
) -> tuple[SpatialPlan, ...]:
    """Return the plans, with the extents of those dimensions of the result that are known only at run time."""
    said = {i.axes[0]: n for i, n in zip(last.store, shape, strict=True) if not isinstance(n, int)}
    return tuple(p.with_extent(said[p.name]) if p.name in said else p for p in plans)


def reduction_plans(program: RProgram) -> tuple[ReductionPlan, ...]:
    """Return one plan per reduction axis of the anchor, in loop order."""
    d = program_decisions(program)
    order = d.batch.geometry.reduction_order
    return tuple(
        ReductionPlan(
            program.axes[a].name, program.axes[a].extent, int(d.chunk[0, a]), bool(d.unrolled[0, a]),
            int(d.block[0]) if a == order[-1] else 0,
        )
        for a in order
    )  # fmt: skip


def coordinate_within_task_name(name: str) -> str:
    """Return the name of an axis's coordinate relative to the start of its task."""
    return f"{name}.task"


def tile_counter_name(name: str) -> str:
    """Return the name of an axis's register-tile counter."""
    return f"{name}.tile"


def task_tile_counter_name(name: str) -> str:
    """Return the name of an axis's register-tile counter inside its task."""
    return f"{name}.task_tile"


def tile_coordinate_name(name: str) -> str:
    """Return the name of an axis's coordinate inside its register tile."""
    return f"{name}.inner"


def block_counter_name(name: str) -> str:
    """Return the name of a reduction axis's block counter."""
    return f"{name}.block"


def block_coordinate_name(name: str) -> str:
    """Return the name of a reduction axis's coordinate inside its block."""
    return f"{name}.in_block"
