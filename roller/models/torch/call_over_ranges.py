"""Graphs with symbolic sizes: one compiled range serves all sizes of a graph, and of graphs with some sizes fixed."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from roller.errors import RollerError
from roller.models.compile_for_ranges import LARGEST_SIZE
from roller.models.torch.call_compiled_graph import GraphCall
from roller.models.torch.compile_graph_for_ranges import (
    CompiledRange,
    RangeRefusedError,
    UnsupportedGraphError,
    choose_bounds,
    compile_for_bounds,
)
from roller.models.torch.export_to_onnx import ExportedGraph, check_graph
from roller.models.torch.first_call_check import CheckedFirstCall
from roller.models.torch.match_specialised_graphs import Specialisation, match_specialised_graph
from roller.models.torch.prepacked_weights import FrozenGraph
from roller.models.torch.symbolic_sizes import Bounds, GraphSizes, Number, SymbolicTensor, evaluate
from roller_runtime.core.fork_safe_lock import ForkSafeLock
from roller_runtime.core.recently_used import RecentlyUsed

if TYPE_CHECKING:
    import torch

Graph = Callable[..., Any]

#: Maximum memory of the constants of the sizes whose calls stay ready, in bytes.
MOST_CONSTANT_BYTES = 64 << 20
#: Number of unsupported sizes beyond a range after which PyTorch runs all sizes.
MOST_UNSUPPORTED = 8


@dataclass(frozen=True)
class RangeSettings:
    """Options and functions of the backend for graphs with symbolic sizes.

    Parameters
    ----------
    options
        Options of ``compile_model``.
    stated
        Bounds that the user has given, by name of the size.
    compare
        Whether first calls are compared with PyTorch.
    compiling
        Lock of the compiler, which has state of the process.
    report
        Reports that a range is compiled.
    refuse
        Warns that PyTorch runs the graph for all sizes, because of an exception, and returns it.
    leave_to_eager
        Warns that PyTorch runs the graph from now on, because results differ, and returns it; takes the reason, the
        arguments, and whether a branch draws random numbers.
    compile_per_shape
        Returns the graph compiled per shape, for sizes that no range serves, and warns of the reason.
    """

    options: Mapping[str, Any]
    stated: Bounds
    compare: bool
    compiling: ForkSafeLock
    report: Callable[[Bounds], None]
    refuse: Callable[[BaseException], Graph]
    leave_to_eager: Callable[[str, Sequence[Any] | None, bool], Graph]
    compile_per_shape: Callable[[BaseException, bool], Graph]


class DynamicGraph:
    """A graph with symbolic sizes.

    Parameters
    ----------
    options
        All options of the backend; graphs with other options do not share a range.
    frozen
        Positions of weights that are packed in advance.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        sizes: GraphSizes,
        options: Mapping[str, Any],
        settings: RangeSettings,
        frozen: Sequence[int],
    ) -> None:
        self.graph, self.sizes, self.options, self._settings = graph, sizes, dict(options), settings
        #: The calls of each set of weights; one if weights are not frozen.
        self.calls: list[RangeCalls] = []
        self._run: Graph = FrozenGraph(frozen, self._calls_with_weights) if frozen else self._calls_with_weights({})

    @classmethod
    def register(cls, *arguments: Any) -> DynamicGraph:
        """Return a graph whose ranges serve graphs with some of its sizes fixed, as long as it exists."""
        made = cls(*arguments)
        _graphs.append(weakref.ref(made, _forget))
        return made

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph."""
        return self._run(*arguments)

    def _calls_with_weights(self, weights: Mapping[int, np.ndarray]) -> RangeCalls:
        self.calls.append(RangeCalls(self.graph, self.sizes, self._settings, weights))
        return self.calls[-1]

    def serves(self, fixed: Mapping[int, int]) -> bool:
        """Return whether ranges are compiled and contain the given sizes, by position of the argument."""
        ends = [(s.name, fixed[s.position]) for s in self.sizes.symbols if s.position in fixed]
        ranges = [calls.range for calls in self.calls if not calls.differs and calls.range is not None]
        return bool(ranges) and len(ranges) == len(self.calls) and all(
            r.bounds[name][0] <= n <= r.bounds[name][1] for r in ranges for name, n in ends
        )  # fmt: skip


#: Graphs with ranges; a graph with some of their sizes fixed uses their ranges.
_graphs: list[weakref.ref[DynamicGraph]] = []


def _forget(graph: weakref.ref[DynamicGraph]) -> None:
    with contextlib.suppress(ValueError):
        _graphs.remove(graph)


def find_general_graph(
    graph: torch.fx.GraphModule, examples: Sequence[Any], options: Mapping[str, Any]
) -> Graph | None:  # fmt: skip
    """Return a call to a graph whose range contains this graph, if there is one."""
    for other in [found for reference in _graphs if (found := reference()) is not None]:
        if other.options != options:
            continue
        known = match_specialised_graph(other.graph, other.sizes, graph)
        fixed = {k: n for k, n in enumerate(known.fixed) if known.taken[k] is None} if known is not None else {}
        if known is None or not other.serves(fixed):
            continue
        try:
            check_graph(graph, examples)
        except RollerError:
            return None  # compiling it will say why
        return _call_general_graph(other, known)
    return None


def _call_general_graph(general: DynamicGraph, known: Specialisation) -> Graph:
    convert = known.arguments
    return lambda *arguments: general(*convert(arguments))


class RangeCalls:
    """Calls of a graph at any sizes; a range is compiled in the first call, and a larger one if sizes exceed it.

    Parameters
    ----------
    weights
        Values of weights that are constants, by position.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        sizes: GraphSizes,
        settings: RangeSettings,
        weights: Mapping[int, np.ndarray],
    ) -> None:
        self._graph, self._sizes, self._settings, self._weights = graph, sizes, settings, weights
        self._lock = ForkSafeLock()
        #: The range; ``None`` before the first call.
        self.range: CompiledRange | None = None
        self._unsupported = 0
        #: Calls that are ready; their number is set with the range.
        self._ready: RecentlyUsed[tuple[int, ...], Graph] = RecentlyUsed(1)
        self._compared: set[tuple[int, ...]] = set()
        self._strides_differ = False
        self._eager: Graph | None = None
        #: Reason for which no further range is compiled, and the graph for sizes that no range serves.
        self._range_refusal: Exception | None = None
        self._per_shape: Graph | None = None
        positions = [s.position for s in sizes.symbols]
        self._only = positions[0] if len(positions) == 1 else None

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph."""
        key = (arguments[self._only],) if self._only is not None else self._sizes.sizes_of(arguments)
        run = self._ready.get(key)
        return (self._make(key, arguments) if run is None else run)(*arguments)

    @property
    def differs(self) -> bool:
        """Whether PyTorch runs the graph because results differed."""
        return self._eager is not None

    def _make(self, key: tuple[int, ...], arguments: Sequence[Any]) -> Graph:
        with self._lock:
            if self._eager is not None:
                return self._eager
            if (known := self._ready.get(key)) is not None:  # another thread was first
                return known
            if not all(1 <= n <= LARGEST_SIZE for n in key):
                return self._call_per_shape(f"expected sizes from 1 to {LARGEST_SIZE}, got {', '.join(map(str, key))}")
            found = self.range
            if (found is None or not found.covers(key)) and self._range_refusal is None:
                unsupported = self._compile(key, arguments)
                if unsupported is not None:
                    return self._eager_unless_error(key, unsupported)
                found = self.range
            if found is None or not found.covers(key):
                return self._call_per_shape("the range does not contain them")
            try:
                made = self._call_at(key, found)
            except RollerError as err:  # no kernel is proven correct at these sizes
                return self._call_per_shape(str(err))
            self._ready.put(key, made)
            return made

    def _call_per_shape(self, why: str) -> Graph:
        """Return the graph for sizes that no range serves."""
        if self._per_shape is None:
            refusal = self._range_refusal or RangeRefusedError(why)
            self._per_shape = self._settings.compile_per_shape(refusal, self.range is not None)
        return self._per_shape

    def _eager_unless_error(self, key: tuple[int, ...], why: UnsupportedGraphError) -> Graph:
        """Return the graph in PyTorch, which stays there with a warning unless it raises an error."""

        def run(*arguments: Any) -> Any:
            results = self._graph.forward(*arguments)  # an index beyond the end of a table is an error, no refusal
            with self._lock:
                if key not in self._ready and self._eager is None:
                    refused = self._settings.refuse(why)
                    self._ready.put(key, refused)
                    self._unsupported += 1
                    if self.range is None or self._unsupported == MOST_UNSUPPORTED:
                        self._eager = refused
                        self._ready.clear()
            return results

        return run

    def _compile(self, key: tuple[int, ...], arguments: Sequence[Any]) -> UnsupportedGraphError | None:
        """Compile a range that covers the sizes ``key``; return the error if the graph is unsupported there."""
        before = None if self.range is None else self.range.bounds
        bounds = choose_bounds(self._sizes, key, self._settings.stated, before)
        with self._settings.compiling:
            try:
                self.range = compile_for_bounds(self._graph, self._sizes, bounds, arguments, self._settings.options,
                                                self._weights, self._settings.report)  # fmt: skip
            except UnsupportedGraphError as err:
                return err
            except Exception as err:  # noqa: BLE001 - the graph can still be compiled per shape
                self._range_refusal = err
            else:
                self._ready.clear()
                self._compared.clear()
        return None

    def _call_at(self, key: tuple[int, ...], found: CompiledRange) -> Graph:
        made, session = found.exported, found.session_at(key)
        places = dict(zip(made.names, made.positions, strict=True))
        values = self._sizes.values(key)
        strides = tuple(
            tuple(evaluate(n, values) for n in r.strides) if isinstance(r, SymbolicTensor) else None
            for r in self._sizes.results
        )
        most = MOST_CONSTANT_BYTES // max(1, found.largest_constant_bytes)
        self._ready.most = min(found.session.most_ready, max(1, most))
        held = (*found.lifted.owned_at(key), *made.held)
        call = GraphCall(session, [places[n] for n in session.plan.program.inputs], held, made.outputs, made.dtypes,
                         strides, made.checks, self._graph.forward)  # fmt: skip
        # Powers of two: kernels, steps and strides change with the order of magnitude, not with every length.
        magnitudes = tuple(n.bit_length() for n in key)
        if not self._settings.compare or (magnitudes in self._compared and not self._strides_differ):
            return call

        def agreed() -> None:
            self._compared.add(magnitudes)
            if not call.has_strides(strides) and not self._strides_differ:
                with self._lock:  # PyTorch's strides are not those of the trace: every size is asked for its own
                    self._strides_differ = True
                    self._ready.clear()

        return CheckedFirstCall(
            self._graph, call, made.pointwise, lambda why, a: self._leave(why, a, made), random=made.random,
            agreed=agreed,
        )  # fmt: skip

    def _leave(self, why: str, arguments: Sequence[Any] | None, made: ExportedGraph) -> Graph:
        at = ", ".join(f"{s.origin} = {a}" for s, a in zip(self._sizes.symbols, self._sizes.sizes_of(arguments or ()),
                                                          strict=True)) if arguments else ""  # fmt: skip
        eager = self._settings.leave_to_eager(f"{why} at {at}" if at else why, arguments, made.random)
        with self._lock:  # otherwise, a call that another thread is preparing would stay ready
            self._eager = eager
            self._ready.clear()
        return eager


def describe_bounds(sizes: GraphSizes, bounds: Bounds) -> str:
    """Return bounds as text: ``x.shape[1] from 1 to 512``."""
    return ", ".join(
        f"{s.origin} from {bounds[s.name][0]} to {bounds[s.name][1]}" + (f" in steps of {s.step}" if s.step > 1 else "")
        for s in sizes.symbols
    )


def add_size_results(graph: DynamicGraph, numbers: Sequence[Number | None]) -> Graph:
    """Return a call that adds results that are sizes; ``None`` stands for a result of ``graph``."""
    known: dict[tuple[int, ...], tuple[int | None, ...]] = {}

    def call(*arguments: Any) -> tuple[Any, ...]:
        results = iter(graph(*arguments))
        key = graph.sizes.sizes_of(arguments)
        if key not in known:
            values = graph.sizes.values(key)
            known[key] = tuple(None if n is None else evaluate(n, values) for n in numbers)
        return tuple([next(results) if n is None else n for n in known[key]])

    return call
