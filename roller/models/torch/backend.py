"""``torch.compile(model, backend="roller")``: PyTorch inference graphs, compiled via ONNX.

An unsupported graph (one that trains, writes into its arguments or has operators without a lowering) runs in PyTorch
with a warning.
"""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from roller.errors import RollerError, counted, did_you_mean, shown
from roller.models.compile import compile_model
from roller.models.torch.call_compiled_graph import GraphCall
from roller.models.torch.call_over_ranges import (
    DynamicGraph,
    RangeSettings,
    add_size_results,
    describe_bounds,
    find_general_graph,
)
from roller.models.torch.compile_graph_for_ranges import RANGE_OPTIONS, UnsupportedGraphError
from roller.models.torch.declared_ranges import declared_bounds, parse_declared_ranges
from roller.models.torch.differing_operator import describe_differing_operator
from roller.models.torch.export_to_onnx import ExportedGraph, export_graph, is_weight, placeholders
from roller.models.torch.first_call_check import CheckedFirstCall
from roller.models.torch.prepacked_weights import FrozenGraph
from roller.models.torch.symbolic_sizes import Bounds, GraphSizes, graph_sizes, without_size_results
from roller_runtime.core.display import truncate_text
from roller_runtime.core.fork_safe_lock import ForkSafeLock
from roller_runtime.core.validation import validate_threads
from roller_runtime.session.cpu_session import Session

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger(__name__)

#: Maximum number of shapes for which a graph is compiled; for further shapes, it runs in PyTorch.
MOST_SHAPES = 8
#: Arguments of ``compile_model`` that the backend sets.
_OURS = ("model", "device", "values", "shapes", "batch")
#: Exceptions during export and compilation that mean that the graph is unsupported; any other is an internal error.
REFUSALS = (RollerError, ImportError, RuntimeError, MemoryError)

Graph = Callable[..., Any]

# Dynamo calls one graph with the weights of several modules, and PyTorch does not count all writes into a tensor
# (through ``weight.data``, NumPy or a fused optimizer). So weights are arguments of the kernels, read in every call,
# unless ``options={"freeze": True}`` packs them ahead (:mod:`roller.models.torch.prepacked_weights`).
#: The exporter has process-wide state; Dynamo compiles one graph at a time, but any thread may call one.
_compiling = ForkSafeLock()


def roller_backend(
    graph: torch.fx.GraphModule, examples: Sequence[Any], options: Mapping[str, Any] | None = None, **other: Any
) -> Graph:
    """Compile a graph that Dynamo has traced.

    Parameters
    ----------
    graph
        Graph of one Python frame.
    examples
        Its arguments, including parameters and buffers.
    options
        Arguments of :func:`roller.compile_model` (``torch.compile(..., options={"top_k": 4})``), and three more.
        ``freeze`` (default ``False``): whether parameters and buffers are packed in advance, once for each set of them,
        and again when one is replaced or PyTorch counts a write to it; the caller guarantees that there are no
        uncounted writes. ``compare`` (default ``True``): whether PyTorch runs the graph in the first call, too, and the
        results are compared. ``dynamic_shapes``: smallest and largest sizes of dimensions that vary, by the name of the
        argument and the index of the dimension, as for ``torch.export`` (``{"x": {1: (1, 512)}}``).
    other
        Further arguments that ``torch.compile`` passes to a backend (``mode``); none are supported.

    Returns
    -------
    callable
        Function that takes the graph's arguments and returns its outputs as a tuple; for an unsupported graph, the
        graph itself.

    Raises
    ------
    RollerError
        If an option is unknown or malformed.
    """
    chosen = _check_option_names({} if options is None else options, other)
    general = find_general_graph(graph, examples, chosen)
    if general is not None:
        return general
    if not any(map(_is_dynamic, examples)):
        return _compile_graph(graph, examples, chosen)
    sizes = graph_sizes(graph, examples)
    return _CompiledPerShape(graph, chosen) if sizes is None else _compile_for_ranges(graph, examples, chosen, sizes)


def _check_option_names(options: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``options``; raise an error for an unknown option, because a warning could hide a misspelling."""
    where = "torch.compile(backend='roller')"
    if other:
        names = ", ".join(f"'{n}'" for n in other)
        raise RollerError(f"{where}: expected options={{...}} and nothing else, got {names}. Leave it out.")
    theirs = (n for n in inspect.signature(compile_model).parameters if n not in _OURS)
    known = ["freeze", "compare", "dynamic_shapes", *theirs]
    if not isinstance(options, Mapping):
        raise RollerError(f"{where}: options: expected a dict, got {shown(options)}.")
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known) or f". Options are: {', '.join(known)}."
            raise RollerError(f"{where}: options: unknown {shown(name)}{hint}")
    for name in ("freeze", "compare"):
        value = options.get(name, False)
        if not isinstance(value, bool):
            raise RollerError(f"{where}: options['{name}']: expected True or False, got {shown(value)}. Write either.")
    if options.get("threads") is not None:
        try:
            validate_threads(options["threads"], discrete=False)
        except RollerError as err:
            raise RollerError(f"{where}: options: {err}") from None
    if "dynamic_shapes" in options:
        return {**options, "dynamic_shapes": parse_declared_ranges(options["dynamic_shapes"])}
    return dict(options)


def _split_own_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], bool, bool]:
    """Return the options of ``compile_model``, ``freeze`` and ``compare``."""
    chosen = dict(options)
    chosen.pop("dynamic_shapes", None)
    return chosen, chosen.pop("freeze", False), chosen.pop("compare", True)


def _leave_to_eager(
    graph: torch.fx.GraphModule, options: Mapping[str, Any], why: str, arguments: Sequence[Any] | None, random: bool
) -> Graph:
    """Warn that PyTorch runs the graph because results differ; name the operator unless ``arguments`` is ``None``."""

    def compile_exposed_graph(exposed: torch.fx.GraphModule, arguments: Sequence[Any]) -> Graph:
        _report_compiling(exposed, arguments, options.get("progress"), "looking for the operator that differs: ")
        return _compile_to_graph_call(export_graph(exposed, arguments), options, {}, None)

    if arguments is None:
        return _warn_and_run_eager(graph, why)
    with _compiling:
        where = describe_differing_operator(graph, arguments, compile_exposed_graph, random=random)
    return _warn_and_run_eager(graph, f"{why} ({where})")


def _compile_for_ranges(
    graph: torch.fx.GraphModule, examples: Sequence[Any], options: Mapping[str, Any], sizes: GraphSizes
) -> Graph:
    """Return a graph with symbolic sizes that is compiled for ranges of them in its first call."""
    chosen, freeze, compare = _split_own_options(options)
    graph, sizes, numbers = without_size_results(graph, sizes)
    stated, unlike = declared_bounds(options.get("dynamic_shapes", {}), graph, sizes)
    if unlike:
        warnings.warn(f"roller: {unlike}", RuntimeWarning, stacklevel=2)
    progress = chosen.pop("progress", None)

    def report(bounds: Bounds) -> None:
        without = [f"'{n}'" for n in chosen if n not in RANGE_OPTIONS]
        note = f" (no effect on ranges: {', '.join(without)})" if without else ""
        _report(f"compiling a graph of {counted(len(graph.graph.nodes), 'node')} once for "
                f"{truncate_text(describe_bounds(sizes, bounds), 160)}{note}", progress)  # fmt: skip

    def compile_per_shape(why: BaseException, partly: bool) -> Graph:
        instead = "sizes that the range of a graph does not serve are" if partly else "a graph is"
        warnings.warn(f"roller: {instead} compiled for each shape (at most {MOST_SHAPES}) instead of once for all: "
                      f"{_fault_text(why)}", RuntimeWarning, stacklevel=2)  # fmt: skip
        return _CompiledPerShape(graph, options, sizes)

    settings = RangeSettings(
        chosen, stated, compare, _compiling, report, lambda why: _warn_and_run_eager(graph, _fault_text(why)),
        lambda why, arguments, random: _leave_to_eager(graph, chosen, why, arguments, random), compile_per_shape,
    )  # fmt: skip
    weights = [k for k, n in enumerate(placeholders(graph)) if freeze and is_weight(n, examples[k])]
    made = DynamicGraph.register(graph, sizes, options, settings, weights)
    return add_size_results(made, numbers) if numbers else made


def _compile_graph(
    graph: torch.fx.GraphModule,
    examples: Sequence[Any],
    options: Mapping[str, Any],
    sizes: Mapping[Any, Any] | None = None,
) -> Graph:
    """Return the graph compiled for arguments like these, or the graph itself if it is unsupported."""
    chosen, freeze, compare = _split_own_options(options)

    def make_call(exported: ExportedGraph, weights: Mapping[int, np.ndarray]) -> Graph:
        call = _compile_to_graph_call(exported, chosen, weights, graph.forward)
        if not compare:
            return call
        random = exported.random
        return CheckedFirstCall(
            graph, call, exported.pointwise, lambda why, a: _leave_to_eager(graph, chosen, why, a, random),
            random=random,
        )  # fmt: skip

    def make() -> Graph:
        _report_compiling(graph, examples, chosen.get("progress"))
        exported = export_graph(graph, examples, sizes)

        def make_call_with_weights(weights: Mapping[int, np.ndarray]) -> Graph:
            return _make_or_fall_back_to_eager(graph, lambda: make_call(exported, weights))

        if not freeze or not exported.weights:
            return make_call(exported, {})
        return FrozenGraph(sorted(exported.weights), make_call_with_weights)

    return _make_or_fall_back_to_eager(graph, make)


def _report_compiling(graph: torch.fx.GraphModule, examples: Sequence[Any], progress: Any, why: str = "") -> None:
    """Log, or else print on standard error, that a graph is being compiled; this may take minutes within a call."""
    varying = [v for n, v in zip(placeholders(graph), examples, strict=False) if not is_weight(n, v)]
    shapes = ", ".join("x".join(map(str, v.shape)) or "scalar" for v in varying if hasattr(v, "shape"))
    nodes = counted(len(graph.graph.nodes), "node")
    _report(f"{why}compiling a graph of {nodes} for inputs of {truncate_text(shapes or 'no shape', 80)}", progress)


def _report(text: str, progress: Any) -> None:
    if progress is False or callable(progress):
        return
    if _LOG.hasHandlers():
        _LOG.info(text)
    elif sys.stderr is not None and logging.getLogger("roller").level <= logging.INFO:
        sys.stderr.write(f"roller: {text}\n")


def _make_or_fall_back_to_eager(graph: torch.fx.GraphModule, make: Callable[[], Graph]) -> Graph:
    """Return the result of ``make``, or the PyTorch graph if that fails."""
    try:
        with _compiling:
            return make()
    except Exception as why:  # noqa: BLE001 - even an internal error: PyTorch runs the graph, so that no model fails
        return _warn_and_run_eager(graph, _fault_text(why))


def _compile_to_graph_call(
    exported: ExportedGraph, options: Mapping[str, Any], weights: Mapping[int, np.ndarray], eager: Graph | None
) -> GraphCall:
    """Compile an exported graph with the given weights as constants; return the callable graph."""
    known = {name: weights[k] for name, k in zip(exported.names, exported.positions, strict=True) if k in weights}
    session = compile_model(exported.model, "cpu", values=known or None, **options)
    assert isinstance(session, Session)
    places = dict(zip(exported.names, exported.positions, strict=True))
    positions = [places[name] for name in session.plan.program.inputs]
    return GraphCall(session, positions, exported.held, exported.outputs, exported.dtypes, exported.strides,
                     exported.checks, eager)  # fmt: skip


def _warn_and_run_eager(graph: torch.fx.GraphModule, reason: str) -> Graph:
    warnings.warn(f"roller: a graph runs in PyTorch instead: {reason}", RuntimeWarning, stacklevel=2)
    eager: Graph = graph.forward
    return eager


def _fault_text(why: BaseException) -> str:
    """Return the reason for a refusal, or a text that reports an internal error."""
    cause = why
    while isinstance(cause, UnsupportedGraphError) and cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, REFUSALS):
        return _root_cause_text(cause)
    fault = f"{type(cause).__name__}: {_root_cause_text(cause)}" if str(cause) else type(cause).__name__
    return f"internal error ({fault}), a fault of roller's: please report it with the model"


def _root_cause_text(why: BaseException) -> str:
    """Return the first line of the root cause, without the bug-reporting advice in which exporters wrap it."""
    while why.__cause__ is not None:
        why = why.__cause__
    # A first line that ends in a colon introduces a list, of which the first entry is added.
    lines = [line.strip() for line in str(why).strip().splitlines()]
    if not lines:
        return type(why).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


class _CompiledPerShape:
    """A graph with dynamic shapes, compiled on the first call with each shape."""

    def __init__(
        self, graph: torch.fx.GraphModule, options: Mapping[str, Any], sizes: GraphSizes | None = None
    ) -> None:  # fmt: skip
        self._graph, self._options, self._sizes = graph, options, sizes
        values = [n.meta.get("example_value") for n in graph.graph.nodes if n.op == "placeholder"]
        #: Positions of the arguments that have, or are, a dynamic size; weights are not among them.
        self._varying = tuple(k for k, value in enumerate(values) if value is None or _is_dynamic(value))
        self._made: dict[Any, Graph] = {}

    def __call__(self, *arguments: Any) -> Any:
        varying = (arguments[n] for n in self._varying)
        key = tuple(tuple(a.shape) if hasattr(a, "shape") else a for a in varying)
        found = self._made.get(key)
        return (self._compile_for_shape(key, arguments) if found is None else found)(*arguments)

    def _compile_for_shape(self, key: Any, arguments: tuple[Any, ...]) -> Graph:
        with _compiling:
            if key not in self._made:
                if any(getattr(made, "differs", False) for made in self._made.values()):
                    eager: Graph = self._graph.forward
                    return eager  # the user has been warned already
                if len(self._made) >= MOST_SHAPES:
                    return self._eager_after_too_many_shapes
                known = None if self._sizes is None else self._sizes.values(self._sizes.sizes_of(arguments))
                self._made[key] = _compile_graph(self._graph, arguments, self._options, known)
            return self._made[key]

    @cached_property
    def _eager_after_too_many_shapes(self) -> Graph:
        return _warn_and_run_eager(self._graph, f"it was called with more than {MOST_SHAPES} different shapes")


def _is_dynamic(example: Any) -> bool:
    """Return whether an example argument is or has a dynamic size."""
    import torch

    return isinstance(example, torch.SymInt) or any(isinstance(n, torch.SymInt) for n in getattr(example, "shape", ()))
