"""Reads ONNX models from any source, with static shapes and folded constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roller.errors import ModelError, did_you_mean
from roller.models.argument_validation import validate_base_dir, validate_batch, validate_shapes, validate_values
from roller.models.graph.model_graph import Graph
from roller_runtime.core.gc_pause import gc_paused
from roller_runtime.plan.program_steps import Value

if TYPE_CHECKING:
    import onnx

    from roller.models.onnx.load_model_proto import LoadedModel
    from roller.models.onnx.trace_model import Tracer

Shapes = Mapping[str, Sequence[int]]


@gc_paused()
def read_onnx_graph(
    model: str | Path | bytes | onnx.ModelProto, *, batch: int | None = None, shapes: Shapes | None = None,
    values: Mapping[str, Any] | None = None, base_dir: str | Path | None = None, lenient: bool = False,
    low_bit_rows: int | None = None, lengths: frozenset[str] = frozenset(),
) -> Graph:  # fmt: skip
    """Return the graph of an ONNX model with static shapes, ordered nodes and folded constants.

    ``low_bit_rows`` is the largest number of rows of a product whose 4-bit weights stay packed. ``lengths`` names
    constants from which no real numbers are folded.
    """
    sizes, given, batch, base_dir = (
        validate_shapes(shapes),
        validate_values(values),
        validate_batch(batch),
        validate_base_dir(base_dir),
    )
    try:
        from roller.models.onnx.import_tensorflow import from_tensorflow
        from roller.models.onnx.load_model_proto import load_onnx
    except ImportError as error:
        raise ModelError(f"reading models needs the onnx package ({error}). Install roller[onnx].") from None
    try:
        if isinstance(model, (str, Path)) and Path(model).suffix == ".pb":
            model = from_tensorflow(Path(model))
        loaded = load_onnx(model, base_dir)
        return _read_loaded(loaded, batch, sizes, given, lenient, low_bit_rows, lengths)
    except ModelError:
        raise
    except Exception as error:
        # Damaged messages fail in too many places to list; all raise this error.
        raise ModelError(f"model: it is damaged and cannot be read ({type(error).__name__}: {error}).") from error


def _read_loaded(
    loaded: LoadedModel, batch: int | None, shapes: Mapping[str, Sequence[int]], values: dict[str, Any], lenient: bool,
    low_bit_rows: int | None, lengths: frozenset[str],
) -> Graph:  # fmt: skip
    from roller.models.onnx.input_shapes import choose_input_types
    from roller.models.onnx.load_model_proto import OLDEST
    from roller.models.onnx.low_bit_products import with_low_bit_products
    from roller.models.onnx.low_bit_weights import MOST_ROWS
    from roller.models.onnx.trace_model import Tracer
    from roller.models.onnx.tracer_interface import DynamicNodes

    known = {i.name for i in loaded.graph.input if i.name not in loaded.initialisers}
    for kind, given in (("shapes", shapes), ("values", values)):
        for name in given:
            if name not in known:
                hint = did_you_mean(name, known) or f". Inputs are: {', '.join(sorted(known))}."
                hint = _dimension_hint(loaded, name) or hint
                raise ModelError(f"{kind}: {loaded.name} has no input '{name}'{hint}")
    # Another runtime would interpret nodes of older operator sets by the definitions of newer ones.
    lenient = lenient and loaded.written >= OLDEST
    chosen = choose_input_types(loaded, batch, shapes, values)
    tracer = Tracer(loaded, None if chosen.changed else _declared_types(loaded), DynamicNodes() if lenient else None)
    if chosen.old_batch is not None:
        from roller.models.onnx.input_shapes import BatchSizeCorrection

        shadow = _trace_model(Tracer(loaded, None, DynamicNodes() if lenient else None), chosen.original, values)
        tracer.rebatching = BatchSizeCorrection(chosen.old_batch, chosen.new_batch, shadow.values)
    tracer.lengths = lengths
    tracer.low_bit_rows = MOST_ROWS if low_bit_rows is None else low_bit_rows
    _trace_model(tracer, chosen.types, values)
    graph = _graph_or_refusal(tracer, [n for n in chosen.types if n not in values])
    return with_low_bit_products(graph, tracer.low_bit_rows)


def _dimension_hint(loaded: LoadedModel, name: str) -> str:
    """Return a hint if ``name`` is a symbol of an input's shape, and empty text otherwise."""
    from roller.models.onnx.onnx_types import declared_shape

    for info in loaded.graph.input:
        dims = declared_shape(info.type)
        if info.name not in loaded.initialisers and dims is not None and name in dims:
            ranged = ", ".join(f"('{d}', 1, 16)" if isinstance(d, str) else str(d) for d in dims) + "," * (
                len(dims) == 1
            )
            return (
                f"; it is a dimension of '{info.name}'. Write shapes={{'{info.name}': ({ranged})}} for a range of it, "
                "with your bounds, or numbers for one shape."
            )
    return ""


def find_differing_integers(
    model: str | Path | bytes | onnx.ModelProto, several: Sequence[Shapes], values: Mapping[str, Any],
    base_dir: str | Path | None,
) -> frozenset[str]:  # fmt: skip
    """Return the names of integer constants, folded ones included, that differ between shapes of the inputs."""
    from roller.models.onnx.input_shapes import choose_input_types
    from roller.models.onnx.load_model_proto import load_onnx
    from roller.models.onnx.trace_model import Tracer

    loaded = load_onnx(model, base_dir)
    found: list[dict[str, np.ndarray]] = []
    for shapes in several:
        types = choose_input_types(loaded, None, shapes, values).types
        found.append(_trace_model(Tracer(loaded, None, None), types, values).constants)
    first, *others = found
    return frozenset(
        n for n, a in first.items() if a.dtype.kind in "iu" and any(
            n in other and a is not other[n] and not np.array_equal(a, other[n]) for other in others
        )
    )  # fmt: skip


def _declared_types(loaded: LoadedModel) -> dict[str, Value]:
    from roller.models.onnx.onnx_types import static_value_or_reason

    entries = [*loaded.graph.value_info, *loaded.graph.output]
    return {e.name: v for e in entries if isinstance(v := static_value_or_reason(e.name, e.type), Value)}


def _trace_model(tracer: Tracer, types: Mapping[str, Value], values: Mapping[str, Any]) -> Tracer:
    """Trace a whole model with inputs of the given types."""
    graph, names = tracer.loaded.graph, tracer.root.names
    for name, array in tracer.loaded.initialisers.items():
        if name not in values:
            tracer.constant(name, array)
            names[name] = name
    for name, value in types.items():
        names[name] = name
        if name in values:
            tracer.constant(name, np.asarray(values[name]))
        else:
            tracer.values[name] = value
    tracer.run(graph.node, tracer.root, [o.name for o in graph.output])
    return tracer


def _graph_or_refusal(tracer: Tracer, inputs: Sequence[str]) -> Graph:
    """Return the traced graph, or raise an error that lists all refusals."""
    from roller.models.onnx.dynamic_shape_regions import group_into_regions
    from roller.models.onnx.unsupported_nodes import unsupported_nodes_error

    name = tracer.loaded.name
    outputs = []
    for declared in tracer.loaded.graph.output:
        found = tracer.root.find(declared.name)
        if found is None:
            raise ModelError(f"{name}: nothing gives the output '{declared.name}'.")
        outputs.append(found)
    if not outputs:
        raise ModelError(f"{name}: the model has no outputs.")
    refused = unsupported_nodes_error(tracer, inputs)
    if refused is not None:
        raise refused
    used = {n for node in tracer.nodes for n in node.inputs} | set(outputs)
    given = set(inputs)
    constants = {n: a for n, a in tracer.constants.items() if n in used}
    written = {n for node in tracer.nodes for n in node.outputs if n}
    kept = {n: replace(v, name=n) for n, v in tracer.values.items() if n in constants or n in written or n in given}
    return group_into_regions(Graph(name, tuple(inputs), tuple(outputs), tuple(tracer.nodes), kept, constants), tracer)
