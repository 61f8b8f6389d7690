"""Finds the first operator of a graph whose own result differs from that of PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from roller.models.torch.result_difference import describe_difference
from roller_runtime.core.display import truncate_text

if TYPE_CHECKING:
    import torch

#: Maximum number of operators in a graph that is compiled again with all intermediate results. For a larger graph, all
#: operators are candidates.
MOST_OPERATORS = 64
_COMPUTES = ("call_function", "call_method", "call_module")

#: Compiles a graph for the given arguments.
Compile = Callable[["torch.fx.GraphModule", Sequence[Any]], Callable[..., Sequence[Any]]]


def describe_differing_operator(
    graph: torch.fx.GraphModule, arguments: Sequence[Any], compiled: Compile, *, random: bool = False
) -> str:
    """Return a text that names the differing operator, or all candidates."""
    nodes = [n for n in graph.graph.nodes if n.op in _COMPUTES]
    names = [_operator_name(graph, n) for n in nodes]
    if 1 < len(nodes) <= MOST_OPERATORS:
        try:
            found = _first_differing(graph, arguments, compiled, random)
        except Exception:  # noqa: BLE001 - the graph with all results may be unsupported; then only names are given
            found = None
        if found is not None:
            return f"operator '{found}'"
    label = "operator" if len(set(names)) == 1 else "one of the operators"
    return f"{label} " + truncate_text(", ".join(f"'{n}'" for n in dict.fromkeys(names)), 100)


def _operator_name(graph: torch.fx.GraphModule, node: torch.fx.Node) -> str:
    """Return the name of a node's operator or module in PyTorch."""
    if node.op == "call_module":
        return type(graph.get_submodule(str(node.target))).__name__
    return str(getattr(node.target, "__name__", node.target))


def _first_differing(
    graph: torch.fx.GraphModule, arguments: Sequence[Any], compiled: Compile, random: bool
) -> str | None:
    """Return the first operator, in order of execution, whose result differs from PyTorch's; ``None`` if none does."""
    import torch

    values: dict[str, torch.Tensor] = {}

    class Kept(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> Any:
            value = super().run_node(node)
            if node.op in _COMPUTES and isinstance(value, torch.Tensor):
                values[node.name] = value.clone()
            return value

    with torch.no_grad(), torch.random.fork_rng(devices=[], enabled=random):
        Kept(graph).run(*[a.clone() if isinstance(a, torch.Tensor) else a for a in arguments])
    exposed = copy.copy(graph)
    exposed.graph = copy.deepcopy(graph.graph)
    shown = [n for n in exposed.graph.nodes if n.name in values]
    copies = []
    for node in shown:
        with exposed.graph.inserting_after(node):
            copies.append(exposed.graph.call_method("clone", (node,)))
        copies[-1].meta["example_value"] = values[node.name]
    (output,) = (n for n in exposed.graph.nodes if n.op == "output")
    output.args = (tuple(copies),)
    exposed.recompile()
    results = compiled(exposed, arguments)(*arguments)
    for node, mine in zip(shown, results, strict=True):
        theirs = values[node.name]

        def eager(*given: Any, at: str = node.name) -> Sequence[Any]:
            return [_value_of_node(graph, at, given)]

        if describe_difference([mine], [theirs], eager, arguments, pointwise=True, random=random):
            return _operator_name(graph, node)
    return None


def _value_of_node(graph: torch.fx.GraphModule, name: str, arguments: Sequence[Any]) -> Any:
    """Return the value that PyTorch computes for the node ``name``."""
    import torch

    found = []

    class Kept(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> Any:
            value = super().run_node(node)
            if node.name == name:
                found.append(value.clone())
            return value

    Kept(graph).run(*arguments)
    return found[0]
