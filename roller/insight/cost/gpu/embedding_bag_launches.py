"""Launches of embedding bags, which sum table rows as in recommender models, and of their gradients."""

from __future__ import annotations

from roller.insight.cost.gpu.data_movement import row_sort_launch
from roller.insight.cost.gpu.operator_view import OperatorView, element_count, itemsize, total_bytes
from roller.insight.cost.kernel_launch_types import Launch, MemoryKernel


def embedding_bag_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernel that sums the rows of each bag and reads only those rows of the table."""
    table, indices = view.required_tensor("weight", 0), view.required_tensor("indices", 1)
    rows = element_count(indices) * table.shape[-1] * itemsize(table.dtype)
    rest = total_bytes(t for t in view.inputs if t != table)
    return (MemoryKernel(float(rows + rest), total_bytes(view.outputs)),)


def embedding_bag_backward_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels that zero the table's gradient, sort the indices, and sum rows of equal index."""
    gradient, indices = view.required_tensor("grad", 0), view.required_tensor("indices", 1)
    whole = total_bytes((view.out,))
    rows = element_count(indices) * gradient.shape[-1] * itemsize(gradient.dtype)
    places = total_bytes((view.tensor("offset2bag"), view.tensor("bag_size")))
    return (
        MemoryKernel(0.0, whole),
        row_sort_launch(indices),
        MemoryKernel(float(total_bytes((gradient,)) + places), float(min(rows, whole))),
    )
