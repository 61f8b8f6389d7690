"""``torch.compile(model, backend="roller")``: graphs of PyTorch for inference, by way of ONNX.

A graph that cannot be taken (training, arguments written in place, operators without a lowering) runs in PyTorch as if
nothing had been asked, and a warning says why. A graph of dynamic shapes is compiled for each shape it is called with.
Parameters and buffers are constants: a model whose weights change afterwards must be compiled again
(``torch._dynamo.reset()``).
"""

from __future__ import annotations

import contextlib
import copy
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roller.errors import RollerError
from roller.model.session import Session
from roller.onnx.compile import compile_model
from roller.onnx.torch_fast_paths import spell_out

if TYPE_CHECKING:
    import torch

#: Shapes a graph is compiled for; it runs in PyTorch for any further ones.
MOST_SHAPES = 8
#: What exporting and compiling may end in where a graph is not for roller; anything else is a fault and is raised.
_REFUSALS = (RollerError, ImportError, RuntimeError, NotImplementedError)

Graph = Callable[..., Any]


class _Refused(RollerError):
    """Why a graph stays with PyTorch."""


@dataclass(frozen=True)
class _Split:
    """A graph with its parameters inside.

    Parameters
    ----------
    module
        Takes what changes from call to call.
    positions
        Of these among the arguments of the graph.
    """

    module: torch.fx.GraphModule
    positions: tuple[int, ...]


def roller_backend(
    graph: torch.fx.GraphModule, examples: Sequence[Any], options: Mapping[str, Any] | None = None
) -> Graph:
    """Compile a graph that Dynamo has traced.

    Parameters
    ----------
    graph
        Of one frame.
    examples
        Its arguments, parameters and buffers among them.
    options
        Arguments of :func:`roller.compile_model` (``torch.compile(..., options={"top_k": 4})``).

    Returns
    -------
    callable
        Takes the graph's arguments and returns its outputs as a tuple; the graph itself where it is refused.
    """
    chosen = dict(options or {})
    return _PerShape(graph, chosen) if any(map(_is_dynamic, examples)) else _compiled(graph, examples, chosen)


def _compiled(graph: torch.fx.GraphModule, examples: Sequence[Any], options: dict[str, Any]) -> Graph:
    """Return a graph compiled for arguments like these, itself where it is refused."""
    try:
        split = _with_constants(graph, examples)
        session = _session(split, [examples[n] for n in split.positions], options)
        return _caller(session, split.positions, graph)
    except _REFUSALS as why:
        return _eager(graph, _reason(why))


def _eager(graph: torch.fx.GraphModule, reason: str) -> Graph:
    warnings.warn(f"roller: a graph runs in PyTorch instead: {reason}", RuntimeWarning, stacklevel=2)
    eager: Graph = graph.forward
    return eager


def _reason(why: BaseException) -> str:
    """Return the first line of what began it: exporters wrap it in advice on how to report them."""
    while why.__cause__ is not None:
        why = why.__cause__
    lines = str(why).strip().splitlines()
    return lines[0] if lines else type(why).__name__


class _PerShape:
    """A graph of dynamic shapes: compiled when it is first called with one.

    Parameters
    ----------
    graph
        Its sizes are arguments.
    options
        Arguments of ``compile_model``.
    """

    def __init__(self, graph: torch.fx.GraphModule, options: dict[str, Any]) -> None:
        self._graph, self._options = graph, options
        self._made: dict[Any, Graph] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Run for these arguments."""
        key = tuple(tuple(a.shape) if hasattr(a, "shape") else a for a in arguments)
        if key not in self._made:
            if len(self._made) >= MOST_SHAPES:
                return self._rest(*arguments)
            self._made[key] = _compiled(self._graph, arguments, self._options)
        return self._made[key](*arguments)

    @cached_property
    def _rest(self) -> Graph:
        return _eager(self._graph, f"it was called with more than {MOST_SHAPES} different shapes")


def _is_dynamic(example: Any) -> bool:
    """Whether an example is a size, or has one, that calls decide."""
    import torch

    return isinstance(example, torch.SymInt) or any(isinstance(n, torch.SymInt) for n in getattr(example, "shape", ()))


def _with_constants(graph: torch.fx.GraphModule, examples: Sequence[Any]) -> _Split:
    """Return the graph with parameters and buffers as attributes.

    Raises
    ------
    _Refused
        Where an argument is no tensor of known shape on the CPU, or gradients are wanted.
    """
    import torch
    from torch._dynamo.source import is_from_unspecialized_param_buffer_source as is_held

    made = copy.copy(graph)
    made.graph = copy.deepcopy(graph.graph)
    places = [n for n in made.graph.nodes if n.op == "placeholder"]
    originals = [n for n in graph.graph.nodes if n.op == "placeholder"]
    positions = []
    for k, (node, original, example) in enumerate(zip(places, originals, examples, strict=True)):
        if type(example) is int:  # a size, of this shape
            with made.graph.inserting_before(node):
                node.replace_all_uses_with(made.graph.call_function(int, (example,)))
            made.graph.erase_node(node)
            continue
        _check(node.name, example)
        source = getattr(original, "_dynamo_source", None)
        if not isinstance(example, torch.nn.Parameter) and not (source is not None and is_held(source)):
            positions.append(k)
            continue
        name = f"held_{k}"
        made.register_buffer(name, example.detach())
        with made.graph.inserting_before(node):
            held = made.graph.get_attr(name)
        node.replace_all_uses_with(held)
        made.graph.erase_node(node)
    spell_out(made.graph)
    made.recompile()
    return _Split(made.eval(), tuple(positions))


def _check(name: str, example: Any) -> None:
    import torch

    if not isinstance(example, torch.Tensor):
        raise _Refused(
            f"argument '{name}': expected a tensor or a size, got {type(example).__name__}. "
            "Pass dynamic=False to torch.compile."
        )
    if example.device.type != "cpu" or example.dtype in (torch.bfloat16, torch.complex64, torch.complex128):
        raise _Refused(f"argument '{name}': {example.dtype} on {example.device} is not for roller's processor kernels.")
    if example.requires_grad and torch.is_grad_enabled():
        raise _Refused("gradients are wanted, and kernels are for inference. Call the model below torch.no_grad().")


def _session(split: _Split, examples: list[torch.Tensor], options: dict[str, Any]) -> Session:
    """Export a graph and compile it.

    Raises
    ------
    _Refused
        Where the graph writes into its arguments.
    """
    import torch

    with torch.no_grad(), warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        with _quiet(logging.getLogger("torch.onnx")):
            program = torch.onnx.export(split.module, tuple(examples), dynamo=True, verbose=False)
        assert program is not None
        signature = program.exported_program.graph_signature
        if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
            raise _Refused("the graph writes into its arguments or buffers, which kernels do not. Return new values.")
        path = Path(folder) / "graph.onnx"
        program.save(str(path), external_data=True)
        session = compile_model(path, "cpu", **options)
        assert isinstance(session, Session)
        return session


@contextlib.contextmanager
def _quiet(log: logging.Logger) -> Iterator[None]:
    """Keep a library from telling of packages that are not installed."""
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _caller(session: Session, positions: tuple[int, ...], graph: torch.fx.GraphModule) -> Graph:
    """Return the session as a graph: outputs are in its order, as many as the graph has."""
    import torch

    names, (results,) = session.plan.program.outputs, next(n for n in graph.graph.nodes if n.op == "output").args
    order = _order(names, results)
    examples = [getattr(r, "meta", {}).get("example_value") for r in results]
    # The exporter forgets the way back where it computes halves in float32.
    dtypes = [e.dtype if isinstance(e, torch.Tensor) else None for e in examples]

    def run(*arguments: Any) -> tuple[Any, ...]:
        arrays = [arguments[n].detach().contiguous().numpy() for n in positions]
        made = session.run(None, dict(zip(session.plan.program.inputs, arrays, strict=True)))
        tensors = [torch.from_numpy(a) for a in made]
        return tuple(None if n is None else tensors[n].to(dtype=d) for n, d in zip(order, dtypes, strict=True))

    return run


def _order(names: Sequence[str], results: Sequence[Any]) -> list[int | None]:
    """Return the output of the model for each of the graph's, ``None`` where that is nothing.

    Raises
    ------
    _Refused
        Where their numbers differ.
    """
    tensors = [r for r in results if r is not None]
    if len(tensors) != len(names):
        raise _Refused(f"the exported graph has {len(names)} outputs instead of {len(tensors)}")
    numbers = iter(range(len(names)))
    return [None if r is None else next(numbers) for r in results]
