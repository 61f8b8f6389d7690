"""The sizes of a graph that Dynamo left symbolic: independent symbols, bounds, and every dimension as a function."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from roller.models.torch.export_to_onnx import is_size, is_weight, placeholders

if TYPE_CHECKING:
    import torch

#: Default largest size, and the factor over the size of the first call if that gives more.
DEFAULT_LARGEST, HEADROOM = 512, 2
#: Maximum size of one value of the graph at the default largest sizes, in bytes.
MOST_VALUE_BYTES = 256 << 20

Bounds: TypeAlias = "dict[str, tuple[int, int]]"
#: A number, or a SymPy expression of the graph's symbols.
Number: TypeAlias = Any


def number_of(value: Any) -> Number:
    """Return an integer as it is, and a ``SymInt`` as an expression of independent symbols."""
    node = getattr(value, "node", None)
    if node is None:
        return int(value)
    expr = node.shape_env.simplify(node.expr)
    return int(expr) if expr.is_number else expr


def evaluate(number: Number, values: Mapping[Any, Any]) -> int:
    """Return a number or an expression at the values of its symbols."""
    return number if isinstance(number, int) else int(number.xreplace(values))


def is_size_node(node: Any) -> bool:
    """Return whether a node of a trace computes a size."""
    return is_size(node.meta.get("example_value"))


@dataclass(frozen=True)
class SymbolicTensor:
    """Dimensions and strides of a tensor."""

    shape: tuple[Number, ...]
    strides: tuple[Number, ...]

    @classmethod
    def of(cls, value: torch.Tensor) -> SymbolicTensor:
        """Return the dimensions and strides of a tensor of a trace."""
        return cls(tuple(map(number_of, value.shape)), tuple(map(number_of, value.stride())))

    @property
    def symbols(self) -> set[Any]:
        """The symbols of all dimensions and strides."""
        return set().union(*(n.free_symbols for n in (*self.shape, *self.strides) if not isinstance(n, int)))


@dataclass(frozen=True)
class Symbol:
    """An independent size.

    Parameters
    ----------
    symbol
        SymPy's symbol.
    position
        Position of the argument that has this size's value.
    origin
        Text for messages, such as ``x.shape[1]``.
    low, high
        Bounds of the graph's guards; ``high`` is ``None`` if there is none.
    step
        Number of which the size is a multiple.
    declared
        Whether the user declared ``high``.
    """

    symbol: Any
    position: int
    origin: str
    low: int
    high: int | None
    step: int
    declared: bool = False

    @property
    def name(self) -> str:
        """Name of the size in a range; a range counts multiples of ``step``."""
        return str(self.symbol)


@dataclass(frozen=True)
class GraphSizes:
    """The symbolic sizes of a graph.

    Parameters
    ----------
    symbols
        The independent sizes.
    arguments
        For each argument, its expression (a size), its dimensions (a tensor with symbolic ones), or ``None``.
    results
        The same for each result.
    value_bytes
        Bytes of the values in the graph.
    """

    symbols: tuple[Symbol, ...]
    arguments: tuple[Number | SymbolicTensor | None, ...]
    results: tuple[Number | SymbolicTensor | None, ...]
    value_bytes: frozenset[Any]

    def sizes_of(self, arguments: Sequence[Any]) -> tuple[int, ...]:
        """Return the independent sizes of a call."""
        return tuple([arguments[s.position] for s in self.symbols])

    def values(self, sizes: Sequence[int]) -> dict[Any, Any]:
        """Return the sizes as a substitution for SymPy."""
        from sympy import Integer

        return {s.symbol: Integer(n) for s, n in zip(self.symbols, sizes, strict=True)}

    def arguments_at(self, sizes: Sequence[int], arguments: Sequence[Any]) -> list[Any]:
        """Return arguments of the given sizes for tracing: tensors that vary are not initialized."""
        import torch

        values, made = self.values(sizes), list[Any]()
        for kind, given in zip(self.arguments, arguments, strict=True):
            if kind is None:
                made.append(given)
            elif isinstance(kind, SymbolicTensor):
                shape, strides = ([evaluate(n, values) for n in several] for several in (kind.shape, kind.strides))
                made.append(torch.empty_strided(shape, strides, dtype=given.dtype))
            else:
                made.append(evaluate(kind, values))
        return made

    def largest_value_bytes(self, sizes: Sequence[int]) -> int:
        """Return the size of the graph's largest value at the given sizes, in bytes."""
        values = self.values(sizes)
        return max((evaluate(n, values) for n in self.value_bytes), default=0)


def graph_sizes(graph: torch.fx.GraphModule, examples: Sequence[Any]) -> GraphSizes | None:
    """Return the symbolic sizes of a graph; ``None`` if a size cannot be read from an argument."""
    import torch

    nodes = placeholders(graph)
    traced = [n.meta.get("example_value") for n in nodes]
    if len(nodes) != len(examples) or any(value is None for value in traced):
        return None
    kinds = [_kind(value) for value in traced]
    if any(isinstance(k, SymbolicTensor) and is_weight(n, e) for k, n, e in zip(kinds, nodes, examples, strict=True)):
        return None  # weights are constants if they are frozen
    wanted = set[Any]()
    for kind in kinds:
        wanted |= kind.symbols if isinstance(kind, SymbolicTensor) else getattr(kind, "free_symbols", set())
    places = {kind: k for k, kind in reversed(list(enumerate(kinds))) if getattr(kind, "is_Symbol", False)}
    if not wanted or not wanted <= places.keys():
        return None
    env = next(v.node.shape_env for v in traced if isinstance(v, torch.SymInt))
    declared = _symbols_with_declared_largest(kinds, examples)
    symbols = tuple(_symbol(s, k, env, nodes[k], s in declared) for s, k in sorted(places.items(), key=lambda p: p[1]))
    (results,) = next(n for n in graph.graph.nodes if n.op == "output").args
    values = [n.meta.get("example_value") for n in graph.graph.nodes]
    sizes = frozenset(
        math.prod(t.shape, start=v.element_size()) for v in values if isinstance(v, torch.Tensor)
        if (t := SymbolicTensor.of(v)).symbols <= wanted
    )  # fmt: skip
    known = tuple(_result_kind(getattr(r, "meta", {}).get("example_value")) for r in results)
    return GraphSizes(symbols, tuple(kinds), known, sizes)


def without_size_results(
    graph: torch.fx.GraphModule, sizes: GraphSizes
) -> tuple[torch.fx.GraphModule, GraphSizes, tuple[Number | None, ...]]:
    """Return the graph without results that are sizes, its sizes, and these results (``None`` for all others)."""
    removed = tuple(None if isinstance(r, SymbolicTensor) else r for r in sizes.results)
    if all(r is None for r in removed):
        return graph, sizes, ()
    made = copy.copy(graph)
    made.graph = copy.deepcopy(graph.graph)
    for node, copied in zip(graph.graph.nodes, made.graph.nodes, strict=True):
        if hasattr(node, "_dynamo_source"):  # names of arguments, and which are weights; a copy lacks it
            copied._dynamo_source = node._dynamo_source
    output = next(n for n in made.graph.nodes if n.op == "output")
    output.args = (tuple(n for n, r in zip(output.args[0], removed, strict=True) if r is None),)
    made.recompile()
    kept = tuple(k for k, r in zip(sizes.results, removed, strict=True) if r is None)
    return made, replace(sizes, results=kept), removed


def _kind(value: Any) -> Number | SymbolicTensor | None:
    import torch

    if isinstance(value, torch.Tensor):
        known = SymbolicTensor.of(value)
        return known if known.symbols else None
    return number_of(value) if isinstance(value, (int, torch.SymInt)) else None


def _result_kind(value: Any) -> Number | SymbolicTensor | None:
    import torch

    return SymbolicTensor.of(value) if isinstance(value, torch.Tensor) else _kind(value)


def _symbols_with_declared_largest(kinds: Sequence[Any], examples: Sequence[Any]) -> set[Any]:
    """Return the symbols whose largest value the user has declared with ``mark_dynamic(..., max=...)``."""
    rows = (
        (k.shape[row.dim], row.max)
        for k, example in zip(kinds, examples, strict=True) if isinstance(k, SymbolicTensor)
        for row in getattr(example, "_dynamo_dynamic_range", None) or ()
    )  # fmt: skip
    return {size for size, most in rows if most is not None and not isinstance(size, int)}


def _symbol(symbol: Any, position: int, env: Any, node: Any, declared: bool) -> Symbol:
    bounds, steps = env.var_to_range.get(symbol), [1]
    for guard in env.guards:
        steps += _step_of_guard(guard.expr, symbol)
    low, high = (_finite(getattr(bounds, end, None)) for end in ("lower", "upper"))
    low = low or 0
    # Dynamo begins ranges at 2, because it traces sizes of 0 and 1 separately.
    low = 1 if low <= 2 else low
    return Symbol(symbol, position, readable_source(node), low, high, math.lcm(*steps), declared)


def _finite(end: Any) -> int | None:
    try:
        return int(end)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None


def _step_of_guard(guard: Any, symbol: Any) -> list[int]:
    """Return ``[n]`` if a guard says that a size is a multiple of ``n``; otherwise an empty list."""
    from torch.utils._sympy.functions import Mod

    sides: tuple[Any, ...] = getattr(guard, "args", ())
    if type(guard).__name__ != "Equality" or len(sides) != 2 or 0 not in sides:
        return []
    mod = sides[0] if sides[1] == 0 else sides[1]
    if not isinstance(mod, Mod) or mod.args[0] != symbol or not mod.args[1].is_number:
        return []
    return [int(mod.args[1])]


def readable_source(node: torch.fx.Node) -> str:
    """Return where Dynamo reads an argument as a user would write it.

    ``L['x'].size()[1]`` becomes ``x.shape[1]``.
    """
    source = getattr(getattr(node, "_dynamo_source", None), "name", None)
    text = str(source() if callable(source) else source or node.name)
    text = re.sub(r"^L\['(\w+)'\]", r"\1", text)
    return re.sub(r"\.size\(\)\[(\d+)\]$", r".shape[\1]", text)
