"""Workspaces of cuDNN's convolutions: copies of tensors in the layout that matrix units take.

With 16-bit tensors whose channels are not innermost, cuDNN converts data, filters and result around the kernel; the
copies lie in the workspace, which PyTorch allocates through its caching allocator and returns after the call. A
convolution in float16 of 256 x 2048 x 1024 elements, whose data and result take 1 GiB each, reserved 4.02 GiB in all
(pytorch/pytorch#123533).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from roller.insight.trace.trace import AllocEvent, FreeEvent, Operator, TensorRecord

_NARROW = ("float16", "bfloat16")
#: Number of the first workspace's storage; the next ones count down.
_FIRST_NUMBER = -10


def workspace_bytes(operator: Operator) -> int:
    """Return the bytes of copies that a convolution's workspace holds; 0 where cuDNN converts nothing.

    Examples
    --------
    >>> x, w, y = (TensorRecord(s, t, "float16", n) for n, (s, t) in enumerate([
    ...     ((1, 64, 8, 8), (4096, 64, 8, 1)), ((64, 64, 1, 1), (64, 1, 1, 1)), ((1, 64, 8, 8), (4096, 64, 8, 1))]))
    >>> workspace_bytes(Operator(0, "aten.convolution.default", "forward", (x, w), (y,)))
    24576
    """
    backward = operator.name.startswith("aten.convolution_backward.")
    if not backward and not operator.name.startswith(("aten.convolution.", "aten.cudnn_convolution.")):
        return 0
    tensors = operator.inputs[:3] if backward else operator.inputs[:2]
    data = tensors[1] if backward else tensors[0]
    groups = operator.arguments.get("groups", 1)
    if data.dtype not in _NARROW or len(data.shape) < 4 or _has_channels_innermost(data):
        return 0
    if groups == data.shape[1] and groups > 1:  # depthwise: a kernel of PyTorch's own
        return 0
    if not backward:
        return _bytes((*tensors, *operator.outputs[:1]))
    gradient, data, weight = tensors
    shapes = {t.shape for t in operator.outputs}
    # The gradients of data and filters are two calls, one after the other.
    of_data = _bytes((gradient, weight, data)) if data.shape in shapes else 0
    return max(of_data, _bytes((gradient, data, weight)))


def add_convolution_workspaces(
    operators: Sequence[Operator], events: Iterable[AllocEvent | FreeEvent]
) -> Iterator[AllocEvent | FreeEvent]:
    """Yield events with the workspace of every convolution: allocated after its results, and freed at once."""
    sizes = {o.index: size for o in operators if (size := workspace_bytes(o))}
    number, waiting = _FIRST_NUMBER, -1
    for event in events:
        ends = event.operator != waiting or isinstance(event, FreeEvent)
        if waiting in sizes and ends:
            number -= 1
            yield AllocEvent(number, sizes.pop(waiting), waiting)
            yield FreeEvent(number, waiting)
        waiting = event.operator
        yield event
    if waiting in sizes:
        yield AllocEvent(number - 1, sizes[waiting], waiting)
        yield FreeEvent(number - 1, waiting)


def _has_channels_innermost(tensor: TensorRecord) -> bool:
    return len(tensor.stride) > 1 and tensor.stride[1] == 1 and math.prod(tensor.shape[2:]) > 1


def _bytes(tensors: Iterable[TensorRecord]) -> int:
    return sum(2 * math.prod(t.shape) for t in tensors)
