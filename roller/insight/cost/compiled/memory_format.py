"""In which memory format a compiled step runs its convolutions, and what is between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from roller.insight.cost.gpu import is_view
from roller.insight.cost.gpu.operator_view import View, element_count
from roller.insight.trace.trace import Operator, TensorRecord

MemoryFormat = Literal["contiguous", "channels_last"]
_CONVOLUTIONS = frozenset({"aten.convolution", "aten._convolution", "aten.cudnn_convolution"})
_GRADIENTS = frozenset({"aten.convolution_backward"})
#: Operators of a graph for each convolution from which on layouts stay as they are.
MOST_OPERATORS = 300
#: Ratios of the time in channels-last to that in NCHW, by which ``decide_layout_opt`` (``torch/_inductor/graph.py``,
#: PyTorch 2.13) weighs the operations of inference.
GROUPED, DEFAULT, NARROWING, SMALL = 1.358, 0.823, 0.725, 0.783
#: Channels up to which a convolution is small.
SMALL_CHANNELS = 64


def convolution_format(operators: Sequence[Operator]) -> MemoryFormat:
    """Return the memory format in which the convolutions of a compiled graph run.

    Parameters
    ----------
    operators
        Of one graph, its forward, and in training its backward too.

    Notes
    -----
    Inductor decides once for each graph. In training one grouped convolution (depthwise ones aside) or one that
    narrows its channels to a half keeps all of them in NCHW, and so do convolutions that are all small. In inference
    multiplications of each kind are weighed by their mean gain.
    """
    found = [v for v in map(View, operators) if v.packet in _CONVOLUTIONS]
    count = sum(not is_view(View(o)) for o in operators)
    if not found or count >= MOST_OPERATORS * len(found) or any(len(v.out.shape) != 4 for v in found):
        return "contiguous"
    kinds = [(_kind(v), _multiplications(v)) for v in found]
    if any(View(o).packet in _GRADIENTS for o in operators):
        own = {kind for kind, _ in kinds}
        stays = "grouped" in own or "narrowing" in own or all(_is_small(v) for v in found)
        return "contiguous" if stays else "channels_last"
    weights = {"grouped": GROUPED, "small": SMALL, "narrowing": NARROWING, "default": DEFAULT}
    whole = math.fsum(work for _, work in kinds)
    return "channels_last" if math.fsum(weights[k] * work for k, work in kinds) <= whole else "contiguous"


def _weight(view: View) -> TensorRecord:
    return view.required_tensor("weight", 1)


def _is_small(view: View) -> bool:
    return max(_weight(view).shape[:2]) <= SMALL_CHANNELS


def _kind(view: View) -> str:
    weight = _weight(view)
    if int(view.argument("groups", 1)) > 1 and weight.shape[1] > 1:
        return "grouped"
    if _is_small(view):
        return "small"
    narrows = 2 * weight.shape[0] <= weight.shape[1] and weight.shape[2] > 1
    return "narrowing" if narrows else "default"


def _multiplications(view: View) -> float:
    return float(element_count(view.out) * math.prod(_weight(view).shape[1:]))


def in_channels_last(operators: Sequence[Operator], first_storage: int) -> list[Operator]:
    """Return the operators with images and filters of convolutions in channels-last, with the copies that this takes.

    Results of four dimensions keep the format from one operator to the next. Images and filters from outside that a
    convolution reads are copied first; filters of one point, or of one channel, are the same in both formats.

    Parameters
    ----------
    operators
        Of one graph, in order.
    first_storage
        Number from which on storages are free.
    """
    shapes: dict[int, tuple[int, int, int, int]] = {}
    copies: dict[int, TensorRecord] = {}
    found: list[Operator] = []
    for operator in operators:
        view = View(operator)
        inputs = list(operator.inputs)
        if view.packet in _CONVOLUTIONS | _GRADIENTS:
            for n, t in enumerate(inputs):
                if len(t.shape) == 4 and t.storage not in shapes and _is_nchw(t) and _differs(t):
                    if t.storage not in copies:
                        copies[t.storage] = replace(t, storage=first_storage, stride=_channels_last(t.shape), offset=0)
                        first_storage += 1
                        found.append(_copy_of(operator, t, copies[t.storage]))
                    inputs[n] = copies[t.storage]
        touched = any(t.storage in shapes for t in operator.inputs) or view.packet in _CONVOLUTIONS | _GRADIENTS
        given = {t.storage for t in operator.inputs}
        if touched and not is_view(view):
            for t in operator.outputs:
                if len(t.shape) == 4 and t.storage not in given and _is_nchw(t) and t.offset == 0:
                    n, c, h, w = t.shape
                    shapes[t.storage] = (n, c, h, w)
        found.append(
            replace(
                operator, inputs=tuple(_converted(t, shapes) for t in inputs),
                outputs=tuple(_converted(t, shapes) for t in operator.outputs),
            )
        )  # fmt: skip
    return found


def _copy_of(operator: Operator, source: TensorRecord, copied: TensorRecord) -> Operator:
    return replace(
        operator, name="aten.clone.default", inputs=(source,), outputs=(copied,), arguments={"self": {"tensor": 0}}
    )


def _is_nchw(t: TensorRecord) -> bool:
    return t.stride == tuple(math.prod(t.shape[n + 1 :]) for n in range(len(t.shape)))


def _differs(t: TensorRecord) -> bool:
    """Return whether channels-last is another order in memory."""
    return t.shape[1] > 1 and math.prod(t.shape[2:]) > 1


def _channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    _, c, h, w = shape
    return (c * h * w, 1, w * c, c)


def _converted(t: TensorRecord, shapes: Mapping[int, tuple[int, int, int, int]]) -> TensorRecord:
    """Return a view of a storage in NCHW as one of the storage in channels-last."""
    shape = shapes.get(t.storage)
    if shape is None:
        return t
    _, c, h, w = shape
    points = h * w
    image = c * points

    def place(step: int) -> int:
        whole, rest = divmod(step, image)
        return whole * image + rest // points + rest % points * c

    fits = all(
        n == 1 or s >= image or (s >= points and s % points == 0) or (n - 1) * s < points
        for n, s in zip(t.shape, t.stride, strict=True)
    )
    return replace(t, stride=tuple(map(place, t.stride)), offset=place(t.offset)) if fits else t
