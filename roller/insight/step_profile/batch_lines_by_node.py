"""Time and memory of each profile node as lines over the batch, fitted to profiles at several batches."""

from __future__ import annotations

from collections.abc import Mapping

from roller.insight.step_profile.node import Node
from roller.insight.step_profile.step_profile import StepProfile

#: Kinds of nodes that exist at every batch; their kernels may differ.
_LASTING = frozenset(("step", "line", "module", "operator", "call", "tensors", "overhead"))
#: Key of a node among its siblings: kind, name, and position among those with the same kind and name.
_Key = tuple[str, str, int]


def fit_lines_by_node(profile: StepProfile, at: Mapping[int, StepProfile]) -> list[list[float]]:
    """Return ``[a, b, c, d]`` per node (``a x + b`` seconds, ``c x + d`` bytes at batch ``x``); ``[]`` if unknown."""
    batches = sorted(at)
    mean = sum(batches) / len(batches) if batches else 0.0
    spread = sum((batch - mean) ** 2 for batch in batches)
    if not spread:
        return []
    weights = [(batch - mean) / spread for batch in batches]
    found: list[list[float]] = []
    todo: list[tuple[Node, list[Node | None]]] = [(profile.root, [at[batch].root for batch in batches])]
    while todo:
        node, others = todo.pop()
        if node.kind in _LASTING and any(other is not None for other in others):
            times = [0.0 if other is None else other.wall_s for other in others]
            sizes = [0.0 if other is None else float(other.total_held_bytes) for other in others]
            found.append([*_fit_line(times, weights, mean), *_fit_line(sizes, weights, mean)])
        else:
            found.append([])
        below = [{} if other is None else _children_by_key(other) for other in others]
        todo += [
            (child, [known.get(key) for known in below]) for key, child in reversed(_children_by_key(node).items())
        ]
    return found


def _fit_line(values: list[float], weights: list[float], mean: float) -> tuple[float, float]:
    slope = sum(weight * value for weight, value in zip(weights, values, strict=True))
    return slope, sum(values) / len(values) - slope * mean


def _children_by_key(node: Node) -> dict[_Key, Node]:
    """Return children by a key that does not depend on their order, since they are ordered by time."""
    found: dict[_Key, Node] = {}
    for child in node.children:
        place = 0
        while (child.kind, child.name, place) in found:
            place += 1
        found[child.kind, child.name, place] = child
    return found
