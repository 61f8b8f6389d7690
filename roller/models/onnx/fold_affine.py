"""Folds per-channel scales and shifts (batch normalization, biases) into the preceding operator's weights and bias."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from roller.models.graph.model_graph import Node
from roller.models.onnx.mutable_graph import MutableGraph
from roller_runtime.core.dtypes import FLOATS, NARROW_FLOATS

#: Maximum size, in bytes, of weights that are copied because other nodes read them too.
_COPY_BYTES = 1 << 26
#: Two shifts count as cancelling if the magnitude of their sum is at most this fraction of the larger magnitude.
_LEFT = 2.0**-10


@dataclass(frozen=True)
class AffineMap:
    """``output = source * scale + shift`` along one axis, in float64.

    Parameters
    ----------
    scale, shift
        Shape ``(channels,)``, or ``(1,)`` for a single number; ``None`` stands for a scale of 1 or a shift of 0.
    axis
        Axis of the channels, counted from the front; ``None`` if both are single numbers.
    origin
        Node that the map represents; ``None`` if it represents several nodes or one that must be rewritten.
    name, version
        Name and operator set version of the nodes that replace the map.
    """

    source: str
    output: str
    scale: np.ndarray | None
    shift: np.ndarray | None
    axis: int | None
    origin: Node | None
    name: str
    version: int


def fold_affine(draft: MutableGraph) -> bool:
    """Fold scales and shifts in place; return whether the draft changed."""
    users = draft.count_reads()
    placed: list[Node | AffineMap] = []
    writer: dict[str, int] = {}
    changed = False
    for node in draft.nodes:
        found = _match_affine(draft, node)
        item: Node | AffineMap = node if found is None else found
        at = writer.get(found.source) if found is not None else None
        if found is not None and at is not None and users[found.source] == 1:
            merged = _fold_into_writer(draft, placed[at], found, users)
            if merged is not None:
                placed[at], *rest = merged
                changed = True
                writer.update((n, at) for n in _outputs_of_node_or_affine(placed[at]))
                if not rest:
                    continue
                item = rest[0]
        placed.append(item)
        writer.update((n, len(placed) - 1) for n in _outputs_of_node_or_affine(item))
    nodes: list[Node] = []
    for item in placed:
        written = _nodes_of_node_or_affine(draft, item)
        changed = changed or (isinstance(item, AffineMap) and item.origin is None)
        nodes.extend(written)
    draft.nodes = nodes
    return changed


def _outputs_of_node_or_affine(item: Node | AffineMap) -> tuple[str, ...]:
    return (item.output,) if isinstance(item, AffineMap) else tuple(n for n in item.outputs if n)


def _match_affine(draft: MutableGraph, node: Node) -> AffineMap | None:
    """Return ``node`` as a scale and a shift of one of its inputs; ``None`` if that is impossible."""
    if node.domain or not any(node.outputs[:1]) or draft.values[node.outputs[0]].dtype not in FLOATS:
        return None
    if node.op == "BatchNormalization":
        return _match_batch_normalisation(draft, node)
    if node.op not in ("Mul", "Add", "Sub", "Div"):
        return None
    for position in (0, 1):
        array, source = draft.constant_input(node, position), node.inputs[1 - position]
        if array is None or source in draft.constants or draft.shape(source) != draft.shape(node.outputs[0]):
            continue
        if node.op == "Div" and position == 0:
            continue
        channels = _constant_along_one_axis(array, draft.shape(source))
        if channels is None:
            continue
        numbers, axis = channels
        scale, shift = _scale_and_shift(node.op, position, numbers)
        if scale is not None and not np.isfinite(scale).all():
            continue
        return AffineMap(source, node.outputs[0], scale, shift, axis, node, node.name, node.version)
    return None


def _scale_and_shift(op: str, position: int, numbers: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the scale and shift for ``x op numbers`` (``position`` 1) or ``numbers op x`` (``position`` 0)."""
    if op == "Mul":
        return numbers, None
    if op == "Div":
        with np.errstate(divide="ignore"):
            return 1 / numbers, None
    if op == "Add":
        return None, numbers
    return (None, -numbers) if position == 1 else (np.full(1, -1.0), numbers)


def _constant_along_one_axis(array: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, int | None] | None:
    """Return a constant's values and the one axis of ``shape`` along which they vary; ``None`` if there are more."""
    if array.ndim > len(shape) or array.size == 0:
        return None
    wide = (1,) * (len(shape) - array.ndim) + array.shape
    axes = [d for d, extent in enumerate(wide) if extent != 1]
    if len(axes) > 1:
        return None
    return array.reshape(-1).astype(np.float64), axes[0] if axes else None


def _match_batch_normalisation(draft: MutableGraph, node: Node) -> AffineMap | None:
    """Return an inference batch normalization as a scale and a shift; ``None`` if that is impossible."""
    if draft.values[node.outputs[0]].dtype in NARROW_FLOATS:  # its own lowering computes in float32
        return None
    parts = [draft.constant_input(node, p) for p in range(1, 5)]
    training = node.attributes.get("training_mode", 0) or not node.attributes.get("spatial", 1)
    if training or any(node.outputs[1:]) or len(draft.shape(node.inputs[0])) < 2 or any(p is None for p in parts):
        return None
    gamma, beta, mean, variance = (np.asarray(p).astype(np.float64) for p in parts)
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
        shift = beta - mean * scale
    if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
        return None
    return AffineMap(node.inputs[0], node.outputs[0], scale, shift, 1, None, node.name, node.version)


def _fold_into_writer(
    draft: MutableGraph, before: Node | AffineMap, affine: AffineMap, users: dict[str, int]
) -> tuple[Node | AffineMap, ...] | None:
    """Return what replaces ``before`` and ``affine``: one item, or one plus a shift; ``None`` if both stay."""
    if isinstance(before, AffineMap):
        return _compose_affine(before, affine)
    rule = None if before.domain else _LINEAR.get(before.op)
    if rule is None or len(_outputs_of_node_or_affine(before)) != 1:
        return None
    weights = draft.constant_input(before, 1)
    if affine.scale is not None and draft.values[affine.output].dtype in NARROW_FLOATS:
        return None  # weights would be rounded once more, an error common to all their results
    if weights is None or (affine.scale is not None and users[before.inputs[1]] > 1 and weights.nbytes > _COPY_BYTES):
        return None
    return rule(draft, before, weights, affine)


def _compose_affine(first: AffineMap, second: AffineMap) -> tuple[AffineMap] | None:
    """Return the composition of two affine maps along the same axis, or ``None`` if they must stay separate."""
    # A scale and the shift after it remain two nodes; two operators of the model round separately and are kept.
    if (first.shift is None and second.scale is None) or (first.origin is not None and second.origin is not None):
        return None
    if first.axis is not None and second.axis is not None and first.axis != second.axis:
        return None
    scale = _multiply_scales(first.scale, second.scale)
    shift = _multiply_scales(first.shift, second.scale) if first.shift is not None else None
    if (first.origin is not None or second.origin is not None) and _shifts_cancel(shift, second.shift):
        return None
    if second.shift is not None:
        shift = second.shift if shift is None else shift + second.shift
    axis = first.axis if first.axis is not None else second.axis
    return (AffineMap(first.source, second.output, scale, shift, axis, None, second.name, second.version),)


def _shifts_cancel(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    """Return whether two shifts nearly cancel in any channel, so that the first one's rounding determines the sum."""
    if one is None or other is None:
        return False
    # For example, a model may round to integers by adding and subtracting ``1.5 * 2^23``.
    with np.errstate(invalid="ignore"):  # infinities cancel as well
        left, largest = np.abs(one + other), np.maximum(np.abs(one), np.abs(other))
        return bool((~(left > largest * _LEFT) & (largest > 0)).any())


def _multiply_scales(one: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
    return other if one is None else one if other is None else one * other


def _nodes_of_node_or_affine(draft: MutableGraph, item: Node | AffineMap) -> list[Node]:
    """Return the nodes for an item: the node itself, or a Mul and an Add with constants."""
    if isinstance(item, Node):
        return [item]
    if item.origin is not None:
        return [item.origin]
    value = draft.values[item.output]
    nodes: list[Node] = []
    source = item.source
    terms = [(op, t) for op, t in (("Mul", item.scale), ("Add", item.shift)) if t is not None]
    for op, term in terms:
        last = op == terms[-1][0]
        shape = (len(term),) + (1,) * (len(value.shape) - 1 - item.axis) if item.axis is not None else ()
        if item.axis is not None and len(term) == 1:
            shape = ()
        # Dtypes of `ml_dtypes` are registered only once it is imported.
        array = term.reshape(shape).astype(_numpy_dtype(value.dtype))
        name = draft.constant(f"{item.output}/{'scale' if op == 'Mul' else 'shift'}", array)
        target = item.output if last else draft.value(f"{item.output}/scaled", value)
        label = item.name if last else f"{item.name}/scale"
        nodes.append(Node(op, (source, name), (target,), {}, label, "", max(item.version, 7)))
        source = target
    return nodes or [Node("Identity", (source,), (item.output,), {}, item.name, "", item.version)]


def _numpy_dtype(name: str) -> np.dtype[np.generic]:
    from roller.models.onnx.onnx_types import onnx_dtype

    return onnx_dtype(name)


def _scale_weights(weights: np.ndarray, scale: np.ndarray | None, axis: int) -> np.ndarray | None:
    """Return weights times a scale along one axis, rounded once; ``None`` if a finite weight would overflow."""
    if scale is None:
        return weights
    scale = np.broadcast_to(scale, (weights.shape[axis],))
    result = np.empty(weights.shape, weights.dtype)
    step = max(1, (1 << 22) * weights.shape[axis] // max(weights.size, 1))  # limits the memory of float64 copies
    for start in range(0, weights.shape[axis], step):
        part = (slice(None),) * axis + (slice(start, start + step),)
        factor = scale[start : start + step].reshape((-1,) + (1,) * (weights.ndim - axis - 1))
        with np.errstate(over="ignore"):
            result[part] = (weights[part].astype(np.float64) * factor).astype(weights.dtype)
        if not np.isfinite(result[part].astype(np.float32 if weights.dtype.itemsize < 4 else weights.dtype)).all():
            return None
    return result


def _fold_into_convolution(
    draft: MutableGraph, node: Node, weights: np.ndarray, affine: AffineMap
) -> tuple[Node] | None:
    """Fold ``affine`` into the weights and bias of a Conv or a ConvTranspose; ``None`` if that is impossible."""
    channels = draft.shape(node.outputs[0])[1]
    bias = draft.constant_input(node, 2)
    if (
        affine.axis not in (None, 1)
        or (draft.has_input(node, 2) and bias is None)
        or _bias_and_shift_cancel(bias, affine)
    ):
        return None
    if node.op == "Conv":
        scaled = _scale_weights(weights, affine.scale, 0)
    else:
        group = node.attributes.get("group", 1)
        each = weights.reshape(group, weights.shape[0] // group, *weights.shape[1:])
        if affine.scale is None or len(affine.scale) == 1:
            scaled = _scale_weights(weights, affine.scale, 1)
        else:
            parts = [_scale_weights(w, s, 1) for w, s in zip(each, affine.scale.reshape(group, -1), strict=True)]
            if any(p is None for p in parts):
                return None
            scaled = np.concatenate([p for p in parts if p is not None])
    if scaled is None:
        return None
    return (
        _with_weights_and_bias(
            draft, node, affine, weights, scaled, 2, _compute_folded_bias(bias, affine, channels, weights.dtype)
        ),
    )


def _compute_folded_bias(
    bias: np.ndarray | None, affine: AffineMap, channels: int, dtype: np.dtype[np.generic], beta: float = 1.0
) -> np.ndarray | None:
    """Return the new bias, computed in float64 and rounded once; ``None`` without a bias and a shift."""
    if bias is None and affine.shift is None:
        return None
    total = np.zeros(channels) if bias is None else np.broadcast_to(bias.astype(np.float64).reshape(-1), (channels,))
    scale = 1.0 if affine.scale is None else affine.scale
    return np.asarray(beta * total * scale + (0.0 if affine.shift is None else affine.shift)).astype(dtype)


def _bias_and_shift_cancel(bias: np.ndarray | None, affine: AffineMap, beta: float = 1.0) -> bool:
    """Return whether a shift that an operator of the model adds nearly cancels the bias."""
    if bias is None or affine.origin is None:
        return False
    scaled = beta * bias.astype(np.float64).reshape(-1)
    return _shifts_cancel(scaled if affine.scale is None else scaled * affine.scale, affine.shift)


def _with_weights_and_bias(
    draft: MutableGraph, node: Node, affine: AffineMap, before: np.ndarray, weights: np.ndarray, position: int,
    bias: np.ndarray | None,
) -> Node:  # fmt: skip
    """Return ``node`` with new weights and a new bias; it writes the affine map's output."""
    inputs = list(node.inputs)
    if weights is not before:
        inputs[1] = draft.constant(f"{inputs[1]}/folded", weights)
    if bias is not None:
        inputs = [*inputs, *[""] * (position + 1 - len(inputs))]
        inputs[position] = draft.constant(f"{affine.output}/bias", bias)
    return replace(node, inputs=tuple(inputs), outputs=(affine.output,))


def _fold_into_gemm(draft: MutableGraph, node: Node, weights: np.ndarray, affine: AffineMap) -> tuple[Node] | None:
    channels = draft.shape(node.outputs[0])[1]
    bias = draft.constant_input(node, 2)
    if affine.axis not in (None, 1) or (draft.has_input(node, 2) and bias is None):
        return None
    if bias is not None and bias.size != 1 and (bias.size != channels or bias.shape[-1] != channels):
        return None  # a bias per row or per element
    if _bias_and_shift_cancel(bias, affine, float(node.attributes.get("beta", 1.0))):
        return None
    scaled = _scale_weights(weights, affine.scale, 0 if node.attributes.get("transB", 0) else 1)
    if scaled is None:
        return None
    new = _compute_folded_bias(bias, affine, channels, weights.dtype, float(node.attributes.get("beta", 1.0)))
    found = _with_weights_and_bias(draft, node, affine, weights, scaled, 2, new)
    return (replace(found, attributes={**node.attributes, "beta": 1.0}),)


def _fold_into_matmul(
    draft: MutableGraph, node: Node, weights: np.ndarray, affine: AffineMap
) -> tuple[Node | AffineMap, ...] | None:
    """Fold a scale into the second factor, or return ``None``; a shift remains as an addition after the product."""
    rank = len(draft.shape(node.outputs[0]))
    if weights.ndim != 2 or affine.axis not in (None, rank - 1) or affine.scale is None:
        return None
    scaled = _scale_weights(weights, affine.scale, 1)
    if scaled is None:
        return None
    if affine.shift is None:
        return (_with_weights_and_bias(draft, node, affine, weights, scaled, 2, None),)
    between = replace(affine, output=node.outputs[0])
    rest = replace(affine, scale=None, origin=None)
    return _with_weights_and_bias(draft, node, between, weights, scaled, 2, None), rest


_LINEAR: dict[str, Callable[[MutableGraph, Node, np.ndarray, AffineMap], tuple[Node | AffineMap, ...] | None]] = {
    "Conv": _fold_into_convolution,
    "ConvTranspose": _fold_into_convolution,
    "Gemm": _fold_into_gemm,
    "MatMul": _fold_into_matmul,
}
