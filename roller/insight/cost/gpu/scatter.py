"""Launches of operators that write, or add to, tensor elements at given indices."""

from __future__ import annotations

import math
from collections.abc import Callable

from roller.insight.cost.gpu.data_movement import row_sort_launch
from roller.insight.cost.gpu.operator_view import OperatorView, element_count, itemsize, total_bytes
from roller.insight.cost.kernel_launch_types import Launch, MemoryKernel
from roller.insight.trace.trace import TensorRecord

#: Names that the argument with the values has in operators' schemas.
_VALUES = ("values", "source", "src", "value")


def scatter_launches_rule(adds: bool = False) -> Callable[[OperatorView], tuple[Launch, ...]]:
    """Return the mapping for a scatter, which writes the indexed elements of a copy unless it is in place."""
    # ``adds`` says whether the operator reads the old elements, as every operator with ``accumulate`` does.

    def map_operator(view: OperatorView) -> tuple[Launch, ...]:
        target = view.required_tensor("self", 0)
        values = next((t for t in map(view.tensor, _VALUES) if t is not None), None)
        indices = view.tensors("indices") or tuple(t for t in (view.tensor("index"),) if t is not None)
        placed = _written_element_count(view, target, indices, values) * itemsize(target.dtype)
        gathers = bool(view.argument("accumulate", False))
        read = total_bytes((*indices, values)) + (placed if adds or gathers else 0)
        sort = (row_sort_launch(indices[0]),) if gathers and indices else ()
        return (
            *_target_copy_launches(view, target),
            *sort,
            MemoryKernel(_read_bytes_without_indices(read, sort, indices), float(placed)),
        )

    return map_operator


def _read_bytes_without_indices(
    read: float, sort: tuple[MemoryKernel, ...], indices: tuple[TensorRecord, ...]
) -> float:
    """Return the number of bytes read, without the indices if a sort has already read them."""
    return read - total_bytes(indices[:1]) if sort else float(read)


def _target_copy_launches(view: OperatorView, target: TensorRecord) -> tuple[MemoryKernel, ...]:
    whole = total_bytes((target,))
    return () if view.in_place else (MemoryKernel(whole, whole),)


def _written_element_count(
    view: OperatorView, target: TensorRecord, indices: tuple[TensorRecord, ...], values: TensorRecord | None
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


def masked_scatter_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels for ``aten.masked_scatter``: prefix sums of the mask assign each true element its value."""
    target, mask = view.required_tensor("self", 0), view.required_tensor("mask", 1)
    source, sums = total_bytes((view.tensor("source", 2),)), 8.0 * element_count(mask)
    marks, whole = total_bytes((mask,)), total_bytes((target,))
    count = MemoryKernel(marks, sums, 2)
    return (*_target_copy_launches(view, target), count, MemoryKernel(marks + sums + whole + min(source, whole), whole))
