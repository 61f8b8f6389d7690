"""Decoders: models whose inputs and outputs pass the rows of earlier tokens, compiled with these rows in place."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from roller.compiler.dynamic.dynamic_size_box import SizeBox
from roller.errors import ModelError, RollerWarning, counted, did_you_mean, shown
from roller.hardware import DeviceSpec
from roller.models.argument_validation import validate_base_dir, validate_values
from roller.models.batch.progress import OnProgress, progress_callback
from roller.models.compile import partition_graph
from roller.models.compile_for_ranges import LARGEST_SIZE, SizeRanges, generalise_and_compile, processor_for_ranges
from roller.models.compile_kernels_without_sizes import KernelsWithoutSizes
from roller.models.options import ModelOptions
from roller.runtime.cache import KernelCache
from roller.templates.common.options import ConstructOptions
from roller_runtime.core.validation import is_integer, validate_integer
from roller_runtime.plan.execution_plan import INPUT, Plan
from roller_runtime.plan.program_steps import Copy, Program, iterate_kernel_runs
from roller_runtime.session.decoder_inputs import LengthValue, ResidentCache
from roller_runtime.session.decoder_session import TOTAL, DecoderSession
from roller_runtime.session.model_digest import digest_of_model

if TYPE_CHECKING:
    import onnx

    from roller.models.graph.model_graph import Graph
    from roller.models.onnx.resident_caches import CachePair

#: Names of sizes in ``shapes``: tokens before the call, tokens of the call, and both.
PAST, NEW = "past", "new"
#: Symbols by which exporters name the tokens of a call, and all tokens.
_NEW_SYMBOLS = {"sequence_length", "seq_len", "seq_length", "sequence", "decoder_sequence_length", NEW}
_TOTAL_SYMBOLS = {"total_sequence_length", "total_seq_len", "attention_mask_sequence_length", "total_length", TOTAL}
#: Names of inputs that are caches, if the caller names none.
_CACHE_NAME = re.compile(r"past|cache", re.IGNORECASE)
_HOW = "Give shapes, e.g. shapes={'input_ids': (1, 'new'), 'attention_mask': (1, 'total')}."


@dataclass(frozen=True)
class _DecoderShapes:
    """Each input's dimensions, as numbers or ``"past"``, ``"new"`` and ``"total"``."""

    inputs: Mapping[str, tuple[int | str, ...]]
    new: int

    def at(self, total: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the inputs at a number of tokens."""
        known = {PAST: total - self.new, NEW: self.new, TOTAL: total}
        return {n: tuple(known[d] if isinstance(d, str) else d for d in dims) for n, dims in self.inputs.items()}


def compile_decoder(
    model: str | Path | bytes | onnx.ModelProto,
    device: str | DeviceSpec = "cpu",
    *,
    capacity: int,
    caches: Mapping[str, str] | Literal["auto"] = "auto",
    batch: int = 1,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    values: Mapping[str, Any] | None = None,
    base_dir: str | Path | None = None,
    options: ConstructOptions | None = None,
    threads: int | None = None,
    deterministic: bool = False,
    progress: OnProgress | bool | None = None,
) -> DecoderSession:
    """Compile a decoder whose calls take one token and keep the keys and values of earlier tokens in place.

    Parameters
    ----------
    model
        ONNX model with an input and an output for each cache, of which the output is the input joined with the rows of
        the new token (``Concat``), such as ``past_key_values.0.key`` and ``present.0.key``.
    device
        ``"cpu"``: this machine's processor.
    capacity
        Maximum number of tokens in a conversation. Caches have this length from the start.
    caches
        Output by input of each cache; ``"auto"`` finds all pairs.
    batch
        Number of sequences per call, for a model with a symbol for it; they have equal lengths.
    shapes
        Dimensions of inputs by name, as numbers or ``"past"`` (tokens before the call), ``"new"`` (tokens of the call)
        and ``"total"`` (both). By default, they follow from the model's symbols.
    values, base_dir, progress
        See :func:`roller.compile_model`.
    options, deterministic
        See :func:`roller.compile`; they apply to every kernel.
    threads
        Number of threads per call, including the calling thread.

    Returns
    -------
    DecoderSession
        A session whose :meth:`DecoderSession.start` returns conversations.

    Raises
    ------
    ModelError
        If no input and output form a cache, a dimension is unknown, or the model cannot be compiled.
    """
    from roller.models.onnx.resident_caches import with_resident_caches

    how = ModelOptions(options=options, threads=threads, deterministic=deterministic, progress=progress)
    whole, spec, settings = processor_for_ranges(device, how, "compile_decoder", "Compile it there.")
    expected = f"a number of tokens from 16 to {LARGEST_SIZE}"
    capacity = validate_integer(capacity, "capacity", 16, expected=expected, error=ModelError)
    if capacity > LARGEST_SIZE:
        raise ModelError(f"capacity: expected {expected}, got {capacity}.")
    count = validate_integer(batch, "batch", 1, expected="a number of at least 1", error=ModelError)
    known, folder = validate_values(values), validate_base_dir(base_dir)

    # A row more than tokens: at the largest size, as at all others, kernels then read a part of a cache.
    rows = capacity + 1
    dims = _decoder_shapes(model, folder, shapes or {}, caches, count, known)

    reader = _DecoderReader(model, dims, known, folder, capacity)
    pairs = _cache_pairs(reader.read(capacity)[0], caches, dims)

    def program_at(sizes: Mapping[str, int]) -> Program:
        from roller.models.onnx.simplify_graph import fold_graph

        return partition_graph(fold_graph(with_resident_caches(reader.read(sizes[TOTAL])[0], pairs, rows)))

    held = {p.past: p for p in pairs}
    names: dict[str, tuple[int | str, ...]] = {}
    for name, own in dims.inputs.items():
        if name not in known:
            at = {PAST: rows} if name in held else {NEW: dims.new}
            names[name] = tuple(at.get(d, d) if isinstance(d, str) else d for d in own)
    names |= {name: length.start.shape for name, length in reader.lengths.items()}
    ranges = SizeRanges(SizeBox({TOTAL: (dims.new, capacity)}), names)
    with progress_callback(how.progress) as show:
        made = generalise_and_compile(
            reader.name, program_at, ranges, spec, settings.options, timed=not deterministic,
            model_digest=digest_of_model(model), without_sizes=KernelsWithoutSizes(whole, settings, KernelCache()),
            progress=show,
        )  # fmt: skip
    _warn_of_copies(made.plan.largest, pairs)
    session = DecoderSession(made, [ResidentCache(p.past, p.present, p.axis) for p in pairs], dims.new, reader.lengths)
    session.prepare()
    if session.rebinding_reason:
        warnings.warn(
            f"{session.name}: each new length takes longer in its first call, because {session.rebinding_reason}",
            RollerWarning, stacklevel=2,
        )  # fmt: skip
    return session


class _DecoderReader:
    """Reads a decoder at numbers of tokens, with integers that follow the number as inputs."""

    def __init__(
        self, model: Any, dims: _DecoderShapes, values: Mapping[str, Any], base_dir: Path | None, capacity: int
    ) -> None:
        from roller.models.onnx.read_model import find_differing_integers

        self._model, self._dims, self._values, self._base_dir = model, dims, values, base_dir
        shapes = [dims.at(total) for total in (2, 3)]
        self._differing = find_differing_integers(model, shapes, values, base_dir)
        (graph, first), (_, second), (_, last) = (self._read(total) for total in (2, 3, capacity))
        self.name = graph.name
        #: Values of these inputs, as linear functions of the number of tokens.
        self.lengths = {n: LengthValue(a - 2 * (second[n] - a), second[n] - a) for n, a in first.items()}
        self._check(last, capacity)

    def _read(self, total: int) -> tuple[Graph, dict[str, np.ndarray]]:
        from roller.models.onnx.read_model import read_onnx_graph
        from roller.models.onnx.resident_caches import with_lengths_as_inputs

        graph = read_onnx_graph(
            self._model, shapes=self._dims.at(total), values=self._values or None, base_dir=self._base_dir,
            lengths=self._differing,
        )  # fmt: skip
        return with_lengths_as_inputs(graph, self._differing)

    def read(self, total: int) -> tuple[Graph, dict[str, np.ndarray]]:
        """Return the graph at a number of tokens, and the integers that are its inputs."""
        graph, values = self._read(total)
        self._check(values, total)
        return graph, values

    def _check(self, values: Mapping[str, np.ndarray], total: int) -> None:
        for name, array in values.items():
            known = self.lengths.get(name)
            if known is None or not np.array_equal(known.at(total), array):
                raise ModelError(
                    f"{self.name}: expected '{name.removesuffix('/length')}' to be a linear function of the number of "
                    f"tokens, got {shown(array.tolist())} at {total}. Make it an input of the model."
                )


def _warn_of_copies(plan: Plan, pairs: Sequence[CachePair]) -> None:
    """Warn of steps that write as much as a cache holds: they copy earlier rows in every call."""
    program = plan.program
    held = {p.past for p in pairs}
    held |= {s.target for s in program.steps if isinstance(s, Copy) and _root_input(plan, s.target) in held}
    least = min(program.values[p.past].elements * (1 - 1 / program.values[p.past].shape[p.axis]) for p in pairs)
    copies = [
        step.label
        for step in iterate_kernel_runs(program.steps)
        if held & set(step.inputs) and any(program.values[n].elements >= least for n in step.outputs)
    ]
    if copies:
        warnings.warn(
            f"{program.name}: {counted(len(copies), 'step')} of a call copy earlier rows of a cache, so that a token "
            f"takes longer: {', '.join(copies[:3])}.",
            RollerWarning, stacklevel=3,
        )  # fmt: skip


def _root_input(plan: Plan, name: str) -> str:
    place = plan.places[name]
    return plan.program.inputs[place.index] if place.space == INPUT else ""


def _decoder_shapes(
    model: Any, base_dir: Path | None, shapes: Mapping[str, Any], caches: Any, batch: int, values: Mapping[str, Any]
) -> _DecoderShapes:  # fmt: skip
    """Return the dimensions of all inputs, as the caller gives them or as the model's symbols say."""
    from roller.models.onnx.load_model_proto import load_onnx
    from roller.models.onnx.onnx_types import declared_shape

    loaded = load_onnx(model, base_dir)
    declared = {i.name: declared_shape(i.type) for i in loaded.graph.input if i.name not in loaded.initialisers}
    if not isinstance(shapes, Mapping):
        raise ModelError(f"shapes: expected a dict of dimensions by input, got {shown(shapes)}. {_HOW}")
    for name, dims in shapes.items():
        if name in declared and not isinstance(dims, (tuple, list)):
            raise ModelError(f"shapes: '{name}': expected a tuple of dimensions, got {shown(dims)}. {_HOW}")
        if name not in declared:
            hint = did_you_mean(name, declared) or f". Inputs are: {', '.join(sorted(declared))}."
            raise ModelError(f"shapes: {loaded.name} has no input '{name}'{hint}")
        wrong = next((d for d in dims if not (is_integer(d) and d >= 0) and d not in (PAST, NEW, TOTAL)), None)
        if wrong is not None:
            raise ModelError(
                f"shapes: '{name}': expected numbers, 'past', 'new' or 'total', got {shown(wrong)}. {_HOW}"
            )
    if caches == "auto":
        held = [n for n in declared if _CACHE_NAME.search(n) and n not in values]
    elif isinstance(caches, Mapping):
        held = list(caches)
        for name in held:
            if name not in declared:
                hint = did_you_mean(str(name), declared) or f". Inputs are: {', '.join(sorted(declared))}."
                raise ModelError(f"caches: {loaded.name} has no input '{name}'{hint}")
    else:
        raise ModelError(f"caches: expected 'auto' or a dict of outputs by input, got {shown(caches)}.")
    known = _sizes_by_symbol(loaded.name, [declared[n] for n in held if n not in shapes], batch)
    found: dict[str, tuple[int | str, ...]] = {}
    for name, own in declared.items():
        if name in values:
            continue
        given = shapes.get(name, own)
        if given is None:
            raise ModelError(f"{loaded.name}: expected the dimensions of '{name}', which has none. {_HOW}")
        found[name] = tuple(d if is_integer(d) else _size_of_symbol(loaded.name, name, d, known) for d in given)
    return _DecoderShapes(found, 1)


def _sizes_by_symbol(name: str, caches: Sequence[Any], batch: int) -> dict[str, int | str]:
    """Return the batch size and ``"past"`` by the symbols that name them in caches."""
    found: dict[str, int | str] = {}
    for dims in caches:
        symbols = [d for d in dims or () if isinstance(d, str)]
        first = dims[0] if dims and isinstance(dims[0], str) else None
        if first is not None and len(symbols) > 1:
            found[first] = batch
        others = [d for d in symbols if d not in found]
        if len(others) > 1 or not (others or PAST in found.values()):
            raise ModelError(
                f"{name}: expected one symbol for the tokens in a cache of shape {shown(list(dims or ()))}. {_HOW}"
            )
        found.update(dict.fromkeys(others, PAST))
    return found


def _size_of_symbol(model: str, name: str, symbol: Any, known: Mapping[str, int | str]) -> int | str:
    """Return the size that a symbol of an input denotes."""
    if symbol in (PAST, NEW, TOTAL):
        return str(symbol)
    if symbol in known:
        return known[symbol]
    text = str(symbol).replace(" ", "")
    past = next((s for s, size in known.items() if size == PAST), PAST)
    if text in _TOTAL_SYMBOLS or ("+" in text and past.replace(" ", "") in text.split("+")):
        return TOTAL
    if text in _NEW_SYMBOLS:
        return NEW
    raise ModelError(f"{model}: expected the dimensions of '{name}', whose symbol {shown(symbol)} is unknown. {_HOW}")


def _cache_pairs(graph: Graph, caches: Any, dims: _DecoderShapes) -> tuple[CachePair, ...]:
    from roller.models.onnx.resident_caches import find_cache_pairs, named_cache_pairs

    found = find_cache_pairs(graph) if caches == "auto" else named_cache_pairs(graph, caches)
    if not found:
        raise ModelError(
            f"{graph.name}: expected caches, which are pairs of an input and an output that joins it with new rows "
            f"(Concat), got none among {counted(len(graph.outputs), 'output')}. Export the model with its past."
        )
    paired = {p.past for p in found}
    left = [n for n, d in dims.inputs.items() if PAST in d and n not in paired]
    if left:
        raise ModelError(
            f"{graph.name}: expected an output that joins '{left[0]}' with new rows (Concat), got none: its rows would "
            "be lost. Give shapes for it if it is no cache."
        )
    wrong = next((p for p in found if dims.inputs[p.past][p.axis] != PAST), None)
    if wrong is not None:
        raise ModelError(f"{graph.name}: expected the tokens of '{wrong.past}' along dimension {wrong.axis}, which the "
                         f"model joins, got {list(dims.inputs[wrong.past])}. {_HOW}")  # fmt: skip
    return found
