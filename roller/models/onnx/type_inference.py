"""Cached inference of output types from input types and small constants, one node at a time."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx

from roller.models.graph.model_graph import Node
from roller.models.onnx.load_model_proto import LoadedModel
from roller.models.onnx.onnx_types import element_type, onnx_dtype, static_value_or_reason, tensor_type_proto
from roller.models.onnx.shape_corrections import correct_inferred_shape, fill_missing_shape
from roller_runtime.plan.program_steps import Value

#: Maximum number of elements in a constant passed to shape inference, such as a shape, axes, pads or split sizes.
MAX_SHAPE_ELEMENTS = 4096

#: Attribute for which onnx's inference uses a wrong default, and its correct default, by operator.
_FORGOTTEN = {"STFT": ("onesided", 1)}


class Inference:
    """Infers the output types of one model's nodes.

    Parameters
    ----------
    declared
        Types declared by the model, used if inference gives none; empty if shapes were overridden.
    values, constants
        Known values and constants by unique name, which the tracer extends.
    loose
        Types of values without known shapes, which the tracer extends.
    """

    def __init__(
        self, loaded: LoadedModel, declared: Mapping[str, Value], values: Mapping[str, Value],
        constants: Mapping[str, np.ndarray], loose: Mapping[str, onnx.TypeProto] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.loaded, self.declared, self.values, self.constants = loaded, declared, values, constants
        self.loose = loose
        self._seen: dict[Hashable, list[Value | None]] = {}
        self._imports = [onnx.helper.make_opsetid(d, v) for d, v in loaded.opsets.items()]
        self._data: dict[str, onnx.TensorProto] = {}
        self._schemas: dict[tuple[str, str, int], onnx.defs.OpSchema | None] = {}

    def schema(self, traced: Node) -> onnx.defs.OpSchema | None:
        """Return the onnx schema of a node's operator; ``None`` if there is none."""
        key = traced.domain, traced.op, traced.version
        if key not in self._schemas:
            try:
                self._schemas[key] = onnx.defs.get_schema(traced.op, traced.version, traced.domain)
            except onnx.defs.SchemaError:
                self._schemas[key] = None
        return self._schemas[key]

    def types(self, node: onnx.NodeProto, traced: Node) -> list[Value | None] | str:
        """Return the type of each of a node's outputs (``None`` if unknown), or the reason why the node is refused."""
        inputs = [self.values[i] if i else None for i in traced.inputs]
        found, constants = (
            self._types_inferred_or_declared(node, traced),
            [self.constants.get(i) for i in traced.inputs],
        )
        found = correct_inferred_shape(found, traced, [self.declared.get(o) for o in node.output], inputs, constants)
        return fill_missing_shape(found, traced, node.output, inputs, constants)

    def _types_inferred_or_declared(self, node: onnx.NodeProto, traced: Node) -> list[Value | None] | str:
        """Return the types from onnx or from the model's declarations."""
        schema = self.schema(traced)
        declared = [self.declared.get(o) for o in node.output]
        if schema is None:
            if all(d is not None for d, o in zip(declared, node.output, strict=True) if o):
                return declared
            known = traced.domain in ("", "ai.onnx.ml") and traced.domain in self.loaded.opsets
            where = f"operator set {traced.version}" if known else f"domain '{traced.domain}'"
            return f"no operator of this name is known in {where}, and the model does not declare what it returns"
        data = {
            n: d
            for n, i in zip(node.input, traced.inputs, strict=True)
            if n and (d := self._small_constant_proto(i)) is not None
        }
        if data:
            return self._inferred_types(schema, node, traced, data, declared)
        # Layers repeat: equal nodes with equal input types have equal result types.
        given = tuple((v.shape, v.dtype) if (v := self.values.get(i)) else None for i in traced.inputs)
        details = b"".join(a.SerializeToString() for a in node.attribute)
        key = traced.domain, traced.op, traced.version, details, given, tuple(map(bool, node.output))
        if key in self._seen and not any(declared):
            return self._seen[key]
        types = self._inferred_types(schema, node, traced, data, declared)
        if not isinstance(types, str):
            self._seen[key] = types
        return types

    def _inferred_types(
        self, schema: onnx.defs.OpSchema, node: onnx.NodeProto, traced: Node, data: Mapping[str, onnx.TensorProto],
        declared: Sequence[Value | None],
    ) -> list[Value | None] | str:  # fmt: skip
        """Return the output types that onnx infers for a node, or the reason why onnx refuses the node."""
        names = {n: i for n, i in zip(node.input, traced.inputs, strict=True) if n}
        inferred = self._run_onnx_inference(schema, node, traced, names, data)
        if isinstance(inferred, str):
            return inferred
        types: list[Value | None] = []
        for name, own in zip(node.output, declared, strict=True):
            value = static_value_or_reason(name, inferred[name]) if name in inferred else own
            if isinstance(value, str):
                if "not known" not in value:
                    return value
                value = own
            types.append(value)
        return types

    def output_type_protos_or_refusal(self, node: onnx.NodeProto, traced: Node) -> Mapping[str, onnx.TypeProto] | str:
        """Return the ONNX types of a node's outputs, even of unknown shape, or the reason why onnx refuses the node."""
        schema = self.schema(traced)
        if schema is None:
            return "no operator of this name is known"
        names = {n: n for n in traced.inputs if n}
        return self._run_onnx_inference(
            schema, node, traced, names, {n: d for n in names if (d := self._small_constant_proto(n)) is not None}
        )

    def _run_onnx_inference(
        self, schema: onnx.defs.OpSchema, node: onnx.NodeProto, traced: Node, names: Mapping[str, str],
        data: Mapping[str, onnx.TensorProto],
    ) -> Mapping[str, onnx.TypeProto] | str:  # fmt: skip
        """Return the result of onnx's inference for a node; ``names`` maps the node's input names to unique ones."""
        given = {n: self._type(name) for n, name in names.items()}
        if (forgotten := _FORGOTTEN.get(node.op_type)) is not None and forgotten[0] not in traced.attributes:
            details, node = node, onnx.NodeProto()
            node.CopyFrom(details)
            node.attribute.append(onnx.helper.make_attribute(*forgotten))
        try:
            found: Mapping[str, onnx.TypeProto] = onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                given,
                dict(data),
                opset_imports=self._operator_sets_of(traced),
                ir_version=self.loaded.ir_version,
            )
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
            return str(error).replace("[ShapeInferenceError] ", "").replace("[TypeInferenceError] ", "").strip()
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            return f"its shape cannot be inferred: {error}"
        return found

    def _type(self, name: str) -> onnx.TypeProto:
        if name in self.loose:
            return self.loose[name]
        value = self.values[name]
        return tensor_type_proto(element_type(onnx_dtype(value.dtype)), value.shape)

    def _operator_sets_of(self, traced: Node) -> list[onnx.OperatorSetIdProto]:
        """Return a node's operator sets: those of the model, or that of the function definition with the node."""
        if self.loaded.opsets.get(traced.domain) == traced.version:
            return self._imports
        return [onnx.helper.make_opsetid(traced.domain, traced.version)]

    def _small_constant_proto(self, name: str) -> onnx.TensorProto | None:
        """Return a small constant as a protobuf message for inference; ``None`` for other values."""
        array = self.constants.get(name)
        if array is None or array.ndim > 1 or array.size > MAX_SHAPE_ELEMENTS or array.dtype.kind == "O":
            return None
        if name not in self._data:
            self._data[name] = onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape))
        return self._data[name]
