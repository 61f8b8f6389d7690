"""Moves factors of keys to queries: a scaled cache would be a copy of all earlier rows in every call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from roller.models.graph.model_graph import Node
from roller.models.onnx.mutable_graph import MutableGraph

#: Operators that keep the elements of their first input.
_MOVING = frozenset(("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Expand", "Slice"))


def move_factors_to_other_operand(draft: MutableGraph, caches: Collection[str]) -> None:
    """Replace ``MatMul(q, c * k)`` by ``MatMul(c * q, k)`` for scalars ``c`` and operands ``k`` that move a cache."""
    reads, producers = draft.count_reads(), draft.producers()
    #: Factors on the path to each operand of a product, by the product's identity.
    factors = {
        id(node): [_factors_between(draft, producers, reads, name, caches) for name in node.inputs]
        for node in draft.nodes
        if node.op == "MatMul" and not node.domain
    }
    gone = {id(scaled): _scaled_operand(draft, scaled) for both in factors.values() for s in both for scaled in s}
    nodes: list[Node] = []
    same: dict[str, str] = {}
    for node in draft.nodes:
        if id(node) in gone:
            same[node.outputs[0]] = same.get(gone[id(node)], gone[id(node)])
            continue
        operands = [same.get(n, n) for n in node.inputs]
        for side, several in enumerate(factors.get(id(node), ())):
            for scaled in several:
                other = operands[1 - side]
                name = draft.value(f"{node.outputs[0]}/scaled", draft.values[other])
                inputs = tuple(other if n == gone[id(scaled)] else n for n in scaled.inputs)
                nodes.append(replace(scaled, inputs=inputs, outputs=(name,), name=f"{scaled.name}/moved"))
                operands[1 - side] = name
        nodes.append(replace(node, inputs=tuple(operands)))
    draft.nodes = nodes


def _factors_between(
    draft: MutableGraph, producers: Mapping[str, Node], reads: Counter[str], name: str, caches: Collection[str]
) -> list[Node]:
    """Return the products with scalars between a cache and ``name``, if nothing else reads what is between."""
    found: list[Node] = []
    while name not in caches:
        node = producers.get(name)
        if node is None or node.domain or reads[name] != 1:
            return []
        if _is_scaling(draft, node):
            found.append(node)
            name = _scaled_operand(draft, node)
        elif node.op in _MOVING:
            name = node.inputs[0]
        else:
            return []
    return found


def _is_scaling(draft: MutableGraph, node: Node) -> bool:
    """Return whether a node multiplies by a constant of one element, or divides by one."""
    scalars = [_is_scalar(draft, n) for n in node.inputs]
    return scalars == [False, True] if node.op == "Div" else node.op == "Mul" and sum(scalars) == 1


def _scaled_operand(draft: MutableGraph, node: Node) -> str:
    """Return the operand that a node multiplies by a scalar."""
    return next(n for n in node.inputs if not _is_scalar(draft, n))


def _is_scalar(draft: MutableGraph, name: str) -> bool:
    return name in draft.constants and draft.shape(name) in ((), (1,))
