"""Launches of softmax, of layer norms, of norms over channels, and of their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from roller import ops
from roller.expr import Axis, Call, Load, Scalar, Stage, Tensor, TensorExpr, axis_index
from roller.expr.tensor_expr import REDUCTION
from roller.insight.cost.gpu.elementwise_launches import elementwise_launches
from roller.insight.cost.gpu.operator_view import OperatorView, element_count, total_bytes
from roller.insight.cost.kernel_launch_types import Kernel, Launch, MemoryKernel
from roller.insight.trace.convolution_layout import is_channels_last
from roller.insight.trace.trace import TensorRecord
from roller_runtime.core.dtypes import DTYPE_BYTES


def softmax_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernel for a softmax or log-softmax, which have the same steps."""
    x, out = view.inputs[0], view.out
    if not x.shape or x.dtype not in DTYPE_BYTES:
        return (MemoryKernel(total_bytes((x,)), total_bytes((out,))),)
    return (Kernel(ops.softmax(x.shape, view.argument("dim", -1), dtype=x.dtype, out_dtype=out.dtype)),)


def safe_softmax_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels for a safe softmax, which writes zeros to fully masked rows."""
    x, masked = total_bytes(view.inputs), float(element_count(view.inputs[0]))
    return (*softmax_launches(view), MemoryKernel(2.0 * x + 2 * masked, x + masked, 3))


def softmax_backward_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernel for a softmax gradient: a row sum over two tensors, then an element-wise function of both."""
    gradient, output = view.required_tensor("grad_output", 0), view.required_tensor("output", 1)
    dim = int(view.argument("dim", -1))
    length = gradient.shape[dim] if gradient.shape else 1
    return (_row_gradient_kernel(element_count(gradient) // length, length, (gradient, output), view.out, 1),)


def layer_norm_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernel for a layer norm over the last dimensions."""
    x = view.required_tensor("input", 0)
    length = _count_normalized_elements(view, x)
    kept = MemoryKernel(0.0, total_bytes(view.outputs[1:]), 0)  # mean and deviation of every row, for the gradient
    return (
        *_contiguous_copy_launches(x),
        Kernel(ops.layer_norm((element_count(x) // length, length), dtype=x.dtype)),
        kept,
    )


def layer_norm_backward_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels for a layer norm's gradients: row by row for the input, over all rows for weight and bias."""
    gradient, x = view.required_tensor("grad_out", 0), view.required_tensor("input", 1)
    length = _count_normalized_elements(view, x)
    wanted: Sequence[bool] = view.argument("output_mask", (True, True, True))
    found: list[Launch] = [*_contiguous_copy_launches(x)]
    if wanted[0]:
        found.append(_row_gradient_kernel(element_count(x) // length, length, (gradient, x), view.outputs[0], 2))
    if any(wanted[1:]):
        found.append(MemoryKernel(total_bytes((gradient, x)), total_bytes(view.outputs[int(wanted[0]) :])))
    rest = total_bytes(t for t in view.inputs if t not in (gradient, x))
    return (*found, MemoryKernel(rest, 0.0, 0))


def _contiguous_copy_launches(x: TensorRecord) -> tuple[Launch, ...]:
    """Return the kernel that copies a tensor if it is not contiguous (``expect_contiguous``), else ``()``."""
    strides = tuple(math.prod(x.shape[n + 1 :]) for n in range(len(x.shape)))
    if all(extent == 1 or own == dense for extent, own, dense in zip(x.shape, x.stride, strides, strict=True)):
        return ()
    return elementwise_launches((), replace(x, stride=strides), (x,))


def _count_normalized_elements(view: OperatorView, x: TensorRecord) -> int:
    return math.prod(view.argument("normalized_shape", x.shape[-1:])) or 1


def _row_gradient_kernel(rows: int, length: int, read: Sequence[TensorRecord], out: TensorRecord, sums: int) -> Kernel:
    """Return a kernel that computes ``sums`` sums per row, then an element-wise function of them."""
    return Kernel(row_gradient_expression(rows, length, tuple(t.dtype for t in read), out.dtype, sums))


def row_gradient_expression(rows: int, length: int, dtypes: tuple[str, ...], out: str, sums: int) -> TensorExpr:
    """Return the expression for a row-wise gradient: sums over rows, then an element-wise function of the sums."""
    acc = "float64" if out == "float64" else "float32"
    row, walk, point = Axis("i", rows), Axis("k", length, REDUCTION), Axis("j", length)
    inputs = tuple(Tensor(f"X{n}", (rows, length), d) for n, d in enumerate(dtypes))

    def load_inputs_at(name: str) -> list[Scalar]:
        from roller.expr import Cast

        place = (axis_index("i"), axis_index(name))
        return [Load(t.name, place) if t.dtype == acc else Cast(acc, Load(t.name, place)) for t in inputs]

    stages, first = [], load_inputs_at("k")
    for n in range(sums):
        body = first[0] if n else Call("mul", (first[0], first[-1]))
        total = Tensor(f"S{n}", (rows,), acc)
        stages.append(Stage(total, (row, walk), (axis_index("i"),), body, "sum", acc))
    here = load_inputs_at("j")
    value: Scalar = here[0]
    for n in range(sums):
        value = Call("sub", (value, Load(f"S{n}", (axis_index("i"),))))
    value = Call("mul", (value, here[-1]))
    y = Stage(Tensor("Y", (rows, length), out), (row, point), (axis_index("i"), axis_index("j")), value, None, acc)
    return TensorExpr("gradient of rows", inputs, (*stages, y), ("Y",))


def channel_norm_launches_rule(read: float, kept: float, launches: int) -> Callable[[OperatorView], tuple[Launch, ...]]:
    """Return the mapping for a norm over channels, which reads its large inputs several times."""
    # ``read`` and ``kept`` are the numbers of passes over large inputs and over results.

    def map_operator(view: OperatorView) -> tuple[Launch, ...]:
        most = max(map(element_count, view.inputs))
        given = [t for t in view.inputs if element_count(t) == most]
        return (MemoryKernel(read * total_bytes(given), kept * total_bytes(view.outputs), launches),)

    return map_operator


#: Number of threads per block of a batch norm on channels-first tensors, which has one block per channel. For PyTorch's
#: own kernels, the sources are ``MAX_BLOCK_SIZE`` and ``blocks(input.size(1))`` of ATen/native/cuda/Normalization.cuh.
#: For cuDNN's, which PyTorch runs in spatial mode on such tensors (not the persistent one,
#: ATen/native/cudnn/BatchNorm.cpp), profiles show kernels named ``bn_fw_tr_1C11`` and ``bn_bw_1C11`` with 512 among
#: their template arguments; their grid is assumed.
_CHANNEL_THREADS = 512


def batch_norm_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels for a batch norm; batch statistics need an additional pass."""
    # Batch statistics are computed in training and if no running statistics exist.
    x, out = view.required_tensor("input", 0), total_bytes(view.outputs[:1])
    if view.has_tensor("running_mean") and not view.argument("training", True):
        return (MemoryKernel(total_bytes((x,)), out),)
    return (MemoryKernel(2.0 * total_bytes((x,)), out, threads=_channel_norm_thread_count(x)),)


def batch_norm_backward_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernel for a batch norm's gradient: two sums per channel, then the input gradient."""
    x = view.tensor("input") or view.inputs[0]
    (moved,) = channel_norm_launches_rule(2.0, 1.0, 1)(view)
    assert isinstance(moved, MemoryKernel)
    return (replace(moved, threads=_channel_norm_thread_count(x)),)


def _channel_norm_thread_count(x: TensorRecord) -> float | None:
    """Return the number of threads in a norm with one block per channel; ``None`` if channels are innermost."""
    if len(x.shape) < 3 or is_channels_last(x):
        return None
    return _CHANNEL_THREADS * x.shape[1]
