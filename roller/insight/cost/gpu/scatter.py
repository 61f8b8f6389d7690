"""Operators that write, or add to, tensor elements at given indices."""

from __future__ import annotations

import math
from collections.abc import Callable

from roller.insight.cost.gpu.data_movement import sort_table_rows
from roller.insight.cost.gpu.operator_view import View, element_count, itemsize, total_bytes
from roller.insight.cost.launches import Launch, Stream
from roller.insight.trace.trace import TensorRecord

#: Names of the values' argument in the schemas.
_VALUES = ("values", "source", "src", "value")


def scatter(adds: bool = False) -> Callable[[View], tuple[Launch, ...]]:
    """Return the mapping for a scatter, which writes the indexed elements of a copy unless it is in place."""
    # ``adds``: whether it reads the old elements, as every operator with ``accumulate`` does.

    def map_operator(view: View) -> tuple[Launch, ...]:
        target = view.required_tensor("self", 0)
        values = next((t for t in map(view.tensor, _VALUES) if t is not None), None)
        indices = view.tensors("indices") or tuple(t for t in (view.tensor("index"),) if t is not None)
        placed = _written_elements(view, target, indices, values) * itemsize(target.dtype)
        gathers = bool(view.argument("accumulate", False))
        read = total_bytes((*indices, values)) + (placed if adds or gathers else 0)
        sort = (sort_table_rows(indices[0]),) if gathers and indices else ()
        return (
            *_copy_target(view, target),
            *sort,
            Stream(_subtract_sorted_indices(read, sort, indices), float(placed)),
        )

    return map_operator


def _subtract_sorted_indices(read: float, sort: tuple[Stream, ...], indices: tuple[TensorRecord, ...]) -> float:
    """Return the bytes read, without the indices if a sort has already read them."""
    return read - total_bytes(indices[:1]) if sort else float(read)


def _copy_target(view: View, target: TensorRecord) -> tuple[Stream, ...]:
    whole = total_bytes((target,))
    return () if view.in_place else (Stream(whole, whole),)


def _written_elements(
    view: View, target: TensorRecord, indices: tuple[TensorRecord, ...], values: TensorRecord | None
) -> int:
    given = 0 if values is None else element_count(values)
    named = max((element_count(t) for t in indices if t.dtype not in ("bool", "uint8")), default=0)
    if view.tensors("indices"):
        listed = view.argument("indices")
        taken = {d for d, index in enumerate(listed) if index is not None}
        rest = math.prod(n for d, n in enumerate(target.shape) if d not in taken)
        return max(given, named * rest)
    if view.packet.startswith("aten.scatter"):
        return named
    dim = int(view.argument("dim", 0))
    return named * element_count(target) // max(1, target.shape[dim])


def masked_scatter(view: View) -> tuple[Launch, ...]:
    """Return the kernels for ``aten.masked_scatter``: prefix sums of the mask give each true element its value."""
    target, mask = view.required_tensor("self", 0), view.required_tensor("mask", 1)
    source, sums = total_bytes((view.tensor("source", 2),)), 8.0 * element_count(mask)
    marks, whole = total_bytes((mask,)), total_bytes((target,))
    count = Stream(marks, sums, 2)
    return (*_copy_target(view, target), count, Stream(marks + sums + whole + min(source, whole), whole))
