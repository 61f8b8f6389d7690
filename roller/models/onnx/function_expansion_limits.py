"""Checks, before a model's local functions are expanded, that the expansion stays within limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from roller.errors import ModelError
from roller.models.onnx.topological_order import MAX_DEPTH

#: Maximum number of nodes after expansion; with nested calls, this number can grow exponentially.
MAX_EXPANDED = 400_000
#: Maximum nesting depth of calls.
MAX_CALLS = 64

_Key = tuple[str, str, str]


def check_expansion(functions: Iterable[onnx.FunctionProto], graph: onnx.GraphProto, where: str) -> None:
    """Raise an error if functions are recursive, nest calls too deeply or expand to too many nodes."""
    bodies = {(f.domain, f.name, _qualified_function_name(f)): f for f in functions}
    sizes: dict[_Key, int] = {}
    open_calls: list[_Key] = []

    def expanded_size(nodes: Iterable[onnx.NodeProto]) -> int:
        total = 0
        for node in _all_nodes(nodes, where, 0):
            key = node.domain, node.op_type, _qualified_function_name(node)
            total += called_function_size(key) if key in bodies else 1
            if total > MAX_EXPANDED:
                raise ModelError(f"{where}: its functions expand to more than {MAX_EXPANDED} nodes.")
        return total

    def called_function_size(key: _Key) -> int:
        if key in open_calls:
            raise ModelError(f"{where}: function '{key[1]}' calls itself.")
        if len(open_calls) >= MAX_CALLS:
            raise ModelError(f"{where}: its functions call each other more than {MAX_CALLS} deep.")
        if key not in sizes:
            open_calls.append(key)
            sizes[key] = expanded_size(bodies[key].node)
            open_calls.pop()
        return sizes[key]

    expanded_size(graph.node)


def _qualified_function_name(proto: onnx.FunctionProto | onnx.NodeProto) -> str:
    return str(getattr(proto, "overload", ""))  # the oldest supported onnx package lacks the field


def _all_nodes(nodes: Iterable[onnx.NodeProto], where: str, depth: int) -> Iterator[onnx.NodeProto]:
    """Yield nodes and the nodes of their bodies."""
    if depth > MAX_DEPTH:
        raise ModelError(f"{where}: bodies are nested deeper than {MAX_DEPTH}.")
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _all_nodes(attribute.g.node, where, depth + 1)
