"""Building blocks of lowerings: axes of a result, broadcast loads, and element-wise stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from roller.core.dtypes import DTYPE_BYTES, FLOATS, NARROW_FLOATS
from roller.expr import Axis, Bound, Call, Cast, Const, Index, Load, Scalar, Stage, Tensor, axis_index
from roller.models.graph.steps import Value
from roller.models.onnx.lowering import Compute, Site, Unsupported
from roller.ops.build import indices
from roller.ops.rows import axes_over


def call(fn: str, *args: Scalar) -> Scalar:
    """Return a scalar function applied to scalars."""
    return Call(fn, args)


def literal(value: Any, dtype: str) -> Const:
    """Return a number as a literal of ``dtype``; integers stay exact."""
    return Const(float(value) if dtype in FLOATS else int(value), dtype)


TRUE, FALSE = Const(1, "bool"), Const(0, "bool")


def invert(condition: Scalar) -> Scalar:
    """Return the negation of a condition."""
    return call("select", condition, FALSE, TRUE)


def axes_of(shape: Sequence[int]) -> tuple[Axis, ...]:
    """Return one spatial axis per dimension, ``d0``, ``d1`` ...; refuse empty results."""
    if 0 in shape:
        raise Unsupported(f"a result of shape {list(shape)} has no elements")
    return axes_over(shape)


def tensor(value: Value) -> Tensor:
    """Return the tensor of a value; refuse empty tensors and dtypes that kernels do not support."""
    if value.dtype not in DTYPE_BYTES:
        raise Unsupported(f"{value.dtype} is no dtype of kernels (they take {', '.join(sorted(DTYPE_BYTES))})")
    if 0 in value.shape:
        raise Unsupported(f"'{value.name}' of shape {list(value.shape)} has no elements")
    return Tensor(value.name, value.shape, value.dtype)


def broadcast(value: Value, shape: Sequence[int], axes: Sequence[Axis]) -> Load:
    """Return a load of ``value`` at a point of ``shape``, by NumPy's broadcasting rules."""
    read = tensor(value)
    lead = len(shape) - len(read.shape)
    if lead < 0 or any(s not in (1, t) for s, t in zip(read.shape, shape[lead:], strict=True)):
        raise Unsupported(f"'{value.name}' of shape {list(value.shape)} does not broadcast to {list(shape)}")
    index = (Index() if n == 1 else axis_index(axes[lead + d].name) for d, n in enumerate(read.shape))
    return Load(read.name, tuple(index))


def scalar_constant(site: Site, position: int) -> int | float | None:
    """Return a constant one-element input as a number; ``None`` for other inputs and for non-finite numbers."""
    value = site.constant(position)
    if value is None or value.size != 1 or value.dtype.name not in DTYPE_BYTES:
        return None
    number = value.reshape(()).astype(np.float64).item() if "float" in value.dtype.name else int(value.reshape(())[()])
    return number if math.isfinite(number) else None


def computed(dtype: str) -> str:
    """Return the dtype in which values of ``dtype`` are computed: float32 for narrower floats."""
    return "float32" if dtype in NARROW_FLOATS else dtype


def operand(site: Site, position: int, axes: Sequence[Axis]) -> Scalar:
    """Return an input at a point of the result, in its computation dtype; a constant scalar becomes a literal."""
    value = site.required(position)
    number = scalar_constant(site, position)
    if number is not None:
        return literal(number, computed(value.dtype))
    return converted(broadcast(value, site.output.shape, axes), value.dtype, computed(value.dtype))


def operands(site: Site) -> tuple[tuple[Axis, ...], tuple[Scalar, ...]]:
    """Return the axes of the result, and every input at a point of it."""
    axes = axes_of(site.output.shape)
    return axes, tuple(operand(site, i, axes) for i in range(len(site.inputs)))


def pointwise(
    site: Site, axes: tuple[Axis, ...], body: Scalar, *, dtype: str | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
) -> Compute:  # fmt: skip
    """Return the single stage that writes the first output at every point of ``axes``."""
    out = tensor(site.output)
    stage = Stage(out, axes, indices(axes), body, None, dtype or computed(out.dtype))
    return Compute((stage,), constants or {})


def moved(
    site: Site, index: Callable[[tuple[Axis, ...]], Sequence[Index]], *, guard: Sequence[Bound] = (),
    outside: float = 0.0,
) -> Compute:  # fmt: skip
    """Return a stage that only moves input 0: one load at ``index(axes)``, computed from the output's axes."""
    axes = axes_of(site.output.shape)
    read = tensor(site.required(0))
    body = Load(read.name, tuple(index(axes)), tuple(guard), outside)
    return pointwise(site, axes, body, dtype=read.dtype)


def converted(x: Scalar, source: str, target: str) -> Scalar:
    """Return ``x`` of dtype ``source`` as ``target``: integers truncate towards zero; non-zero becomes true."""
    if source == target:
        return x
    if target == "bool":
        return call("select", call("eq", x, literal(0, source)), FALSE, TRUE)
    return Cast(target, x)


def require(value: Value, dtypes: Sequence[str], what: str) -> None:
    """Refuse a dtype that is not among ``dtypes``."""
    if value.dtype not in dtypes:
        raise Unsupported(f"{what} of {value.dtype}: kernels compute it in {', '.join(dtypes)}")
