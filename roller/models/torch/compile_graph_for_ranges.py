"""Compiles a graph with symbolic sizes once for ranges of them: it is exported at sample sizes and generalized."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from roller.compiler.dynamic.dynamic_size_box import SizeBox, Sizes
from roller.core.anti_unification import MismatchError
from roller.errors import ModelError, NoCandidateError, RollerError
from roller.models.compile import partition_graph, read_folded_graph
from roller.models.compile_for_ranges import LARGEST_SIZE, SizeRanges, generalise_and_compile, processor_for_ranges
from roller.models.options import ModelOptions
from roller.models.range_cache import RangeCache
from roller.models.torch.export_to_onnx import ExportedGraph, export_graph
from roller.models.torch.lift_size_constants import LiftedConstants, lift_size_constants
from roller.models.torch.symbolic_sizes import (
    DEFAULT_LARGEST,
    HEADROOM,
    MOST_VALUE_BYTES,
    Bounds,
    GraphSizes,
    Symbol,
    SymbolicTensor,
    evaluate,
)
from roller_runtime.session.cpu_session import Session
from roller_runtime.session.range_session import RangeSession

if TYPE_CHECKING:
    import onnx
    import torch

    from roller_runtime.plan.program_steps import Program

#: Combinations of sizes of each operator at which its kernels are proven when a graph is compiled: a proof takes some
#: 10 ms, and calls with new sizes must not wait for it.
PROOFS = 100
#: Options of the backend that apply to ranges; the others of ``compile_model`` apply to graphs of one shape only.
RANGE_OPTIONS = ("options", "threads", "deterministic", "cache")


class UnsupportedGraphError(RollerError):
    """A graph cannot be compiled for the sizes of a call; its cause gives the reason."""


class RangeRefusedError(RollerError):
    """A graph cannot be compiled for a range of its sizes."""


@dataclass(frozen=True)
class CompiledRange:
    """A graph compiled for ranges of its sizes.

    Parameters
    ----------
    bounds
        Smallest and largest value of each size, by name.
    lifted
        The graph with its constants that depend on sizes as arguments.
    exported
        This graph at some sizes; its positions, results and checks are those of all sizes.
    """

    session: RangeSession
    lifted: LiftedConstants
    bounds: Bounds
    exported: ExportedGraph

    @cached_property
    def largest_constant_bytes(self) -> int:
        """Size of the graph's constants at the largest sizes, in bytes."""
        ends = [self.bounds[s.name][1] for s in self.lifted.sizes.symbols]
        return sum(t.nbytes for t in self.lifted.tensors_at(ends))

    def covers(self, sizes: Sequence[int]) -> bool:
        """Return whether the sizes are within the bounds."""
        ends = (self.bounds[s.name] for s in self.lifted.sizes.symbols)
        return all(low <= n <= high for n, (low, high) in zip(sizes, ends, strict=True))

    def session_at(self, sizes: Sequence[int]) -> Session:
        """Return the session for the given sizes; nothing is compiled."""
        counts = {s.name: n // s.step for s, n in zip(self.lifted.sizes.symbols, sizes, strict=True)}
        return self.session.at(**{name: counts[name] for name in self.session.ranges})


def choose_bounds(sizes: GraphSizes, met: Sequence[int], stated: Bounds, before: Bounds | None = None) -> Bounds:
    """Return the bounds of a range that covers the sizes ``met``.

    Parameters
    ----------
    stated
        Bounds that the user has given in the options, by name.
    before
        Bounds of a range that does not cover ``met``: sizes that exceed one are at least doubled.
    """
    found: Bounds = {}
    free = []
    for k, (symbol, n) in enumerate(zip(sizes.symbols, met, strict=True)):
        low, high = stated.get(symbol.name, (symbol.low, 0))
        most = min(LARGEST_SIZE, symbol.high or LARGEST_SIZE)
        if n > most:  # Dynamo does not guard the maximum that mark_dynamic states
            most = LARGEST_SIZE
        if high:
            high = min(high, most)
        elif symbol.declared:
            high = most
        else:
            high = min(most, max(DEFAULT_LARGEST, _power_of_two(HEADROOM * n)))
            free.append(k)
        if before is not None:
            was = before[symbol.name]
            low, high = min(low, was[0]), was[1] if n <= was[1] else min(most, max(2 * was[1], _power_of_two(n)))
        found[symbol.name] = min(low, n), max(high, n)
    if before is None:
        _limit_memory(sizes, met, found, free)
    return {s.name: _multiples(s, *found[s.name]) for s in sizes.symbols}


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _multiples(symbol: Symbol, low: int, high: int) -> tuple[int, int]:
    return max(1, -(-low // symbol.step)) * symbol.step, high // symbol.step * symbol.step


def _limit_memory(sizes: GraphSizes, met: Sequence[int], found: Bounds, free: list[int]) -> None:
    """Halve default bounds, those with most headroom first, while a value would be too large; keep twice ``met``."""
    names = [s.name for s in sizes.symbols]
    while sizes.largest_value_bytes([found[name][1] for name in names]) > MOST_VALUE_BYTES:
        wide = [k for k in free if found[names[k]][1] // 2 >= 2 * met[k]]
        if not wide:
            return
        k = max(wide, key=lambda k: found[names[k]][1] / met[k])
        low, high = found[names[k]]
        found[names[k]] = low, high // 2


def compile_for_bounds(
    graph: torch.fx.GraphModule,
    sizes: GraphSizes,
    bounds: Bounds,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    weights: Mapping[int, np.ndarray],
    report: Callable[[Bounds], None],
) -> CompiledRange:
    """Compile a graph for all sizes within bounds.

    Parameters
    ----------
    arguments
        The arguments of a call, whose sizes are within the bounds.
    weights
        Values of weights that become constants, by position.
    report
        Function that is called with the bounds before kernels are compiled. They may be narrower than ``bounds``, and
        are narrowed again if the compilation fails.

    Raises
    ------
    UnsupportedGraphError
        If the graph is not supported at the sizes of ``arguments``.
    RangeRefusedError
        If the steps differ between sizes, or no kernel works for some.
    """
    met = sizes.sizes_of(arguments)
    lifted = lift_size_constants(graph, sizes, met, [bounds[s.name][1] for s in sizes.symbols])
    reader = _Reader(lifted.graph, lifted.sizes, (*arguments, *lifted.tensors_at(met)), weights)
    try:
        reader.read_first(met)
    except Exception as err:  # exporters raise errors of many classes
        raise UnsupportedGraphError(str(err)) from err
    bounds = _supported_bounds(reader, bounds, met)
    refused: RollerError | None = None
    for ends in _bounds_with_higher_ends(sizes, bounds, met):
        if all(low == high for low, high in ends.values()):
            break
        report(ends)
        try:
            session = _compile(reader, ends, options)
        except (ModelError, NoCandidateError) as err:
            refused = refused or err
            continue
        return CompiledRange(session, lifted, ends, reader.export(met))
    if refused is None:
        raise RangeRefusedError("its sizes have one value each")
    if isinstance(refused.__cause__, (MismatchError, KeyError)):
        raise RangeRefusedError(f"expected the same steps for all sizes, got others for some ({refused.__cause__})")
    raise RangeRefusedError(str(refused))


def _supported_bounds(reader: _Reader, bounds: Bounds, met: Sequence[int]) -> Bounds:
    """Return bounds at which the graph is supported: a table may be shorter, and a window larger."""

    def nearest_supported(k: int, candidates: Sequence[int]) -> int:
        for n in candidates:
            try:
                reader.read([*met[:k], n, *met[k + 1 :]])
            except RollerError:
                continue
            return n
        return met[k]

    found: Bounds = {}
    for k, symbol in enumerate(reader.sizes.symbols):
        low, high = bounds[symbol.name]
        powers = (1 << n for n in range((high - 1).bit_length() - 1, met[k].bit_length() - 1, -1))
        highs = [high, *(n // symbol.step * symbol.step for n in powers)]
        quarter = _multiples(symbol, max(1, met[k] // 4), high)[0]
        found[symbol.name] = (
            nearest_supported(k, [n for n in (low, quarter) if n < met[k]]),
            nearest_supported(k, [n for n in highs if n > met[k]]),
        )
    return found


def _bounds_with_higher_ends(sizes: GraphSizes, bounds: Bounds, met: Sequence[int]) -> list[Bounds]:
    """Return the bounds, and bounds without small sizes, whose steps may differ."""
    found = [bounds]
    for share in (4, 1):
        least = {s.name: _multiples(s, max(1, n // share), n)[0] for s, n in zip(sizes.symbols, met, strict=True)}
        ends = {name: (max(low, min(least[name], high)), high) for name, (low, high) in bounds.items()}
        if ends not in found:
            found.append(ends)
    return found


def _compile(reader: _Reader, bounds: Bounds, options: Mapping[str, Any]) -> RangeSession:
    """Compile the graph for this machine's processor."""
    how = ModelOptions(**{name: options[name] for name in RANGE_OPTIONS if name in options})
    _, spec, settings = processor_for_ranges("cpu", how, "device", "Compile on it.")
    steps = {s.name: s.step for s in reader.sizes.symbols}
    ends = {n: (low // steps[n], high // steps[n]) for n, (low, high) in bounds.items() if low < high}
    fixed = {n: low for n, (low, high) in bounds.items() if low == high}

    def program_at(sizes: Sizes) -> Program:
        return reader.program(fixed | {n: sizes[n] * steps[n] for n in ends})

    ranges = SizeRanges(SizeBox(ends), reader.dimensions(fixed))
    timed = not how.deterministic
    key = reader.digest(bounds).encode()
    cache = RangeCache(key, ranges.spelled_out, None, spec, (settings.options, timed, PROOFS)) if how.cache else None
    known = cache.load() if cache is not None else None
    if known is not None:
        return known
    made = generalise_and_compile("graph", program_at, ranges, spec, settings.options, timed=timed)
    results = made.plan.chooser.prove_all(PROOFS)
    if cache is not None:
        cache.store(made, results)
    return made.with_proofs(results)


class _Reader:
    """Reads a graph at given sizes; every export is done once."""

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        sizes: GraphSizes,
        arguments: Sequence[Any],
        weights: Mapping[int, np.ndarray],
    ) -> None:
        self._graph, self.sizes, self._arguments, self._weights = graph, sizes, arguments, weights
        self._exports: dict[tuple[int, ...], ExportedGraph] = {}

    def read_first(self, sizes: Sequence[int]) -> None:
        """Read the graph with the arguments of a call; raise the exporter's own errors."""
        made = export_graph(self._graph, self._arguments, self.sizes.values(sizes))
        _rename_by_order(made.model)
        self._exports[tuple(sizes)] = made
        self.read(sizes)

    def digest(self, bounds: Bounds) -> str:
        """Return a digest of all that determines the programs at all sizes: the graph, its weights, and exports."""
        import torch

        parts = [torch.__version__, self._graph.code, repr(self.sizes.arguments), repr(sorted(bounds.items()))]
        found = hashlib.sha256(json.dumps(parts).encode())
        for sizes, made in sorted(self._exports.items(), key=lambda item: item[0]):
            found.update(repr((sizes, _interface(made))).encode())
            found.update(hashlib.sha256(made.model.SerializeToString(deterministic=True)).digest())
        for position, array in sorted(self._weights.items()):
            found.update(f"{position} {array.dtype} {array.shape}".encode())
            found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return found.hexdigest()

    def read(self, sizes: Sequence[int]) -> Program:
        """Return the program at the given sizes, in order."""
        return self.program({s.name: n for s, n in zip(self.sizes.symbols, sizes, strict=True)})

    def export(self, sizes: Sequence[int]) -> ExportedGraph:
        """Return the graph exported at the given sizes."""
        key = tuple(sizes)
        if key not in self._exports:
            self._exports[key] = self._export(key)
        return self._exports[key]

    def _export(self, sizes: tuple[int, ...]) -> ExportedGraph:
        where = ", ".join(f"{s.origin} = {n}" for s, n in zip(self.sizes.symbols, sizes, strict=True))
        try:
            given = self.sizes.arguments_at(sizes, self._arguments)
            made = export_graph(self._graph, given, self.sizes.values(sizes))
        except Exception as err:  # exporters raise errors of many classes
            first = str(err).strip().partition("\n")[0]
            raise ModelError(f"at {where}: {type(err).__name__}: {first}") from err
        _rename_by_order(made.model)
        for other in self._exports.values():
            if _interface(other) != _interface(made):
                raise ModelError(f"at {where}: the graph has other arguments or results than at other sizes.")
        return made

    def program(self, sizes: Mapping[str, Any]) -> Program:
        """Return the program at the given sizes, by name."""
        made = self.export([sizes[s.name] for s in self.sizes.symbols])
        known = {n: self._weights[k] for n, k in zip(made.names, made.positions, strict=True) if k in self._weights}
        return partition_graph(read_folded_graph(made.model, values=known or None))

    def dimensions(self, fixed: Mapping[str, int]) -> dict[str, tuple[int | str, ...]]:
        """Return the dimensions of the model's inputs as numbers or texts, given the sizes that do not vary."""
        from sympy import Integer

        made = next(iter(self._exports.values()))
        # The session's sizes are divided by their steps.
        known = {s.symbol: s.step * s.symbol for s in self.sizes.symbols if s.step > 1}
        known |= {s.symbol: Integer(fixed[s.name]) for s in self.sizes.symbols if s.name in fixed}
        declared = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in made.model.graph.input}
        found: dict[str, tuple[int | str, ...]] = {}
        for name, position in zip(made.names, made.positions, strict=True):
            if position in self._weights:
                continue
            kind = self.sizes.arguments[position] if position < len(self.sizes.arguments) else None
            dims = kind.shape if isinstance(kind, SymbolicTensor) else declared[name]
            found[name] = tuple(d if isinstance(d, int) else _dimension(d, known) for d in dims)
        return found


def _dimension(dim: Any, known: Mapping[Any, Any]) -> int | str:
    left = dim.xreplace(known)
    return evaluate(left, {}) if left.is_number else str(left)


def _interface(made: ExportedGraph) -> tuple[Any, ...]:
    """Return what must be the same at all sizes."""
    known = vars(made)
    return made.names, {name: value for name, value in known.items() if name not in ("model", "strides")}


def _rename_by_order(model: onnx.ModelProto) -> None:
    """Name the nodes and inner values of a model by their order: the exporter's numbers differ between sizes."""
    graph = model.graph
    if any(a.HasField("g") or a.graphs for n in graph.node for a in n.attribute):
        return  # inner graphs use the names of outer values
    names = {"": ""} | {i.name: i.name for i in graph.input}
    for k, constant in enumerate(graph.initializer):
        names[constant.name] = f"constant_{k}"
        constant.name = f"constant_{k}"
    for k, node in enumerate(graph.node):
        node.name = f"{node.op_type}_{k}"
        node.input[:] = [names[n] for n in node.input]
        for j, name in enumerate(node.output):
            names[name] = name and f"{node.name}_{j}"
        node.output[:] = [names[n] for n in node.output]
    for value in graph.output:
        value.name = names[value.name]
    del graph.value_info[:]
