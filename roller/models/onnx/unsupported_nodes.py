"""The error for a model that cannot be compiled, which lists all nodes with unknown shapes or without a lowering."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from roller.errors import ExprError, UnsupportedError
from roller.models.graph.model_graph import Graph, Node
from roller.models.onnx.control_flow import is_control_flow
from roller.models.onnx.low_bit_products import expands_4bit_matrix
from roller.models.onnx.lowering_registry import has_lowering, no_lowering_reason
from roller.models.onnx.tracer_interface import GraphTracer
from roller_runtime.core.dtypes import DTYPE_BYTES
from roller_runtime.plan.program_steps import Value

if TYPE_CHECKING:
    import onnx

_SHAPES = "Make every shape known (values= turns inputs into constants), or change these nodes."
_NODES = "Change these nodes, or cut the model before them."
_FALLBACK = "fallback='onnxruntime' leaves what it can to ONNX Runtime."


def unsupported_nodes_error(tracer: GraphTracer, inputs: Sequence[str]) -> UnsupportedError | None:
    """Return the error that lists all nodes that cannot be compiled; ``None`` if the reader refused none."""
    nodes = [n for n in tracer.nodes if tracer.loose is None or n.name not in tracer.loose.nodes]
    odd = {node.name: value for node in nodes if (value := _value_of_unsupported_dtype(tracer, node)) is not None}
    details = (f"{n.op} '{n.name}': '{odd[n.name].name}' is {odd[n.name].dtype}, which is not compiled"
            for n in nodes if n.name in odd)  # fmt: skip
    found = [*tracer.refused, *details]
    if not found:
        return None
    unlowered = _nodes_without_lowering(tracer, nodes, inputs, set(odd))
    listing = tuple(dict.fromkeys((*found, *unlowered)))
    after = f"\n  ({tracer.behind} nodes after them were not looked at)" if tracer.behind else ""
    if tracer.behind == 1:
        after = "\n  (1 node after them was not looked at)"
    listed, remedy = "\n  ".join(listing), _SHAPES if any("shape" in reason for reason in listing) else _NODES
    remedy = " ".join((remedy, *([_FALLBACK] if tracer.loose is None else ()), *tracer.remedies))
    name = tracer.loaded.name
    return UnsupportedError(f"{name}: these nodes cannot be compiled:\n  {listed}{after}\n{remedy}", name, listing)


def _value_of_unsupported_dtype(tracer: GraphTracer, node: Node) -> Value | None:
    """Return the first value of a node whose dtype kernels do not support; ``None`` if there is none."""
    if expands_4bit_matrix(node, tracer.constants):
        return None  # a later stage packs the numbers or expands them
    values = (tracer.values[n] for n in (*node.inputs, *node.outputs) if n)
    return next((v for v in values if v.dtype not in DTYPE_BYTES), None)


def _nodes_without_lowering(
    tracer: GraphTracer, traced: Sequence[Node], inputs: Sequence[str], odd: Collection[str]
) -> tuple[str, ...]:
    """Return the other traced nodes without a lowering, as *operator 'node': reason*."""
    from roller.models.onnx.lower_graph import lower_graph
    from roller.models.onnx.simplify_graph import fold_graph

    if tracer.loose is not None:
        return ()  # another runtime computes them
    nodes = tuple(n for n in traced if n.name not in odd)
    read = {n for node in nodes for n in node.inputs if n}
    written = {n for node in nodes for n in node.outputs if n}
    constants = {n: a for n, a in tracer.constants.items() if n in read}
    given = dict.fromkeys((*inputs, *(n for n in tracer.values if n in read - written - constants.keys())))
    ends = tuple(n for node in nodes for n in node.outputs if n in written - read)
    graph = Graph(tracer.loaded.name, tuple(given), ends, nodes, dict(tracer.values), constants)
    try:
        refused = lower_graph(fold_graph(graph)).refused
    except (ExprError, ValueError, KeyError, IndexError):  # a partial model may be invalid; keep the other refusals
        return ()
    return tuple(f"{r.node.op} '{r.node.name or r.node.outputs[0]}': {r.reason}" for r in refused)


def count_or_refuse_dependent(tracer: GraphTracer, node: onnx.NodeProto, traced: Node) -> None:
    """Count a node that reads a refused node's output, or refuse it if its operator cannot be compiled anyway."""
    schema: Any = tracer.inference.schema(traced)
    spelled = schema is not None and (schema.has_function or schema.has_context_dependent_function)
    if has_lowering(traced.domain, traced.op) or spelled or is_control_flow(node):
        tracer.behind += 1
        return
    tracer.refuse(traced, no_lowering_reason(traced))
