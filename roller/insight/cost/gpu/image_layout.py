"""Layouts of images, and the conversions that a library's convolution needs: channels innermost, padded to vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from roller.insight.cost.gpu.operator_view import itemsize, total_bytes
from roller.insight.cost.launches import Stream
from roller.insight.trace.trace import TensorRecord

#: Bytes that the channels of a pixel are a multiple of where a matrix unit's kernels load vectors; images of at most
#: four channels have kernels of their own, which take four (NVIDIA's convolution guide, "Channels In And Out").
_VECTOR_BYTES, _FEW_CHANNELS = 16, 4


def channels_innermost(tensor: TensorRecord) -> bool:
    """Return whether the channels of an image lie next to each other; of one pixel, or one channel, they do."""
    if math.prod(tensor.shape[2:]) == 1 or tensor.shape[1] == 1:
        return True
    return tensor.stride[1] == 1


def suggests_innermost(tensor: TensorRecord) -> bool:
    """Return whether the strides of filters suggest channels innermost, as in ``Tensor::suggest_memory_format``.

    Of one channel or one point the strides themselves tell: those of channels innermost are kept by conversions.

    Examples
    --------
    >>> each = (TensorRecord((48, 1, 3, 3), stride, "float16", 0) for stride in ((9, 9, 3, 1), (9, 1, 3, 1)))
    >>> [suggests_innermost(t) for t in each]
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


def vector_channels(channels: int, dtype: str) -> int:
    """Return the channels of an image whose pixels are whole vectors.

    Examples
    --------
    >>> [vector_channels(n, "float16") for n in (1, 3, 20, 64)], vector_channels(20, "float32")
    ([4, 4, 24, 64], 20)
    """
    if channels <= _FEW_CHANNELS:
        return _FEW_CHANNELS
    vector = whole_vector(dtype)
    return -(-channels // vector) * vector


def whole_vector(dtype: str) -> int:
    """Return the channels of a vector."""
    return max(1, _VECTOR_BYTES // itemsize(dtype))


def conversions_to_innermost(
    read: Sequence[TensorRecord], written: Sequence[TensorRecord], groups: int
) -> tuple[Stream, ...]:
    """Return the kernels that convert images and filters to channels innermost, in whole vectors, and results back.

    A tensor that already is so is not converted.

    Parameters
    ----------
    read, written
        Operands and results, channels second.
    groups
        Of channels; those of groups are not padded.
    """
    found = []
    for tensor, is_read in (*((t, True) for t in read), *((t, False) for t in written)):
        channels = tensor.shape[1]
        padded = channels if groups > 1 else vector_channels(channels, tensor.dtype)
        if padded == channels and channels_innermost(tensor):
            continue
        own, other = float(total_bytes((tensor,))), float(total_bytes((tensor,))) * padded / channels
        found.append(Stream(own, other) if is_read else Stream(other, own))
    return tuple(found)
