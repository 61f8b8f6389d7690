"""Operators that write or add to parts of a tensor, at places that another tensor names."""

from __future__ import annotations

import math
from collections.abc import Callable

from roller.insight.cost.gpu.data_movement import sorted_rows
from roller.insight.cost.gpu.operator_view import View, elements, itemsize, total_bytes
from roller.insight.cost.launches import Launch, Stream
from roller.insight.trace.trace import TensorRecord

#: What the values are called in the schemas.
_VALUES = ("values", "source", "src", "value")


def scattered(adds: bool = False) -> Callable[[View], tuple[Launch, ...]]:
    """Return the mapping of an operator that writes at named places of a tensor, after a copy where it is not in place.

    Parameters
    ----------
    adds
        Whether it reads what is there; so does any with ``accumulate``.
    """

    def mapped(view: View) -> tuple[Launch, ...]:
        target = view.need("self", 0)
        values = next((t for t in map(view.tensor, _VALUES) if t is not None), None)
        indices = view.tensors("indices") or tuple(t for t in (view.tensor("index"),) if t is not None)
        placed = _places(view, target, indices, values) * itemsize(target.dtype)
        gathers = bool(view.arg("accumulate", False))
        read = total_bytes((*indices, values)) + (placed if adds or gathers else 0)
        sort = (sorted_rows(indices[0]),) if gathers and indices else ()
        return (*_copy(view, target), *sort, Stream(_without(read, sort, indices), float(placed)))

    return mapped


def _without(read: float, sort: tuple[Stream, ...], indices: tuple[TensorRecord, ...]) -> float:
    """Return what is read where a sort has read the indices."""
    return read - total_bytes(indices[:1]) if sort else float(read)


def _copy(view: View, target: TensorRecord) -> tuple[Stream, ...]:
    whole = total_bytes((target,))
    return () if view.in_place else (Stream(whole, whole),)


def _places(view: View, target: TensorRecord, indices: tuple[TensorRecord, ...], values: TensorRecord | None) -> int:
    """Return how many elements are written."""
    given = 0 if values is None else elements(values)
    named = max((elements(t) for t in indices if t.dtype not in ("bool", "uint8")), default=0)
    if view.tensors("indices"):
        listed = view.arg("indices")
        taken = {d for d, index in enumerate(listed) if index is not None}
        rest = math.prod(n for d, n in enumerate(target.shape) if d not in taken)
        return max(given, named * rest)
    if view.packet.startswith("aten.scatter"):
        return named
    dim = int(view.arg("dim", 0))
    return named * elements(target) // max(1, target.shape[dim])


def masked(view: View) -> tuple[Launch, ...]:
    """Return the kernels that write values one after the other where a mask is true: its sums say which comes where."""
    target, mask = view.need("self", 0), view.need("mask", 1)
    source, sums = total_bytes((view.tensor("source", 2),)), 8.0 * elements(mask)
    marks, whole = total_bytes((mask,)), total_bytes((target,))
    count = Stream(marks, sums, 2)
    return (*_copy(view, target), count, Stream(marks + sums + whole + min(source, whole), whole))
