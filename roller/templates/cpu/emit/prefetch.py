"""Panels of constants that left a core's caches since the last call are fetched while those before them are computed.

Every panel begins where the processor's own prefetching starts anew, and the first tile that reads it would need its
bytes as fast as the micro-kernel multiplies. So the tiles that read one panel fetch the next one, each its part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roller.core.dtypes import storage_dtype
from roller.te.compat import tirx
from roller.te.emit import Expr
from roller.templates.cpu.emit.nest import LINE_BYTES, Buffer, Stmt, integer, lower_of, prefetch, seq
from roller.templates.cpu.emit.plan import PanelPlan, SpatialPlan, task_tile_of, tile_of
from roller.tile.winograd import WinogradPlan

#: Bytes from which the panels of a constant do not stay in a core's caches while a model reads its other constants.
FAR_BYTES = 1 << 16

#: Fetches, at a step of a reduction, what comes later.
Hint = Callable[[Mapping[str, Any]], Stmt]


def prefetch_panel(
    panel: PanelPlan, buffer: Buffer, order: Sequence[SpatialPlan], env: Mapping[str, Any]
) -> Hint | None:
    """Return what fetches lines of a panel's successor at a reduction step; ``None`` where that does not pay."""
    item_bytes = storage_dtype(str(buffer.ty.dtype)).itemsize
    if math.prod(panel.shape) * item_bytes < FAR_BYTES or len(panel.spatial) != 1 or not panel.reduction:
        return None
    (axis,) = panel.spatial
    turns, turn = 1, integer(0)
    for s in order[order.index(axis) + 1 :]:  # the loops that read one panel again
        turns, turn = turns * s.per_task, turn * s.per_task + env[task_tile_of(s.name)]
    following = lower_of(env[tile_of(axis.name)] + 1, integer(axis.tiles - 1))
    extents = panel.shape[1:-1]
    known = all(isinstance(s.tiles, int) for s in order)

    def hint(at: Mapping[str, Any]) -> Stmt:
        step: Expr = integer(0)
        for x, extent in zip(panel.steps(at), extents, strict=True):
            step = step * extent + x
        start = (following, *(integer(0) for _ in extents))
        part = (turn * math.prod(extents) + step, turns)
        if not known:  # how many turns there are is for a call to say: a line at a time, then the last one again
            line = LINE_BYTES // item_bytes
            lines = -(-math.prod(extents) * panel.shape[-1] // line)
            return prefetch(buffer, *start, lower_of(part[0], integer(lines - 1)) * line)
        return _lines(buffer, start, part, panel.shape[-1], item_bytes)

    return hint


def prefetch_filters(
    plan: WinogradPlan, buffer: Buffer, element: Expr, panel: tuple[Expr, Expr], turn: Expr
) -> list[Callable[[Expr], Stmt]]:
    """Return what fetches, channel by channel, the transformed filters that a task multiplies next."""
    shape = tuple(int(x) for x in buffer.ty.shape)
    item_bytes = storage_dtype(str(buffer.ty.dtype)).itemsize
    if math.prod(shape) * item_bytes < FAR_BYTES:
        return []
    (place, own), turns = panel, math.prod(a.groups for a in plan.tiled)
    turned = tirx.floordiv(own + 1, integer(plan.panels.box))  # after the last panel the first of the next element
    after = lower_of(element + turned, integer(shape[0] - 1))
    start = (after, place + 1 - turned * plan.panels.box, integer(0))
    return [lambda c: _lines(buffer, start, (turn * plan.channels + c, turns), shape[-1], item_bytes)]


def _lines(buffer: Buffer, start: tuple[Expr, ...], part: tuple[Expr, int], row: int, item_bytes: int) -> Stmt:
    """Return hints for one part of a panel."""
    step, turns = part
    size = -(-row // turns)
    return seq(*(prefetch(buffer, *start, step * size + x) for x in range(0, size, LINE_BYTES // item_bytes)))
