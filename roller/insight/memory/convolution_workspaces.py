"""Workspaces of cuDNN's convolutions: copies of tensors in the layout that matrix units need."""

# For 16-bit tensors whose channels are not innermost, cuDNN converts data, filters and result around the kernel; the
# copies are in the workspace, which PyTorch allocates through its caching allocator and frees after the call. A float16
# convolution of 256 x 2048 x 1024 elements, whose data and result take 1 GiB each, reserved 4.02 GiB in all
# (pytorch/pytorch#123533).

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from roller.insight.trace.convolution_layout import (
    is_depthwise,
    is_planar_matrix_product,
    needs_layout_conversion,
    padded_channel_count,
)
from roller.insight.trace.tensor_bytes import total_bytes
from roller.insight.trace.trace import AllocEvent, FreeEvent, Operator, TensorRecord

#: Dtypes whose tensors cuDNN converts for a matrix unit, on devices whose matrix units support the dtype.
NARROW_FLOATS = frozenset({"float16", "bfloat16"})
#: Storage numbers of workspaces count down from this number, exclusive.
_ABOVE_NUMBERS = -10


def is_convolution_workspace(storage: int) -> bool:
    """Return whether a storage number belongs to a convolution's workspace."""
    return storage < _ABOVE_NUMBERS


def convolution_workspace_bytes(
    operator: Operator, dtypes: Collection[str] = NARROW_FLOATS, *, multiplies_in_planes: bool = True
) -> int:
    """Return the total size in bytes of the copies in a convolution's workspace; 0 if cuDNN converts nothing.

    Examples
    --------
    >>> x, w, y = (TensorRecord(s, t, "float16", n) for n, (s, t) in enumerate([
    ...     ((1, 64, 8, 8), (4096, 64, 8, 1)), ((64, 64, 1, 1), (64, 1, 1, 1)), ((1, 64, 8, 8), (4096, 64, 8, 1))]))
    >>> convolution = Operator(0, "aten.convolution.default", "forward", (x, w), (y,))
    >>> convolution_workspace_bytes(convolution), convolution_workspace_bytes(convolution, multiplies_in_planes=False)
    (0, 16384)
    """
    # The convolution's price contains the conversion of the same tensors.
    backward = operator.name.startswith("aten.convolution_backward.")
    if not backward and not operator.name.startswith(("aten.convolution.", "aten.cudnn_convolution.")):
        return 0
    tensors = operator.inputs[:3] if backward else (*operator.inputs[:2], *operator.outputs[:1])
    data, weight = tensors[1:] if backward else tensors[:2]
    arguments = operator.arguments
    groups, transposed = int(arguments.get("groups", 1)), bool(arguments.get("transposed"))
    if data.dtype not in dtypes or len(data.shape) < 3 or is_depthwise(weight, groups, transposed):
        return 0
    if backward:  # the gradients of data and filters are two successive calls on the same three tensors
        if not {t.shape for t in operator.outputs} & {data.shape, weight.shape}:
            return 0
    elif multiplies_in_planes and not transposed:
        stride, padding = arguments.get("stride") or (1,), arguments.get("padding") or (0,)
        if is_planar_matrix_product(weight, stride, padding, groups):
            return 0
    return sum(_layout_copy_bytes(t, groups) for t in tensors if needs_layout_conversion(t, groups))


def events_with_convolution_workspaces(
    operators: Sequence[Operator],
    events: Iterable[AllocEvent | FreeEvent],
    dtypes: Collection[str] = NARROW_FLOATS,
    *,
    multiplies_in_planes: bool = True,
) -> Iterator[AllocEvent | FreeEvent]:
    """Yield the events and, for each convolution, a workspace that is allocated after its results and freed at once."""
    sizes = {
        o.index: size
        for o in operators
        if (size := convolution_workspace_bytes(o, dtypes, multiplies_in_planes=multiplies_in_planes))
    }
    number, waiting = _ABOVE_NUMBERS, -1
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


def _layout_copy_bytes(tensor: TensorRecord, groups: int) -> int:
    return total_bytes((tensor,)) * padded_channel_count(tensor, groups) // tensor.shape[1]
