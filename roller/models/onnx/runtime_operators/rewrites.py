"""Rewrites ONNX Runtime's own operators to ONNX operators during tracing.

New nodes are traced immediately, so that their shapes are known. They are later simplified and fused like the nodes of
an unoptimized model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx

from roller.models.graph.model_graph import Node
from roller.models.onnx.lowering_registry import Unsupported
from roller.models.onnx.name_scope import Scope
from roller.models.onnx.onnx_types import onnx_dtype
from roller.models.onnx.tracer_interface import GraphTracer
from roller_runtime.plan.program_steps import Value

#: The domain of ONNX Runtime's own operators; some early ones are in ONNX's own domain.
DOMAIN = "com.microsoft"
#: The operator set of new nodes.
VERSION = 21
#: Remedy for an operator without a rewrite.
WAY_OUT = (
    "For operators of ONNX Runtime's own: save the model without its optimisation (SessionOptions."
    "graph_optimization_level = ORT_ENABLE_BASIC), quantise it with QuantFormat.QDQ, or export it again."
)


class NodeRewrite:
    """The rewriting of one node during tracing; the node's inputs are unique names."""

    def __init__(self, tracer: GraphTracer, node: Node) -> None:
        self.tracer, self.node = tracer, node
        self._count = 0

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or ``default`` if the node lacks it."""
        return self.node.attributes.get(name, default)

    def input(self, position: int) -> str:
        """Return the name of an input; empty if it is absent."""
        return self.node.inputs[position] if position < len(self.node.inputs) else ""

    def required(self, position: int) -> str:
        """Return the name of an input; refuse the node if the input is absent."""
        if not self.input(position):
            raise Unsupported(f"its input {position} is missing")
        return self.input(position)

    def refuse_inputs(self, **positions: int) -> None:
        """Refuse inputs that this rewriting does not support; keywords describe them."""
        for what, position in positions.items():
            if self.input(position):
                raise Unsupported(f"{self.node.op} with {what.replace('_', ' ')}")

    def type(self, name: str) -> Value:
        """Return the type of a value."""
        return self.tracer.values[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value."""
        return self.type(name).shape

    def known(self, name: str, what: str) -> np.ndarray:
        """Return a constant; if the input is not constant, ``what`` describes it in the error."""
        found = self.tracer.constants.get(name)
        if found is None:
            raise Unsupported(f"{what} computed at run time")
        return found

    def constant(self, array: np.ndarray) -> str:
        """Return the name of a new constant."""
        name = self.tracer.fresh(f"{self.node.name}/c")
        self.tracer.constant(name, array)
        return name

    def number(self, value: float, like: str) -> str:
        """Return the name of a constant number in another value's dtype."""
        return self.constant(np.array(value, onnx_dtype(self.type(like).dtype)))

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one result and return its name."""
        return self.add_with_results(op, inputs, 1, **attributes)[0]

    def add_with_results(
        self, op: str, inputs: Sequence[str], results: int, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node and return the names of its results."""
        self._count += 1
        names = [f"{op.lower()}{self._count}_{k}" for k in range(results)]
        scope = Scope({n: n for n in inputs if n}, Scope(), f"{self.node.name}/", set(names), {"": VERSION, DOMAIN: 1})
        made = onnx.helper.make_node(op, list(inputs), names, name=f"{op.lower()}{self._count}", domain=domain,
                                     **{k: v for k, v in attributes.items() if v is not None})  # fmt: skip
        before = len(self.tracer.refused)
        self.tracer.node(made, scope)
        if len(self.tracer.refused) > before:
            reason = self.tracer.refused[before].split(": ", 1)[-1]
            del self.tracer.refused[before:]
            raise Unsupported(f"spelled out, {op}: {reason}")
        return [scope.names[n] for n in names]

    def add_own(self, op: str, inputs: Sequence[str], shape: Sequence[int], dtype: str, **attributes: Any) -> str:
        """Add a node of Roller's own domain, whose result has the given type; return the result's name."""
        name = self.tracer.fresh(f"{self.node.name}/{op.lower()}")
        self.tracer.values[name] = Value(name, tuple(shape), dtype)
        self.tracer.nodes.append(Node(op, tuple(inputs), (name,), attributes, f"{self.node.name}/{op}", "roller", 1))
        return name

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        """Return the name of a value reshaped to ``shape``."""
        if self.shape(name) == tuple(shape):
            return name
        return self.add("Reshape", name, self.constant(np.array(shape, np.int64)))

    def cast(self, name: str, dtype: str) -> str:
        """Return the name of a value converted to ``dtype``."""
        if self.type(name).dtype == dtype:
            return name
        return self.add("Cast", name, to=onnx.helper.np_dtype_to_tensor_dtype(onnx_dtype(dtype)))


#: Rewrites a node; returns the names of its results, empty for absent ones.
Rewriter: TypeAlias = Callable[[NodeRewrite], Sequence[str]]
#: Rewrites by domain and operator.
REWRITES: dict[tuple[str, str], Rewriter] = {}


def register_rewrite(*ops: str, domain: str = DOMAIN) -> Callable[[Rewriter], Rewriter]:
    """Register the decorated function as the rewrite of a domain's operators."""

    def register(function: Rewriter) -> Rewriter:
        REWRITES.update(dict.fromkeys(((domain, op) for op in ops), function))
        return function

    return register


def trace_rewrite(tracer: GraphTracer, node: onnx.NodeProto, traced: Node, scope: Scope) -> bool:
    """Trace the rewrite of a node if its operator has one; return whether it has, even if the node is refused."""
    rewrite = REWRITES.get((traced.domain, traced.op))
    if rewrite is None or (not traced.domain and tracer.inference.schema(traced) is not None):
        return False
    try:
        results = rewrite(NodeRewrite(tracer, traced))
    except Unsupported as why:
        _refuse_node(tracer, node, traced, scope, str(why))
        return True
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        _refuse_node(tracer, node, traced, scope, f"its inputs or attributes do not fit it ({error})")
        return True
    missing = [n for n, name in enumerate(node.output) if name in scope.used and not "".join(results[n : n + 1])]
    if missing:
        _refuse_node(tracer, node, traced, scope, f"its result {missing[0]} is read, which is not computed")
        return True
    for name, result in zip(node.output, results, strict=False):
        if name in scope.used and result:
            tracer.alias(scope, name, result)
    return True


def _refuse_node(tracer: GraphTracer, node: onnx.NodeProto, traced: Node, scope: Scope, reason: str) -> None:
    tracer.refuse(traced, reason)
    tracer.forget(node, scope)


def is_onnxruntime_operator(node: Node) -> bool:
    """Return whether an operator is ONNX Runtime's own."""
    return node.domain == DOMAIN or node.domain.startswith(f"{DOMAIN}.")


def attributes_without(attributes: Mapping[str, Any], *without: str) -> dict[str, Any]:
    """Return attributes without the named ones."""
    return {k: v for k, v in attributes.items() if k not in without}
