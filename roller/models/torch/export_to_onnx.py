"""Exports a PyTorch graph to an ONNX model that takes every tensor of a call as an input, including the weights."""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from roller.models.torch.detect_invalid_argument_values import add_value_checks
from roller.models.torch.exact_decompositions import exact_decompositions
from roller.models.torch.refuse_unsupported_operators import RefusedGraphError, draws_random_numbers, refuse_unsupported
from roller.models.torch.replace_unsupported_functions import replace_unsupported_calls
from roller.models.torch.result_difference import is_pointwise

if TYPE_CHECKING:
    import onnx
    import torch


#: Loggers of the exporters, which report every node that they leave unchanged.
_EXPORTERS = ("torch.onnx", "onnxscript", "onnx_ir")


@dataclass(frozen=True)
class OwnedTensor:
    """A tensor that a graph owns, under its name in its module's dict; each call looks it up because it may change."""

    tensors: dict[str, torch.Tensor | None]
    name: str


@dataclass(frozen=True)
class ExportedGraph:
    """An ONNX model of a graph for fixed shapes.

    Parameters
    ----------
    positions
        Positions of the model's inputs among the graph's arguments; held tensors follow all arguments.
    weights
        Positions of parameters and buffers.
    outputs
        Index of the model's output for each result of the graph; ``None`` for a result that is ``None``.
    dtypes
        Known dtypes of results: the exporter does not convert back results that it computes in float32 instead of half
        precision.
    strides
        Known strides of results.
    pointwise
        Whether the graph contains only element-wise operators.
    checks
        Indices of outputs that are true if PyTorch raises an error.
    random
        Whether a branch of the graph draws random numbers.
    """

    model: onnx.ModelProto
    positions: tuple[int, ...]
    held: tuple[OwnedTensor, ...]
    weights: frozenset[int]
    outputs: tuple[int | None, ...]
    dtypes: tuple[torch.dtype | None, ...]
    strides: tuple[tuple[int, ...] | None, ...]
    pointwise: bool
    checks: tuple[int, ...] = ()
    random: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the model's inputs."""
        return tuple(value.name for value in self.model.graph.input)


def export_graph(
    graph: torch.fx.GraphModule, examples: Sequence[Any], sizes: Mapping[Any, Any] | None = None
) -> ExportedGraph:
    """Export a graph for arguments like these; ``sizes`` are the values of SymPy's symbols in its trace, if known."""
    import torch

    made, positions = _fix_size_arguments(graph, examples)
    (results,) = next(n for n in graph.graph.nodes if n.op == "output").args
    _check_results(graph, results, sizes)
    held, module = _lift_owned_tensors(made)
    given = [examples[n].detach() for n in positions] + [h.tensors[h.name] for h in held]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        # The export runs outside Dynamo's own tracing, whose guards refer to arguments that are unknown here.
        with _silence_loggers(*_EXPORTERS), torch._guards.tracing(None):
            traced = torch.export.export(module, tuple(given), strict=False)
            refuse_unsupported(traced.graph)
            random = draws_random_numbers(traced)
            pointwise = all(is_pointwise(n.target) for n in traced.graph.nodes if n.op == "call_function")
            watched, checks = add_value_checks(traced) or (None, 0)
            if watched is not None:
                traced = torch.export.export(watched, tuple(given), strict=False)
            own = exact_decompositions()
            if any(n.target in own for n in traced.graph.nodes):
                traced = traced.run_decompositions(own)
            program = torch.onnx.export(traced, dynamo=True, verbose=False)
    assert program is not None and program.exported_program is not None
    signature = program.exported_program.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        raise RefusedGraphError(
            "the graph writes into its arguments or buffers, which kernels do not. Return new values."
        )
    model = program.model_proto
    if len(model.graph.input) != len(given):
        raise RefusedGraphError(f"the exported graph has {len(model.graph.input)} inputs instead of {len(given)}")
    weights = {k for k, n in enumerate(placeholders(graph)) if k in positions and is_weight(n, examples[k])}
    all_positions = (*positions, *range(len(examples), len(examples) + len(held)))
    outputs = len(model.graph.output)
    order = _output_index_per_result(outputs - checks, results)
    dtypes, strides = tuple(_known_dtype(r) for r in results), tuple(_known_strides(r) for r in results)
    return ExportedGraph(model, all_positions, held, frozenset(weights), order, dtypes, strides, pointwise,
                    tuple(range(outputs - checks, outputs)), random)  # fmt: skip


def check_graph(graph: torch.fx.GraphModule, examples: Sequence[Any]) -> None:
    """Raise an error if :func:`export_graph` would refuse the graph's arguments or results."""
    for node, example in zip(placeholders(graph), examples, strict=True):
        if not is_size(example):
            _check_argument(node.name, example)
    (results,) = next(n for n in graph.graph.nodes if n.op == "output").args
    _check_results(graph, results, None)


def is_size(value: Any) -> bool:
    """Return whether a value of a trace, or an argument, is a size."""
    import torch

    return isinstance(value, (int, torch.SymInt))


def export_module(module: torch.nn.Module, examples: Sequence[Any]) -> onnx.ModelProto:
    """Export a module in evaluation mode for arguments like these; parameters keep their names."""
    import torch

    was = [m for m in module.modules() if m.training]
    try:
        module.eval()
        with torch.no_grad(), warnings.catch_warnings(), _silence_loggers(*_EXPORTERS):
            warnings.simplefilter("ignore")  # the exporter's own deprecations
            program = torch.onnx.export(module, tuple(examples), dynamo=True, verbose=False)
    except Exception as why:  # the exporter's errors have no common class, and a module raises what it likes
        first = str(why).strip().partition("\n")[0]
        raise RefusedGraphError(
            f"{type(module).__name__}: expected a module that torch.onnx exports, got {type(why).__name__}: {first}. "
            "Pass examples of its arguments, or an ONNX model."
        ) from why
    finally:
        for m in was:
            m.training = True
    assert program is not None
    model: onnx.ModelProto = program.model_proto
    return model


def placeholders(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """Return the arguments of a graph in order."""
    return [n for n in graph.graph.nodes if n.op == "placeholder"]


def _fix_size_arguments(
    graph: torch.fx.GraphModule, examples: Sequence[Any]
) -> tuple[torch.fx.GraphModule, tuple[int, ...]]:
    """Return the graph with size arguments replaced by constants, and the positions of the other arguments."""
    made = copy.copy(graph)
    made.graph = copy.deepcopy(graph.graph)
    positions = []
    for k, (node, example) in enumerate(zip(placeholders(made), examples, strict=True)):
        if type(example) is int:  # a dynamic size, constant for this shape
            with made.graph.inserting_before(node):
                node.replace_all_uses_with(made.graph.call_function(int, (example,)))
            made.graph.erase_node(node)
            continue
        _check_argument(node.name, example)
        positions.append(k)
    replace_unsupported_calls(made.graph)
    made.recompile()
    return made, tuple(positions)


def _check_argument(name: str, example: Any) -> None:
    import torch

    if type(example) not in (torch.Tensor, torch.nn.Parameter):
        raise RefusedGraphError(
            f"argument '{name}': expected a plain tensor or a size, got {type(example).__name__}. "
            "Pass dynamic=False to torch.compile."
        )
    unknown = example.is_quantized or example.dtype in (torch.bfloat16, torch.complex64, torch.complex128)
    if unknown or example.device.type != "cpu" or example.layout != torch.strided or example.is_neg():
        raise RefusedGraphError(
            f"argument '{name}': {example.dtype} on {example.device} is not for roller's processor kernels."
        )
    if example.requires_grad and torch.is_grad_enabled():
        raise RefusedGraphError(
            "gradients are wanted, and kernels are for inference. Call the model below torch.no_grad()."
        )


def is_weight(node: torch.fx.Node, example: torch.Tensor) -> bool:
    """Return whether an argument is a parameter or a buffer of a module."""
    import torch
    from torch._dynamo.source import is_from_unspecialized_param_buffer_source as of_module

    source = getattr(node, "_dynamo_source", None)
    return isinstance(example, torch.nn.Parameter) or (source is not None and of_module(source))


def _lift_owned_tensors(graph: torch.fx.GraphModule) -> tuple[tuple[OwnedTensor, ...], torch.nn.Module]:
    """Return the tensors that a graph owns, and a module that takes them as further arguments."""
    import torch

    names, held = [], []
    for prefix, module in graph.named_modules(remove_duplicate=False):
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    _check_argument(name, tensor)
                    names.append(f"{prefix}.{name}" if prefix else name)
                    held.append(OwnedTensor(tensors, name))
    graph.training = False  # only on this copy: submodules belong to the user
    if not held:
        return (), graph

    def forward(_: torch.nn.Module, *arguments: Any) -> Any:
        given, values = arguments[: -len(names)], arguments[-len(names) :]
        return torch.func.functional_call(graph, dict(zip(names, values, strict=True)), given)

    return tuple(held), type("WithHeld", (torch.nn.Module,), {"forward": forward})().eval()


def _check_results(
    graph: torch.fx.GraphModule, results: Sequence[Any], sizes: Mapping[Any, Any] | None
) -> None:  # fmt: skip
    """Refuse results that alias an argument or each other: a write to either would be visible in the other."""
    import torch

    arguments = [v for n in placeholders(graph) if isinstance(v := _example_value(n), torch.Tensor)]
    held = [*graph.parameters(), *graph.buffers()]
    theirs = {_storage_id(t) for t in (*arguments, *held)}
    before: list[tuple[Any, torch.Tensor]] = []
    for result in results:
        value = _example_value(result)
        if result is None or value is None:
            continue
        if not isinstance(value, torch.Tensor):
            raise RefusedGraphError(
                f"result '{result}': expected a tensor, got a size. Pass dynamic=False to torch.compile."
            )
        if _storage_id(value) in theirs:
            raise RefusedGraphError(f"result '{result}' is a view of an argument. Return new values.")
        for other, tensor in before:
            if _storage_id(tensor) == _storage_id(value) and _may_overlap(tensor, value, sizes):
                raise RefusedGraphError(f"results '{other}' and '{result}' share memory. Return new values.")
        before.append((result, value))


def _example_value(node: Any) -> Any:
    return getattr(node, "meta", {}).get("example_value")


def _storage_id(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class _LayoutWithoutMemory:
    """An array interface with a tensor's layout but no memory, for overlap tests in NumPy."""

    def __init__(self, tensor: torch.Tensor, sizes: Mapping[Any, Any]) -> None:
        size, origin = tensor.element_size(), 1 << 40
        start, *numbers = (_number(n, sizes) for n in (tensor.storage_offset(), *tensor.shape, *tensor.stride()))
        self.__array_interface__ = {
            "version": 3, "typestr": f"|V{size}", "data": (origin + size * start, True),
            "shape": tuple(numbers[: tensor.dim()]), "strides": tuple(size * n for n in numbers[tensor.dim() :]),
        }  # fmt: skip


def _number(value: Any, sizes: Mapping[Any, Any]) -> int:
    """Return a size of a trace as a number; raise an error if it depends on an unknown one."""
    node = getattr(value, "node", None)  # ``int`` of a symbolic size would make Dynamo trace every size anew
    return int(value) if node is None else int(node.shape_env.simplify(node.expr).xreplace(sizes))


def _may_overlap(one: torch.Tensor, other: torch.Tensor, sizes: Mapping[Any, Any] | None) -> bool:
    """Return whether views of one storage share an element; true if the test is too expensive."""
    most_work: Any = 100_000
    try:
        a, b = (np.asarray(_LayoutWithoutMemory(t, sizes or {})) for t in (one, other))
        return bool(np.shares_memory(a, b, max_work=most_work))
    except (RuntimeError, TypeError, ValueError):  # too expensive, or unknown sizes
        return True


def _known_dtype(result: Any) -> torch.dtype | None:
    import torch

    value = _example_value(result)
    return value.dtype if isinstance(value, torch.Tensor) else None


def _known_strides(result: Any) -> tuple[int, ...] | None:
    """Return the strides of a result with static sizes; otherwise ``None``."""
    import torch

    value = _example_value(result)
    strides = value.stride() if isinstance(value, torch.Tensor) else ()
    known = isinstance(value, torch.Tensor) and all(type(n) is int for n in (*value.shape, *strides))
    return tuple(strides) if known else None


@contextlib.contextmanager
def _silence_loggers(*names: str) -> Iterator[None]:
    """Silence log messages below error level."""
    logs = [logging.getLogger(found) for found in _loggers_with_levels(names)]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(max(logging.ERROR, log.level))
    try:
        yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


def _loggers_with_levels(names: Sequence[str]) -> list[str]:
    """Return ``names`` and the names of their descendant loggers that have their own level."""
    own = [n for n, log in logging.root.manager.loggerDict.items() if getattr(log, "level", logging.NOTSET)]
    return [*names, *(n for n in own if n.startswith(tuple(f"{name}." for name in names)))]


def _output_index_per_result(count: int, results: Sequence[Any]) -> tuple[int | None, ...]:
    """Return the index of the model's output for each result of the graph; ``None`` for a result that is ``None``."""
    tensors = [r for r in results if r is not None]
    if len(tensors) != count:
        raise RefusedGraphError(f"the exported graph has {count} outputs instead of {len(tensors)}")
    numbers = iter(range(count))
    return tuple(None if r is None else next(numbers) for r in results)
