"""Samples of PyTorch's own database of operators (OpInfo) as graphs like those of Dynamo."""

from __future__ import annotations

import importlib.util
import operator
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

#: In the place of a tensor.
_TENSOR = object()
#: What the backend takes as arguments, the most common first.
DTYPES = ("float32", "int64", "bool", "float64", "float16", "int32", "uint8", "int8", "int16")


@dataclass(frozen=True)
class Sample:
    """One call of an operator.

    Parameters
    ----------
    number
        Among the samples of the operator and dtype.
    tensors
        Its tensors, in order.
    leaves, spec
        All its arguments, as pytree has them; ``_TENSOR`` for a tensor.
    results
        Of PyTorch.
    """

    number: int
    tensors: tuple[torch.Tensor, ...]
    leaves: tuple[Any, ...]
    spec: Any
    results: tuple[torch.Tensor, ...]


def operators() -> list[Any]:
    """Return the entries of the database, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
            # PyTorch's tests derive from it; its samples do not need it.
            stand_in: Any = types.ModuleType("expecttest")
            stand_in.TestCase = unittest.TestCase
            sys.modules["expecttest"] = stand_in
        from torch.testing._internal.common_methods_invocations import op_db

        # That module forbids the process to write PyTorch's switches, which none but PyTorch's own tests want.
        vars(torch.backends.m)["__allow_nonbracketed_mutation_flag"] = True
    return sorted(op_db, key=name_of)


def name_of(info: Any) -> str:
    """Return the name of an entry, with its variant."""
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


def dtypes_of(info: Any) -> list[str]:
    """Return the dtypes of an entry that the backend takes."""
    names = {str(d).removeprefix("torch.") for d in info.dtypes}
    return [d for d in DTYPES if d in names]


def samples(info: Any, dtype: str, most: int) -> tuple[list[Sample], int]:
    """Return samples whose results are tensors, spread over all there are; and how many these are."""
    torch.manual_seed(0)
    made: list[Sample] = []
    every = list(info.sample_inputs("cpu", getattr(torch, dtype), requires_grad=False))
    count = len(every)
    chosen = sorted({round(k * (count - 1) / max(1, most - 1)) for k in range(most)}) if count > most else range(count)
    for number in chosen:
        found = every[number]
        leaves, spec = pytree.tree_flatten(((found.input, *found.args), found.kwargs))
        tensors = tuple(a.detach().clone(memory_format=torch.preserve_format) for a in leaves if _is_tensor(a))
        held = tuple(_TENSOR if _is_tensor(a) else a for a in leaves)
        args, kwargs = _call(held, spec, tensors)
        results = tuple(pytree.tree_leaves(info.op(*args, **kwargs)))
        if results and all(map(_is_tensor, results)):
            made.append(Sample(number, tensors, held, spec, results))
    return made, count


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _call(leaves: Sequence[Any], spec: Any, tensors: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return positional and named arguments with these tensors, or nodes in their place."""
    given = iter(tensors)
    args, kwargs = pytree.tree_unflatten([next(given) if a is _TENSOR else a for a in leaves], spec)
    return args, kwargs


def graph_of(function: Callable[..., Any], some: Sequence[Sample]) -> torch.fx.GraphModule:
    """Return a graph that calls an operator once for each sample, with what Dynamo notes of its values.

    A result that is a view of an argument is copied: the backend leaves such graphs to PyTorch for that alone.
    """
    graph, named = torch.fx.Graph(), _is_named(function)
    places = [[_placeholder(graph, f"a{k}_{n}", t) for n, t in enumerate(s.tensors)] for k, s in enumerate(some)]
    outputs = []
    for sample, nodes in zip(some, places, strict=True):
        args, kwargs = _call(sample.leaves, sample.spec, nodes)
        call = graph.call_function if named else graph.call_module
        called = call(function if named else "call", tuple(args), kwargs)
        given = {t.untyped_storage()._cdata for t in sample.tensors}
        many = _is_sequence(function, sample)
        for number, result in enumerate(sample.results):
            node = graph.call_function(operator.getitem, (called, number)) if many else called
            storage = result.untyped_storage()._cdata
            if storage in given:
                node = graph.call_method("clone", (node,))
                result = result.clone()
            given.add(storage)
            node.meta["example_value"] = result
            outputs.append(node)
    graph.output(tuple(outputs))
    root = torch.nn.Module()
    root.call = _Call(function)
    return torch.fx.GraphModule(root, graph)


class _Call(torch.nn.Module):
    """A function that a graph's code cannot name."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return self.function(*args, **kwargs)


def _is_named(function: Callable[..., Any]) -> bool:
    """Whether code finds a function by its name, as that of Dynamo's graphs does."""
    name = getattr(function, "__name__", "")
    homes = (torch, torch.nn.functional, torch.linalg, torch.special, torch.fft, torch.Tensor)
    return any(getattr(home, name, None) is function for home in homes)


def _placeholder(graph: torch.fx.Graph, name: str, tensor: torch.Tensor) -> torch.fx.Node:
    node = graph.placeholder(name)
    node.meta["example_value"] = tensor
    return node


def _is_sequence(function: Callable[..., Any], sample: Sample) -> bool:
    """Whether the operator returns a sequence, even one of a single tensor."""
    args, kwargs = _call(sample.leaves, sample.spec, sample.tensors)
    return not _is_tensor(function(*args, **kwargs))
