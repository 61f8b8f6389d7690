"""Registers for values that a row kernel computes once: per row, or per element for later stages.

The expression determines these values (:mod:`roller.tile.row_kernel_shared_values`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from roller.expr import Load, Scalar, walk_scalar_tree
from roller.te.compat import dtype_of
from roller.templates.gpu.emit.axis_map import AxisMap, RegisterPoint, count_register_elements, register_index_of_point
from roller.templates.gpu.emit.kernel_tensor_context import Reader
from roller.templates.gpu.emit.load_into_register_tiles import reader_of_one_register
from roller.templates.gpu.emit.tir_statements import Buffer, Expr, Stmt, declare_buffer, store
from roller.tile.row_kernel_shared_values import replace_scalar_subtrees


@dataclass
class ValueRegisters:
    """Registers of values per point of ``maps``; only values in ``ready`` may be read."""

    prefix: str
    maps: tuple[AxisMap, ...]
    buffers: dict[Scalar, Buffer] = field(default_factory=dict)
    ready: set[Scalar] = field(default_factory=set)

    def new(self, values: Sequence[Scalar]) -> list[Scalar]:
        """Return the values that have not been computed."""
        return [v for v in values if v not in self.ready]

    def set(self, value: Scalar, computed: Expr, at: RegisterPoint) -> Stmt:
        """Return the store of a value at a register point."""
        if value not in self.buffers:
            name, size = f"{self.prefix}{len(self.buffers)}", count_register_elements(self.maps)
            self.buffers[value] = declare_buffer(name, (size,), dtype_of(computed), "local")
        return store(self.buffers[value], computed, register_index_of_point(self.maps, at))

    def read(self, body: Scalar, at: RegisterPoint) -> tuple[Scalar, dict[str, Reader]]:
        """Return ``body`` with ready values as scalars, and the values' readers at a register point."""
        body = replace_scalar_subtrees(body, {v: Load(b.name, ()) for v, b in self.buffers.items() if v in self.ready})
        used = {n.tensor for n in walk_scalar_tree(body) if isinstance(n, Load)}
        found = [b for v, b in self.buffers.items() if v in self.ready and b.name in used]
        return body, {b.name: reader_of_one_register(b, register_index_of_point(self.maps, at)) for b in found}
