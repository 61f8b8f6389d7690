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
    read: Sequence[TensorRecord], written: Sequence[TensorRecord], innermost: bool, groups: int
) -> tuple[Stream, ...]:
    """Return the kernels that convert images and filters to channels innermost, in whole vectors, and results back.

    A tensor that already is so is not converted.

    Parameters
    ----------
    read, written
        Operands and results, channels second.
    innermost
        Whether the tensors of the convolution have channels innermost.
    groups
        Of channels; those of groups are not padded.
    """
    found = []
    for tensor, is_read in (*((t, True) for t in read), *((t, False) for t in written)):
        channels = tensor.shape[1]
        padded = channels if groups > 1 else vector_channels(channels, tensor.dtype)
        if padded == channels and (innermost or channels_innermost(tensor)):
            continue
        own, other = float(total_bytes((tensor,))), float(total_bytes((tensor,))) * padded / channels
        found.append(Stream(own, other) if is_read else Stream(other, own))
    return tuple(found)
