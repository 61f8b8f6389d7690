"""Expands operators without a lowering into their ONNX definitions.

The definition's nodes are traced in the definition's operator set, like the nodes of a body, so that their shape
arithmetic becomes constant.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import onnx
import onnx.parser

from roller.models.graph.model_graph import Node
from roller.models.onnx.lowering_registry import has_lowering
from roller.models.onnx.name_scope import Scope
from roller.models.onnx.onnx_types import element_type, onnx_dtype, tensor_type_proto
from roller.models.onnx.tracer_interface import GraphTracer

#: Definitions that replace those of ONNX. A range of zeros has the scale 1, as in ONNX Runtime: with ONNX's scale 0,
#: the zero point and all elements would be 0 / 0.
_DEFINITIONS = {
    ("", "DynamicQuantizeLinear"): """
        <domain: "roller", opset_import: ["" : 11]>
        DynamicQuantizeLinear (x) => (y, y_scale, y_zero_point) {
            Q_Min = Constant <value: tensor = float {0}> ()
            Q_Max = Constant <value: tensor = float {255}> ()
            One = Constant <value: tensor = float {1}> ()
            X_Min = ReduceMin <keepdims: int = 0> (x)
            X_Min_Adjusted = Min (X_Min, Q_Min)
            X_Max = ReduceMax <keepdims: int = 0> (x)
            X_Max_Adjusted = Max (X_Max, Q_Min)
            X_Range = Sub (X_Max_Adjusted, X_Min_Adjusted)
            Scale = Div (X_Range, Q_Max)
            Is_Zero = Equal (Scale, Q_Min)
            y_scale = Where (Is_Zero, One, Scale)
            Min_Scaled = Div (X_Min_Adjusted, y_scale)
            Initial_ZeroPoint_FP = Sub (Q_Min, Min_Scaled)
            Clipped_ZeroPoint_FP = Clip (Initial_ZeroPoint_FP, Q_Min, Q_Max)
            Rounded_ZeroPoint_FP = Round (Clipped_ZeroPoint_FP)
            Zeropoint = Cast <to: int = 2> (Rounded_ZeroPoint_FP)
            y_zero_point = Identity (Zeropoint)
            y = QuantizeLinear (x, y_scale, Zeropoint)
        }
    """,
}


def trace_definition(tracer: GraphTracer, node: onnx.NodeProto, traced: Node, scope: Scope) -> bool:
    """Trace an operator's definition in its place if it has no lowering of its own; return whether that was done."""
    if has_lowering(traced.domain, traced.op):
        return False
    schema: Any = tracer.inference.schema(traced)
    body = None if schema is None else _find_definition(tracer, schema, node, traced)
    if body is None:
        return False
    given = (
        {a.name: a for a in body.attribute_proto}
        | dict(_default_attributes(schema))
        | {a.name: a for a in node.attribute}
    )
    opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in body.opset_import}
    inner = Scope(prefix=f"{traced.name}/", parent=Scope(), opsets=opsets)
    inner.names = {formal: name for formal, name in zip(body.input, traced.inputs, strict=False) if name}
    before = len(tracer.refused)
    tracer.run([_substitute_attributes(n, given) for n in body.node], inner, body.output[: len(node.output)])
    found = [inner.find(n) for n in body.output]
    if len(tracer.refused) > before:
        # The names of nodes in the definition are unknown to the user.
        reason = tracer.refused[before].split(": ", 1)[-1]
        del tracer.refused[before:]
        tracer.refuse(traced, f"in its definition {reason}")
        tracer.forget(node, scope)
        return True
    for name, result in zip(node.output, found, strict=False):
        if name in scope.used and result is not None:
            tracer.alias(scope, name, result)
    return True


def _find_definition(tracer: GraphTracer, schema: Any, node: onnx.NodeProto, traced: Node) -> onnx.FunctionProto | None:
    """Return an operator's definition in the newest operator set not newer than the model's; ``None`` without any."""
    if (traced.domain, traced.op) in _DEFINITIONS:
        return _parse_definition(_DEFINITIONS[traced.domain, traced.op])
    plain, by_context = schema.function_opset_versions, schema.context_dependent_function_opset_versions
    versions = [v for v in (*plain, *by_context) if v <= max(traced.version, schema.since_version)]
    if not versions:
        return None
    version = max(versions)
    if schema.has_context_dependent_function and version in by_context:
        types = []
        for name in traced.inputs:
            value = tracer.values.get(name)
            known = (
                onnx.TypeProto()
                if value is None
                else tensor_type_proto(element_type(onnx_dtype(value.dtype)), value.shape)
            )
            types.append(known.SerializeToString())
        written = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), types)
    else:
        written = schema.get_function_with_opset_version(version)
    return onnx.FunctionProto.FromString(written) if written else None


@functools.cache
def _parse_definition(text: str) -> onnx.FunctionProto:
    return onnx.parser.parse_function(text)


def _default_attributes(schema: Any) -> Iterable[tuple[str, onnx.AttributeProto]]:
    """Yield the default values of an operator's attributes."""
    for name, attribute in schema.attributes.items():
        if attribute.default_value.name:
            yield name, attribute.default_value


def _substitute_attributes(node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """Return a node of a definition whose attribute references are replaced by the caller's attributes."""
    out = onnx.NodeProto()
    out.CopyFrom(node)
    del out.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            value = given.get(attribute.ref_attr_name)
            if value is not None:
                out.attribute.append(value)
                out.attribute[-1].name = attribute.name
            continue
        out.attribute.append(attribute)
        if attribute.type == onnx.AttributeProto.GRAPH:
            inner = [_substitute_attributes(n, given) for n in attribute.g.node]
            del out.attribute[-1].g.node[:]
            out.attribute[-1].g.node.extend(inner)
    return out
