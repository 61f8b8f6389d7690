"""Detects, by extra boolean results of a graph, argument values for which PyTorch raises an error."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Returns whether PyTorch raises an error for an operator's arguments; ``None`` if it never does.
_Rule = Callable[[Sequence[Any], Mapping[str, Any]], "torch.Tensor | None"]


def add_value_checks(traced: torch.export.ExportedProgram) -> tuple[torch.nn.Module, int] | None:
    """Return a module with extra results (true if PyTorch raises an error) and their number; ``None`` if none."""
    import torch

    # PyTorch raises for integer divisions by zero and for indices and classes out of bounds; kernels do not.
    watched = [n for n in traced.graph.nodes if n.op == "call_function" and _needs_check(n)]
    if not watched:
        return None
    # Releases with this argument check guards by default.
    unguarded = {"check_guards": False} if "check_guards" in inspect.signature(traced.module).parameters else {}
    names, inner = {n.name for n in watched}, traced.module(**unguarded)

    class Watching(torch.fx.Interpreter):
        def __init__(self, module: torch.nn.Module, raised: list[torch.Tensor]) -> None:
            super().__init__(module)
            self.raised = raised

        def run_node(self, n: torch.fx.Node) -> Any:
            if n.name in names:
                raised = _RULES[_operator_name(n.target)](*self.fetch_args_kwargs_from_env(n))
                assert raised is not None
                self.raised.append(raised)
            return super().run_node(n)

    def forward(_: torch.nn.Module, *arguments: Any) -> Any:
        raised: list[torch.Tensor] = []
        results = Watching(inner, raised).run(*arguments)
        return (*results, *raised)

    return type("Checked", (torch.nn.Module,), {"forward": forward})().eval(), len(watched)


def _operator_name(target: Any) -> str:
    """Return the name of an operator, without the underscore of in-place variants."""
    packet = getattr(target, "overloadpacket", None)
    return "" if packet is None else str(packet).removeprefix("aten.").rstrip("_")


def _needs_check(node: torch.fx.Node) -> bool:
    """Return whether the shapes and dtypes in the trace show that an operator has values to check."""
    import torch

    rule = _RULES.get(_operator_name(node.target))
    if rule is None:
        return False
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    return rule(args, kwargs) is not None


def _is_divisor_zero(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """Return whether a divisor of an integer division is zero; ``None`` for other divisions."""
    import torch

    x, y = args[:2]
    kind = torch.result_type(x, y)
    if not isinstance(y, torch.Tensor) or kind.is_floating_point or kind.is_complex:
        return None
    return (y == 0).any()


def _is_rounded_divisor_zero(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    return None if kwargs.get("rounding_mode") is None else _is_divisor_zero(args, kwargs)


def _any_out_of_bounds(index: torch.Tensor, size: int) -> torch.Tensor:
    return ((index < 0) | (index >= size)).any()


def _axis_index_out_of_bounds(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """Return whether an index along an axis is out of bounds; ``None`` for a scalar tensor."""
    x, axis, index = args[:3]
    return _any_out_of_bounds(index, x.shape[axis]) if x.dim() else None


def _embedding_index_out_of_bounds(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    return _any_out_of_bounds(args[1], args[0].shape[0])


def _class_out_of_bounds(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """Return whether a class in a loss, other than the ignored class, is out of bounds; ``None`` for float targets."""
    x, target = args[:2]
    if target.is_floating_point():
        return None
    ignored = args[4] if len(args) > 4 else kwargs.get("ignore_index", -100)
    count = x.shape[1 if x.dim() > 1 else 0]
    raised: torch.Tensor = (target != ignored) & ((target < 0) | (target >= count))
    return raised.any()


def _one_hot_index_out_of_bounds(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    count = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    return _any_out_of_bounds(args[0], count) if count > 0 else None


_AXES = ("gather", "index_select", "scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill",
         "index_reduce")  # fmt: skip
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("floor_divide", "remainder", "fmod"), _is_divisor_zero),
    "div": _is_rounded_divisor_zero,
    **dict.fromkeys(_AXES, _axis_index_out_of_bounds),
    "embedding": _embedding_index_out_of_bounds,
    **dict.fromkeys(("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d"), _class_out_of_bounds),
    "one_hot": _one_hot_index_out_of_bounds,
}
