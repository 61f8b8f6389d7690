"""Caches of decoders: pairs of inputs and outputs whose output is the input with new rows, rewritten as appends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from roller.errors import ModelError, did_you_mean
from roller.models.graph.model_graph import Graph, Node
from roller.models.onnx.mutable_graph import MutableGraph
from roller.models.onnx.remove_duplicates import remove_dead_nodes
from roller.models.onnx.scale_queries import move_factors_to_other_operand

#: Operators that read integers as shapes, bounds or axes, which stay constants.
SHAPE_OPERATORS = frozenset((
    "ConstantOfShape", "Expand", "Pad", "Range", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Reshape",
    "Resize", "Slice", "Split", "Squeeze", "Tile", "TopK", "Unsqueeze",
))  # fmt: skip


@dataclass(frozen=True)
class CachePair:
    """An input that contains the rows of earlier tokens, and the output that contains these and the new ones.

    Parameters
    ----------
    axis
        Dimension along which rows are joined.
    """

    past: str
    present: str
    axis: int


def find_cache_pairs(graph: Graph) -> tuple[CachePair, ...]:
    """Return all pairs of an input and an output that joins the input with other rows."""
    producers = {n: node for node in graph.nodes for n in node.outputs if n}
    found = (_pair_of_output(graph, producers, name) for name in graph.outputs)
    return tuple(p for p in found if p is not None)


def named_cache_pairs(graph: Graph, caches: Mapping[str, str]) -> tuple[CachePair, ...]:
    """Return the pairs that the caller names; refuse names that form none."""
    found = {p.past: p for p in find_cache_pairs(graph)}
    for past, present in caches.items():
        for name, known, what in ((past, graph.inputs, "input"), (present, graph.outputs, "output")):
            if name not in known:
                hint = did_you_mean(name, known) or f". It has {', '.join(known)}."
                raise ModelError(f"caches: {graph.name} has no {what} '{name}'{hint}")
        if past not in found or found[past].present != present:
            raise ModelError(
                f"caches: {graph.name}: expected '{present}' to be Concat('{past}', new rows), which it is not. "
                "Name pairs of which the output joins the input with the new rows."
            )
    return tuple(found[past] for past in caches)


def _pair_of_output(graph: Graph, producers: Mapping[str, Node], output: str) -> CachePair | None:
    node = producers.get(output)
    while node is not None and node.op == "Identity" and not node.domain:
        node = producers.get(node.inputs[0])
    if (
        node is None
        or node.op != "Concat"
        or node.domain
        or len(node.inputs) != 2
        or node.inputs[0] not in graph.inputs
    ):
        return None
    axis = int(node.attributes.get("axis", 1))
    return CachePair(node.inputs[0], output, axis % len(graph.values[node.outputs[0]].shape))


def with_lengths_as_inputs(graph: Graph, lengths: frozenset[str]) -> tuple[Graph, dict[str, np.ndarray]]:
    """Return the graph whose integers computed from lengths are inputs where nodes compute with them, and their values.

    Such integers are positions, for example, with which a node gathers embeddings.
    """
    draft = MutableGraph.of(graph)
    found: dict[str, np.ndarray] = {}

    def renamed(node: Node, name: str) -> str:
        if name not in lengths or name not in draft.constants or (node.op in SHAPE_OPERATORS and not node.domain):
            return name
        new = f"{name}/length"
        if new not in found:
            found[new] = draft.constants[name]
            draft.values[new] = replace(draft.values[name], name=new)
        return new

    draft.nodes = [replace(node, inputs=tuple(renamed(node, n) for n in node.inputs)) for node in draft.nodes]
    draft.inputs = (*draft.inputs, *found)
    return draft.to_graph(), found


def with_resident_caches(graph: Graph, pairs: tuple[CachePair, ...], rows: int) -> Graph:
    """Return the graph whose inputs have room for ``rows`` rows, of which nodes read the filled ones.

    Outputs of the pairs are no longer outputs of the graph. Each Concat becomes an ``Append`` of Roller's domain, which
    writes the new rows into the input, and a Slice of the rows written so far.
    """
    draft = MutableGraph.of(graph)
    by_past = {p.past: p for p in pairs}
    draft.outputs = tuple(n for n in draft.outputs if n not in {p.present for p in pairs})
    if not draft.outputs:
        raise ModelError(f"{graph.name}: expected an output besides those of caches, got none. Add the logits.")
    nodes: list[Node] = []
    for node in draft.nodes:
        pair = by_past.get(node.inputs[0]) if node.op == "Concat" and not node.domain and node.inputs else None
        taken = [n for n in node.inputs if n in by_past]
        if pair is None or len(taken) != 1:
            if taken:
                raise ModelError(
                    f"{graph.name}: expected the cache '{taken[0]}' to be read by Concat alone, got {node.op} "
                    f"('{node.name}'). Give caches without it."
                )
            nodes.append(node)
            continue
        nodes += _append_and_slice(draft, node, pair, rows)
    draft.nodes = nodes
    remove_dead_nodes(draft)  # copies of the outputs that are gone
    move_factors_to_other_operand(draft, {n.outputs[0] for n in nodes if (n.op, n.domain) == ("Append", "roller")})
    for pair in pairs:
        shape = draft.shape(pair.past)
        whole = (*shape[: pair.axis], rows, *shape[pair.axis + 1 :])
        draft.values[pair.past] = replace(draft.values[pair.past], shape=whole)
    return draft.to_graph()


def _append_and_slice(draft: MutableGraph, node: Node, pair: CachePair, rows: int) -> list[Node]:
    joined, axis = node.outputs[0], pair.axis
    past, total = draft.shape(pair.past)[axis], draft.shape(joined)[axis]
    held = draft.values[joined]
    whole = replace(held, shape=(*held.shape[:axis], rows, *held.shape[axis + 1 :]))
    cache = draft.value(f"{joined}/cache", whole)
    start, end, along = (draft.constant(f"{joined}/{n}", np.array([x])) for n, x in
                         (("start", 0), ("end", total), ("axis", axis)))  # fmt: skip
    where = {"axis": axis, "offset": past}
    return [
        Node("Append", node.inputs, (cache,), where, f"{node.name}/append", "roller", 1),
        Node("Slice", (cache, start, end, along), (joined,), {}, node.name, "", 13),
    ]
