"""A graph, or some nodes of it, as an ONNX model again: for another runtime, and to compare with the original."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from roller.models.graph.model_graph import Graph, Node
from roller.models.onnx.onnx_types import element_type, onnx_dtype


def to_model(
    graph: Graph, nodes: Sequence[Node] | None = None, inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None, opsets: Mapping[str, int] | None = None,
) -> onnx.ModelProto:  # fmt: skip
    """Return an ONNX model that computes ``outputs`` from ``inputs`` by ``nodes``; all of the graph by default.

    Parameters
    ----------
    graph
        Gives the types and the constants, which are copied into the model.
    nodes, inputs, outputs
        The part, in order.
    opsets
        Version by domain; by default the newest that any of the nodes was read with.
    """
    nodes = graph.nodes if nodes is None else nodes
    inputs = graph.inputs if inputs is None else inputs
    outputs = graph.outputs if outputs is None else outputs
    versions = {"": 7}
    for node in nodes:
        versions[node.domain] = max(versions.get(node.domain, 1), node.version)
    versions.update(opsets or {})
    used = dict.fromkeys(n for node in nodes for n in node.inputs if n in graph.constants)
    used.update(dict.fromkeys(o for o in outputs if o in graph.constants))
    given = set(inputs)
    body = onnx.helper.make_graph(
        [_node(n) for n in nodes],
        graph.name or "graph",
        [_info(graph, n) for n in inputs],
        [_info(graph, n) for n in outputs],
        [onnx.numpy_helper.from_array(np.ascontiguousarray(graph.constants[n]).reshape(graph.values[n].shape), n)
         for n in used if n not in given],
    )  # fmt: skip
    imports = [onnx.helper.make_opsetid(d, v) for d, v in versions.items()]
    # The oldest format of these operator sets: other runtimes are older than the onnx package.
    format_version = max(onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True), 4)
    return onnx.helper.make_model(body, opset_imports=imports, ir_version=format_version)


def _node(node: Node) -> onnx.NodeProto:
    attributes = {
        k: onnx.numpy_helper.from_array(v) if isinstance(v, np.ndarray) else list(v) if isinstance(v, tuple) else v
        for k, v in node.attributes.items()
    }
    empty = {k for k, v in attributes.items() if isinstance(v, list) and not v}
    made = onnx.helper.make_node(
        node.op, list(node.inputs), list(node.outputs), node.name, None, node.domain or None, None,
        **{k: v for k, v in attributes.items() if k not in empty},
    )  # fmt: skip
    for name in sorted(empty):
        made.attribute.append(onnx.AttributeProto(name=name, type=onnx.AttributeProto.INTS))
    return made


def _info(graph: Graph, name: str) -> onnx.ValueInfoProto:
    value = graph.values[name]
    return onnx.helper.make_tensor_value_info(name, element_type(onnx_dtype(value.dtype)), value.shape)
