"""Prefetches of the next panel of transformed filters by the task that multiplies the current one."""

from __future__ import annotations

import math
from collections.abc import Callable

from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import Expr
from roller.templates.cpu.emit.prefetch_constant_panels import FAR_BYTES, emit_line_prefetches
from roller.templates.cpu.emit.tir_loop_constructors import Buffer, Stmt, int32_index, smaller_extent
from roller.tile.winograd import WinogradPlan
from roller_runtime.core.dtypes import storage_dtype


def emit_filter_prefetches(
    plan: WinogradPlan, buffer: Buffer, element: Expr, panel: tuple[Expr, Expr], turn: Expr
) -> list[Callable[[Expr], Stmt]]:
    """Return the function, if any, that prefetches per channel the transformed filters that a task multiplies next."""
    shape = tuple(int(x) for x in buffer.ty.shape)
    item_bytes = storage_dtype(str(buffer.ty.dtype)).itemsize
    if math.prod(shape) * item_bytes < FAR_BYTES:
        return []
    (place, own), turns = panel, math.prod(a.groups for a in plan.tiled)
    turned = tirx.floordiv(
        own + 1, int32_index(plan.panels.box)
    )  # the last panel is followed by the next element's first
    after = smaller_extent(element + turned, int32_index(shape[0] - 1))
    start = (after, place + 1 - turned * plan.panels.box, int32_index(0))
    return [lambda c: emit_line_prefetches(buffer, start, (turn * plan.channels + c, turns), shape[-1], item_bytes)]
