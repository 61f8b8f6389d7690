"""Lowering of products with 4-bit weights, which stay in bytes of two numbers."""

from __future__ import annotations

import math

from roller.expr import REDUCTION, Axis, Call, Cast, Const, Index, Load, Scalar, Term, axis_index
from roller.models.onnx.lowering_helpers import (
    accumulation_types,
    reduction_with_ending,
    refuse_empty_tensors,
    require_shape,
)
from roller.models.onnx.lowering_registry import Compute, Lowered, Site, lowers
from roller.ops.operator_argument_checks import OperatorDtypes, identity_indices

#: Number that stands for 0 if there are no zero points.
_ZERO = 8


@lowers("MatMulLowBits", domain="roller")
def lower_low_bit_matmul(site: Site) -> Lowered:
    """Lower a product with 4-bit weights, a sum of ``scale * (x0 * (q0 - zero) + x1 * (q1 - zero))``.

    The weights are :class:`~roller.models.onnx.low_bit_weights.LowBitWeights`. A term of the sum is one byte, and its
    scale is a factor of both numbers, so that a kernel unpacks in registers.
    """
    refuse_empty_tensors(site)
    a, packed, scale, zero, y = site.required(0), site.required(1), site.required(2), site.input(3), site.output
    blocks, half, columns = packed.shape
    require_shape(y, (*a.shape[:-1], columns))
    t = accumulation_types(a, y)
    lead = tuple(Axis(f"i{d}", e) for d, e in enumerate(a.shape[:-1]))
    axes = (*lead, Axis("n", columns), Axis("b", blocks, REDUCTION), Axis("j", half, REDUCTION))
    block, column = axis_index("b"), axis_index("n")
    byte = Cast("int32", Load(packed.name, (block, axis_index("j"), column)))
    shift = None if zero is None else Load(zero.name, (block, column))

    def element(odd: int) -> Scalar:
        return t.load(a.name, (*identity_indices(lead), Index((Term("b", 2 * half), Term("j", 2)), odd)))

    low, high = Call("bitand", (byte, Const(15, "int32"))), Call("shr", (byte, Const(4, "int32")))
    form = _pair_of_one_row if math.prod(a.shape[:-1]) == 1 else _pair_of_several_rows
    pair = form(t, (low, high), (element(0), element(1)), shift)
    factor: Scalar = Load(scale.name, (block, column))
    factor = factor if scale.dtype == t.acc else Cast(t.acc, factor)
    store = identity_indices(axes[: len(lead) + 1])
    return Compute(reduction_with_ending(y, axes, store, Call("mul", (factor, pair)), "sum", t))


def _pair_of_several_rows(
    t: OperatorDtypes, numbers: tuple[Scalar, Scalar], x: tuple[Scalar, Scalar], zero: Scalar | None
) -> Scalar:
    """Return ``x0 * (q0 - zero) + x1 * (q1 - zero)``: rows share the differences."""
    shift: Scalar = Const(_ZERO, "int32") if zero is None else Cast("int32", zero)
    first, second = (
        Call("mul", (Cast(t.acc, Call("sub", (q, shift))), one)) for q, one in zip(numbers, x, strict=True)
    )
    return Call("add", (first, second))


def _pair_of_one_row(
    t: OperatorDtypes, numbers: tuple[Scalar, Scalar], x: tuple[Scalar, Scalar], zero: Scalar | None
) -> Scalar:
    """Return ``x1 * q1 + (x0 * q0 - zero * (x0 + x1))``, which has fewer vector operations for a single row."""
    shift: Scalar = Const(float(_ZERO), t.acc) if zero is None else Cast(t.acc, zero)
    first, second = (Call("mul", (Cast(t.acc, q), one)) for q, one in zip(numbers, x, strict=True))
    return Call("add", (second, Call("sub", (first, Call("mul", (Call("add", x), shift))))))
