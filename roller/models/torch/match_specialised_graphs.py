"""Finds out whether a graph is another graph with some symbolic sizes fixed, as Dynamo traces for sizes of 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roller.models.torch.export_to_onnx import placeholders
from roller.models.torch.symbolic_sizes import GraphSizes, Number, is_size_node, number_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Specialisation:
    """How to call a general graph with the arguments of a specialised one.

    Parameters
    ----------
    taken
        For each argument of the general graph, the position of the specialised graph's argument; ``None`` for a size.
    fixed
        For each argument of the general graph, the fixed size if ``taken`` is ``None``.
    """

    taken: tuple[int | None, ...]
    fixed: tuple[int, ...]

    def arguments(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Return the general graph's arguments."""
        return tuple([n if k is None else arguments[k] for k, n in zip(self.taken, self.fixed, strict=True)])


def match_specialised_graph(
    general: torch.fx.GraphModule, sizes: GraphSizes, special: torch.fx.GraphModule
) -> Specialisation | None:
    """Return how ``general`` computes ``special``; ``None`` unless both call the same operators in the same order."""
    try:
        known = _match_arguments(general, sizes, special)
        if known is None or not _same_operators(general, special, known):
            return None
        return _specialisation(sizes, special, known)
    except (TypeError, ValueError, AttributeError, LookupError):  # values that are neither tensors nor sizes
        return None


def _match_arguments(
    general: torch.fx.GraphModule, sizes: GraphSizes, special: torch.fx.GraphModule
) -> dict[Any, Number] | None:
    """Return the values in ``special`` of the sizes of ``general``, from the shapes of the arguments."""
    pairs = [[n.meta["example_value"] for n in placeholders(g) if not is_size_node(n)] for g in (general, special)]
    if len(pairs[0]) != len(pairs[1]):
        return None
    known: dict[Any, Number] = {}
    for one, other in zip(*pairs, strict=True):
        if one.dtype != other.dtype or one.dim() != other.dim():
            return None
        for a, b in zip(one.shape, other.shape, strict=True):
            if getattr(number_of(a), "is_Symbol", False):
                known.setdefault(number_of(a), number_of(b))
    if not all(s.symbol in known for s in sizes.symbols):
        return None
    for one, other in zip(*pairs, strict=True):
        same = all(_equal(a, b, known) for a, b in zip(one.shape, other.shape, strict=True))
        # The stride of a dimension of one element is of no meaning.
        dense = all(
            n == 1 or _equal(a, b, known) for n, a, b in zip(other.shape, one.stride(), other.stride(), strict=True)
        )
        if not same or not dense:
            return None
    return known


def _equal(one: Any, other: Any, known: Mapping[Any, Number]) -> bool:
    """Return whether a size of the general graph is a size of the specialised one."""
    a, b = number_of(one), number_of(other)
    return bool((a if isinstance(a, int) else a.xreplace(known)) == b)


def _same_operators(
    general: torch.fx.GraphModule, special: torch.fx.GraphModule, known: Mapping[Any, Number]
) -> bool:  # fmt: skip
    import torch

    partner: dict[Any, Any] = {}

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, torch.fx.Node) and not is_size_node(a):
            return isinstance(b, torch.fx.Node) and partner.get(a) is b
        size_a, size_b = (_size_value(x) for x in (a, b))
        if size_a is not None or size_b is not None:
            return size_a is not None and size_b is not None and _equal(size_a, size_b, known)
        if isinstance(a, slice):
            return isinstance(b, slice) and same((a.start, a.stop, a.step), (b.start, b.stop, b.step))
        if isinstance(a, (tuple, list)):
            return isinstance(b, (tuple, list)) and len(a) == len(b) and all(map(same, a, b))
        if isinstance(a, dict):
            return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
        return type(a) is type(b) and bool(a == b)

    rows = [[n for n in g.graph.nodes if not is_size_node(n)] for g in (general, special)]
    if len(rows[0]) != len(rows[1]):
        return False
    for one, other in zip(*rows, strict=True):
        if one.op != other.op or one.op == "call_module":
            return False
        if one.op == "get_attr":
            if _attribute(general, one.target) is not _attribute(special, other.target):
                return False
        elif one.op != "placeholder" and one.target != other.target:
            return False
        if one.op != "placeholder" and not (same(one.args, other.args) and same(one.kwargs, other.kwargs)):
            return False
        partner[one] = other
    return True


def _size_value(value: Any) -> Any:
    """Return an integer or the size that a node computes; ``None`` for anything else."""
    import torch

    if isinstance(value, torch.fx.Node):
        return value.meta["example_value"] if is_size_node(value) else None
    return value if type(value) is int else None


def _attribute(graph: torch.fx.GraphModule, target: Any) -> Any:
    found: Any = graph
    for part in str(target).split("."):
        found = getattr(found, part)
    return found


def _specialisation(
    sizes: GraphSizes, special: torch.fx.GraphModule, known: Mapping[Any, Number]
) -> Specialisation | None:  # fmt: skip
    nodes = list(enumerate(placeholders(special)))
    tensors = iter([k for k, n in nodes if not is_size_node(n)])
    places = {number_of(n.meta["example_value"]): k for k, n in nodes if is_size_node(n)}
    taken: list[int | None] = []
    fixed: list[int] = []
    by_position = {s.position: s for s in sizes.symbols}
    for position, kind in enumerate(sizes.arguments):
        if isinstance(kind, int) or getattr(kind, "free_symbols", None) is not None:  # a size
            value = kind if position not in by_position else known[by_position[position].symbol]
            if isinstance(value, int):
                taken.append(None)
                fixed.append(value)
                continue
            if value not in places:
                return None
            taken.append(places[value])
        else:
            taken.append(next(tensors))
        fixed.append(0)
    return Specialisation(tuple(taken), tuple(fixed))
