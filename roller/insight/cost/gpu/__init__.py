"""From an operator of PyTorch to what it makes a device do."""

from __future__ import annotations

from roller.errors import RollerError
from roller.insight.cost.gpu.operator_table import TABLE
from roller.insight.cost.gpu.operator_view import View, elements, total_bytes
from roller.insight.cost.launches import Launch, Stream
from roller.insight.trace.trace import Operator

__all__ = ["is_view", "launches_of"]


def launches_of(operator: Operator) -> tuple[tuple[Launch, ...], bool]:
    """Return an operator's launches, and whether a mapping tells them.

    Views and operators on nothing launch nothing. What no row of the table maps moves all it reads and all it writes,
    in one kernel; so does what a row cannot make sense of. An expression needs elements: where an operand has none, a
    kernel fills the result, which costs its launch if that is empty too.

    Parameters
    ----------
    operator
        As traced.

    Examples
    --------
    >>> from roller.insight.trace.trace import TensorRecord
    >>> x = TensorRecord((8, 16), (16, 1), "float32", 0)
    >>> w = TensorRecord((16, 4), (4, 1), "float32", 1)
    >>> y = TensorRecord((8, 4), (4, 1), "float32", 2)
    >>> (kernel,), mapped = launches_of(Operator(0, "aten.mm.default", "forward", (x, w), (y,)))
    >>> str(kernel.expr), mapped
    ('matmul[i=8 j=4 k=16] float32', True)
    """
    view = View(operator)
    if is_view(view) or not any(map(elements, (*view.inputs, *view.outputs))):
        return (), True
    mapping = TABLE.get(view.packet)
    if mapping is not None:
        try:
            return mapping(view), True
        except (RollerError, KeyError, IndexError, ValueError, TypeError):
            if not all(map(elements, view.inputs)):
                return (Stream(0.0, total_bytes(view.outputs)),), True
            # Else arguments that the row does not foresee: by the bytes, and counted as unmapped.
    return (Stream(total_bytes(view.inputs), total_bytes(view.outputs)),), False


def is_view(view: View) -> bool:
    """Return whether every result lies in the storage of an input, which the operator does not write."""
    if not view.outputs or view.in_place:
        return False
    given = {t.storage for t in view.inputs}
    return all(t.storage in given for t in view.outputs)
