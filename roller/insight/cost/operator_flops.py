"""Floating-point operations of matrix products and convolutions, as counted by PyTorch's ``FlopCounterMode``."""

from __future__ import annotations

from roller.insight.cost.count_multiplications import multiplication_count
from roller.insight.cost.gpu import operator_launches
from roller.insight.cost.kernel_launch_types import FusedKernel, Kernel
from roller.insight.trace.trace import Operator


def operator_flops(operator: Operator) -> float:
    """Return the number of floating-point operations in an operator's matrix products and convolutions.

    A multiply-add counts as two operations. Element-wise operators and reductions count as 0, as is usual in
    utilization figures. As in PyTorch, a causal mask in fused attention does not reduce the count.

    Parameters
    ----------
    operator
        A traced operator.

    Notes
    -----
    A product has ``2 m n k`` operations, and a convolution has ``2 n k p q c r s / groups``. The counts equal those of
    ``torch.utils.flop_counter.FlopCounterMode``, with two exceptions: PyTorch counts the weight gradient of a grouped
    convolution as if every filter saw every channel, and does not count vector products or cuDNN's recurrent layers.

    Examples
    --------
    >>> from roller.insight.trace.trace import TensorRecord
    >>> x, w, y = (TensorRecord((64, 64), (64, 1), "float32", n) for n in range(3))
    >>> operator_flops(Operator(0, "aten.mm.default", "forward", (x, w), (y,)))
    524288.0
    """
    launches, _ = operator_launches(operator)
    kernels = [(one.expr, one.count) for one in launches if isinstance(one, Kernel)]
    kernels += [(p, 1) for one in launches if isinstance(one, FusedKernel) for p in one.products]
    return float(sum(2 * count * multiplication_count(expr) for expr, count in kernels))
