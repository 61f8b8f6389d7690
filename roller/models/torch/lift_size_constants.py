"""Moves constants that depend on sizes, such as causal masks, out of a graph: each size computes them once."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from roller.models.torch.export_to_onnx import OwnedTensor, placeholders
from roller.models.torch.symbolic_sizes import GraphSizes, Number, SymbolicTensor, evaluate, is_size_node, number_of

if TYPE_CHECKING:
    import torch

#: Maximum number of elements of a constant that stays in the graph at the largest sizes.
_MOST_ELEMENTS = 8192


@dataclass(frozen=True)
class LiftedConstants:
    """A graph that takes constants as further arguments.

    Parameters
    ----------
    graph
        The graph; the constants follow all its arguments.
    sizes
        Its sizes, with the shapes of the constants.
    constants
        Graph of the constants, in PyTorch; ``None`` if there are none.
    inputs
        Its arguments as functions of the sizes.
    """

    graph: torch.fx.GraphModule
    sizes: GraphSizes
    constants: torch.fx.GraphModule | None = None
    inputs: tuple[Number, ...] = ()

    def tensors_at(self, sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """Return the constants at the given sizes."""
        import torch

        if self.constants is None:
            return ()
        values = self.sizes.values(sizes)
        with torch.no_grad():
            found = self.constants(*(evaluate(n, values) for n in self.inputs))
        return tuple(t.contiguous() for t in found)

    def owned_at(self, sizes: Sequence[int]) -> tuple[OwnedTensor, ...]:
        """Return the constants at the given sizes as tensors that the graph owns."""
        return tuple(OwnedTensor({"constant": t}, "constant") for t in self.tensors_at(sizes))


def lift_size_constants(
    graph: torch.fx.GraphModule, sizes: GraphSizes, small: Sequence[int], large: Sequence[int]
) -> LiftedConstants:
    """Return the graph without constants whose values at two sizes are not the beginning of one array."""
    made = copy.copy(graph)
    made.graph = copy.deepcopy(graph.graph)
    _write_causal_masks(made.graph)
    _write_numbers_as_tensors(made.graph)
    known = _constant_nodes(made.graph)
    inner = [n for n in known if any(u not in known and not is_size_node(u) for u in n.users)]
    if not inner:
        return LiftedConstants(graph, sizes)
    every = _separate(made, sizes, known, inner)
    if every is None:
        return LiftedConstants(graph, sizes)
    keep = [] if any(map(_writes, known)) else _constants_to_keep(every, small, large)
    lifted = [n for k, n in enumerate(inner) if k not in keep]
    if not lifted or any(u.op == "output" for n in lifted for u in n.users):
        return LiftedConstants(graph, sizes)
    found = _separate(made, sizes, known, lifted)
    assert found is not None
    return _take_as_arguments(found, known, lifted)


def _constant_nodes(graph: torch.fx.Graph) -> dict[Any, None]:
    """Return the nodes whose tensors depend on sizes alone, in order; none if they are written with other values."""
    import torch

    found: dict[Any, None] = {}
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method") or is_size_node(node):
            continue
        used = [n for n in node.all_input_nodes if not is_size_node(n)]
        if isinstance(node.meta.get("example_value"), torch.Tensor) and all(n in found for n in used):
            found[node] = None
        elif _writes(node) and any(n in found for n in (*node.args[:1], node.kwargs.get("out"))):
            return {}
    order = {node: k for k, node in enumerate(graph.nodes)}
    last_write = max((order[n] for n in found if _writes(n)), default=-1)
    reads = (order[u] for n in found for u in n.users if u not in found and not is_size_node(u))
    return {} if min(reads, default=last_write) < last_write else found


def _writes(node: torch.fx.Node) -> bool:
    """Return whether a node may write into its arguments."""
    name = str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))
    in_place = name.endswith("_") and not name.endswith("__")
    assigns = node.op == "call_function" and getattr(operator, name, None) is node.target and name.startswith("i")
    return in_place or assigns or name == "setitem" or "out" in node.kwargs or bool(node.kwargs.get("inplace"))


def _separate(
    graph: torch.fx.GraphModule, sizes: GraphSizes, known: Mapping[Any, None], wanted: Sequence[Any]
) -> LiftedConstants | None:
    """Return the graph of the ``wanted`` constants; ``None`` if it draws random numbers or an input is unknown."""
    import torch

    inner, copies, inputs = torch.fx.Graph(), dict[Any, Any](), dict[Any, Number]()
    symbols = {s.symbol for s in sizes.symbols}
    for node in known:
        for used in node.all_input_nodes:
            if is_size_node(used) and used not in inputs:
                inputs[used] = number_of(used.meta["example_value"])
    if any(not isinstance(n, int) and not n.free_symbols <= symbols for n in inputs.values()):
        return None
    for k, used in enumerate(inputs):
        copies[used] = inner.placeholder(f"size_{k}")
    for node in known:
        copies[node] = inner.node_copy(node, lambda n: copies[n])
    inner.output(tuple(copies[n] for n in wanted))
    return LiftedConstants(graph, sizes, torch.fx.GraphModule({}, inner), tuple(inputs.values()))


def _constants_to_keep(every: LiftedConstants, small: Sequence[int], large: Sequence[int]) -> set[int]:
    """Return the indices of constants whose values at small sizes begin those at large sizes."""
    import torch

    state = torch.get_rng_state()
    pairs = [every.tensors_at(sizes) for sizes in (small, large)]
    if not torch.equal(state, torch.get_rng_state()):
        torch.set_rng_state(state)
        return set(range(len(pairs[0])))  # random numbers, which are refused later
    found = set()
    for k, (part, whole) in enumerate(zip(*pairs, strict=True)):
        count, begins = part.numel(), part.dtype == whole.dtype and part.numel() <= whole.numel()
        same = begins and torch.equal(part.flatten(), whole.flatten()[:count])
        if same and whole.numel() <= _MOST_ELEMENTS:
            found.add(k)
    return found


def _take_as_arguments(found: LiftedConstants, known: Mapping[Any, None], lifted: Sequence[Any]) -> LiftedConstants:
    """Return the graph with the ``lifted`` constants as arguments."""
    inner, shapes = found.graph.graph, []
    for k, node in enumerate(lifted):
        dims = tuple(map(number_of, node.meta["example_value"].shape))
        strides = tuple(math.prod(dims[axis + 1 :]) for axis in range(len(dims)))
        shapes.append(SymbolicTensor(dims, strides))
        with inner.inserting_after(placeholders(found.graph)[-1]):
            argument = inner.placeholder(f"size_constant_{k}")
        argument.meta = {"example_value": node.meta["example_value"]}
        node.replace_all_uses_with(argument, delete_user_cb=lambda user: user not in known)
    for node in reversed(list(inner.nodes)):
        if node in known and not node.users:
            inner.erase_node(node)
    found.graph.recompile()
    sizes = replace(found.sizes, arguments=(*found.sizes.arguments, *shapes))
    return replace(found, sizes=sizes)


def _write_causal_masks(graph: torch.fx.Graph) -> None:
    """Write the mask of causal attention as a constant of the graph."""
    import torch

    for node in list(graph.nodes):
        if node.target is not torch.nn.functional.scaled_dot_product_attention or len(node.args) < 2:
            continue
        if node.kwargs.get("is_causal") is not True or node.kwargs.get("attn_mask") is not None or len(node.args) > 3:
            continue
        query, key = (n.meta["example_value"] for n in node.args[:2])
        with graph.inserting_before(node):
            dims = []
            for of, value in zip(node.args[:2], (query, key), strict=True):
                dims.append(graph.call_method("size", (of, -2)))
                dims[-1].meta["example_value"] = value.shape[-2]
            whole = graph.call_function(torch.ones, (dims[0], dims[1]), {"dtype": torch.bool})
            whole.meta["example_value"] = query.new_ones((query.shape[-2], key.shape[-2]), dtype=torch.bool)
            mask = graph.call_method("tril", (whole,))
            mask.meta["example_value"] = whole.meta["example_value"]
        node.kwargs = {**node.kwargs, "attn_mask": mask, "is_causal": False}


def _write_numbers_as_tensors(graph: torch.fx.Graph) -> None:
    """Write sizes that are numbers in arithmetic on tensors, such as a mean's divisor, as constants of the graph."""
    import torch

    arithmetic = (operator.add, operator.sub, operator.mul, operator.truediv)
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in arithmetic or len(node.all_input_nodes) != 2:
            continue
        first, second = node.all_input_nodes
        if is_size_node(first) is is_size_node(second):  # two tensors, or arithmetic on sizes
            continue
        size, tensor = (first, second) if is_size_node(first) else (second, first)
        value = tensor.meta.get("example_value")
        if not isinstance(value, torch.Tensor) or value.dim() == 0:  # PyTorch promotes scalar tensors otherwise
            continue
        with graph.inserting_before(node):
            number = graph.call_function(torch.scalar_tensor, (size,), {"dtype": torch.int64})
        number.meta["example_value"] = value.new_ones((), dtype=torch.int64)
        node.replace_input_with(size, number)
