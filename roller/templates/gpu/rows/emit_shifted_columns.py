"""Rows processed by positions that are aligned whatever the rows' pitch (:mod:`roller.tile.misaligned_row_starts`).

The columns are mapped by position, and there are more positions than elements. Chunks at the edges of a row are guarded
element by element unless they lie inside; all other chunks are vectors without a predicate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from roller.expr import Stage, Tensor
from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import emit_index
from roller.templates.gpu.emit.axis_map import AxisMap, RegisterPoint
from roller.templates.gpu.emit.tir_statements import Expr, Stmt, if_all, loop
from roller.tile.misaligned_row_starts import RowShift, row_shift


@dataclass(frozen=True)
class ShiftedColumns:
    """Columns of a row as aligned positions, some of which are outside the row."""

    shift: RowShift
    map: AxisMap

    @classmethod
    def of(cls, anchor: Stage, tensors: Mapping[str, Tensor], columns: Sequence[AxisMap]) -> ShiftedColumns | None:
        """Return the columns as positions, or ``None`` if vectors are already aligned or would need a further step."""
        m = columns[0] if len(columns) == 1 else None
        found = row_shift(anchor, tensors, m.vector) if m is not None and m.interleaved else None
        if m is None or found is None or found.axis != m.name:
            return None
        if not found.fits(m.extent, m.steps * m.tile):  # registers and scratchpad were counted for the elements' steps
            return None
        positions = found.positions(m.extent)
        return cls(found, replace(m, extent=positions, slack=positions - m.extent))

    @property
    def elements(self) -> int:
        """Number of elements in a row."""
        return self.map.certain_positions

    def columns(
        self, positions: Mapping[str, Expr], maps: Sequence[AxisMap], rows: Mapping[str, Expr]
    ) -> dict[str, Expr]:
        """Return the columns at positions along ``maps``; only the map with slack is shifted."""
        behind = tirx.floormod(emit_index(self.shift.start, rows), self.shift.width)
        return {m.name: positions[m.name] - behind if m.slack else positions[m.name] for m in maps}

    def at_edge(self, at: RegisterPoint) -> bool:
        """Return whether the chunk at a register point may lie outside a row, wholly or partly."""
        return self.map.name in at.edges

    def inside(self, at: RegisterPoint, env: Mapping[str, Expr]) -> list[Expr]:
        """Return the conditions under which the column in ``env`` exists."""
        if not self.at_edge(at):
            return []
        column = env[self.map.name]
        return [column >= 0, column < self.elements]

    def chunk(self, at: RegisterPoint, env: Mapping[str, Expr], whole: Stmt, element: Callable[[Expr], Stmt]) -> Stmt:
        """Return ``whole`` for a chunk, or ``element`` by element at an edge; ``env`` holds its first column."""
        if not self.at_edge(at):
            return whole
        first, width = env[self.map.name], self.map.vector

        def one(e: Expr) -> Stmt:
            return if_all([first + e >= 0, first + e < self.elements], element(e))

        return if_all([first >= 0, first + (width - 1) < self.elements], whole, loop("e", width, one, unroll=True))
