"""One pass over a model in the order of its data: every type inferred, whatever is constant computed, all else kept.

Since the shapes of the inputs are numbers, one pass in topological order suffices: a shape that is computed
(``Shape``, ``Gather``, ``Concat`` ...) is a constant by the time something is reshaped with it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from roller.errors import ModelError
from roller.model.steps import Value
from roller.onnx.evaluate import Evaluator
from roller.onnx.graph import Node
from roller.onnx.loading import Loaded
from roller.onnx.ordering import in_order
from roller.onnx.overrides import Rebatching
from roller.onnx.types import (
    array_value,
    element_type,
    onnx_dtype,
    plain_attribute,
    static_value,
    tensor_type,
    too_large,
)

#: Constants up to this many elements are shown to shape inference: shapes, axes, pads, sizes of parts.
MAX_SHAPE_ELEMENTS = 4096
#: Nodes of all bodies together once loops are unrolled.
MAX_BODY_NODES = 50_000

#: Attributes whose default onnx's inference takes for another value than the operator has: name and default.
_FORGOTTEN = {"STFT": ("onesided", 1)}


@dataclass
class Scope:
    """Names of one graph or body, as the model spells them, to names of the whole.

    Parameters
    ----------
    names
        Name of the whole by local name.
    parent
        The graph or body around it.
    prefix
        Of names that are new in it.
    used
        Local names that something reads; outputs nothing reads are dropped.
    opsets
        Version by domain where they are not the model's: in definitions of operators.
    """

    names: dict[str, str] = field(default_factory=dict)
    parent: Scope | None = None
    prefix: str = ""
    used: set[str] = field(default_factory=set)
    opsets: Mapping[str, int] | None = None

    def version(self, domain: str, default: Mapping[str, int]) -> int:
        """Return the version of a domain's operators here; ``default`` holds the model's."""
        if self.opsets is None and self.parent is not None:
            return self.parent.version(domain, default)
        return (self.opsets or {}).get(domain, default.get(domain, 0))

    def find(self, name: str) -> str | None:
        """Return the name of the whole, ``None`` where nothing of that name is in sight."""
        scope: Scope | None = self
        while scope is not None:
            found = scope.names.get(name)
            if found is not None:
                return found
            scope = scope.parent
        return None


class Tracer:
    """What is known of a model so far.

    Parameters
    ----------
    loaded
        The model.
    declared
        Types the model itself declares, believed where nothing else tells; empty where shapes were overridden.
    """

    def __init__(self, loaded: Loaded, declared: Mapping[str, Value] | None = None) -> None:
        """Start with nothing."""
        self.loaded = loaded
        self.declared = declared or {}
        self.values: dict[str, Value] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.nodes: list[Node] = []
        self.refused: list[str] = []
        self.behind = 0
        self.unknown: set[str] = set()
        self.root = Scope()
        self.rebatching: Rebatching | None = None
        self.outputs = {o.name for o in loaded.graph.output}
        self._labels: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._traced = 0
        self._seen: dict[Hashable, list[Value | None]] = {}
        self._evaluators: dict[int, Evaluator] = {}
        self._imports = [onnx.helper.make_opsetid(d, v) for d, v in loaded.opsets.items()]
        self._data: dict[str, onnx.TensorProto] = {}
        self._schemas: dict[tuple[str, str, int], onnx.defs.OpSchema | None] = {}

    def constant(self, name: str, array: np.ndarray) -> None:
        """Enter a constant by its name of the whole."""
        self.values[name], self.constants[name] = array_value(name, array), array

    def define(self, scope: Scope, local: str) -> str:
        """Return a new name of the whole for a local one."""
        if local in scope.names:
            raise ModelError(f"{self.loaded.name}: two nodes write '{local}'. A value is written once.")
        scope.names[local] = name = self.fresh(scope.prefix + local)
        return name

    def fresh(self, base: str) -> str:
        """Return a name like ``base`` that no value has."""
        name = base
        while name in self.values or name in self.unknown:
            self._counts[base] = self._counts.get(base, 0) + 1
            name = f"{base}/{self._counts[base]}"
        return name

    def alias(self, scope: Scope, local: str, name: str) -> None:
        """Let a local name stand for a value of the whole; an output of the model gets a copy under its own name."""
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
            self.nodes.append(Node("Identity", (name,), (new,), {}, self._unique(f"{new}/copy"), "", 13))

    def run(self, nodes: Iterable[onnx.NodeProto], scope: Scope, wanted: Iterable[str]) -> None:
        """Trace the nodes of one graph or body that ``wanted`` (local names) needs."""
        nodes, wanted = list(nodes), set(wanted)
        if scope.parent is not None:
            self._traced += len(nodes) + 4  # what a body costs besides its nodes
        if self._traced > MAX_BODY_NODES:
            raise ModelError(f"{self.loaded.name}: more than {MAX_BODY_NODES} nodes once its loops are unrolled.")
        found = in_order(nodes, set(scope.names), lambda n: scope.find(n) is not None, wanted, self.loaded.name)
        scope.used |= found.read | wanted
        for node in found.nodes:
            self.node(node, scope)

    def node(self, node: onnx.NodeProto, scope: Scope) -> None:
        """Trace one node."""
        from roller.onnx.control import control
        from roller.onnx.defined import defined
        from roller.onnx.refusals import behind

        inputs = tuple((scope.find(n) or "") if n else "" for n in node.input)
        domain = "" if node.domain == "ai.onnx" else node.domain
        if any(n in self.unknown for n in inputs):
            behind(self, node, Node(node.op_type, inputs, (), {}, self.label(node, scope), domain,
                                    scope.version(domain, self.loaded.opsets)))  # fmt: skip
            return self.forget(node, scope)
        if control(self, node, inputs, scope):
            return None
        attributes = {a.name: self._attribute(a, node) for a in node.attribute if a.type != onnx.AttributeProto.GRAPH}
        if node.op_type == "Constant" and not domain:
            return self.constant(self.define(scope, node.output[0]), _constant(attributes, self.loaded.name))
        inputs = self._corrected(node, inputs, domain)
        traced = Node(node.op_type, inputs, (), attributes, self.label(node, scope), domain,
                      scope.version(domain, self.loaded.opsets))  # fmt: skip
        if defined(self, node, traced, scope):
            return None
        types = self._types(node, traced)
        if isinstance(types, str):
            self.refuse(traced, types)
            return self.forget(node, scope)
        return self._keep(node, traced, types, scope)

    def emit(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Trace a node of our own; its inputs and its output are names of the whole."""
        scope = Scope({n: n for n in inputs}, None, f"{op.lower()}:", {"y"})
        self.node(onnx.helper.make_node(op, list(inputs), ["y"], **attributes), scope)
        return scope.names["y"]

    def refuse(self, node: Node, reason: str) -> None:
        """Enter why a node cannot be compiled."""
        self.refused.append(f"{node.op} '{node.name}': {reason}")

    def forget(self, node: onnx.NodeProto, scope: Scope) -> None:
        """Enter the outputs of a refused node: what reads them is not asked."""
        for name in node.output:
            if name in scope.used:
                self.unknown.add(self.define(scope, name))

    def label(self, node: onnx.NodeProto, scope: Scope) -> str:
        """Return a name for a node that no other one has."""
        base = scope.prefix + (node.name or f"{node.op_type}_{next((o for o in node.output if o), '')}")
        return self._unique(base)

    def _unique(self, base: str) -> str:
        """Return a node name like ``base`` that no node has."""
        name = base
        while name in self._labels:
            self._labels[base] += 1
            name = f"{base}/{self._labels[base]}"
        self._labels[name] = 0
        return name

    def _attribute(self, attribute: onnx.AttributeProto, node: onnx.NodeProto) -> Any:
        if attribute.type == onnx.AttributeProto.TENSOR:
            return self.loaded.array(attribute.t)
        return plain_attribute(attribute, f"{self.loaded.name}: node '{node.name or node.op_type}'")

    def _corrected(self, node: onnx.NodeProto, inputs: tuple[str, ...], domain: str) -> tuple[str, ...]:
        """Return a node's inputs with constants that say it wrongly replaced.

        That is the target of a Reshape that says another batch, and bounds of a Range that are vectors of one element
        (runtimes take them, inference does not).
        """
        if node.op_type == "Range" and not domain:
            return tuple(self._scalar(n) for n in inputs)
        if self.rebatching is None or domain or node.op_type != "Reshape" or inputs[1] not in self.constants:
            return inputs
        target = self.rebatching.target(self.constants[inputs[1]], self.values[inputs[0]], node.output[0])
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

    def _keep(self, node: onnx.NodeProto, traced: Node, types: Sequence[Value | None], scope: Scope) -> None:
        """Enter a node's outputs: as constants where they can be computed, else as values of run time."""
        found = self._folded(node, traced, types)
        names = tuple(self.define(scope, n) if n in scope.used else "" for n in node.output)
        if found is not None:
            for name, array in zip(names, found, strict=True):
                if name:
                    self.constant(name, array)
            return
        untyped = [o for o, t in zip(names, types, strict=True) if o and t is None]
        for name, value in zip(names, types, strict=True):
            if name and value is not None and not untyped:
                self.values[name] = Value(name, value.shape, value.dtype)
        if not untyped:
            large = next((r for n in names if n and (r := too_large(self.values[n]))), None)
            if large is None:
                while names and not names[-1]:
                    names = names[:-1]
                self.nodes.append(Node(traced.op, traced.inputs, names, traced.attributes, traced.name, traced.domain,
                                       traced.version))  # fmt: skip
                return
            self.refuse(traced, large)
        else:
            self.refuse(traced, self._why_untyped(traced, untyped[0]))
        for name in filter(None, names):
            self.values.pop(name, None)
            self.unknown.add(name)

    def _folded(self, node: onnx.NodeProto, traced: Node, types: Sequence[Value | None]) -> Sequence[np.ndarray] | None:
        if traced.op in ("Shape", "Size") and not traced.domain and traced.inputs[0] not in self.constants:
            shape = self.values[traced.inputs[0]].shape
            if traced.op == "Size":
                return [np.array(int(np.prod(shape, dtype=np.int64)), np.int64)]
            return [np.array(shape[traced.attributes.get("start", 0) : traced.attributes.get("end")], np.int64)]
        if any(n and n not in self.constants for n in traced.inputs):
            return None
        schema = self.schema(traced)
        if (
            schema is None
            or getattr(schema, "non_deterministic", False)
            or any(a.type == a.GRAPH for a in node.attribute)
        ):
            return None
        arrays = [self.constants[n] if n else None for n in traced.inputs]
        own = self.loaded.opsets.get(traced.domain) == traced.version
        key = 0 if own else traced.version
        if key not in self._evaluators:
            self._evaluators[key] = Evaluator(self.loaded.opsets if own else {traced.domain: traced.version})
        return self._evaluators[key](node, traced.attributes, arrays, types)

    def schema(self, traced: Node) -> onnx.defs.OpSchema | None:
        """Return what onnx knows of a node's operator, ``None`` where it knows none of this name."""
        key = traced.domain, traced.op, traced.version
        if key not in self._schemas:
            try:
                self._schemas[key] = onnx.defs.get_schema(traced.op, traced.version, traced.domain)
            except onnx.defs.SchemaError:
                self._schemas[key] = None
        return self._schemas[key]

    def _types(self, node: onnx.NodeProto, traced: Node) -> list[Value | None] | str:
        """Return the types of a node's outputs (``None`` where unknown), or why the node is refused."""
        schema = self.schema(traced)
        declared = [self.declared.get(o) for o in node.output]
        if schema is None:
            if all(d is not None for d, o in zip(declared, node.output, strict=True) if o):
                return declared
            known = traced.domain in ("", "ai.onnx.ml") and traced.domain in self.loaded.opsets
            where = f"operator set {traced.version}" if known else f"domain '{traced.domain}'"
            return f"no operator of this name is known in {where}, and the model does not declare what it returns"
        data = {n: d for n, i in zip(node.input, traced.inputs, strict=True) if n and (d := self._datum(i)) is not None}
        if data:
            return self._inferred(schema, node, traced, data, declared)
        # Layers repeat: a node like one before it has results like its.
        given = tuple((v.shape, v.dtype) if (v := self.values.get(i)) else None for i in traced.inputs)
        told = b"".join(a.SerializeToString() for a in node.attribute)
        key = traced.domain, traced.op, traced.version, told, given, tuple(map(bool, node.output))
        if key in self._seen and not any(declared):
            return self._seen[key]
        types = self._inferred(schema, node, traced, data, declared)
        if not isinstance(types, str):
            self._seen[key] = types
        return types

    def _inferred(
        self, schema: onnx.defs.OpSchema, node: onnx.NodeProto, traced: Node, data: Mapping[str, onnx.TensorProto],
        declared: Sequence[Value | None],
    ) -> list[Value | None] | str:  # fmt: skip
        """Return the types of a node's outputs as onnx infers them, or why it refuses the node."""
        given = {n: tensor_type(element_type(onnx_dtype(self.values[i].dtype)), self.values[i].shape)
                 for n, i in zip(node.input, traced.inputs, strict=True) if n}  # fmt: skip
        if (forgotten := _FORGOTTEN.get(node.op_type)) is not None and forgotten[0] not in traced.attributes:
            told, node = node, onnx.NodeProto()
            node.CopyFrom(told)
            node.attribute.append(onnx.helper.make_attribute(*forgotten))
        try:
            inferred = onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                given,
                dict(data),
                opset_imports=self._imports_of(traced),
                ir_version=self.loaded.ir_version,
            )
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
            return str(error).replace("[ShapeInferenceError] ", "").replace("[TypeInferenceError] ", "").strip()
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            return f"its shape cannot be inferred: {error}"
        types: list[Value | None] = []
        for name, own in zip(node.output, declared, strict=True):
            value = static_value(name, inferred[name]) if name in inferred else own
            if isinstance(value, str):
                if "not known" not in value:
                    return value
                value = own
            types.append(value)
        return types

    def _imports_of(self, traced: Node) -> list[onnx.OperatorSetIdProto]:
        """Return the operator sets a node is of: the model's, or those of a definition."""
        if self.loaded.opsets.get(traced.domain) == traced.version:
            return self._imports
        return [onnx.helper.make_opsetid(traced.domain, traced.version)]

    def _datum(self, name: str) -> onnx.TensorProto | None:
        """Return a small constant as inference takes it."""
        array = self.constants.get(name)
        if array is None or array.ndim > 1 or array.size > MAX_SHAPE_ELEMENTS or array.dtype.kind == "O":
            return None
        if name not in self._data:
            self._data[name] = onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape))
        return self._data[name]

    def _why_untyped(self, node: Node, output: str) -> str:
        inputs = [n for n in node.inputs if n and n not in self.constants]
        asked = [n for n in inputs if self.values[n].dtype == "int64" and n in self.root.names.values()]
        remedy = f" Pass values={{{asked[0]!r}: ...}} where it is known." if asked else ""
        return f"the shape of its result '{output}' depends on the values of {', '.join(map(repr, inputs))}.{remedy}"


def _constant(attributes: Mapping[str, Any], where: str) -> np.ndarray:
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
