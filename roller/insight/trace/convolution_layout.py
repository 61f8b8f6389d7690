"""Layouts of images, and the layout that a library's convolution needs: channels innermost, padded to vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from roller.insight.trace.tensor_bytes import itemsize
from roller.insight.trace.trace import TensorRecord

#: Vector size in bytes: kernels for matrix units need pixels whose channels fill whole vectors. Special kernels for
#: images with few channels take exactly four (NVIDIA's convolution guide, "Channels In And Out").
_VECTOR_BYTES, _FEW_CHANNELS = 16, 4


def is_channels_last(tensor: TensorRecord) -> bool:
    """Return whether an image's channels are adjacent in memory; true for a single pixel or a single channel."""
    if math.prod(tensor.shape[2:]) == 1 or tensor.shape[1] == 1:
        return True
    return tensor.stride[1] == 1


def suggests_channels_last(tensor: TensorRecord) -> bool:
    """Return whether the strides of filters suggest channels innermost, as in ``Tensor::suggest_memory_format``.

    For one channel or one point, the strides themselves decide, since conversions keep channels-innermost strides.

    Examples
    --------
    >>> each = (TensorRecord((48, 1, 3, 3), stride, "float16", 0) for stride in ((9, 9, 3, 1), (9, 1, 3, 1)))
    >>> [suggests_channels_last(t) for t in each]
    [False, True]
    """
    if len(tensor.shape) < 3 or len(tensor.stride) != len(tensor.shape) or tensor.stride[1] == 0:
        return False
    least = 0
    for axis in (1, *range(len(tensor.shape) - 1, 1, -1), 0):
        step = tensor.stride[axis]
        if step < least or (axis == 0 and least == tensor.stride[1]):
            return False
        least = step * max(1, tensor.shape[axis])
    return True


def channel_count_padded_to_vectors(channels: int, dtype: str) -> int:
    """Return ``channels`` rounded up so that each pixel of an image fills whole vectors; at least four.

    Examples
    --------
    >>> ([channel_count_padded_to_vectors(n, "float16") for n in (1, 3, 20, 64)],
    ...  channel_count_padded_to_vectors(20, "float32"))
    ([4, 4, 24, 64], 20)
    """
    if channels <= _FEW_CHANNELS:
        return _FEW_CHANNELS
    vector = channel_count_per_vector(dtype)
    return -(-channels // vector) * vector


def channel_count_per_vector(dtype: str) -> int:
    """Return the number of channels in a vector."""
    return max(1, _VECTOR_BYTES // itemsize(dtype))


def padded_channel_count(tensor: TensorRecord, groups: int) -> int:
    """Return the number of channels that a matrix unit's kernel needs; grouped channels are not padded."""
    return tensor.shape[1] if groups > 1 else channel_count_padded_to_vectors(tensor.shape[1], tensor.dtype)


def needs_layout_conversion(tensor: TensorRecord, groups: int) -> bool:
    """Return whether a library converts an image or filters for a matrix unit's kernel.

    A tensor whose channels are innermost and form whole vectors is used unchanged.
    """
    return padded_channel_count(tensor, groups) != tensor.shape[1] or not is_channels_last(tensor)


def is_depthwise(weight: TensorRecord, groups: int, transposed: bool) -> bool:
    """Return whether every filter reads only one channel; matrix units do not compute such convolutions."""
    return groups > 1 and weight.shape[1] == 1 and len(weight.shape) <= 4 and not transposed


def is_planar_matrix_product(weight: TensorRecord, stride: Sequence[int], padding: Sequence[int], groups: int) -> bool:
    """Return whether a convolution is the product of the filter matrix and the image in channels-first layout.

    This requires a window of one point, a stride of one, no padding or groups, and channels that form whole vectors.
    """
    filters, channels, *window = weight.shape
    if groups != 1 or len(window) > 2 or {*window, *stride} != {1} or any(padding):
        return False
    return all(channel_count_padded_to_vectors(n, weight.dtype) == n for n in (channels, filters))
