"""Sums of products of 8-bit integers, with zero points moved out of the sum if that is exact.

With constant weights, ``sum (x - x0) (w - w0)`` equals ``sum x w' - x0 sum w'``, where ``w' = w - w0``. If ``w'`` fits
into 8 bits, this is a sum of plain products, for which processors have instructions, plus one term per column. Elements
in the padding equal ``x0``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from roller.expr import Axis, Call, Cast, Index, Load, Scalar, Stage, Tensor
from roller.models.onnx.build_elementwise_stages import literal
from roller.models.onnx.lowering_registry import Compute, Site
from roller_runtime.plan.program_steps import Value

#: Input position of the constant bias (one integer per column) of Roller's own ``ConvInteger`` and ``MatMulInteger``.
BIAS = 4
#: Largest magnitude of a byte minus a zero point.
_LARGEST = 255


@dataclass(frozen=True)
class IntegerSumEnding:
    """The ending of a sum of plain products (``None`` if it has none), and the constants that it reads."""

    ending: Callable[[Scalar], Scalar] | None = None
    constants: dict[str, np.ndarray] = field(default_factory=dict)


def weights_minus_zero_points(weights: np.ndarray, zero: np.ndarray | None, axis: int) -> np.ndarray | None:
    """Return constant weights minus their zero points as 8-bit integers; ``None`` if the differences need more bits.

    Examples
    --------
    >>> weights_minus_zero_points(np.array([[128, 255]], np.uint8), np.array(128, np.uint8), 0)
    array([[  0, 127]], dtype=int8)
    >>> weights_minus_zero_points(np.array([[0, 255]], np.uint8), np.array(100, np.uint8), 0) is None
    True
    """
    if weights.dtype not in (np.uint8, np.int8):
        return None
    if zero is None or not zero.any():
        small = weights.dtype == np.uint8 and weights.max(initial=0) <= np.iinfo(np.int8).max
        return weights.astype(np.int8) if small else weights
    shape = [1] * weights.ndim
    if zero.size > 1:
        if zero.size != weights.shape[axis]:
            return None
        shape[axis] = zero.size
    found = weights.astype(np.int16) - zero.astype(np.int16).reshape(shape)
    limits = np.iinfo(np.int8)
    if found.min(initial=0) < limits.min or found.max(initial=0) > limits.max:
        return None
    return found.astype(np.int8)


def sums_fit_int32(weights: np.ndarray, bias: np.ndarray | None, axis: int) -> bool:
    """Return whether sums of bytes times constant weights, with zero points and a bias, never overflow 32 bits."""
    others = tuple(d for d in range(weights.ndim) if d != axis % weights.ndim)
    most = 2 * _LARGEST * np.abs(weights.astype(np.int64)).sum(others)
    added = np.abs(bias.astype(np.int64)).reshape(-1) if bias is not None else np.zeros(1, np.int64)
    return bool((most + added <= np.iinfo(np.int32).max).all())


def integer_sum_ending(site: Site, along: Index, totals: np.ndarray) -> IntegerSumEnding:
    """Return the ending that subtracts input 2 (the zero point) times ``totals`` from a sum and adds the bias."""
    zero, known, bias = site.input(2), site.constant(2), site.constant(BIAS)
    name, shift = site.output.name, np.zeros(1, np.int64)
    constants, moving = dict[str, np.ndarray](), zero is not None and known is None
    if moving:
        constants[f"{name}/totals"] = totals.astype(np.int32)
    elif known is not None:
        shift = -int(known.ravel()[0]) * totals
    if bias is not None:
        shift = shift + bias.reshape(-1)
    if shift.any():
        shift = np.broadcast_to(shift, totals.shape)
        constants[f"{name}/shift"] = np.ascontiguousarray(shift).astype(np.int32)  # wraps as the sum does

    def ending(total: Scalar) -> Scalar:
        if moving and zero is not None:
            one = Cast("int32", Load(zero.name, (Index(),) * len(zero.shape)))
            total = Call("sub", (total, Call("mul", (one, Load(f"{name}/totals", (along,))))))
        if f"{name}/shift" in constants:
            total = Call("add", (total, Load(f"{name}/shift", (along,))))
        return total if site.output.dtype == "int32" else Cast(site.output.dtype, total)

    return IntegerSumEnding(ending if constants or site.output.dtype != "int32" else None, constants)


def integer_sum_stages(
    y: Value, axes: Sequence[Axis], store: tuple[Index, ...], body: Scalar, end: IntegerSumEnding
) -> Compute:  # fmt: skip
    """Return the stages that sum ``body`` over ``axes`` in 32-bit integers and apply the ending."""
    total = Tensor(y.name if end.ending is None else f"{y.name}/acc", y.shape, "int32")
    first = Stage(total, tuple(axes), store, body, "sum", "int32")
    if end.ending is None:
        return Compute((first,), end.constants)
    value = end.ending(Load(total.name, store))
    last = Stage(Tensor(y.name, y.shape, y.dtype), first.spatial_axes, store, value, None, y.dtype)
    return Compute((first, last), end.constants)


def minus_zero_point(site: Site, read: Load, position: int, where: tuple[Index, ...]) -> Scalar:
    """Return the element ``read`` minus its zero point (input ``position``) as a 32-bit integer."""
    zero, wide = site.input(position), Cast("int32", read)
    known = site.constant(position)
    if zero is None:
        return wide
    if known is not None and known.size == 1:
        shift = int(known.ravel()[0])
        return Call("sub", (wide, literal(shift, "int32"))) if shift else wide
    if zero.elements == 1:
        where = (Index(),) * len(zero.shape)
    return Call("sub", (wide, Cast("int32", Load(zero.name, where))))
