"""Prefetches of a constant's next panel by the tiles that read the current one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from roller.te.emit_tvm_expressions import Expr
from roller.templates.cpu.emit.axis_tiling_plans import SpatialPlan, task_tile_counter_name, tile_counter_name
from roller.templates.cpu.emit.prefetch_constant_panels import FAR_BYTES, Hint, emit_line_prefetches
from roller.templates.cpu.emit.tir_loop_constructors import (
    LINE_BYTES,
    Buffer,
    Stmt,
    int32_index,
    prefetch_element,
    smaller_extent,
)
from roller.templates.cpu.tiled.emit_load_staging_plans import PanelPlan
from roller_runtime.core.dtypes import storage_dtype


def emit_next_panel_prefetch(
    panel: PanelPlan, buffer: Buffer, order: Sequence[SpatialPlan], env: Mapping[str, Any]
) -> Hint | None:
    """Return a function that prefetches lines of the next panel at a reduction step, or ``None`` if none helps."""
    item_bytes = storage_dtype(str(buffer.ty.dtype)).itemsize
    if math.prod(panel.shape) * item_bytes < FAR_BYTES or len(panel.spatial) != 1 or not panel.reduction:
        return None
    (axis,) = panel.spatial
    turns, turn = 1, int32_index(0)
    for s in order[order.index(axis) + 1 :]:  # the loops that read one panel repeatedly
        turns, turn = turns * s.per_task, turn * s.per_task + env[task_tile_counter_name(s.name)]
    following = smaller_extent(env[tile_counter_name(axis.name)] + 1, int32_index(axis.tiles - 1))
    extents = panel.shape[1:-1]
    known = all(isinstance(s.tiles, int) for s in order)

    def hint(at: Mapping[str, Any]) -> Stmt:
        step: Expr = int32_index(0)
        for x, extent in zip(panel.steps(at), extents, strict=True):
            step = step * extent + x
        start = (following, *(int32_index(0) for _ in extents))
        part = (turn * math.prod(extents) + step, turns)
        if not known:  # the number of iterations is known only at run time: one line at a time, then the last one again
            line = LINE_BYTES // item_bytes
            lines = -(-math.prod(extents) * panel.shape[-1] // line)
            return prefetch_element(buffer, *start, smaller_extent(part[0], int32_index(lines - 1)) * line)
        return emit_line_prefetches(buffer, start, part, panel.shape[-1], item_bytes)

    return hint
