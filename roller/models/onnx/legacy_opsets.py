"""Converts nodes from operator sets before 7 to set 7 during tracing, when shapes are known.

onnx's own converter (1.23) is not used: it supports ``axis`` only at the first or last dimensions, and not for logical
operators and comparisons. It also leaves PRelu slopes in a shape that set 7 aligns with the last axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import onnx

from roller.models.onnx.load_model_proto import OLDEST
from roller.models.onnx.tracer_interface import GraphTracer


class _UnconvertibleNode(Exception):
    """Raised if a node cannot be converted to set 7; the message gives the reason."""


Inputs: TypeAlias = tuple[str, ...]
#: Converts a node in place; returns the unique names of its new inputs.
Rule: TypeAlias = Callable[[GraphTracer, onnx.NodeProto, Inputs], Inputs]


def convert_to_opset_7(
    tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs
) -> tuple[onnx.NodeProto, Inputs] | str:
    """Convert a node of ONNX's own domain to set 7; return it and its inputs, or the reason why that is impossible."""
    if tracer.loaded.written not in range(1, OLDEST):
        return node, inputs
    out = onnx.NodeProto()
    out.CopyFrom(node)
    _drop_attributes(out, "consumed_inputs")  # before set 6, inputs that may be overwritten; no effect on results
    _add_changed_defaults(out, tracer.loaded.written)
    rule = _RULES.get(node.op_type)
    try:
        return out, (inputs if rule is None else rule(tracer, out, inputs))
    except _UnconvertibleNode as why:
        return str(why)
    except (IndexError, KeyError, AttributeError, TypeError, ValueError) as error:
        return f"it is no {node.op_type} of operator set {tracer.loaded.written} ({error})"


def _add_changed_defaults(node: onnx.NodeProto, written: int) -> None:
    """Add attributes whose defaults differ between the node's own set and set 7 (such as the constants of Selu)."""
    said = {a.name for a in node.attribute}
    later = _default_attributes(node.op_type, OLDEST)
    for name, default in _default_attributes(node.op_type, written).items():
        if default.type and name in later and name not in said and default != later[name]:
            node.attribute.append(default)


def _default_attributes(operator: str, version: int) -> dict[str, onnx.AttributeProto]:
    """Return the default values of an operator's attributes in a set; an attribute without a default has no value."""
    try:
        schema = onnx.defs.get_schema(operator, version, "")
    except onnx.defs.SchemaError:  # not an ONNX operator
        return {}
    return {name: a.default_value for name, a in schema.attributes.items()}


def _attribute_value(node: onnx.NodeProto, name: str, default: object = None) -> object:
    found = next((a for a in node.attribute if a.name == name), None)
    return default if found is None else onnx.helper.get_attribute_value(found)


def _drop_attributes(node: onnx.NodeProto, *names: str) -> None:
    kept = [a for a in node.attribute if a.name not in names]
    del node.attribute[:]
    node.attribute.extend(kept)


def _set_attribute(node: onnx.NodeProto, name: str, value: object) -> None:
    _drop_attributes(node, name)
    node.attribute.append(onnx.helper.make_attribute(name, value))


def _rename_attribute(node: onnx.NodeProto, old: str, new: str) -> None:
    for attribute in node.attribute:
        if attribute.name == old:
            attribute.name = new


def _add_constant(tracer: GraphTracer, node: onnx.NodeProto, what: str, array: np.ndarray) -> str:
    name = tracer.fresh(f"{node.output[0]}/{what}")
    tracer.constant(name, array)
    return name


def _append_reshape(tracer: GraphTracer, node: onnx.NodeProto, name: str, shape: tuple[int, ...]) -> str:
    """Return the name of the value ``name`` reshaped to ``shape``."""
    if tracer.values[name].shape == shape:
        return name
    return tracer.emit("Reshape", [name, _add_constant(tracer, node, "shape", np.array(shape, np.int64))])


def _convert_broadcast_axis(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Reshape the second operand so that it aligns with the first operand at ``axis``."""
    details, axis = bool(_attribute_value(node, "broadcast", 0)), _attribute_value(node, "axis")
    _drop_attributes(node, "broadcast", "axis")
    one, other = (tracer.values[n] for n in inputs)
    if one.shape == other.shape:
        return inputs
    if not details:
        raise _UnconvertibleNode(
            f"its operands have shapes {list(one.shape)} and {list(other.shape)}, and broadcast is not set"
        )
    rank, length = len(one.shape), len(other.shape)
    if other.elements == 1 and length <= rank:
        return inputs
    first = rank - length if axis is None else int(str(axis)) % max(rank, 1)
    behind = rank - first - length
    if behind < 0 or first < 0 or any(s not in (1, t) for s, t in zip(other.shape, one.shape[first:], strict=False)):
        raise _UnconvertibleNode(f"{list(other.shape)} does not broadcast to {list(one.shape)} from axis {first} on")
    return inputs[0], _append_reshape(tracer, node, inputs[1], (*other.shape, *(1,) * behind))


def _convert_gemm(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Drop ``broadcast``: the third operand of a Gemm aligns with the last dimensions."""
    _drop_attributes(node, "broadcast")
    return inputs


def _convert_prelu(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Reshape per-channel PRelu slopes to align with the channels."""
    x, slope = (tracer.values[n] for n in inputs)
    if len(slope.shape) == 1 and slope.elements != 1 and len(x.shape) > 1 and slope.shape[0] == x.shape[1]:
        return inputs[0], _append_reshape(tracer, node, inputs[1], (slope.elements, *(1,) * (len(x.shape) - 2)))
    return inputs


def _refuse_training(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Refuse training mode; without ``is_test``, a node is in inference mode, as in set 7."""
    if _attribute_value(node, "is_test", 1) == 0:
        raise _UnconvertibleNode("is_test=0 is training. Export the model for inference")
    _drop_attributes(node, "is_test")
    return inputs


def _convert_reshape(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Turn the target shape of a Reshape from an attribute into an input."""
    shape = _attribute_value(node, "shape")
    if shape is None:
        return inputs
    _drop_attributes(node, "shape")
    node.input.append(f"{node.output[0]}/shape")
    return (*inputs, _add_constant(tracer, node, "shape", np.array(shape, np.int64)))


def _convert_concat(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Set the axis of a Concat to its old default, 1."""
    if _attribute_value(node, "axis") is None:
        _set_attribute(node, "axis", 1)
    return inputs


def _convert_cast(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Convert the target type of a Cast from a name to its number."""
    to = _attribute_value(node, "to")
    if isinstance(to, bytes):
        _set_attribute(node, "to", onnx.TensorProto.DataType.Value(to.decode().upper()))
    return inputs


def _convert_pad(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Rename the attribute ``paddings`` of a Pad to ``pads``."""
    _rename_attribute(node, "paddings", "pads")
    return inputs


def _convert_lp_pool(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Convert the exponent ``p`` of a norm to an integer."""
    p = _attribute_value(node, "p", 2)
    if float(str(p)) != int(float(str(p))):
        raise _UnconvertibleNode(f"p={p} is no whole number")
    _set_attribute(node, "p", int(float(str(p))))
    return inputs


def _convert_split(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Turn the sizes of a Split from an input into an attribute."""
    if len(inputs) > 1 and inputs[1]:
        sizes = tracer.constants.get(inputs[1])
        if sizes is None:
            raise _UnconvertibleNode("the sizes of its parts are computed at run time")
        _set_attribute(node, "split", [int(s) for s in sizes.reshape(-1)])
    del node.input[1:]
    return inputs[:1]


def _convert_tile(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Convert a Tile's repetition of one axis to repetitions of all axes."""
    if len(inputs) < 3:
        return inputs
    tiles, axis = (tracer.constants.get(n) for n in inputs[1:3])
    if tiles is None or axis is None:
        raise _UnconvertibleNode("how often it repeats which axis is computed at run time")
    repeats = np.ones(len(tracer.values[inputs[0]].shape), np.int64)
    repeats[int(axis.reshape(-1)[0])] = int(tiles.reshape(-1)[0])
    del node.input[2:]
    return inputs[0], _add_constant(tracer, node, "repeats", repeats)


def _convert_upsample(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Combine the scales of an Upsample into one attribute."""
    height, width = _attribute_value(node, "height_scale"), _attribute_value(node, "width_scale")
    if height is not None and width is not None:
        _drop_attributes(node, "height_scale", "width_scale")
        _set_attribute(node, "scales", [1.0, 1.0, float(str(height)), float(str(width))])
    return inputs


def _convert_recurrent(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Drop ``output_sequence``, which is implied by the outputs that are named, and correct a misspelt direction."""
    _drop_attributes(node, "output_sequence")
    if _attribute_value(node, "direction") == b"foward":  # set 1 misspells its default
        _set_attribute(node, "direction", "forward")
    return inputs


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"),
                    _convert_broadcast_axis),
    **dict.fromkeys(("BatchNormalization", "Dropout"), _refuse_training),
    **dict.fromkeys(("GlobalLpPool", "LpPool"), _convert_lp_pool),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _convert_recurrent),
    "Cast": _convert_cast, "Concat": _convert_concat, "Gemm": _convert_gemm, "PRelu": _convert_prelu,
    "Pad": _convert_pad,
    "Reshape": _convert_reshape, "Split": _convert_split, "Tile": _convert_tile, "Upsample": _convert_upsample,
}  # fmt: skip
