"""Evaluates nodes with constant inputs: by NumPy if exact and cheap, otherwise small ones by onnx's reference."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from roller.expr import FUNCTIONS
from roller.models.onnx.low_bit_products import is_4bit_matrix
from roller.models.onnx.onnx_types import onnx_dtype
from roller_runtime.plan.program_steps import Value

#: Maximum number of elements that a node folded by NumPy reads and writes. An output that repeats a single element
#: needs no memory, so its limit is higher.
MAX_ELEMENTS = 1 << 26
MAX_REPEATED_ELEMENTS = 1 << 30
#: Maximum number of elements that onnx's reference (plain Python) reads and writes per node, and per model.
MAX_REFERENCE_ELEMENTS = 1 << 18
MAX_REFERENCE_TOTAL = 1 << 25
#: Maximum size of all folded constants together, in bytes.
MAX_FOLDED_BYTES = 1 << 31

Arrays = Sequence[np.ndarray]
Attributes = Mapping[str, Any]


class Evaluator:
    """Evaluates nodes with constant inputs, within per-model limits on memory and time."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self._imports = [onnx.helper.make_opsetid(d, v) for d, v in opsets.items()]
        self._version = max((v for d, v in opsets.items() if d in ("", "ai.onnx")), default=0)
        self._reference_left = MAX_REFERENCE_TOTAL
        self._bytes_left = MAX_FOLDED_BYTES

    def __call__(
        self, node: onnx.NodeProto, attributes: Attributes, inputs: Sequence[np.ndarray | None],
        outputs: Sequence[Value | None],
    ) -> list[np.ndarray] | None:  # fmt: skip
        """Return the outputs, or ``None`` if the node is left for run time."""
        if self._version < _SINCE.get(node.op_type, 0) or _is_integer_dequantisation(node, attributes, inputs):
            return None
        if self._bytes_left <= 0 or any(v is not None and v.elements > MAX_REPEATED_ELEMENTS for v in outputs):
            return None
        elements = sum(v.elements for v in outputs if v is not None) + sum(a.size for a in inputs if a is not None)
        rule = _NUMPY.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        found = None
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            if rule is not None and (elements <= MAX_ELEMENTS or rule in _REPEATING):
                found = _try_evaluate(rule, attributes, [a for a in inputs if a is not None], outputs)
            trusted = node.op_type not in _REFERENCE_IS_WRONG
            if found is None and trusted and elements <= min(MAX_REFERENCE_ELEMENTS, self._reference_left):
                self._reference_left -= elements + 1024  # the cost of setting it up
                found = _try_evaluate(self._run_onnx_reference, node, inputs)
        found = None if found is None else [np.asarray(a) if isinstance(a, np.generic) else a for a in found]
        if found is None or not _have_inferred_types(found, outputs):
            return None
        self._bytes_left -= sum(0 if 0 in a.strides else a.nbytes for a in found)
        return found if self._bytes_left >= 0 else None

    def _run_onnx_reference(self, node: onnx.NodeProto, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
        given = {n: a for n, a in zip(node.input, inputs, strict=True) if n and a is not None}
        made = [onnx.ValueInfoProto(name=n) for n in node.output if n]
        graph = onnx.helper.make_graph([node], "node", [onnx.ValueInfoProto(name=n) for n in given], made)
        model = onnx.helper.make_model(graph, opset_imports=self._imports)
        found = dict(zip((m.name for m in made), ReferenceEvaluator(model).run(None, given), strict=True))
        return [np.asarray(found[n]) if n else np.zeros(0) for n in node.output]


def _is_integer_dequantisation(
    node: onnx.NodeProto, attributes: Attributes, inputs: Sequence[np.ndarray | None]
) -> bool:
    """Return whether a node dequantizes stored integers in bytes or, in blocks, in 4 bits, which rewrites keep."""
    stored = inputs[0] if node.op_type == "DequantizeLinear" and inputs else None
    if stored is None:
        return False
    blocked = bool(attributes.get("block_size"))
    return is_4bit_matrix(stored) if blocked else stored.dtype in (np.int8, np.uint8, np.int32)


#: Operators left to kernels, because onnx's reference differs from ONNX Runtime and the specification in some cases
#: (``python -m tests.models.onnx.random_families all 0 500 --reference``).
_REFERENCE_IS_WRONG = frozenset({
    "Attention",  # softcap, is_causal with a past
    "AveragePool", "GlobalMaxPool", "LpPool", "MaxPool",  # some ranks, ceilings and paddings
    "BatchNormalization",  # its epsilon before version 15
    "Clip",  # absent bounds become those of the type
    "ConvTranspose",  # a bias with groups
    "GRU", "LSTM", "RNN",  # activations, clip, lengths, directions
    "GridSample",  # cubic neighbours beyond the border
    "LRN",  # sizes of 1, and 3 over 3 channels
    "LpNormalization",  # p = 1 loses the sign
    "PRelu",  # infinite slopes
    "QLinearConv",  # scales per channel
    "Resize", "Upsample",  # coordinates in float64, regions outside
})  # fmt: skip
#: First operator set version from which these operators are evaluated here; before it, their definition differs.
_SINCE = {"Softmax": 13, "LogSoftmax": 13, "Hardmax": 13}


def _try_evaluate(function: Callable[..., Any], *arguments: Any) -> list[np.ndarray] | None:
    """Return the function's result; ``None`` if it raises an exception, so that the node is left for run time."""
    try:
        found: list[np.ndarray] | None = function(*arguments)
    except Exception:  # noqa: BLE001 - rules and the reference raise any exception for unsupported inputs
        return None
    return found


def _have_inferred_types(found: Sequence[np.ndarray], outputs: Sequence[Value | None]) -> bool:
    """Return whether results have the inferred types; if not, the node is not folded."""
    for array, value in zip(found, outputs, strict=False):
        if not isinstance(array, np.ndarray) or array.dtype.kind in "OUS":
            return False
        if value is not None and (array.shape != value.shape or array.dtype.name != value.dtype):
            return False
    return True


_NUMPY: dict[str, Callable[[Attributes, Arrays, Sequence[Value | None]], list[np.ndarray] | None]] = {}


def _register_numpy_evaluation(*ops: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            _NUMPY[op] = function
        return function

    return register


def _require_result_type(outputs: Sequence[Value | None]) -> Value:
    first = outputs[0]
    if first is None:
        raise ValueError("the type of the result is not known")
    return first


@_register_numpy_evaluation("ConstantOfShape")
def _evaluate_constant_of_shape(
    attributes: Attributes, inputs: Arrays, outputs: Sequence[Value | None]
) -> list[np.ndarray]:
    value = np.asarray(attributes.get("value", np.zeros(1, np.float32))).reshape(-1)[:1]
    return [np.broadcast_to(value.reshape(()), _require_result_type(outputs).shape)]


@_register_numpy_evaluation("Expand")
def _evaluate_expand(attributes: Attributes, inputs: Arrays, outputs: Sequence[Value | None]) -> list[np.ndarray]:
    return [np.broadcast_to(inputs[0], _require_result_type(outputs).shape)]


@_register_numpy_evaluation("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")
def _evaluate_reshape(attributes: Attributes, inputs: Arrays, outputs: Sequence[Value | None]) -> list[np.ndarray]:
    shape = _require_result_type(outputs).shape
    if 0 in inputs[0].strides and inputs[0].size and inputs[0].strides == (0,) * inputs[0].ndim:
        return (
            [np.broadcast_to(inputs[0].reshape(-1)[0], shape)]
            if inputs[0].ndim < 2
            else [_broadcast_first_element(inputs[0], shape)]
        )
    return [inputs[0].reshape(shape)]


def _broadcast_first_element(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(array[(0,) * array.ndim], shape)


@_register_numpy_evaluation("Transpose")
def _evaluate_transpose(attributes: Attributes, inputs: Arrays, outputs: Sequence[Value | None]) -> list[np.ndarray]:
    turned = inputs[0].transpose(attributes.get("perm"))
    return [turned if 0 in turned.strides else np.ascontiguousarray(turned).reshape(turned.shape)]


@_register_numpy_evaluation("Concat")
def _evaluate_concat(attributes: Attributes, inputs: Arrays, outputs: Sequence[Value | None]) -> list[np.ndarray]:
    return [np.concatenate(inputs, attributes["axis"])]


@_register_numpy_evaluation("Gather")
def _evaluate_gather(attributes: Attributes, inputs: Arrays, outputs: Sequence[Value | None]) -> list[np.ndarray]:
    return [np.asarray(np.take(inputs[0], inputs[1], attributes.get("axis", 0)))]


@_register_numpy_evaluation("Cast")
def _evaluate_cast(attributes: Attributes, inputs: Arrays, outputs: Sequence[Value | None]) -> list[np.ndarray] | None:
    target = onnx_dtype(_require_result_type(outputs).dtype)
    source = inputs[0]
    plain = "?bBhHiIlLqQefd"
    if source.dtype.char not in plain or target.char not in plain:
        raise ValueError("rounding of this type is the reference's business")
    if source.dtype.kind == "f" and target.kind in "iu" and not np.all(np.isfinite(source)):
        raise ValueError("no integer for what is not finite")
    return [source.astype(target)]


def _elementwise_rule(function: Callable[..., Any], kinds: str = "fiu") -> Callable[..., Any]:
    def rule(attributes: Attributes, inputs: Arrays, outputs: Sequence[Value | None]) -> list[np.ndarray]:
        if inputs[0].dtype.kind not in kinds or len(inputs) > 2 + (function is np.where):
            raise ValueError("another form of the operator")
        return [np.asarray(function(*inputs))]

    return rule


for _op, _function, _kinds in (
    ("Add", np.add, "fiu"), ("Sub", np.subtract, "fiu"), ("Mul", np.multiply, "fiu"),
    ("Neg", np.negative, "fi"), ("Sqrt", np.sqrt, "f"), ("Exp", np.exp, "f"), ("Where", np.where, "b"),
    ("Equal", np.equal, "fiub"), ("Greater", np.greater, "fiu"), ("Less", np.less, "fiu"), ("Not", np.logical_not, "b"),
    ("And", np.logical_and, "b"), ("Or", np.logical_or, "b"), ("Abs", np.abs, "fi"), ("Floor", np.floor, "f"),
    ("Ceil", np.ceil, "f"),
):  # fmt: skip
    _NUMPY[_op] = _elementwise_rule(_function, _kinds)


@_register_numpy_evaluation("Clip")
def _evaluate_clip(attributes: Attributes, inputs: Arrays, outputs: Sequence[Value | None]) -> list[np.ndarray] | None:
    return [np.asarray(np.minimum(np.maximum(inputs[0], inputs[1]), inputs[2]))] if len(inputs) == 3 else None


@_register_numpy_evaluation("Div")
def _evaluate_div(attributes: Attributes, inputs: Arrays, outputs: Sequence[Value | None]) -> list[np.ndarray] | None:
    a, b = inputs
    if a.dtype.kind == "f":
        return [np.divide(a, b)]
    if a.dtype.kind not in "iu" or (b == 0).any():
        return None
    return [np.asarray(FUNCTIONS["idiv"].numpy(a, b)).astype(a.dtype)]  # towards zero


@_register_numpy_evaluation("LogSoftmax")
def _evaluate_log_softmax(
    attributes: Attributes, inputs: Arrays, outputs: Sequence[Value | None]
) -> list[np.ndarray] | None:
    """Return the log-softmax as ``x - max - log(sum)``; onnx's reference takes logarithms of values that may be 0."""
    x = inputs[0]
    if x.dtype.kind != "f":
        return None
    axis = attributes.get("axis", -1)
    below = x - x.max(axis=axis, keepdims=True)
    return [(below - np.log(np.exp(below).sum(axis=axis, keepdims=True))).astype(x.dtype)]


@_register_numpy_evaluation("Range")
def _evaluate_range(attributes: Attributes, inputs: Arrays, outputs: Sequence[Value | None]) -> list[np.ndarray]:
    start, step, value = inputs[0], inputs[2], _require_result_type(outputs)
    return [(start + np.arange(value.shape[0]).astype(start.dtype) * step).astype(start.dtype).reshape(value.shape)]


#: Rules whose results are broadcast views.
_REPEATING = (_evaluate_constant_of_shape, _evaluate_expand)
