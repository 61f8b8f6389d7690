"""Layouts of results that differ between PyTorch's meta and GPU kernels: convolutions keep channels innermost."""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import suggest_memory_format

#: Maps the rank of images to the memory format with channels innermost.
_INNERMOST = {4: torch.channels_last, 5: torch.channels_last_3d}


def to_gpu_layout(func: Any, args: Any, result: Any) -> Any:
    """Return an operator's result in the layout that it would have on a GPU.

    A convolution has channels innermost if its image or its filters do, as in ``cudnn_conv_suggest_memory_format``
    (ATen/native/ConvUtils.h); the meta kernel for an unknown device returns a contiguous tensor.

    Examples
    --------
    >>> x = torch.empty(2, 8, 4, 4, device="meta").contiguous(memory_format=torch.channels_last)
    >>> call = x, torch.empty(8, 8, 1, 1, device="meta"), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1
    >>> convolution = torch.ops.aten.convolution.default
    >>> to_gpu_layout(convolution, call, convolution(*call)).stride()
    (128, 1, 32, 8)
    """
    if func is not torch.ops.aten.convolution.default or not result.is_meta:
        return result
    layout = _INNERMOST.get(result.dim())
    image, filters = args[:2]
    if layout is None or result.dtype is torch.float64 or not _any_suggests_layout((image, filters), layout):
        return result
    return torch.empty_like(result, memory_format=layout)


def _any_suggests_layout(tensors: tuple[torch.Tensor, ...], layout: torch.memory_format) -> bool:
    """Return whether the strides of any of the tensors, which may have gaps, suggest a layout."""
    return any(memory_format_of_strides(t) is layout for t in tensors)


def memory_format_of_strides(tensor: torch.Tensor) -> torch.memory_format:
    """Return the layout that an image's strides suggest, like ATen's ``Tensor::suggest_memory_format``.

    Slices have gaps between their pixels; they have the order of a layout without being contiguous.

    Examples
    --------
    >>> tokens = torch.empty(2, 50, 8, device="meta")[:, 1:]  # without the first, which is no pixel
    >>> memory_format_of_strides(tokens.transpose(1, 2).unflatten(2, (7, 7)))
    torch.channels_last
    """
    return suggest_memory_format(tensor)
