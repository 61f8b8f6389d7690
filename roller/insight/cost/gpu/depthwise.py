"""PyTorch's own kernels for depthwise convolutions on channel planes, priced by the instructions they issue."""

# The kernels are those of ATen/native/cuda/DepthwiseConv2d.cu: a thread per point of the result visits the points of
# its window in turn; for the filters' gradient a block per weight reads both images. In float16, cuDNN's kernels run
# instead where ``check_cudnn_depthwise_workload_with_filter`` (ATen/native/Convolution.cpp) allows them, and with
# channels innermost always.

from __future__ import annotations

import math
from collections.abc import Sequence

from roller import ops
from roller.insight.cost.gpu.operator_view import element_count, total_bytes
from roller.insight.cost.kernel_launches import FusedKernel, InstructionKernel
from roller.insight.trace.convolution_layout import channels_per_vector
from roller.insight.trace.trace import TensorRecord

#: Instructions of a thread to find its point (three divisions by numbers known only at run time, some 18 each), and per
#: point of its window: position along both axes (2), test whether it lies in the image (4), addresses (2), two loads,
#: two conversions, and the multiply-add. Counted in the loop of the source.
_PLACE, _TAP = 54.0, 13.0
#: Further instructions per point of the window in the image gradient: whether the stride meets it, along both axes.
_STRIDE = 4.0
#: Instructions of a filter-gradient thread per product: a division for the position (18), and a point of the window.
_PRODUCT = 18.0 + _TAP
#: Windows, fewest channels and smallest image width that cuDNN's kernels take.
_CUDNN_WINDOWS, _CUDNN_CHANNELS, _CUDNN_SIDE = (1, 3, 5), 32, 7
#: Windows for which cuDNN has depthwise kernels on channels innermost. Assumed: only these are memory-bound in
#: published throughputs of models with windows of 3 to 11 points a side.
INNERMOST_WINDOWS = (1, 3, 5, 7)
#: Columns of the narrowest tile of a matrix unit's kernels.
_TILE_COLUMNS = 16


def _runs_on_cudnn(x: TensorRecord, weight: TensorRecord, stride: Sequence[int], dilation: Sequence[int]) -> bool:
    """Return whether PyTorch runs cuDNN's kernel, by the conditions for cuDNN 8.2 and later."""
    if x.dtype != "float16" or len(x.shape) not in (3, 4) or max(dilation) > 1:
        return False
    # PyTorch takes an image of one dimension as one of height 1.
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


def forward_kernel(
    x: TensorRecord, weight: TensorRecord, out: TensorRecord, stride: Sequence[int], dilation: Sequence[int]
) -> InstructionKernel | None:
    """Return PyTorch's kernel for a depthwise convolution; ``None`` if cuDNN's kernel runs."""
    if _runs_on_cudnn(x, weight, stride, dilation):
        return None
    count = element_count(out) * (_PLACE + _TAP * math.prod(weight.shape[2:]))
    return InstructionKernel(count, total_bytes((x, weight)), total_bytes((out,)))


def image_gradient_kernel(
    gradient: TensorRecord, weight: TensorRecord, x: TensorRecord, stride: Sequence[int], dilation: Sequence[int]
) -> InstructionKernel | None:
    """Return PyTorch's kernel for the image gradient; ``None`` if cuDNN's kernel runs."""
    if _runs_on_cudnn(x, weight, stride, dilation):
        return None
    tap = _TAP + (_STRIDE if max(stride) > 1 else 0.0)
    count = element_count(x) * (_PLACE + tap * math.prod(weight.shape[2:]))
    return InstructionKernel(count, total_bytes((gradient, weight)), total_bytes((x,)))


def weight_gradient_kernel(
    gradient: TensorRecord, x: TensorRecord, weight: TensorRecord, stride: Sequence[int], dilation: Sequence[int]
) -> InstructionKernel | None:
    """Return PyTorch's kernel for the filter gradient; ``None`` if cuDNN's kernel runs."""
    if _runs_on_cudnn(x, weight, stride, dilation):
        return None
    count = element_count(gradient) * math.prod(weight.shape[2:]) * _PRODUCT
    return InstructionKernel(count, total_bytes((gradient, x)), total_bytes((weight,)))


def cudnn_direct_kernel(products: float, read: Sequence[TensorRecord], written: TensorRecord) -> InstructionKernel:
    """Return cuDNN's direct kernel for a grouped convolution: one thread per result, one tap per product."""
    # Its source is not published: a tap is assumed to take the instructions of PyTorch's loop.
    count = element_count(written) * _PLACE + products * _TAP
    return InstructionKernel(count, total_bytes(read), total_bytes((written,)))


def padded_groups_kernel(
    points: TensorRecord, weight: TensorRecord, read: Sequence[TensorRecord], written: TensorRecord
) -> FusedKernel:
    """Return the matrix unit's kernel that treats every channel as a group, in 16 bits and channels innermost."""
    # A group is padded to a whole vector of channels (auto-padding, release notes of cuDNN 7.6.3): a product of all
    # points by one filter, in the columns of a tile, summed over a window of vectors.
    rows = points.shape[0] * math.prod(points.shape[2:])
    taps = math.prod(weight.shape[2:]) * channels_per_vector(points.dtype)
    product = ops.matmul(rows, points.shape[1] * _TILE_COLUMNS, taps, dtype=points.dtype)
    return FusedKernel((product,), 0.0, total_bytes(read), total_bytes((written,)), units="matrix", kind="convolution")
