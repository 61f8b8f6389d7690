"""Memory format in which a compiled step runs its convolutions and the operators between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from roller.insight.cost.compiled.loop_nodes import dims_in_memory_order
from roller.insight.cost.gpu import returns_only_views
from roller.insight.cost.gpu.operator_view import OperatorView, element_count
from roller.insight.trace.trace import Operator, TensorRecord

MemoryFormat = Literal["contiguous", "channels_last"]
_CONVOLUTIONS = frozenset({"aten.convolution", "aten._convolution", "aten.cudnn_convolution"})
_GRADIENTS = frozenset({"aten.convolution_backward"})
#: Number of operators per convolution in a graph from which on the compiler keeps the layouts.
MOST_OPERATORS = 300
#: Ratios of the time in channels-last to the time in NCHW, by which ``decide_layout_opt``
#: (``torch/_inductor/graph.py``, PyTorch 2.13) weighs the operations of inference.
GROUPED, DEFAULT, NARROWING, SMALL = 1.358, 0.823, 0.725, 0.783
#: Maximum number of channels of a small convolution.
SMALL_CHANNELS = 64


def convolution_memory_format(operators: Sequence[Operator]) -> MemoryFormat:
    """Return the memory format in which the convolutions of a compiled graph run."""
    # Inductor decides once per graph. In training, all convolutions stay in NCHW if one of them is grouped (but not
    # depthwise), if one at least halves its channels, or if all are small. In inference, the multiplications of each
    # kind are weighted by the ratios above.
    found = [v for v in map(OperatorView, operators) if v.packet in _CONVOLUTIONS]
    count = sum(not returns_only_views(OperatorView(o)) for o in operators)
    if not found or count >= MOST_OPERATORS * len(found) or any(len(v.out.shape) != 4 for v in found):
        return "contiguous"
    kinds = [(_convolution_layout_kind(v), _multiplication_count(v)) for v in found]
    if any(OperatorView(o).packet in _GRADIENTS for o in operators):
        own = {kind for kind, _ in kinds}
        stays = "grouped" in own or "narrowing" in own or all(_is_small_convolution(v) for v in found)
        return "contiguous" if stays else "channels_last"
    weights = {"grouped": GROUPED, "small": SMALL, "narrowing": NARROWING, "default": DEFAULT}
    whole = math.fsum(work for _, work in kinds)
    return "channels_last" if math.fsum(weights[k] * work for k, work in kinds) <= whole else "contiguous"


def _weight_of_convolution(view: OperatorView) -> TensorRecord:
    return view.required_tensor("weight", 1)


def _is_small_convolution(view: OperatorView) -> bool:
    return max(_weight_of_convolution(view).shape[:2]) <= SMALL_CHANNELS


def _convolution_layout_kind(view: OperatorView) -> str:
    weight = _weight_of_convolution(view)
    if int(view.argument("groups", 1)) > 1 and weight.shape[1] > 1:
        return "grouped"
    if _is_small_convolution(view):
        return "small"
    narrows = 2 * weight.shape[0] <= weight.shape[1] and weight.shape[2] > 1
    return "narrowing" if narrows else "default"


def _multiplication_count(view: OperatorView) -> float:
    return float(element_count(view.out) * math.prod(_weight_of_convolution(view).shape[1:]))


class _StorageLayout(NamedTuple):
    """Shape of a storage's tensor, its strides in the eager step, and its strides in the compiled step."""

    shape: tuple[int, ...]
    old: tuple[int, ...]
    new: tuple[int, ...]


def assign_memory_formats(
    operators: Sequence[Operator], format_of: Callable[[Operator], MemoryFormat | None], new_storage: Callable[[], int]
) -> list[Operator]:
    """Return operators whose results have the compiler's layouts, with the copies that this requires."""
    # In channels-last, four-dimensional results keep the format from one operator to the next. Images and filters that
    # a convolution reads from outside are copied first, except for filters of one point or one channel, which are the
    # same in both formats. An element-wise result of operands in several memory orders is contiguous
    # (``pick_loop_order``), whereas eager mode follows the first operand.
    layouts: dict[int, _StorageLayout] = {}
    copies: dict[int, TensorRecord] = {}
    found: list[Operator] = []
    for operator in operators:
        view, memory_format = OperatorView(operator), format_of(operator)
        inputs = [_view_in_new_layout(t, layouts) for t in operator.inputs]
        convolves = memory_format == "channels_last" and view.packet in _CONVOLUTIONS | _GRADIENTS
        if convolves:
            for n, t in enumerate(inputs):
                if len(t.shape) == 4 and t.storage not in layouts and _is_contiguous(t) and _channels_last_differs(t):
                    if t.storage not in copies:
                        copies[t.storage] = replace(
                            t, storage=new_storage(), stride=_channels_last_strides(t.shape), offset=0
                        )
                        found.append(_copy_operator(operator, t, copies[t.storage]))
                    inputs[n] = copies[t.storage]
        if memory_format is not None and not returns_only_views(view):
            keeps = memory_format == "channels_last" and (
                convolves or any(_is_channels_last_storage(t, layouts) for t in operator.inputs)
            )
            for t in operator.outputs:
                new = _compiled_strides_if_changed(t, operator, inputs, keeps)
                if new is not None and t.storage not in {x.storage for x in operator.inputs}:
                    layouts[t.storage] = _StorageLayout(t.shape, t.stride, new)
        outputs = tuple(_view_in_new_layout(t, layouts) for t in operator.outputs)
        found.append(replace(operator, inputs=tuple(inputs), outputs=outputs))
    return found


def _is_channels_last_storage(t: TensorRecord, layouts: Mapping[int, _StorageLayout]) -> bool:
    layout = layouts.get(t.storage)
    return layout is not None and len(layout.shape) == 4 and layout.new == _channels_last_strides(layout.shape)


def _compiled_strides_if_changed(
    t: TensorRecord, operator: Operator, inputs: Sequence[TensorRecord], keeps: bool
) -> tuple[int, ...] | None:
    """Return the compiled strides of a result; ``None`` if they equal the eager strides."""
    if t.offset:
        return None
    if keeps and len(t.shape) == 4 and _is_contiguous(t):
        return _channels_last_strides(t.shape)
    orders = {dims_in_memory_order(x) for x in inputs if x.shape == t.shape and 0 not in x.stride}
    whole = TensorRecord(t.shape, _contiguous_strides(t.shape), t.dtype, t.storage)
    follows = len(orders) > 1 or orders == {dims_in_memory_order(whole)}
    span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride, strict=True))
    return whole.stride if follows and not _is_contiguous(t) and element_count(t) == span else None


def _copy_operator(operator: Operator, source: TensorRecord, copied: TensorRecord) -> Operator:
    return replace(
        operator, name="aten.clone.default", inputs=(source,), outputs=(copied,), arguments={"self": {"tensor": 0}}
    )


def _contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))


def _is_contiguous(t: TensorRecord) -> bool:
    return t.stride == _contiguous_strides(t.shape)


def _channels_last_differs(t: TensorRecord) -> bool:
    """Return whether channels-last differs in memory from the contiguous format."""
    return t.shape[1] > 1 and math.prod(t.shape[2:]) > 1


def _channels_last_strides(shape: Sequence[int]) -> tuple[int, ...]:
    _, c, h, w = shape
    return (c * h * w, 1, w * c, c)


def _view_in_new_layout(t: TensorRecord, layouts: Mapping[int, _StorageLayout]) -> TensorRecord:
    """Return a view of a storage in its new layout; unchanged if strides cannot describe the view there."""
    layout = layouts.get(t.storage)
    if layout is None:
        return t
    dims = sorted(range(len(layout.shape)), key=lambda d: (-layout.old[d], layout.shape[d] == 1))

    def new_offset(step: int) -> int:
        found = 0
        for d in dims:
            if layout.old[d]:
                whole, step = divmod(step, layout.old[d])
                found += whole * layout.new[d]
        return found

    steps = [(n, s, new_offset(s)) for n, s in zip(t.shape, t.stride, strict=True)]
    if any(n > 1 and new_offset((n - 1) * s) != (n - 1) * new for n, s, new in steps):
        return t
    return replace(t, stride=tuple(new for *_, new in steps), offset=new_offset(t.offset))
