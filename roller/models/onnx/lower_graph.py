"""Lowers all nodes of a graph to parts (:mod:`roller.models.graph.lowered_parts`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from roller.errors import ExprError, ModelError, counted
from roller.expr import Axis, Const, Load, Scalar, Stage, Tensor, transform_scalar
from roller.models.graph.lowered_parts import (
    AliasPart,
    AppendPart,
    ComputedPart,
    ConcatPart,
    FallbackSubgraph,
    LibraryFunctionPart,
    Part,
    RefusedNode,
)
from roller.models.graph.lowering_state import Lowering
from roller.models.graph.model_graph import FallbackRegion, Graph, Node
from roller.models.graph.repeated_node_lowering import RepeatedNodes
from roller.models.onnx.lowering_registry import (
    AppendToInput,
    Compute,
    ConcatOfInputs,
    InputView,
    LibraryCall,
    Lowered,
    SimplerNodes,
    Site,
    Unsupported,
    lower_node,
)
from roller_runtime.plan.program_steps import Value

#: Maximum nesting depth of rewrites; anything deeper is an infinite cycle.
_MOST_REWRITES = 32


def lower_graph(graph: Graph) -> Lowering:
    """Lower every node to parts; a node that cannot be lowered becomes a refused part."""
    out = Lowering(graph, values=dict(graph.values), constants=dict(graph.constants))
    found: list[Part] = []
    repeats = RepeatedNodes()
    for node in graph.nodes:
        origin = node.name or node.outputs[0]
        kind = repeats.kind(node, out.values, out.constants)
        known = None if kind is None else repeats.part(kind, node, origin)
        parts: list[Part] = _lower_node_to_parts(node, origin, out, 0) if known is None else [known]
        if kind is not None and known is None:
            repeats.remember_lowering(kind, node, parts)
        refused = next((p for p in parts if isinstance(p, RefusedNode)), None)
        # A node is refused as a whole if one of its parts is, because the user does not know its rewritten nodes.
        found += parts if refused is None else [RefusedNode(node, refused.reason)]
    out.parts = found
    out.drop_unread_parts()
    return out


def refused_nodes_error(name: str, refused: list[RefusedNode], fallback: str | None = None) -> ModelError:
    """Return the error that lists all refused nodes, grouped by operator and reason."""
    remedy = "Change these nodes: their values cannot pass between kernels and another runtime."
    if fallback is None:
        remedy = "Pass fallback='onnxruntime' to run these nodes, and only these, with ONNX Runtime."
    alike: dict[tuple[str, str], list[str]] = {}
    for r in refused:
        alike.setdefault((r.node.op, r.reason), []).append(r.node.name or r.node.outputs[0])
    lines = [f"  {op} ({len(names)}x: {_quote_some_names(names)}): {reason}" for (op, reason), names in alike.items()]
    what = f"{name}: expected operators roller can compile, got {counted(len(refused), 'node')} it cannot:"
    return ModelError("\n".join([what, *lines, remedy]))


def _quote_some_names(names: list[str], most: int = 4) -> str:
    return ", ".join(f"'{n}'" for n in names[:most]) + (", ..." if len(names) > most else "")


def _lower_node_to_parts(node: Node, origin: str, out: Lowering, depth: int) -> list[Part]:
    """Lower one node or, if its lowering rewrites it, the nodes that replace it."""
    if isinstance(node, FallbackRegion):
        return [FallbackSubgraph(node.attributes["model"], node.inputs, node.outputs, node.members)]
    for name in node.outputs:
        if name and name not in out.values:
            return [RefusedNode(node, f"the shape of its output '{name}' is unknown")]
    if all(out.values[n].elements == 0 for n in node.outputs if n):
        out.constants.update({n: _zero_element_array(out.values[n]) for n in node.outputs if n})
        return []
    try:
        found = lower_node(_make_site(node, out))
        return _parts_of_lowered(node, origin, found, out, depth)
    except Unsupported as why:
        return [RefusedNode(node, str(why))]
    except ExprError as why:  # a case that the lowering does not handle
        return [RefusedNode(node, f"no tensor expression: {why}")]


def _zero_element_array(value: Value) -> np.ndarray:
    from roller_runtime.core.dtypes import numpy_dtype

    return np.empty(value.shape, numpy_dtype(value.dtype))


def _make_site(node: Node, out: Lowering) -> Site:
    missing = [n for n in node.inputs if n and n not in out.values]
    if missing:
        raise Unsupported(f"the shape of its input '{missing[0]}' is unknown")
    return Site(
        node,
        tuple(out.values[n] if n else None for n in node.inputs),
        tuple(out.values[n] if n else None for n in node.outputs),
        tuple(out.constants.get(n) if n else None for n in node.inputs),
    )


def _parts_of_lowered(node: Node, origin: str, found: Lowered, out: Lowering, depth: int) -> list[Part]:
    """Return the parts of a lowered node; add its constants and values to ``out``."""
    nodes = (origin,)
    if isinstance(found, (Compute, LibraryCall, SimplerNodes)):
        for name, array in found.constants.items():
            out.constants[name] = array
            out.values.setdefault(name, Value(name, array.shape, array.dtype.name))
    if isinstance(found, Compute):
        return [_stages_as_part(node, found, out, nodes)]
    if isinstance(found, InputView):
        return _make_view_or_fold_constant(node.inputs[found.position], node.outputs[0], found.offset, out, nodes)
    if isinstance(found, ConcatOfInputs):
        filled = tuple(n for n in node.inputs if n and out.values[n].elements)
        if len(filled) == 1:
            return _make_view_or_fold_constant(filled[0], node.outputs[0], 0, out, nodes)
        return [ConcatPart(filled, node.outputs[0], found.axis, nodes)]
    if isinstance(found, AppendToInput):
        return [AppendPart(node.inputs[1], node.inputs[0], node.outputs[0], found.axis, found.offset, nodes)]
    if isinstance(found, LibraryCall):
        arguments = node.inputs if found.inputs is None else found.inputs
        return [LibraryFunctionPart(found.function, arguments, node.outputs, found.attributes, nodes)]
    if depth >= _MOST_REWRITES:
        raise Unsupported(f"its lowering rewrites {node.op} into itself")
    out.values.update(found.values)
    return [p for simpler in found.nodes for p in _lower_node_to_parts(simpler, origin, out, depth + 1)]


def _make_view_or_fold_constant(
    source: str, target: str, offset: int, out: Lowering, nodes: tuple[str, ...]
) -> list[Part]:
    held = out.constants.get(source)
    if held is None:
        return [AliasPart(source, target, offset, nodes)]
    value = out.values[target]
    out.constants[target] = held.reshape(-1)[offset : offset + value.elements].reshape(value.shape)
    return []


def _stages_as_part(node: Node, found: Compute, out: Lowering, nodes: tuple[str, ...]) -> ComputedPart:
    """Return the stages in ``found`` as one part; refuse the node if they do not write all of its outputs."""
    stages = tuple(_replace_constants_by_literals(s, out.constants) for s in found.stages)
    made = {s.name for s in stages}
    wanted = tuple(n for n in node.outputs if n and n in made)
    missing = [n for n in node.outputs if n and n not in made]
    if missing:
        raise Unsupported(f"its lowering does not write output '{missing[0]}'")
    reads = dict.fromkeys(ld.tensor for s in stages for ld in s.loads if ld.tensor not in made)
    tensors = (Tensor(n, out.values[n].shape, out.values[n].dtype) for n in reads)
    part = ComputedPart(tuple(tensors), stages, wanted, nodes)
    part.expr  # noqa: B018 - raises for invalid stages
    return part


def _replace_constants_by_literals(s: Stage, constants: Mapping[str, np.ndarray]) -> Stage:
    """Return a stage with at least one spatial axis (for tiling) and with scalar constants as literals."""

    def leaf(n: Scalar) -> Scalar:
        held = constants.get(n.tensor) if isinstance(n, Load) and not n.guard else None
        if held is None or held.size != 1:
            return n
        value = held.reshape(()).item()
        return Const(int(value) if held.dtype.kind == "b" else value, held.dtype.name)

    axes = s.axes if s.spatial_axes else (Axis("one", 1), *s.axes)
    return replace(s, axes=axes, body=transform_scalar(s.body, leaf))
