"""A dynamic size of an expression, and its range of extents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from roller.errors import RollerError, shown
from roller.expr import TensorExpr
from roller.expr.sizes_growable_by_padding import (
    GrowableSize,
    expression_with_size,
    growing_sizes,
    is_leading_dimension,
)

#: Maximum number of extents in a range: a table has an entry for each.
MOST_EXTENTS = 1 << 20


@dataclass(frozen=True)
class DynamicRange:
    """A dynamic size of an expression."""

    expr: TensorExpr  #: The expression at an arbitrary extent
    size: GrowableSize
    #: Smallest and largest extent, in elements.
    low: int
    high: int

    def at(self, extent: int) -> TensorExpr:
        """Return the expression for an extent."""
        return expression_with_size(self.expr, self.size, extent)

    @property
    def place(self) -> tuple[int, int]:
        """Input and dimension that give the extent in a call."""
        names = [t.name for t in self.expr.inputs]
        return next((names.index(t), d) for t, d in self.size.dims if t in names)


def parse_open_range(
    expr: TensorExpr, shapes: Mapping[str, Any], constants: tuple[int, ...] = ()
) -> DynamicRange | None:
    """Return the range that ``shapes`` gives if it is one size along the first dimension, otherwise ``None``."""
    if not isinstance(shapes, Mapping) or len(shapes) != 1:
        return None
    ((name, given),) = shapes.items()
    held = {expr.inputs[n].name for n in constants}
    free = [s for s in growing_sizes(expr) if is_leading_dimension(expr, s) and not held & {t for t, _ in s.dims}]
    found = next((s for s in free if name in {a for _, a in s.axes}), None)
    if found is None:
        return None
    low, high = parse_range_bounds(str(name), given)
    return DynamicRange(expression_with_size(expr, found, high), _size_with_extent(found, high), low, high)


def _size_with_extent(size: GrowableSize, extent: int) -> GrowableSize:
    return GrowableSize(extent, size.axes, size.dims, size.reduced)


def refuse_unsupported_options(asked: Mapping[str, bool]) -> None:
    """Raise an error if an option that ranges do not support is given."""
    given = [name for name, is_asked in asked.items() if is_asked]
    if given:
        raise RollerError(
            f"shapes: expected none of {', '.join(asked)} beside ranges, got {', '.join(given)}. Leave "
            f"{'it' if len(given) == 1 else 'them'} out, or compile for one shape."
        )


def parse_range_bounds(name: str, given: Any) -> tuple[int, int]:
    """Return the smallest and the largest extent of a ``range`` or a pair; raise an error if it is invalid."""
    pair: tuple[Any, ...]
    if isinstance(given, range):
        pair = (given[0], given[-1]) if given and given.step == 1 else ()  # len() overflows
    else:
        pair = tuple(given) if isinstance(given, (tuple, list)) else ()
    whole = len(pair) == 2 and all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in pair)
    if not whole or not 1 <= pair[0] <= pair[1]:
        raise RollerError(
            f"shapes: '{name}': expected a range of extents of at least 1, one by one, got {shown(given)}. "
            "Write e.g. range(1, 4097), or (1, 4096)."
        )
    low, high = int(pair[0]), int(pair[1])
    if high - low >= MOST_EXTENTS:
        raise RollerError(
            f"shapes: '{name}': expected at most {MOST_EXTENTS} extents, got {shown(given)}. Compile for parts of them."
        )
    return low, high
