"""PyTorch's own kernels for channels-first depthwise convolutions, priced by the instructions that they issue."""

# The kernels are those of ATen/native/cuda/DepthwiseConv2d.cu: one thread per result point visits the points of its
# window in turn; for the weight gradient, one block per weight reads both images. In float16, cuDNN's kernels run
# instead if ``check_cudnn_depthwise_workload_with_filter`` (ATen/native/Convolution.cpp) allows them; with channels
# innermost, they always run.

from __future__ import annotations

import math
from collections.abc import Sequence

from roller import ops
from roller.insight.cost.gpu.operator_view import element_count, total_bytes
from roller.insight.cost.kernel_launch_types import FusedKernel, InstructionKernel
from roller.insight.trace.convolution_layout import channel_count_per_vector
from roller.insight.trace.trace import TensorRecord

#: Number of instructions with which a thread finds its point (three divisions by values known only at run time, some 18
#: each), and number per point of its window: the position along both axes (2), the test whether it lies in the image
#: (4), addresses (2), two loads, two conversions, and the multiply-add. Counted in the loop of the source.
_PLACE, _TAP = 54.0, 13.0
#: Number of further instructions per window point in the input gradient, which test along both axes whether the stride
#: reaches the point.
_STRIDE = 4.0
#: Number of instructions per product in the weight gradient: a division for the position (18) and a window point.
_PRODUCT = 18.0 + _TAP
#: Side lengths of windows, minimum number of channels and minimum image width that cuDNN's kernels take.
_CUDNN_WINDOWS, _CUDNN_CHANNELS, _CUDNN_SIDE = (1, 3, 5), 32, 7
#: Side lengths of windows for which cuDNN has channels-innermost depthwise kernels. Assumed, because only these are
#: memory-bound according to published throughputs of models with windows of 3 to 11 points a side.
INNERMOST_WINDOWS = (1, 3, 5, 7)
#: Number of columns in the narrowest tile of matrix-unit kernels.
_TILE_COLUMNS = 16


def _runs_on_cudnn(x: TensorRecord, weight: TensorRecord, stride: Sequence[int], dilation: Sequence[int]) -> bool:
    """Return whether PyTorch runs cuDNN's kernel, according to the conditions for cuDNN 8.2 and later."""
    if x.dtype != "float16" or len(x.shape) not in (3, 4) or max(dilation) > 1:
        return False
    # PyTorch treats a one-dimensional image as an image of height 1.
    (samples, channels), (height, width) = x.shape[:2], (1, *x.shape[2:])[-2:]
    step, window = stride[-1], {*weight.shape[2:]}
    if channels < _CUDNN_CHANNELS or (height > 1 and len({*stride}) > 1):
        return False
    if height == 1 and step == 1:
        return True
    if len(x.shape) == 3 or len(window) > 1 or not window <= {*_CUDNN_WINDOWS} or width < _CUDNN_SIDE:
        return False
    if step != 2:
        return step == 1
    if samples == 1:
        return window != {1} or width <= 28
    if window == {1}:
        return samples <= 16 and channels >= 128 and width <= _CUDNN_SIDE
    return channels >= 512 or (channels >= 256 and width >= 28)


def depthwise_forward_kernel(
    x: TensorRecord, weight: TensorRecord, out: TensorRecord, stride: Sequence[int], dilation: Sequence[int]
) -> InstructionKernel | None:
    """Return PyTorch's kernel for a depthwise convolution; ``None`` if cuDNN's kernel runs."""
    if _runs_on_cudnn(x, weight, stride, dilation):
        return None
    count = element_count(out) * (_PLACE + _TAP * math.prod(weight.shape[2:]))
    return InstructionKernel(count, total_bytes((x, weight)), total_bytes((out,)))


def depthwise_image_gradient_kernel(
    gradient: TensorRecord, weight: TensorRecord, x: TensorRecord, stride: Sequence[int], dilation: Sequence[int]
) -> InstructionKernel | None:
    """Return PyTorch's kernel for the input gradient; ``None`` if cuDNN's kernel runs."""
    if _runs_on_cudnn(x, weight, stride, dilation):
        return None
    tap = _TAP + (_STRIDE if max(stride) > 1 else 0.0)
    count = element_count(x) * (_PLACE + tap * math.prod(weight.shape[2:]))
    return InstructionKernel(count, total_bytes((gradient, weight)), total_bytes((x,)))


def depthwise_weight_gradient_kernel(
    gradient: TensorRecord, x: TensorRecord, weight: TensorRecord, stride: Sequence[int], dilation: Sequence[int]
) -> InstructionKernel | None:
    """Return PyTorch's kernel for the weight gradient; ``None`` if cuDNN's kernel runs."""
    if _runs_on_cudnn(x, weight, stride, dilation):
        return None
    count = element_count(gradient) * math.prod(weight.shape[2:]) * _PRODUCT
    return InstructionKernel(count, total_bytes((gradient, x)), total_bytes((weight,)))


def cudnn_grouped_direct_kernel(
    products: float, read: Sequence[TensorRecord], written: TensorRecord
) -> InstructionKernel:
    """Return cuDNN's direct kernel for a grouped convolution: one thread per result, one tap per product."""
    # Its source is not published: a tap is assumed to take as many instructions as in PyTorch's loop.
    count = element_count(written) * _PLACE + products * _TAP
    return InstructionKernel(count, total_bytes(read), total_bytes((written,)))


def padded_groups_kernel(
    points: TensorRecord, weight: TensorRecord, read: Sequence[TensorRecord], written: TensorRecord
) -> FusedKernel:
    """Return the 16-bit matrix-unit kernel with channels innermost, which treats every channel as a group."""
    # A group is padded to a whole vector of channels (auto-padding, release notes of cuDNN 7.6.3): the kernel
    # multiplies all points by one filter, which is padded to the columns of a tile, and sums over a window of vectors.
    rows = points.shape[0] * math.prod(points.shape[2:])
    taps = math.prod(weight.shape[2:]) * channel_count_per_vector(points.dtype)
    product = ops.matmul(rows, points.shape[1] * _TILE_COLUMNS, taps, dtype=points.dtype)
    return FusedKernel((product,), 0.0, total_bytes(read), total_bytes((written,)), units="matrix", kind="convolution")
