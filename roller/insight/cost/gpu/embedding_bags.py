"""Sums of rows of a table, as recommenders take them: bags of embeddings, forward and backward."""

from __future__ import annotations

from roller.insight.cost.gpu.data_movement import sorted_rows
from roller.insight.cost.gpu.operator_view import View, elements, itemsize, total_bytes
from roller.insight.cost.launches import Launch, Stream


def bags(view: View) -> tuple[Launch, ...]:
    """Return the kernel that sums the rows of each bag: it reads those rows, and not the table."""
    table, indices = view.need("weight", 0), view.need("indices", 1)
    rows = elements(indices) * table.shape[-1] * itemsize(table.dtype)
    rest = total_bytes(t for t in view.inputs if t != table)
    return (Stream(float(rows + rest), total_bytes(view.outputs)),)


def bags_backward(view: View) -> tuple[Launch, ...]:
    """Return the kernels of the table's gradient: zeros, a sort of the indices, sums of equal rows."""
    gradient, indices = view.need("grad", 0), view.need("indices", 1)
    whole = total_bytes((view.out,))
    rows = elements(indices) * gradient.shape[-1] * itemsize(gradient.dtype)
    places = total_bytes((view.tensor("offset2bag"), view.tensor("bag_size")))
    return (
        Stream(0.0, whole),
        sorted_rows(indices),
        Stream(float(total_bytes((gradient,)) + places), float(min(rows, whole))),
    )
