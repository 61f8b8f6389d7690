"""Rows that stay in the scratchpad after the first stage reads them; every thread rereads its own elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from roller.expr import Load
from roller.te.compat import tirx
from roller.templates.gpu.emit.axis_map import AxisMap, RegisterPoint, count_register_elements
from roller.templates.gpu.emit.kernel_tensor_context import KernelContext
from roller.templates.gpu.emit.load_into_register_tiles import RegisterTile
from roller.templates.gpu.emit.tir_statements import Buffer, Expr, Stmt, declare_buffer, dtype_name, int32_literal
from roller.templates.gpu.rows.emit_lane_combination import RowLanes
from roller.templates.gpu.rows.emit_loops_and_remainders import RowTile
from roller.tile.row_stages_and_shared_loads import loads_kept_in_registers
from roller.tile.scratchpad_bytes import STATIC_SHARED_BYTES
from roller_runtime.core.dtypes import DTYPE_BYTES

#: Scratchpad (bytes) reserved for exchanges between lanes if rows are held there statically.
_EXCHANGE_BYTES = 8192


@dataclass
class StagedRows:
    """Scratchpad buffers, keyed by load, in which the threads ``lanes`` of a block hold the inputs ``staged``."""

    ctx: KernelContext
    staged: tuple[str, ...]
    lanes: RowLanes
    buffers: dict[Load, Buffer] = field(default_factory=dict)

    def hold(self, found: Sequence[RegisterTile], maps: Sequence[AxisMap]) -> frozenset[Load]:
        """Allocate scratchpad for staged inputs; return the loads that now come from memory."""
        new = []
        for f in found:
            if (
                f.load.tensor in self.staged
                and f.load in loads_kept_in_registers(self.ctx.expr)
                and f.load not in self.buffers
            ):
                size = count_register_elements(f.maps) * math.prod(m.steps for m in maps if m in f.maps)
                threads = self.lanes.count * self.lanes.rows
                name = f"held{len(self.buffers)}"
                dtype = dtype_name(f.buffer)
                many = size * threads * DTYPE_BYTES[dtype] * len(self.staged) > STATIC_SHARED_BYTES - _EXCHANGE_BYTES
                self.buffers[f.load] = declare_buffer(
                    name, (size * threads,), dtype, "shared.dyn" if many else "shared"
                )
                new.append(f.load)
        return frozenset(new)

    def move(self, f: RegisterTile, maps: Sequence[AxisMap], tile: RowTile, at: RegisterPoint, *, leave: bool) -> Stmt:
        """Return the copy of one element or chunk to the scratchpad if ``leave`` is set, otherwise from there."""
        return f.move(at, self.buffers[f.load], self._place(f, maps, tile, at), leave=leave)

    def _place(self, f: RegisterTile, maps: Sequence[AxisMap], tile: RowTile, at: RegisterPoint) -> Expr:
        """Return the position of a thread's chunk in the scratchpad: neighbouring threads' chunks are adjacent."""
        chunk = 1 if f.vector_axis is None else f.maps[-1].vector
        number: Expr = int32_literal(0)
        for m in maps:
            if m in f.maps:
                number = number * m.steps + tirx.floordiv(tile.base[m.name], m.tile)
        number = number * (count_register_elements(f.maps) // chunk) + tirx.floordiv(f.index(at), chunk)
        own = self.lanes.row * self.lanes.count + self.lanes.lane
        return (number * (self.lanes.count * self.lanes.rows) + own) * chunk
