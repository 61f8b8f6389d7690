"""Selects the nodes that are needed and sorts them topologically."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import onnx

from roller.errors import ModelError

#: Maximum nesting depth of bodies.
MAX_DEPTH = 24


@dataclass(frozen=True)
class OrderedNodes:
    """Nodes in topological order, and all names that they read."""

    nodes: list[onnx.NodeProto]
    read: set[str]


def names_read(node: onnx.NodeProto, where: str, depth: int = 0) -> set[str]:
    """Return the names that a node reads, including outer names in its bodies."""
    names = {n for n in node.input if n}
    for attribute in node.attribute:
        bodies = [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs
        for body in bodies:
            if depth >= MAX_DEPTH:
                raise ModelError(f"{where}: bodies are nested deeper than {MAX_DEPTH}.")
            own = {i.name for i in body.input} | {i.name for i in body.initializer}
            for inner in body.node:
                own.update(inner.output)
            for inner in body.node:
                names |= names_read(inner, where, depth + 1) - own
            names |= {o.name for o in body.output} - own
    return names


def sort_needed_nodes(
    nodes: Sequence[onnx.NodeProto], given: set[str], outside: Callable[[str], bool], wanted: set[str], where: str
) -> OrderedNodes:
    """Return the nodes that ``wanted`` depends on, in topological order; sorted nodes keep their order."""
    writer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if name and (name in given or writer.setdefault(name, index) != index):
                raise ModelError(
                    f"{where}: '{name}' is written twice, or by a node and an input. A value has one source."
                )
    sources = [names_read(node, where) for node in nodes]
    needed = _needed_nodes(sources, writer, wanted)
    waits: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for index in needed:
        before = set()
        for name in sources[index]:
            if name in writer:
                before.add(writer[name])
            elif name not in given and not outside(name):
                label = nodes[index].name or nodes[index].op_type
                raise ModelError(f"{where}: node '{label}' reads '{name}', which no node, input or initialiser gives.")
        waits[index] = len(before)
        for other in before:
            readers.setdefault(other, []).append(index)
    ready = [i for i in needed if not waits[i]]
    heapify(ready)
    order: list[int] = []
    while ready:
        index = heappop(ready)
        order.append(index)
        for reader in readers.get(index, ()):
            waits[reader] -= 1
            if not waits[reader]:
                heappush(ready, reader)
    if len(order) < len(needed):
        stuck = [nodes[i].name or nodes[i].op_type for i in sorted(needed - set(order))]
        shown = ", ".join(f"'{s}'" for s in stuck[:5]) + (", ..." if len(stuck) > 5 else "")
        raise ModelError(f"{where}: {len(stuck)} nodes wait for each other in a cycle: {shown}.")
    return OrderedNodes([nodes[i] for i in order], set().union(*(sources[i] for i in order)))


def _needed_nodes(sources: Sequence[set[str]], writer: dict[str, int], wanted: set[str]) -> set[int]:
    """Return the nodes that the wanted names depend on."""
    found: set[int] = set()
    open_names = [n for n in wanted if n in writer]
    while open_names:
        index = writer[open_names.pop()]
        if index not in found:
            found.add(index)
            open_names.extend(n for n in sources[index] if n in writer)
    return found
