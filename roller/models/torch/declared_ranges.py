"""The backend's option ``dynamic_shapes``: bounds of an argument's dimensions, as in ``torch.export``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from roller.errors import RollerError, counted, did_you_mean, shown
from roller.models.torch.export_to_onnx import placeholders
from roller.models.torch.symbolic_sizes import Bounds, GraphSizes, SymbolicTensor, readable_source
from roller_runtime.core.validation import is_integer

if TYPE_CHECKING:
    import torch

_WHERE = "torch.compile(backend='roller'): options['dynamic_shapes']"
_HOW = "Write {'x': {1: (1, 512)}}: the argument's name, the dimension, and its least and largest size."

#: Bounds by argument and dimension.
DeclaredRanges = dict[str, dict[int, tuple[int, int]]]


def parse_declared_ranges(option: Any) -> DeclaredRanges:
    """Return the option with each range as a pair.

    Raises
    ------
    RollerError
        If the option is malformed.

    Examples
    --------
    >>> parse_declared_ranges({"x": {1: range(1, 513)}})
    {'x': {1: (1, 512)}}
    """
    if not isinstance(option, Mapping) or not all(isinstance(dims, Mapping) for dims in option.values()):
        raise RollerError(f"{_WHERE}: expected dimensions by argument, got {shown(option)}. {_HOW}")
    return {_name(name): {_dim(name, dim): _ends(name, ends) for dim, ends in dims.items()}
            for name, dims in option.items()}  # fmt: skip


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise RollerError(f"{_WHERE}: expected the name of an argument, got {shown(name)}. {_HOW}")
    return name


def _dim(name: str, dim: Any) -> int:
    if not is_integer(dim):
        raise RollerError(f"{_WHERE}['{name}']: expected the index of a dimension, got {shown(dim)}. {_HOW}")
    return int(dim)


def _ends(name: str, ends: Any) -> tuple[int, int]:
    """Return a pair, a range, or a ``torch.export.Dim`` as a pair."""
    pair: tuple[Any, Any] = (getattr(ends, "min", None), getattr(ends, "max", None))
    if isinstance(ends, range) and ends and ends.step == 1:
        pair = ends[0], ends[-1]
    elif isinstance(ends, (tuple, list)) and len(ends) == 2:
        pair = ends[0], ends[1]
    if not all(map(is_integer, pair)) or not 1 <= pair[0] <= pair[1]:
        raise RollerError(f"{_WHERE}['{name}']: expected (least, largest) of at least 1, got {shown(ends)}. {_HOW}")
    return int(pair[0]), int(pair[1])


def declared_bounds(
    declared: DeclaredRanges, graph: torch.fx.GraphModule, sizes: GraphSizes
) -> tuple[Bounds, str]:  # fmt: skip
    """Return the bounds of the graph's sizes by name, and a warning if an argument or a dimension does not exist."""
    names = [_argument_name(node) for node in placeholders(graph)]
    found: Bounds = {}
    known, warning = {s.name for s in sizes.symbols}, ""
    for name, kind in zip(names, sizes.arguments, strict=True):
        if not isinstance(kind, SymbolicTensor):
            continue
        for dim, ends in declared.get(name, {}).items():
            where = f"options['dynamic_shapes']['{name}'][{dim}]"
            if not -len(kind.shape) <= dim < len(kind.shape):
                dims = counted(len(kind.shape), "dimension")
                warning = warning or f"{where}: expected the index of one of its {dims}. Its bounds have no effect."
                continue
            size = str(kind.shape[dim])
            if isinstance(kind.shape[dim], int):  # it does not vary in this graph
                continue
            if size not in known:
                warning = warning or f"{where}: expected a size of its own, got {size}. Its bounds have no effect."
            elif found.setdefault(size, ends) != ends:
                warning = warning or f"{where}: expected {found[size]}, as for the same size elsewhere, got {ends}."
    if not declared or declared.keys() & set(names):
        return found, warning
    ours = [n for n, k in zip(names, sizes.arguments, strict=True) if isinstance(k, SymbolicTensor)]
    wrong = next(iter(declared))
    hint = did_you_mean(wrong, ours) or f"; its arguments of varying shapes are {', '.join(ours)}."
    return found, f"options['dynamic_shapes'] does not apply to a graph: it has no argument '{wrong}'{hint}"


def _argument_name(node: torch.fx.Node) -> str:
    """Return the name of an argument in the user's function."""
    return readable_source(node).partition(".shape[")[0]
