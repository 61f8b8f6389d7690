"""Launches of a PyTorch operator on a GPU."""

from __future__ import annotations

from roller.errors import RollerError
from roller.insight.cost.gpu.data_movement import generated_kernel_launches
from roller.insight.cost.gpu.operator_table import TABLE
from roller.insight.cost.gpu.operator_view import OperatorView, element_count, total_bytes
from roller.insight.cost.kernel_launch_types import Launch, MemoryKernel
from roller.insight.trace.trace import GENERATED, Operator

__all__ = ["operator_launches", "returns_only_views"]

#: Namespaces of PyTorch's own operators, whose results may alias inputs.
_MAY_RETURN_VIEWS = ("aten.", "prims.")


def operator_launches(operator: Operator) -> tuple[tuple[Launch, ...], bool]:
    """Return an operator's launches and whether the table has a row for the operator.

    Examples
    --------
    >>> from roller.insight.trace.trace import TensorRecord
    >>> x = TensorRecord((8, 16), (16, 1), "float32", 0)
    >>> w = TensorRecord((16, 4), (4, 1), "float32", 1)
    >>> y = TensorRecord((8, 4), (4, 1), "float32", 2)
    >>> (kernel,), mapped = operator_launches(Operator(0, "aten.mm.default", "forward", (x, w), (y,)))
    >>> str(kernel.expr), mapped
    ('matmul[i=8 j=4 k=16] float32', True)
    """
    # Views and operators on empty tensors launch nothing. An operator without a row, or with arguments that its row
    # does not handle, is one kernel that reads all inputs and writes all outputs. An expression needs elements: if an
    # operand has none, a kernel fills the result, which costs a launch even if the result is empty.
    view = OperatorView(operator)
    if returns_only_views(view) or not any(map(element_count, (*view.inputs, *view.outputs))):
        return (), True
    mapping = generated_kernel_launches if view.packet.startswith(f"{GENERATED}.") else TABLE.get(view.packet)
    if mapping is not None:
        try:
            return mapping(view), True
        except (RollerError, KeyError, IndexError, ValueError, TypeError):
            if not all(map(element_count, view.inputs)):
                return (MemoryKernel(0.0, total_bytes(view.outputs)),), True
            # The row does not handle these arguments: price by bytes, count as unmapped.
    return (MemoryKernel(total_bytes(view.inputs), total_bytes(view.outputs)),), False


def returns_only_views(view: OperatorView) -> bool:
    """Return whether every result shares storage with an input that the operator does not write."""
    # A custom operator may not return an alias of its inputs, so such a result is an input that it writes.
    if not view.outputs or view.in_place or not view.packet.startswith(_MAY_RETURN_VIEWS):
        return False
    given = {t.storage for t in view.inputs}
    return all(t.storage in given for t in view.outputs)
