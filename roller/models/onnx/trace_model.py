"""Traces a model in topological order: infers types, folds constants, and collects the other nodes.

Input shapes are static, so one pass suffices: computed shapes (by ``Shape``, ``Gather``, ``Concat`` and the like) are
constants before they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from roller.errors import ModelError
from roller.models.graph.model_graph import Node
from roller.models.onnx.control_flow import trace_control_flow
from roller.models.onnx.dynamic_shape_regions import UNKNOWN_SHAPE, leave_to_runtime, trace_reader_of_dynamic_value
from roller.models.onnx.evaluate_constants import Evaluator
from roller.models.onnx.expand_operator_definitions import trace_definition
from roller.models.onnx.folded_nodes import record_folded_node
from roller.models.onnx.input_shapes import BatchSizeCorrection
from roller.models.onnx.legacy_opsets import convert_to_opset_7
from roller.models.onnx.load_model_proto import LoadedModel
from roller.models.onnx.low_bit_weights import MOST_ROWS
from roller.models.onnx.lowering_registry import has_lowering, no_lowering_reason
from roller.models.onnx.name_scope import Scope
from roller.models.onnx.onnx_types import attribute_to_python, reason_if_too_large, value_of_array
from roller.models.onnx.runtime_operators.rewrites import WAY_OUT, is_onnxruntime_operator, trace_rewrite
from roller.models.onnx.topological_order import sort_needed_nodes
from roller.models.onnx.tracer_interface import DynamicNodes
from roller.models.onnx.type_inference import Inference
from roller.models.onnx.unsupported_nodes import count_or_refuse_dependent
from roller_runtime.core.dtypes import is_float
from roller_runtime.plan.program_steps import Value

#: Maximum number of nodes in all bodies after unrolling.
MAX_BODY_NODES = 50_000


class Tracer:
    """Traces a model and collects its values, constants and nodes.

    Parameters
    ----------
    declared
        Types declared by the model, used if inference gives none; empty if shapes were overridden.
    loose
        Receives nodes whose results have unknown shapes; if ``None``, such nodes are refused.
    """

    def __init__(
        self, loaded: LoadedModel, declared: Mapping[str, Value] | None = None, loose: DynamicNodes | None = None
    ) -> None:
        self.loaded, self.loose = loaded, loose
        self.values: dict[str, Value] = {}
        self.constants: dict[str, np.ndarray] = {}
        known = {} if loose is None else loose.types
        self.inference = Inference(loaded, declared or {}, self.values, self.constants, known)
        self.nodes: list[Node] = []
        self.refused: list[str] = []
        self.remedies: dict[str, None] = {}
        self.behind = 0
        self.unknown: set[str] = set()
        #: Largest number of rows of a product whose 4-bit weights stay packed.
        self.low_bit_rows = MOST_ROWS
        #: Constants that are computed from a length and become inputs: real numbers are not folded from them.
        self.lengths: frozenset[str] = frozenset()
        self.root = Scope()
        self.rebatching: BatchSizeCorrection | None = None
        self.inputs = {i.name for i in loaded.graph.input}
        self.outputs = {o.name for o in loaded.graph.output}
        self._labels: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._traced = 0
        self._evaluators: dict[int, Evaluator] = {}

    def is_loose(self, name: str) -> bool:
        """Return whether a value's shape is known only at run time, so that another runtime computes the value."""
        return self.loose is not None and name in self.loose.types

    def constant(self, name: str, array: np.ndarray) -> None:
        """Add a constant under its unique name."""
        self.values[name], self.constants[name] = value_of_array(name, array), array

    def define(self, scope: Scope, local: str) -> str:
        """Return a new unique name for a local name."""
        if local in scope.names:
            raise ModelError(f"{self.loaded.name}: two nodes write '{local}'. A value is written once.")
        scope.names[local] = name = self.fresh(scope.prefix + local)
        return name

    def fresh(self, base: str) -> str:
        """Return an unused name derived from ``base``."""
        name = base
        while name in self.values or name in self.unknown or self.is_loose(name):
            self._counts[base] = self._counts.get(base, 0) + 1
            name = f"{base}/{self._counts[base]}"
        return name

    def alias(self, scope: Scope, local: str, name: str) -> None:
        """Let a local name denote an existing value; an output of the model gets a copy under its own name."""
        if self.is_loose(name) and scope is self.root and local in self.outputs:
            inner = Scope({name: name}, None, "", {local})
            self.node(onnx.helper.make_node("Identity", [name], [local]), inner)
            scope.names[local] = inner.names[local]
            return
        if scope is not self.root or local not in self.outputs or name in self.unknown:
            if local in scope.names:
                raise ModelError(f"{self.loaded.name}: two nodes write '{local}'. A value is written once.")
            scope.names[local] = name
            return
        new = self.define(scope, local)
        if name in self.constants:
            self.constant(new, self.constants[name])
        else:
            self.values[new] = replace(self.values[name], name=new)
            self.nodes.append(Node("Identity", (name,), (new,), {}, self._unique_node_name(f"{new}/copy"), "", 13))

    def run(self, nodes: Iterable[onnx.NodeProto], scope: Scope, wanted: Iterable[str]) -> None:
        """Trace the nodes of one graph or body that ``wanted`` (local names) depends on."""
        nodes, wanted = list(nodes), set(wanted)
        if scope.parent is not None:
            self._traced += len(nodes) + 4  # the cost of a body besides its nodes
        if self._traced > MAX_BODY_NODES:
            raise ModelError(f"{self.loaded.name}: more than {MAX_BODY_NODES} nodes once its loops are unrolled.")
        found = sort_needed_nodes(
            nodes, set(scope.names), lambda n: scope.find(n) is not None, wanted, self.loaded.name
        )
        scope.used |= found.read | wanted
        for node in found.nodes:
            self.node(node, scope)

    def node(self, node: onnx.NodeProto, scope: Scope) -> None:
        """Trace one node."""
        inputs = tuple((scope.find(n) or "") if n else "" for n in node.input)
        domain = "" if node.domain == "ai.onnx" else node.domain
        if any(map(self.is_loose, inputs)):
            return trace_reader_of_dynamic_value(self, node, inputs, scope)
        if any(n in self.unknown for n in inputs):
            count_or_refuse_dependent(self, node, Node(node.op_type, inputs, (), {}, self.label(node, scope), domain,
                                    scope.version(domain, self.loaded.opsets)))  # fmt: skip
            return self.forget(node, scope)
        if not domain and not scope.version("", {}):  # definitions have their own operator set
            found = convert_to_opset_7(self, node, inputs)
            if isinstance(found, str):
                self.refuse(Node(node.op_type, inputs, (), {}, self.label(node, scope)), found)
                return self.forget(node, scope)
            node, inputs = found
        if trace_control_flow(self, node, inputs, scope):
            return None
        attributes = {a.name: self._attribute(a, node) for a in node.attribute if a.type != onnx.AttributeProto.GRAPH}
        if node.op_type == "Constant" and not domain:
            return self.constant(self.define(scope, node.output[0]), _constant_node_array(attributes, self.loaded.name))
        inputs = self._correct_constant_inputs(node, inputs, domain)
        traced = Node(node.op_type, inputs, (), attributes, self.label(node, scope), domain,
                      scope.version(domain, self.loaded.opsets))  # fmt: skip
        if trace_rewrite(self, node, traced, scope) or trace_definition(self, node, traced, scope):
            return None
        types = self.inference.types(node, traced)
        if isinstance(types, str):
            foreign = traced.domain and self.inference.schema(traced) and not has_lowering(traced.domain, traced.op)
            self.refuse(traced, no_lowering_reason(traced) if foreign else types)
            return self.forget(node, scope)
        untyped = any(t is None for n, t in zip(node.output, types, strict=True) if n in scope.used)
        if untyped and leave_to_runtime(self, node, inputs, scope, traced.name, UNKNOWN_SHAPE):
            return None
        return self._record_outputs(node, traced, types, scope)

    def emit(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Trace a new node that reads the unique names ``inputs``; return the unique name of its output."""
        scope = Scope({n: n for n in inputs}, None, f"{op.lower()}:", {"y"})
        self.node(onnx.helper.make_node(op, list(inputs), ["y"], **attributes), scope)
        return scope.names["y"]

    def refuse(self, node: Node, reason: str) -> None:
        """Record the reason why a node cannot be compiled, and a specific remedy if there is one."""
        if is_onnxruntime_operator(node):
            self.remedies[WAY_OUT] = None
        self.refused.append(f"{node.op} '{node.name}': {reason}")

    def forget(self, node: onnx.NodeProto, scope: Scope) -> None:
        """Mark the outputs of a refused node as unknown."""
        for name in node.output:
            if name in scope.used:
                self.unknown.add(self.define(scope, name))

    def label(self, node: onnx.NodeProto, scope: Scope) -> str:
        """Return a unique name for a node."""
        base = scope.prefix + (node.name or f"{node.op_type}_{next((o for o in node.output if o), '')}")
        return self._unique_node_name(base)

    def _unique_node_name(self, base: str) -> str:
        """Return an unused node name derived from ``base``."""
        name = base
        while name in self._labels:
            self._labels[base] += 1
            name = f"{base}/{self._labels[base]}"
        self._labels[name] = 0
        return name

    def _attribute(self, attribute: onnx.AttributeProto, node: onnx.NodeProto) -> Any:
        if attribute.type == onnx.AttributeProto.TENSOR:
            return self.loaded.array(attribute.t)
        return attribute_to_python(attribute, f"{self.loaded.name}: node '{node.name or node.op_type}'")

    def _correct_constant_inputs(self, node: onnx.NodeProto, inputs: tuple[str, ...], domain: str) -> tuple[str, ...]:
        """Return a node's inputs with incorrect constants replaced."""
        # Runtimes accept one-element vectors as the bounds of a Range, but inference does not. The target of a Reshape
        # may contain a different batch size.
        if node.op_type == "Range" and not domain:
            return tuple(self._scalar(n) for n in inputs)
        if self.rebatching is None or domain or node.op_type != "Reshape" or inputs[1] not in self.constants:
            return inputs
        target = self.rebatching.corrected_reshape_target(
            self.constants[inputs[1]], self.values[inputs[0]], node.output[0]
        )
        if target is None:
            return inputs
        name = f"{inputs[1]}/batch {self.rebatching.new}/{node.output[0]}"
        self.constant(name, target)
        return inputs[0], name

    def _scalar(self, name: str) -> str:
        array = self.constants.get(name)
        if array is None or array.shape != (1,):
            return name
        scalar = self.fresh(f"{name}/scalar")
        self.constant(scalar, array.reshape(()))
        return scalar

    def _record_outputs(self, node: onnx.NodeProto, traced: Node, types: Sequence[Value | None], scope: Scope) -> None:
        """Record a node's outputs as folded constants or as run-time values."""
        found = self._fold_node(node, traced, types)
        names = tuple(self.define(scope, n) if n in scope.used else "" for n in node.output)
        if found is not None:
            held = [(n, self.constants.get(n)) for n in traced.inputs]
            record_folded_node(
                node, traced.attributes, self._opsets(traced), held, list(zip(names, found, strict=True)),
                reads_dimensions=traced.op in ("Shape", "Size") and not traced.domain,
            )  # fmt: skip
            for name, array in zip(names, found, strict=True):
                if name:
                    self.constant(name, array)
            return
        names = self._name_required_outputs(names, traced, types, scope)
        untyped = [o for o, t in zip(names, types, strict=True) if o and t is None]
        for name, value in zip(names, types, strict=True):
            if name and value is not None and not untyped:
                self.values[name] = Value(name, value.shape, value.dtype)
        if not untyped:
            large = next((r for n in names if n and (r := reason_if_too_large(self.values[n]))), None)
            if large is None:
                while names and not names[-1]:
                    names = names[:-1]
                self.nodes.append(Node(traced.op, traced.inputs, names, traced.attributes, traced.name, traced.domain,
                                       traced.version))  # fmt: skip
                return
            self.refuse(traced, large)
        else:
            self.refuse(traced, self._reason_for_unknown_type(traced, untyped[0]))
        for name in filter(None, names):
            self.values.pop(name, None)
            self.unknown.add(name)

    def _name_required_outputs(
        self, names: tuple[str, ...], traced: Node, types: Sequence[Value | None], scope: Scope
    ) -> tuple[str, ...]:
        """Return the names of outputs; unread required outputs before a read output get new names."""
        # Unread outputs determine which result a later output is (positions of a TopK) or where it starts (a Split).
        schema = self.inference.schema(traced)
        read = max((k for k, n in enumerate(names) if n), default=0)
        if schema is None or all(names[:read]):
            return names
        optional = schema.FormalParameterOption.Optional
        out = list(names)
        for k, value in enumerate(types[:read]):
            formal = schema.outputs[min(k, len(schema.outputs) - 1)]
            if not names[k] and value is not None and formal.option != optional:
                out[k] = self.fresh(f"{scope.prefix}{traced.name}/output {k}")
        return tuple(out)

    def _fold_node(
        self, node: onnx.NodeProto, traced: Node, types: Sequence[Value | None]
    ) -> Sequence[np.ndarray] | None:
        if traced.op in ("Shape", "Size") and not traced.domain and traced.inputs[0] not in self.constants:
            shape = self.values[traced.inputs[0]].shape
            if traced.op == "Size":
                return [np.array(int(np.prod(shape, dtype=np.int64)), np.int64)]
            return [np.array(shape[traced.attributes.get("start", 0) : traced.attributes.get("end")], np.int64)]
        if any(n and n not in self.constants for n in traced.inputs):
            return None
        schema = self.inference.schema(traced)
        if (
            schema is None
            or getattr(schema, "non_deterministic", False)
            or any(a.type == a.GRAPH for a in node.attribute)
        ):
            return None
        if not self.lengths.isdisjoint(traced.inputs) and any(t is not None and is_float(t.dtype) for t in types):
            return None
        arrays = [self.constants[n] if n else None for n in traced.inputs]
        opsets = self._opsets(traced)
        key = 0 if opsets is self.loaded.opsets else traced.version
        if key not in self._evaluators:
            self._evaluators[key] = Evaluator(opsets)
        return self._evaluators[key](node, traced.attributes, arrays, types)

    def _opsets(self, node: Node) -> Mapping[str, int]:
        own = self.loaded.opsets.get(node.domain) == node.version
        return self.loaded.opsets if own else {node.domain: node.version}

    def _reason_for_unknown_type(self, node: Node, output: str) -> str:
        schema = self.inference.schema(node)
        infers = schema is not None and not node.domain and schema.has_type_and_shape_inference_function
        if not infers and not has_lowering(node.domain, node.op):  # the missing lowering is the more useful reason
            return no_lowering_reason(node)
        inputs = [n for n in node.inputs if n and n not in self.constants]
        asked = [n for n in inputs if self.values[n].dtype == "int64" and n in self.inputs]
        remedy = f" Pass values={{{asked[0]!r}: ...}} where it is known." if asked else ""
        return f"the shape of its result '{output}' depends on the values of {', '.join(map(repr, inputs))}.{remedy}"


def _constant_node_array(attributes: Mapping[str, Any], where: str) -> np.ndarray:
    """Return the array of a Constant node."""
    if len(attributes) != 1:
        raise ModelError(f"{where}: expected one attribute of a Constant, got {sorted(attributes)}.")
    ((name, value),) = attributes.items()
    if name in ("value", "sparse_value") and isinstance(value, np.ndarray):
        return value
    kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if name not in kinds:
        raise ModelError(f"{where}: a Constant of {name} holds no numbers.")
    return np.array(value, kinds[name])
