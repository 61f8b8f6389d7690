"""Refusal of operators that PyTorch's exporter would silently export as something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from roller.errors import RollerError

if TYPE_CHECKING:
    import torch


class RefusedGraphError(RollerError):
    """Raised if a graph is not supported."""


def _is_always_unsupported(_: torch.fx.Node) -> bool:
    return True


def _has_divisor_and_ceil_mode(node: torch.fx.Node) -> bool:
    """Return whether an average pooling has a divisor override and windows that may extend past the end."""
    given = _arguments_by_name(node)
    return given.get("divisor_override") is not None and bool(given.get("ceil_mode"))


def _is_cropping_circular_pad(node: torch.fx.Node) -> bool:
    """Return whether circular padding also crops."""
    given = _arguments_by_name(node)
    return given.get("mode") == "circular" and any(n < 0 for n in given["pad"])


def _arguments_by_name(node: torch.fx.Node) -> dict[str, Any]:
    """Return the arguments of an operator by name, including defaults."""
    known = node.target._schema.arguments
    given = {a.name: a.default_value for a in known if a.has_default_value()}
    return {**given, **dict(zip((a.name for a in known), node.args, strict=False)), **node.kwargs}


#: By operator name, a test for calls that are exported incorrectly, and the error. ``python -m benchmarks.torch_audit``
#: finds such operators; :mod:`roller.models.torch.exact_decompositions` decomposes simple and common ones instead.
LEFT: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("avg_pool1d", "avg_pool2d", "avg_pool3d"),
        (_has_divisor_and_ceil_mode, "its divisor is that of a whole window where one reaches over the end"),
    ),
    "pad": (_is_cropping_circular_pad, "what is cropped is not wrapped around"),
    "logcumsumexp": (_is_always_unsupported, "its sums would overflow or vanish"),
    "native_batch_norm": (_is_always_unsupported, "the means and deviations it returns are empty in inference"),
    "special_log_ndtr": (_is_always_unsupported, "the logarithm of a probability that vanishes stands for it"),
    "special_erfcx": (_is_always_unsupported, "the product of a vanishing and an infinite factor stands for it"),
}


def refuse_unsupported(graph: torch.fx.Graph) -> None:
    """Refuse a graph with an operator in :data:`LEFT`, complex numbers or random numbers."""
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        name = str(getattr(node.target, "overloadpacket", node.target)).removeprefix("aten.")
        rule = LEFT.get(name)
        if rule is not None and rule[0](node):
            raise RefusedGraphError(f"operator '{name}' is not exported as PyTorch computes it: {rule[1]}.")
        if _operator_draws_random_numbers(node):
            raise RefusedGraphError(f"operator '{name}' draws random numbers, which kernels do not.")
        # The exporter represents complex numbers as pairs of floats, which most of its decompositions do not support.
        if any(_is_complex(v) for v in (node, *node.all_input_nodes)):
            raise RefusedGraphError(f"operator '{name}' has complex numbers, and kernels are for real ones.")


def draws_random_numbers(program: torch.export.ExportedProgram) -> bool:
    """Return whether a traced graph, including its branches, draws random numbers."""
    import torch

    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    return any(n.op == "call_function" and _operator_draws_random_numbers(n) for graph in graphs for n in graph.nodes)


def _operator_draws_random_numbers(node: torch.fx.Node) -> bool:
    """Return whether an operator draws random numbers; dropout does only in training with a positive probability."""
    import torch

    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    given = _arguments_by_name(node)
    chance = given.get("dropout_p", given.get("p"))
    if given.get("train", given.get("training", True)) is False:
        return False
    return not (isinstance(chance, (int, float)) and chance == 0 and ("dropout_p" in given or "train" in given))


def _is_complex(node: torch.fx.Node) -> bool:
    import torch

    values = node.meta.get("val")
    return any(
        isinstance(v, torch.Tensor) and v.dtype.is_complex
        for v in (values if isinstance(values, (list, tuple)) else (values,))
    )
