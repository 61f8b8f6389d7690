"""Values with shapes known only at run time, and regions of nodes that another runtime computes because of them.

Nodes that exchange such values form a region together with all nodes on paths between them. The values therefore never
pass between steps: they leave a region only as outputs of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import onnx

from roller.errors import UnsupportedError
from roller.models.graph.model_graph import FallbackRegion, Graph, Node
from roller.models.onnx.fallback_subgraphs import make_subgraph_model, node_to_proto, union_find_root, value_info_proto
from roller.models.onnx.name_scope import Scope
from roller.models.onnx.onnx_types import declared_shape, dtype_name, reason_if_too_large, static_value_or_reason
from roller.models.onnx.tracer_interface import DynamicNodes, GraphTracer
from roller.models.onnx.unique_body_names import copy_with_renamed_bodies, outer_names_read_by_bodies
from roller_runtime.core.dtypes import DTYPE_BYTES
from roller_runtime.plan.program_steps import DynamicOutput, Value

#: Reason for leaving a node with static input shapes to another runtime.
UNKNOWN_SHAPE = "the shape of its result is known only at run time"


def leave_to_runtime(
    tracer: GraphTracer, node: onnx.NodeProto, inputs: Sequence[str], scope: Scope, label: str, reason: str
) -> bool:
    """Leave ``node`` to another runtime if onnx can infer its result types; return whether it was left."""
    parts = tracer.loose
    if parts is None:
        return False
    domain = "" if node.domain == "ai.onnx" else node.domain
    made = copy_with_renamed_bodies(node, inputs, scope.find, f"{label}/", tracer.loaded.array)
    outer = tuple(n for n in outer_names_read_by_bodies(made) if n not in inputs)
    if any(n in tracer.unknown for n in outer):
        return False
    traced = Node(node.op_type, (*inputs, *outer), (), {}, label, domain, scope.version(domain, tracer.loaded.opsets))
    found = tracer.inference.output_type_protos_or_refusal(made, traced)
    if isinstance(found, str):
        return False
    wanted = [n for n in node.output if n in scope.used]
    types = {n: static_value_or_reason(n, found[n]) for n in wanted if n in found and found[n].WhichOneof("value")}
    if any(n not in types or (isinstance(v := types[n], Value) and reason_if_too_large(v)) for n in wanted):
        return False
    names = {n: tracer.define(scope, n) for n in wanted}
    for local, name in names.items():
        value = types[local]
        if isinstance(value, Value):
            tracer.values[name] = Value(name, value.shape, value.dtype)
        else:
            parts.types[name] = found[local]
    del made.output[:]
    made.output.extend(names.get(n, "") for n in node.output)
    made.name = label
    parts.nodes[label], parts.reasons[label] = made, reason
    outputs = tuple(names.get(n, "") for n in node.output)
    tracer.nodes.append(Node(traced.op, traced.inputs, outputs, {}, label, domain, traced.version))
    return True


def trace_reader_of_dynamic_value(
    tracer: GraphTracer, node: onnx.NodeProto, inputs: tuple[str, ...], scope: Scope
) -> None:
    """Leave a node that reads values of unknown shape to another runtime; refuse it if that is impossible."""
    assert tracer.loose is not None
    read = next(n for n in inputs if n in tracer.loose.types)
    label = tracer.label(node, scope)
    if not leave_to_runtime(
        tracer, node, inputs, scope, label, f"reads '{read}', whose shape is known only at run time"
    ):
        details = Node(node.op_type, inputs, (), {}, label)
        tracer.refuse(details, f"reads '{read}', whose shape is known only at run time; onnx cannot infer its result")
        tracer.forget(node, scope)


def group_into_regions(graph: Graph, tracer: GraphTracer) -> Graph:
    """Return ``graph`` with the nodes left to another runtime grouped into regions, and with its dynamic outputs."""
    parts = tracer.loose
    if parts is None or not parts.nodes:
        return graph
    nodes = _nodes_outputs_depend_on(graph)
    members: dict[int, list[Node]] = {}
    for node, group in zip(nodes, _region_root_per_node(nodes, parts), strict=True):
        members.setdefault(group, []).append(node)
    whole = [_make_region(some, nodes, graph, parts) if any(n.name in parts.nodes for n in some) else some[0]
             for some in members.values()]  # fmt: skip
    loose = {n: _dynamic_output(n, parts.types[n]) for n in graph.outputs if n in parts.types}
    _check_border_dtypes(graph, whole, loose)
    return Graph(
        graph.name, graph.inputs, graph.outputs, tuple(_topological_order(whole)), graph.values, graph.constants, loose
    )


def _dynamic_output(name: str, found: onnx.TypeProto) -> DynamicOutput:
    shape = declared_shape(found)
    dims = None if shape is None else tuple(d if isinstance(d, int) else None for d in shape)
    return DynamicOutput(name, dims, dtype_name(found.tensor_type.elem_type) or "")


def _check_border_dtypes(graph: Graph, whole: Iterable[Node], loose: Mapping[str, DynamicOutput]) -> None:
    """Raise an error if a value that enters or leaves a region has a dtype that steps do not support."""
    odd = {n: v.dtype or "no tensor of numbers" for n, v in loose.items() if v.dtype not in DTYPE_BYTES}
    for node in whole:
        for n in (*node.inputs, *node.outputs) if isinstance(node, FallbackRegion) else ():
            if n in graph.values and graph.values[n].dtype not in DTYPE_BYTES:
                odd[n] = graph.values[n].dtype
    if odd:
        details = tuple(f"'{n}' is {dtype}" for n, dtype in odd.items())
        raise UnsupportedError(
            f"{graph.name}: values that pass between kernels and ONNX Runtime:\n  " + "\n  ".join(details)
            + "\nChange the nodes that make them.", graph.name, details,
        )  # fmt: skip


def _region_root_per_node(nodes: Sequence[Node], parts: DynamicNodes) -> list[int]:
    """Return, for each node, the index of the node that represents its group."""
    # Nodes joined by values of unknown shape are one group, including nodes on paths that leave and re-enter it.
    writer = {name: n for n, node in enumerate(nodes) for name in node.outputs if name}
    group = list(range(len(nodes)))
    root = partial(union_find_root, group)
    edges = [[writer[name] for name in node.inputs if name in writer] for node in nodes]
    for n, node in enumerate(nodes):
        for name in node.inputs:
            if name in parts.types:
                group[root(n)] = root(writer[name])
    readers: dict[int, set[int]] = {}
    sources: dict[int, set[int]] = {}
    for n, read in enumerate(edges):
        for s in read:
            if root(s) != root(n):
                readers.setdefault(root(s), set()).add(root(n))
                sources.setdefault(root(n), set()).add(root(s))
    top = _strongly_connected_components([root(n) for n in range(len(nodes))], readers, sources)
    return [top[root(n)] for n in range(len(nodes))]


def _strongly_connected_components(
    roots: Sequence[int], readers: Mapping[int, set[int]], sources: Mapping[int, set[int]]
) -> dict[int, int]:
    """Return the strongly connected component of each root (Kosaraju's algorithm)."""
    order: list[int] = []
    seen: set[int] = set()
    for start in dict.fromkeys(roots):
        stack = [(start, iter(sorted(readers.get(start, ()))))] if start not in seen else []
        seen.add(start)
        while stack:
            here, rest = stack[-1]
            following = next((r for r in rest if r not in seen), None)
            if following is None:
                order.append(here)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(sorted(readers.get(following, ())))))
    found: dict[int, int] = {}
    for start in reversed(order):
        todo = [start] if start not in found else []
        while todo:
            here = todo.pop()
            if here not in found:
                found[here] = start
                todo += [s for s in sources.get(here, ()) if s not in found]
    return found


def _nodes_outputs_depend_on(graph: Graph) -> list[Node]:
    """Return the nodes that the outputs depend on; this drops nodes left over from abandoned bodies."""
    wanted, kept = set(graph.outputs), list[Node]()
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            wanted.update(node.inputs)
            kept.append(node)
    return kept[::-1]


def _make_region(members: Sequence[Node], nodes: Sequence[Node], graph: Graph, parts: DynamicNodes) -> FallbackRegion:
    """Return a region that computes ``members`` and contains their constants."""
    own = {name for m in members for name in m.outputs if name}
    mine = {m.name for m in members}
    elsewhere = {name for n in nodes if n.name not in mine for name in n.inputs} | set(graph.outputs)
    read = dict.fromkeys(name for m in members for name in m.inputs if name and name not in own)
    inputs = tuple(n for n in read if n not in graph.constants)
    outputs = tuple(n for m in members for n in m.outputs if n in elsewhere)
    protos = [parts.nodes[m.name] if m.name in parts.nodes else node_to_proto(m) for m in members]
    ends = [[value_info_proto(n, graph.values[n]) if n in graph.values else onnx.helper.make_value_info(n,
                                                                                                        parts.types[n])
             for n in names] for names in (inputs, outputs)]  # fmt: skip
    held = {n: graph.constants[n] for n in read if n in graph.constants}
    model = make_subgraph_model(protos, ends[0], ends[1], held, {m.domain: m.version for m in members})
    between = "lies between such nodes"
    reasons = {m.name: parts.reasons.get(m.name, between) for m in members}
    return FallbackRegion("Region", inputs, outputs, {"model": model}, members[0].name, "roller.outside", 1,
                  tuple(members), reasons)  # fmt: skip


def _topological_order(nodes: Sequence[Node]) -> list[Node]:
    writer = {name: n for n, node in enumerate(nodes) for name in node.outputs if name}
    out: list[Node] = []
    done = [False] * len(nodes)
    for start in range(len(nodes)):
        stack = [start]
        while stack:
            n = stack[-1]
            waits = [writer[name] for name in nodes[n].inputs if name in writer and not done[writer[name]]]
            if done[n] or not waits:
                stack.pop()
                if not done[n]:
                    done[n] = True
                    out.append(nodes[n])
            else:
                stack += waits
    return out
