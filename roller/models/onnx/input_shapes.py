"""Chooses the shapes of a model's inputs from declarations, the caller's overrides and the symbols that these bind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from roller.errors import ModelError
from roller.models.onnx.onnx_types import declared_shape, dtype_name, reason_if_too_large, value_of_array
from roller_runtime.plan.program_steps import Value

if TYPE_CHECKING:
    from roller.models.onnx.load_model_proto import LoadedModel

Dims = tuple[int | str | None, ...]


@dataclass(frozen=True)
class InputTypes:
    """Types of a model's inputs.

    Parameters
    ----------
    types
        Final type of each input.
    original
        Declared type of each input, with open dimensions filled in from ``types``.
    old_batch
    Declared batch size that was replaced, which constants of the model may still contain; ``None`` if none was.
    new_batch
    Requested batch size, or 0.
    changed
    Whether the caller changed a declared size.
    """

    types: dict[str, Value]
    original: dict[str, Value]
    old_batch: int | None = None
    new_batch: int = 0
    changed: bool = False


@dataclass(frozen=True)
class BatchSizeCorrection:
    """Corrects constants of a model that contain the declared batch size instead of the requested one.

    Parameters
    ----------
    old, new
        The batch size in the constants and the requested batch size.
    before
        Types of all values at the old batch size.
    """

    old: int
    new: int
    before: Mapping[str, Value]

    def corrected_reshape_target(self, shape: np.ndarray, source: Value, output: str) -> np.ndarray | None:
        """Return the corrected target shape of a Reshape; ``None`` if the shape needs no correction."""
        # Applies only if source, result and target began with the old batch size and the source now has the new one.
        was, result = self.before.get(source.name), self.before.get(output)
        if was is None or result is None or not (was.shape and result.shape and source.shape) or shape.ndim != 1:
            return None
        if not (was.shape[0] == result.shape[0] == self.old and source.shape[0] == self.new and len(shape)):
            return None
        if int(shape[0]) != self.old or was.shape[1:] != source.shape[1:]:
            return None
        return np.array([self.new, *result.shape[1:]], shape.dtype)


def choose_input_types(
    loaded: LoadedModel, batch: int | None, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Any]
) -> InputTypes:
    """Choose the types of all inputs from their declarations and the caller's batch size, shapes and values."""
    declared: dict[str, tuple[str, Dims | None]] = {}
    for entry in loaded.graph.input:
        if entry.name in loaded.initialisers:
            continue
        if not entry.name or entry.name in declared:
            raise ModelError(f"{loaded.name}: two inputs are named '{entry.name}', or one has no name.")
        dtype = dtype_name(entry.type.tensor_type.elem_type) if entry.type.HasField("tensor_type") else None
        if dtype is None:
            raise ModelError(f"{loaded.name}: input '{entry.name}' is no tensor of numbers, which is not compiled.")
        declared[entry.name] = dtype, declared_shape(entry.type)
    chosen: dict[str, Dims | None] = {n: d for n, (_, d) in declared.items()}
    symbols: dict[str, int] = {}
    for name, given in shapes.items():
        chosen[name] = _override_shape_and_bind_symbols(loaded.name, name, chosen[name], given, symbols)
    chosen = {n: d and tuple(symbols.get(x, x) if isinstance(x, str) else x for x in d) for n, d in chosen.items()}
    old = None
    free = {n: d for n, d in chosen.items() if n not in shapes and n not in values and d}
    if batch is not None:
        old = _set_batch(chosen, free, batch)
    types = {}
    for name, (dtype, _) in declared.items():
        types[name] = _constant_type(loaded, name, dtype, chosen[name],
                                     values) if name in values else _type_or_nonstatic_shape_text(
            loaded, name, dtype, chosen[name])  # fmt: skip
    unknown = [f"'{n}' {t}" for n, t in types.items() if isinstance(t, str)]
    if unknown:
        name, dims = next((n, chosen[n] or ()) for n, t in types.items() if isinstance(t, str))
        example = "x".join(str(d) if isinstance(d, int) else "1" for d in dims) or "1x3x224x224"
        first, shell = ("`batch=`, or ", "--batch 1, or ") if batch is None else ("", "")
        raise ModelError(
            f"{loaded.name}: expected inputs of known shapes, got {', '.join(unknown)}. Give {first}"
            f"`shapes={{name: (...)}}` (on the command line {shell}--shape {name}={example}). "
            "`compile_model` takes ranges, for sizes that calls choose: ('length', 1, 512)."
        )
    done = {n: t for n, t in types.items() if isinstance(t, Value)}
    original = {n: _fill_in_declared_type(done[n], declared[n][1]) for n in done}
    changed = any(original[n] != done[n] for n in done)
    return InputTypes(done, original, old, int(batch or 0), changed)


def _override_shape_and_bind_symbols(
    model: str, name: str, dims: Dims | None, given: Sequence[int], symbols: dict[str, int]
) -> Dims:
    """Return the caller's shape for an input; record in ``symbols`` the sizes that it binds."""
    shape = tuple(given)
    if dims is not None and len(dims) != len(shape):
        raise ModelError(
            f"shapes: {model} declares '{name}' with {len(dims)} dimensions {list(dims)}, got {list(shape)}."
        )
    for symbol, extent in zip(dims or (), shape, strict=False):
        if isinstance(symbol, str) and symbols.setdefault(symbol, extent) != extent:
            raise ModelError(f"shapes: '{symbol}' is {symbols[symbol]} in one input and {extent} in '{name}'.")
    return shape


def _set_batch(chosen: dict[str, Dims | None], free: Mapping[str, Dims], batch: int) -> int | None:
    """Set the batch size of inputs in place; return the replaced size (``None`` for a symbol or without a change)."""
    symbolic = {n: d for n, d in free.items() if not isinstance(d[0], int)}
    if symbolic:
        bound = {d[0] for d in symbolic.values() if isinstance(d[0], str)}
        for name, dims in free.items():
            first: tuple[int | str | None, ...] = (batch,) if name in symbolic else dims[:1]
            chosen[name] = first + tuple(batch if isinstance(d, str) and d in bound else d for d in dims[1:])
        return None
    old = next((d[0] for d in free.values()), None)
    if not isinstance(old, int) or old == batch:
        return None
    for name, dims in free.items():
        if dims[0] == old:
            chosen[name] = (batch, *dims[1:])
    return old


def _type_or_nonstatic_shape_text(loaded: LoadedModel, name: str, dtype: str, dims: Dims | None) -> Value | str:
    """Return an input's type or, if its shape is not static, a description of the shape."""
    if dims is None:
        return "of unknown rank"
    if not all(isinstance(d, int) for d in dims):
        return f"with dimensions {[d if d is not None else '?' for d in dims]}"
    value = Value(name, tuple(d for d in dims if isinstance(d, int)), dtype)
    if min(value.shape, default=0) < 0:
        raise ModelError(f"{loaded.name}: input '{name}' has a negative dimension: {list(value.shape)}.")
    if (reason := reason_if_too_large(value)) is not None:
        raise ModelError(f"{loaded.name}: input {reason}.")
    return value


def _constant_type(loaded: LoadedModel, name: str, dtype: str, dims: Dims | None, values: Mapping[str, Any]) -> Value:
    """Return the type of an input whose value the caller provides."""
    array = np.asarray(values[name])
    if array.dtype.name != dtype:
        raise ModelError(f"values: {loaded.name} takes '{name}' as {dtype}, got {array.dtype.name}.")
    if dims is not None and (
        len(dims) != array.ndim or any(isinstance(d, int) and d != s for d, s in zip(dims, array.shape, strict=True))
    ):
        raise ModelError(f"values: {loaded.name} takes '{name}' of shape {list(dims)}, got {list(array.shape)}.")
    return value_of_array(name, array)


def _fill_in_declared_type(now: Value, dims: Dims | None) -> Value:
    """Return the declared type, with open dimensions filled in from ``now``."""
    if dims is None or len(dims) != len(now.shape):
        return now
    return Value(
        now.name, tuple(d if isinstance(d, int) else s for d, s in zip(dims, now.shape, strict=True)), now.dtype
    )
