"""Groups nodes without a lowering into large acyclic subgraphs that another runtime computes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from functools import partial
from heapq import heapify, heappop, heappush

import numpy as np
import onnx

from roller.models.graph.lowered_parts import FallbackSubgraph, PartProtocol, RefusedNode
from roller.models.graph.lowering_state import Lowering
from roller.models.graph.model_graph import Node
from roller.models.onnx.onnx_types import element_type, onnx_dtype
from roller_runtime.core.dtypes import DTYPE_BYTES
from roller_runtime.plan.program_steps import Value


def replace_refused_nodes(low: Lowering) -> list[RefusedNode]:
    """Replace refused nodes by ONNX Runtime subgraphs; if some cannot be replaced, replace none and return them."""
    stuck = [why for p in low.refused if (why := _refuse_unless_typed(p, low)) is not None]
    if stuck or not low.refused:
        return stuck
    groups = _fallback_group_by_part(low.parts)
    kept = [p for n, p in enumerate(low.parts) if n not in groups]
    members: dict[int, list[RefusedNode]] = defaultdict(list)
    for n, p in enumerate(low.parts):
        if isinstance(p, RefusedNode):
            members[groups[n]].append(p)
    low.parts = _topological_order([*kept, *(_make_fallback_subgraph(m, low) for m in members.values())])
    return []


def _refuse_unless_typed(part: RefusedNode, low: Lowering) -> RefusedNode | None:
    """Return a refusal if the node's values cannot be passed between steps; otherwise ``None``."""
    for name in (*part.inputs, *part.outputs):
        value = low.values.get(name)
        if value is None:
            return RefusedNode(
                part.node, f"{part.reason}; not for fallback either, as the shape of '{name}' is unknown"
            )
        if value.dtype not in DTYPE_BYTES and name not in low.constants:
            return RefusedNode(part.node, f"{part.reason}; not for fallback either, as '{name}' is {value.dtype}")
    return None


def _fallback_group_by_part(parts: Sequence[PartProtocol]) -> dict[int, int]:
    """Return the group of each refused part, by the part's index."""
    # Levels never fall along an edge, and rise between a refused part and one of another kind. Adjacent refused parts
    # of equal level form a group: a path that left and re-entered it would rise twice. Where possible, refused parts
    # take the level of their readers, which gives fewer groups.
    writer = {name: n for n, p in enumerate(parts) for name in p.outputs}
    sources = [sorted({writer[name] for name in p.inputs if name in writer}) for p in parts]
    refused = [isinstance(p, RefusedNode) for p in parts]
    level: list[int] = []
    for n, read in enumerate(sources):
        level.append(max((level[s] + (refused[s] != refused[n]) for s in read), default=int(refused[n])))
    readers: dict[int, list[int]] = defaultdict(list)
    for n, read in enumerate(sources):
        for s in read:
            readers[s].append(n)
    for n in reversed(range(len(parts))):
        if refused[n] and any(refused[r] for r in readers[n]):
            level[n] = min(level[r] - (not refused[r]) for r in readers[n])
    group = {n: n for n in range(len(parts)) if refused[n]}
    root = partial(union_find_root, group)
    for n in group:
        for s in sources[n]:
            if refused[s] and level[s] == level[n]:
                group[root(s)] = root(n)
    return {n: root(n) for n in group}


def union_find_root(group: MutableSequence[int] | MutableMapping[int, int], n: int) -> int:
    """Return the representative of ``n``'s group (union-find with path compression)."""
    while group[n] != n:
        group[n] = group[group[n]]
        n = group[n]
    return n


def _topological_order(parts: Sequence[PartProtocol]) -> list[PartProtocol]:
    """Return parts in a topological order close to the given one."""
    writer = {name: n for n, p in enumerate(parts) for name in p.outputs}
    waits = {n: {writer[name] for name in p.inputs if name in writer} for n, p in enumerate(parts)}
    followers: dict[int, list[int]] = defaultdict(list)
    for n, sources in waits.items():
        for s in sources:
            followers[s].append(n)
    ready = [n for n, sources in waits.items() if not sources]
    heapify(ready)
    out: list[PartProtocol] = []
    while ready:
        n = heappop(ready)
        out.append(parts[n])
        for f in followers[n]:
            waits[f].discard(n)
            if not waits[f]:
                heappush(ready, f)
    assert len(out) == len(parts), "groups of refused nodes make no cycle"
    return out


def _make_fallback_subgraph(members: Sequence[RefusedNode], low: Lowering) -> FallbackSubgraph:
    """Return a subgraph that computes the nodes in ``members`` and contains their constants."""
    own = {name for m in members for name in m.outputs}
    mine = {id(m) for m in members}
    read = dict.fromkeys(name for m in members for name in m.inputs if name not in own)
    read_inside = {name for m in members for name in m.inputs}
    read_elsewhere = {name for p in low.parts if id(p) not in mine for name in p.inputs} | set(low.graph.outputs)
    outputs = [name for m in members for name in m.outputs if name in read_elsewhere or name not in read_inside]
    inputs = [name for name in read if name not in low.constants]
    held = {n: low.constants[n] for n in read if n in low.constants}
    ends = [[value_info_proto(n, low.values[n]) for n in names] for names in (inputs, outputs)]
    versions = {m.node.domain: m.node.version for m in members}
    model = make_subgraph_model([node_to_proto(m.node) for m in members], ends[0], ends[1], held, versions)
    return FallbackSubgraph(model, tuple(inputs), tuple(outputs), tuple(m.node for m in members))


def make_subgraph_model(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, np.ndarray], versions: Mapping[str, int],
) -> bytes:  # fmt: skip
    """Return ``nodes`` as a serialized model; ``versions`` gives operator set versions by domain, 0 for the newest."""
    held = [onnx.numpy_helper.from_array(np.ascontiguousarray(a).reshape(a.shape), n) for n, a in constants.items()]
    graph = onnx.helper.make_graph(nodes, "fallback", inputs, outputs, held)
    newest = onnx.defs.onnx_opset_version()
    sets = [onnx.helper.make_opsetid(domain, v or newest) for domain, v in {"": newest, **versions}.items()]
    made: bytes = onnx.helper.make_model(graph, opset_imports=sets, ir_version=10).SerializeToString()
    return made


def node_to_proto(node: Node) -> onnx.NodeProto:
    """Return ``node`` as a protobuf message; its attributes have the types that the operator's schema declares."""
    made = onnx.helper.make_node(node.op, node.inputs, node.outputs, node.name, domain=node.domain or None)
    try:
        known = onnx.defs.get_schema(node.op, node.version, node.domain).attributes if node.version else {}
    except onnx.defs.SchemaError:
        known = {}
    for name, value in node.attributes.items():
        kind = int(known[name].type.value) if name in known else None  # type: ignore[attr-defined]
        plain = onnx.numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        made.attribute.append(onnx.helper.make_attribute(name, plain, attr_type=kind))
    return made


def value_info_proto(name: str, value: Value) -> onnx.ValueInfoProto:
    """Return the declaration of ``value`` for a model."""
    return onnx.helper.make_tensor_value_info(name, element_type(onnx_dtype(value.dtype)), value.shape)
