"""Rules for shapes that onnx does not infer, or infers incorrectly."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from roller.errors import ExprError
from roller.models.graph.model_graph import Node
from roller.models.onnx.interpolation import resize_scales_and_shape
from roller.models.onnx.lowering_helpers import site_windows
from roller.models.onnx.lowering_registry import Site, Unsupported
from roller.models.onnx.operators.conv_transpose import conv_transpose_result_shape
from roller.models.onnx.operators.movement import normalise_axis
from roller_runtime.plan.program_steps import Value

Inputs = Sequence[Value | None]
Constants = Sequence[np.ndarray | None]
#: Returns the shape of a node's first result, given the types of its inputs and the values of constant inputs.
Rule = Callable[[Node, Inputs, Constants], tuple[int, ...] | None]


def fill_missing_shape(
    found: list[Value | None] | str, node: Node, outputs: Sequence[str], inputs: Inputs, constants: Constants
) -> list[Value | None] | str:
    """Return the types of a node's outputs, with the first filled in by a rule if it is missing."""
    rule = None if node.domain else _RULES.get(node.op)
    missing = "deprecated" in found if isinstance(found, str) else found[0] is None
    if rule is None or not missing or not inputs or (first := inputs[0]) is None:
        return found
    try:
        shape = rule(node, inputs, constants)
    except (IndexError, TypeError, ValueError):  # invalid inputs or attributes
        return found
    return found if shape is None else [Value(outputs[0], shape, first.dtype), *[None] * (len(outputs) - 1)]


def correct_inferred_shape(
    found: list[Value | None] | str, node: Node, declared: Sequence[Value | None], inputs: Inputs, constants: Constants
) -> list[Value | None] | str:
    """Return the types of a node's outputs, corrected if inference contradicts the operator's attributes."""
    rule = None if node.domain else _MADE.get(node.op)
    if rule is None or isinstance(found, str) or found[0] is None:
        return found
    try:
        shape = rule(node, inputs, constants)
    except (Unsupported, ExprError, IndexError, TypeError, ValueError):  # lowering reports the error
        return found
    if shape is None or shape == found[0].shape:
        return found
    said = next(iter(declared), None)
    shape = shape if said is None else said.shape
    return [None if v is None else Value(v.name, shape, v.dtype) for v in found]


def _conv_transpose_shape(node: Node, inputs: Inputs, constants: Constants) -> tuple[int, ...] | None:
    """Return the shape of a ConvTranspose; onnx adds ``output_padding`` even if ``auto_pad`` gives the size."""
    return conv_transpose_result_shape(Site(node, tuple(inputs), (), tuple(constants)))


def _pooling_shape(node: Node, inputs: Inputs, constants: Constants) -> tuple[int, ...] | None:
    """Return the shape of a pooling; onnx counts windows that begin after the image."""
    x, kernel = inputs[0], tuple(int(k) for k in node.attributes.get("kernel_shape", ()))
    if x is None or 0 in x.shape or len(kernel) != len(x.shape) - 2:
        return None
    site = Site(node, tuple(inputs), (), tuple(constants))
    over = site_windows(site, x.shape[2:], kernel, ceil=bool(node.attributes.get("ceil_mode", 0)))
    return (*x.shape[:2], *(a.extent for a in over.outs))


def _resize_shape(node: Node, inputs: Inputs, constants: Constants) -> tuple[int, ...] | None:
    """Return the shape of a Resize to given sizes; onnx rounds in float32 if the aspect ratio is kept."""
    x, sizes = inputs[0], constants[3] if len(constants) > 3 else None
    if x is None or sizes is None or not sizes.size or 0 in x.shape:
        return None
    rank = len(x.shape)
    axes = [normalise_axis(int(a), rank) for a in node.attributes.get("axes") or range(rank)]
    return resize_scales_and_shape(
        x.shape, sizes.ravel().tolist(), axes, node.attributes.get("keep_aspect_ratio_policy", "stretch")
    )[1]


def _axes_of_node(node: Node, constants: Constants, rank: int) -> list[int] | None:
    """Return a node's axes, from an attribute or a constant, counted from the front; ``None`` if unknown."""
    given = node.attributes.get("axes")
    if given is None and len(constants) > 1 and constants[1] is not None:
        given = constants[1].ravel().tolist()
    return None if given is None else [normalise_axis(int(a), rank) for a in given]


def _unsqueeze_shape(node: Node, inputs: Inputs, constants: Constants) -> tuple[int, ...] | None:
    """Return the shape of an Unsqueeze; onnx ignores negative axes in the first version."""
    x, given = inputs[0], node.attributes.get("axes", ())
    axes = None if x is None else _axes_of_node(node, constants, len(x.shape) + len(given))
    if x is None or axes is None or not given or len(set(axes)) < len(axes):
        return None
    left = iter(x.shape)
    return tuple(1 if d in axes else next(left) for d in range(len(x.shape) + len(axes)))


def _squeeze_shape(node: Node, inputs: Inputs, constants: Constants) -> tuple[int, ...] | None:
    """Return the shape of a Squeeze; onnx ignores negative axes in the first version."""
    x = inputs[0]
    axes = None if x is None else _axes_of_node(node, constants, len(x.shape))
    if x is None or axes is None or any(x.shape[d] != 1 for d in axes):
        return None
    return tuple(n for d, n in enumerate(x.shape) if d not in axes)


def _shape_of_first_input(node: Node, inputs: Inputs, constants: Constants) -> tuple[int, ...] | None:
    """Return the input's shape (``None`` if absent), for operators whose result shape onnx does not infer."""
    return None if inputs[0] is None else inputs[0].shape


def _gather_nd_shape(node: Node, inputs: Inputs, constants: Constants) -> tuple[int, ...] | None:
    """Return the shape of GatherND; onnx does not accept a single tuple."""
    data, indices = inputs[0], inputs[1]
    batch = int(node.attributes.get("batch_dims", 0))
    if data is None or indices is None or not indices.shape or indices.shape[-1] + batch > len(data.shape):
        return None
    return (*indices.shape[:-1], *data.shape[batch + indices.shape[-1] :])


def _compress_shape(node: Node, inputs: Inputs, constants: Constants) -> tuple[int, ...] | None:
    """Return the shape of a Compress with a constant condition."""
    data, condition = inputs[0], constants[1]
    if data is None or condition is None:
        return None
    axis = node.attributes.get("axis")
    length = data.elements if axis is None else data.shape[axis] if -len(data.shape) <= axis < len(data.shape) else -1
    if condition.ndim != 1 or condition.size > length:
        return None
    left = int(np.count_nonzero(condition))
    if axis is None:
        return (left,)
    axis %= len(data.shape)
    return (*data.shape[:axis], left, *data.shape[axis + 1 :])


def _slice_shape(node: Node, inputs: Inputs, constants: Constants) -> tuple[int, ...] | None:
    """Return the shape of a Slice with attributes (before version 10); onnx infers none for an empty result."""
    if inputs[0] is None or "starts" not in node.attributes or "ends" not in node.attributes:
        return None
    shape = list(inputs[0].shape)
    starts, ends = node.attributes["starts"], node.attributes["ends"]
    axes = node.attributes.get("axes", tuple(range(len(starts))))
    if not len(starts) == len(ends) == len(axes) or any(not -len(shape) <= a < len(shape) for a in axes):
        return None
    for axis, start, end in zip(axes, starts, ends, strict=True):
        shape[axis] = len(range(*slice(start, end).indices(inputs[0].shape[axis])))
    return tuple(shape)


#: Rules for missing shapes.
_RULES: dict[str, Rule] = {
    "GroupNormalization": _shape_of_first_input,
    "MeanVarianceNormalization": _shape_of_first_input,
    "GatherND": _gather_nd_shape,
    "Compress": _compress_shape,
    "Slice": _slice_shape,
}
#: Rules that override inference.
_MADE: dict[str, Rule] = {
    "Squeeze": _squeeze_shape, "Unsqueeze": _unsqueeze_shape,
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _pooling_shape),
    "ConvTranspose": _conv_transpose_shape, "Resize": _resize_shape,
}  # fmt: skip
