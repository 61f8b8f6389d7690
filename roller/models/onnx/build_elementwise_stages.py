"""Building blocks of lowerings: result axes, broadcast loads and element-wise stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from roller.expr import Axis, Bound, Call, Cast, Const, Index, Load, Scalar, Stage, Tensor, axis_index
from roller.models.onnx.lowering_registry import Compute, Site, Unsupported
from roller.ops.operator_argument_checks import identity_indices
from roller.ops.tensor_rows import axes_of_dimensions
from roller_runtime.core.dtypes import DTYPE_BYTES, FLOATS, NARROW_FLOATS
from roller_runtime.plan.program_steps import Value


def scalar_call(fn: str, *args: Scalar) -> Scalar:
    """Return a call to the scalar function ``fn``."""
    return Call(fn, args)


def literal(value: Any, dtype: str) -> Const:
    """Return ``value`` as a literal of ``dtype``; integers stay exact."""
    return Const(float(value) if dtype in FLOATS else int(value), dtype)


TRUE, FALSE = Const(1, "bool"), Const(0, "bool")


def negate_condition(condition: Scalar) -> Scalar:
    """Return the negation of a condition."""
    return scalar_call("select", condition, FALSE, TRUE)


def result_axes(shape: Sequence[int]) -> tuple[Axis, ...]:
    """Return one spatial axis per dimension (``d0``, ``d1``, ...); refuse an empty result."""
    if 0 in shape:
        raise Unsupported(f"a result of shape {list(shape)} has no elements")
    return axes_of_dimensions(shape)


def kernel_tensor_of_value(value: Value) -> Tensor:
    """Return ``value`` as a tensor; refuse empty tensors and dtypes that kernels do not support."""
    if value.dtype not in DTYPE_BYTES:
        raise Unsupported(f"{value.dtype} is no dtype of kernels (they take {', '.join(sorted(DTYPE_BYTES))})")
    if 0 in value.shape:
        raise Unsupported(f"'{value.name}' of shape {list(value.shape)} has no elements")
    return Tensor(value.name, value.shape, value.dtype)


def broadcast_load(value: Value, shape: Sequence[int], axes: Sequence[Axis]) -> Load:
    """Return a load of ``value``, broadcast to ``shape`` by NumPy's rules, at the point ``axes``."""
    read = kernel_tensor_of_value(value)
    lead = len(shape) - len(read.shape)
    if lead < 0 or any(s not in (1, t) for s, t in zip(read.shape, shape[lead:], strict=True)):
        raise Unsupported(f"'{value.name}' of shape {list(value.shape)} does not broadcast to {list(shape)}")
    index = (Index() if n == 1 else axis_index(axes[lead + d].name) for d, n in enumerate(read.shape))
    return Load(read.name, tuple(index))


def scalar_constant(site: Site, position: int) -> int | float | None:
    """Return the element of a constant one-element input; ``None`` for other inputs and for non-finite elements."""
    value = site.constant(position)
    if value is None or value.size != 1 or value.dtype.name not in DTYPE_BYTES:
        return None
    number = value.reshape(()).astype(np.float64).item() if "float" in value.dtype.name else int(value.reshape(())[()])
    return number if math.isfinite(number) else None


def computation_dtype(dtype: str) -> str:
    """Return the dtype in which values of ``dtype`` are computed: float32 for narrower floats."""
    return "float32" if dtype in NARROW_FLOATS else dtype


def operand_scalar(site: Site, position: int, axes: Sequence[Axis]) -> Scalar:
    """Return an input's element at a point of the result, in its computation dtype; a constant scalar is a literal."""
    value = site.required(position)
    number = scalar_constant(site, position)
    if number is not None:
        return literal(number, computation_dtype(value.dtype))
    return convert_scalar(broadcast_load(value, site.output.shape, axes), value.dtype, computation_dtype(value.dtype))


def result_axes_and_operand_elements(site: Site) -> tuple[tuple[Axis, ...], tuple[Scalar, ...]]:
    """Return the axes of the result, and each input's element at a point of the result."""
    axes = result_axes(site.output.shape)
    return axes, tuple(operand_scalar(site, i, axes) for i in range(len(site.inputs)))


def pointwise_stage(
    site: Site, axes: tuple[Axis, ...], body: Scalar, *, dtype: str | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
) -> Compute:  # fmt: skip
    """Return a single stage, which writes ``body`` to the first output at every point of ``axes``."""
    out = kernel_tensor_of_value(site.output)
    stage = Stage(out, axes, identity_indices(axes), body, None, dtype or computation_dtype(out.dtype))
    return Compute((stage,), constants or {})


def movement_stage(
    site: Site, index: Callable[[tuple[Axis, ...]], Sequence[Index]], *, guard: Sequence[Bound] = (),
    outside: float = 0.0,
) -> Compute:  # fmt: skip
    """Return a stage that only moves input 0, by one load at ``index(axes)``; ``axes`` are the output's."""
    axes = result_axes(site.output.shape)
    read = kernel_tensor_of_value(site.required(0))
    body = Load(read.name, tuple(index(axes)), tuple(guard), outside)
    return pointwise_stage(site, axes, body, dtype=read.dtype)


def convert_scalar(x: Scalar, source: str, target: str) -> Scalar:
    """Convert ``x`` from dtype ``source`` to ``target``: to integers by truncation, to bool by comparison with zero."""
    if source == target:
        return x
    if target == "bool":
        return scalar_call("select", scalar_call("eq", x, literal(0, source)), FALSE, TRUE)
    return Cast(target, x)


def require_dtype(value: Value, dtypes: Sequence[str], what: str) -> None:
    """Refuse ``value`` if its dtype is not among ``dtypes``."""
    if value.dtype not in dtypes:
        raise Unsupported(f"{what} of {value.dtype}: kernels compute it in {', '.join(dtypes)}")
