"""Conversion of nodes from operator sets before 7 to set 7, during tracing, when shapes are known.

onnx's own converter (1.23) is not used: it supports ``axis`` only at the first or last dimensions and not for logic and
comparisons, and leaves PRelu slopes in a shape that set 7 aligns with the last axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import onnx

from roller.models.onnx.loading import OLDEST
from roller.models.onnx.tracer_interface import GraphTracer


class _Odd(Exception):
    """The reason why a node cannot be converted to set 7."""


Inputs: TypeAlias = tuple[str, ...]
#: Converts a node in place; returns its new inputs by unique name.
Rule: TypeAlias = Callable[[GraphTracer, onnx.NodeProto, Inputs], Inputs]


def modern(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> tuple[onnx.NodeProto, Inputs] | str:
    """Return a node of ONNX's own domain and its inputs, converted to set 7, or the reason why that is impossible."""
    if tracer.loaded.written not in range(1, OLDEST):
        return node, inputs
    out = onnx.NodeProto()
    out.CopyFrom(node)
    _dropped(out, "consumed_inputs")  # before set 6, inputs that may be overwritten; no effect on results
    _say_defaults(out, tracer.loaded.written)
    rule = _RULES.get(node.op_type)
    try:
        return out, (inputs if rule is None else rule(tracer, out, inputs))
    except _Odd as why:
        return str(why)
    except (IndexError, KeyError, AttributeError, TypeError, ValueError) as error:
        return f"it is no {node.op_type} of operator set {tracer.loaded.written} ({error})"


def _say_defaults(node: onnx.NodeProto, written: int) -> None:
    """Add attributes whose defaults differ between the node's own set and set 7 (such as the constants of Selu)."""
    said = {a.name for a in node.attribute}
    later = _defaults(node.op_type, OLDEST)
    for name, default in _defaults(node.op_type, written).items():
        if default.type and name in later and name not in said and default != later[name]:
            node.attribute.append(default)


def _defaults(operator: str, version: int) -> dict[str, onnx.AttributeProto]:
    """Return the attributes of an operator in a set, by name; those without a default have no value."""
    try:
        schema = onnx.defs.get_schema(operator, version, "")
    except onnx.defs.SchemaError:  # not an ONNX operator
        return {}
    return {name: a.default_value for name, a in schema.attributes.items()}


def _value(node: onnx.NodeProto, name: str, default: object = None) -> object:
    found = next((a for a in node.attribute if a.name == name), None)
    return default if found is None else onnx.helper.get_attribute_value(found)


def _dropped(node: onnx.NodeProto, *names: str) -> None:
    kept = [a for a in node.attribute if a.name not in names]
    del node.attribute[:]
    node.attribute.extend(kept)


def _given(node: onnx.NodeProto, name: str, value: object) -> None:
    _dropped(node, name)
    node.attribute.append(onnx.helper.make_attribute(name, value))


def _renamed(node: onnx.NodeProto, old: str, new: str) -> None:
    for attribute in node.attribute:
        if attribute.name == old:
            attribute.name = new


def _constant(tracer: GraphTracer, node: onnx.NodeProto, what: str, array: np.ndarray) -> str:
    name = tracer.fresh(f"{node.output[0]}/{what}")
    tracer.constant(name, array)
    return name


def _reshaped(tracer: GraphTracer, node: onnx.NodeProto, name: str, shape: tuple[int, ...]) -> str:
    """Return a value in another shape."""
    if tracer.values[name].shape == shape:
        return name
    return tracer.emit("Reshape", [name, _constant(tracer, node, "shape", np.array(shape, np.int64))])


def _aligned(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Reshape the second operand to align at ``axis``."""
    told, axis = bool(_value(node, "broadcast", 0)), _value(node, "axis")
    _dropped(node, "broadcast", "axis")
    one, other = (tracer.values[n] for n in inputs)
    if one.shape == other.shape:
        return inputs
    if not told:
        raise _Odd(f"its operands have shapes {list(one.shape)} and {list(other.shape)}, and broadcast is not set")
    rank, length = len(one.shape), len(other.shape)
    if other.elements == 1 and length <= rank:
        return inputs
    first = rank - length if axis is None else int(str(axis)) % max(rank, 1)
    behind = rank - first - length
    if behind < 0 or first < 0 or any(s not in (1, t) for s, t in zip(other.shape, one.shape[first:], strict=False)):
        raise _Odd(f"{list(other.shape)} does not broadcast to {list(one.shape)} from axis {first} on")
    return inputs[0], _reshaped(tracer, node, inputs[1], (*other.shape, *(1,) * behind))


def _product(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Drop ``broadcast``: the third operand of a Gemm aligns with the last dimensions."""
    _dropped(node, "broadcast")
    return inputs


def _slopes(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Reshape per-channel PRelu slopes to align with the channels."""
    x, slope = (tracer.values[n] for n in inputs)
    if len(slope.shape) == 1 and slope.elements != 1 and len(x.shape) > 1 and slope.shape[0] == x.shape[1]:
        return inputs[0], _reshaped(tracer, node, inputs[1], (slope.elements, *(1,) * (len(x.shape) - 2)))
    return inputs


def _inference(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Refuse training mode; without ``is_test``, a node is in inference mode, as in set 7."""
    if _value(node, "is_test", 1) == 0:
        raise _Odd("is_test=0 is training. Export the model for inference")
    _dropped(node, "is_test")
    return inputs


def _shape_beside(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Make the target shape of a Reshape an input."""
    shape = _value(node, "shape")
    if shape is None:
        return inputs
    _dropped(node, "shape")
    node.input.append(f"{node.output[0]}/shape")
    return (*inputs, _constant(tracer, node, "shape", np.array(shape, np.int64)))


def _channels(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Set the default axis 1 of a Concat."""
    if _value(node, "axis") is None:
        _given(node, "axis", 1)
    return inputs


def _target(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Convert the type of a Cast from a name to a number."""
    to = _value(node, "to")
    if isinstance(to, bytes):
        _given(node, "to", onnx.TensorProto.DataType.Value(to.decode().upper()))
    return inputs


def _paddings(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Rename the attribute of a Pad."""
    _renamed(node, "paddings", "pads")
    return inputs


def _power(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Convert the ``p`` of a norm to an integer."""
    p = _value(node, "p", 2)
    if float(str(p)) != int(float(str(p))):
        raise _Odd(f"p={p} is no whole number")
    _given(node, "p", int(float(str(p))))
    return inputs


def _parts(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Make the sizes of a Split an attribute."""
    if len(inputs) > 1 and inputs[1]:
        sizes = tracer.constants.get(inputs[1])
        if sizes is None:
            raise _Odd("the sizes of its parts are computed at run time")
        _given(node, "split", [int(s) for s in sizes.reshape(-1)])
    del node.input[1:]
    return inputs[:1]


def _repeats(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Convert a Tile's repetition of one axis to repetitions of all axes."""
    if len(inputs) < 3:
        return inputs
    tiles, axis = (tracer.constants.get(n) for n in inputs[1:3])
    if tiles is None or axis is None:
        raise _Odd("how often it repeats which axis is computed at run time")
    repeats = np.ones(len(tracer.values[inputs[0]].shape), np.int64)
    repeats[int(axis.reshape(-1)[0])] = int(tiles.reshape(-1)[0])
    del node.input[2:]
    return inputs[0], _constant(tracer, node, "repeats", repeats)


def _scales(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Combine the scales of an Upsample into one attribute."""
    height, width = _value(node, "height_scale"), _value(node, "width_scale")
    if height is not None and width is not None:
        _dropped(node, "height_scale", "width_scale")
        _given(node, "scales", [1.0, 1.0, float(str(height)), float(str(width))])
    return inputs


def _recurrent(tracer: GraphTracer, node: onnx.NodeProto, inputs: Inputs) -> Inputs:
    """Drop ``output_sequence``, which named outputs replace."""
    _dropped(node, "output_sequence")
    if _value(node, "direction") == b"foward":  # set 1 misspells its default
        _given(node, "direction", "forward")
    return inputs


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"), _aligned),
    **dict.fromkeys(("BatchNormalization", "Dropout"), _inference),
    **dict.fromkeys(("GlobalLpPool", "LpPool"), _power),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    "Cast": _target, "Concat": _channels, "Gemm": _product, "PRelu": _slopes, "Pad": _paddings,
    "Reshape": _shape_beside, "Split": _parts, "Tile": _repeats, "Upsample": _scales,
}  # fmt: skip
