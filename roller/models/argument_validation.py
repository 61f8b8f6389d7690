"""Validation of the arguments of ``compile_model`` other than the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from roller.errors import ModelError, shown
from roller_runtime.core.validation import is_integer, validate_integer, validate_path

#: Valid values of ``fallback``: runtimes for nodes that cannot be compiled, or ``None``.
FALLBACKS = (None, "onnxruntime")


def validate_batch(batch: Any) -> int | None:
    """Return ``batch`` if it is a valid batch size or ``None`` (the model's own); otherwise raise an error."""
    if batch is None:
        return None
    return validate_integer(
        batch, "batch", 1, expected="a number of at least 1 (for a range, use shapes=)", error=ModelError
    )


def validate_shapes(shapes: Any) -> dict[str, tuple[int, ...]]:
    """Return ``shapes`` as a dict of integer tuples by input name, empty for ``None``; raise an error if invalid."""
    if shapes is None:
        return {}
    if not isinstance(shapes, Mapping):
        raise ModelError(f"shapes: expected a dict of shapes by input, got {shown(shapes)}.")
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        if not isinstance(name, str):
            raise ModelError(f"shapes: expected names of inputs, got {shown(name)}.")
        if isinstance(shape, (str, bytes, Mapping)) or not isinstance(shape, Iterable):
            raise ModelError(f"shapes: expected a tuple of sizes for '{name}', got {shown(shape)}.")
        sizes: Sequence[Any] = tuple(shape)
        if not all(is_integer(s) and s >= 0 for s in sizes):
            raise ModelError(
                f"shapes: expected numbers for '{name}', got {shown(shape)}. For a range, write (name, smallest, "
                "largest) in place of a number, such as shapes={'x': (('batch', 1, 8), 64)}."
            )
        found[name] = tuple(int(s) for s in sizes)
    return found


def has_dynamic_shapes(shapes: Any) -> bool:
    """Return whether any dimension of an input is given as a range, well formed or not."""
    if not isinstance(shapes, Mapping):
        return False
    several = list(shapes.values())
    return any(isinstance(dims, Mapping) for dims in several) or any(
        isinstance(d, (tuple, list, range)) for dims in several if isinstance(dims, (tuple, list)) for d in dims
    )


def validate_values(values: Any) -> dict[str, Any]:
    """Return ``values`` as a dict by input name, empty for ``None``; raise an error if it is no such mapping."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise ModelError(f"values: expected a dict of arrays by input, got {shown(values)}.")
    for name in values:
        if not isinstance(name, str):
            raise ModelError(f"values: expected names of inputs, got {shown(name)}.")
    return dict(values)


def validate_base_dir(base_dir: Any) -> Path | None:
    """Return the folder of external weights as a path, or ``None`` for the model's own folder."""
    return None if base_dir is None else validate_path(base_dir, "base_dir", error=ModelError)


def validate_fallback(fallback: Any, name: str = "") -> str | None:
    """Return ``fallback`` if it is a known runtime or ``None``; otherwise raise an error that mentions ``name``."""
    if fallback is None or (isinstance(fallback, str) and fallback in FALLBACKS):
        return fallback
    where = f"{name}: fallback" if name else "fallback"
    raise ModelError(f"{where}: expected 'onnxruntime' or None, got {shown(fallback)}.")
