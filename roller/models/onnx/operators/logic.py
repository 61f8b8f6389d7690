"""Lowerings of comparisons, logic, bit operations and selection."""

from __future__ import annotations

from roller.expr import Const, Scalar
from roller.models.onnx.build_elementwise_stages import (
    FALSE,
    TRUE,
    computation_dtype,
    literal,
    negate_condition,
    pointwise_stage,
    require_dtype,
    result_axes_and_operand_elements,
    scalar_call,
)
from roller.models.onnx.lowering_registry import Lowered, Site, Unsupported, lowers
from roller_runtime.core.dtypes import FLOATS, INTEGERS

_NUMBERS = (*FLOATS, *INTEGERS)


def _storable_condition(condition: Scalar) -> Scalar:
    """Return a comparison as a value that a tensor can store."""
    return scalar_call("select", condition, TRUE, FALSE)


@lowers("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
def lower_comparison(site: Site) -> Lowered:
    """Lower ``Equal``, ``Less`` and the other comparisons, which are false for NaN."""
    op = site.node.op
    require_dtype(site.required(0), (*_NUMBERS, "bool") if op == "Equal" else _NUMBERS, op)
    axes, (a, b) = result_axes_and_operand_elements(site)
    if site.required(0).dtype == "bool":
        return pointwise_stage(site, axes, scalar_call("select", a, b, negate_condition(b)))
    fn = {"Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "lt", "GreaterOrEqual": "le"}[op]
    a, b = (b, a) if op.startswith("Greater") else (a, b)
    return pointwise_stage(site, axes, _storable_condition(scalar_call(fn, a, b)))


@lowers("And", "Or", "Xor")
def lower_logical_connective(site: Site) -> Lowered:
    """Lower ``And``, ``Or`` and ``Xor`` of two booleans."""
    axes, (a, b) = result_axes_and_operand_elements(site)
    body = {
        "And": scalar_call("select", a, b, FALSE),
        "Or": scalar_call("select", a, TRUE, b),
        "Xor": scalar_call("select", a, negate_condition(b), b),  # LLVM cannot compare vectors of bits
    }[site.node.op]
    return pointwise_stage(site, axes, body)


@lowers("Not")
def lower_not(site: Site) -> Lowered:
    """Lower ``Not``: the negation of a boolean."""
    axes, (x,) = result_axes_and_operand_elements(site)
    return pointwise_stage(site, axes, negate_condition(x))


@lowers("Where")
def lower_where(site: Site) -> Lowered:
    """Lower ``Where``: for each element, a choice between two tensors by a condition."""
    axes, (condition, a, b) = result_axes_and_operand_elements(site)
    return pointwise_stage(site, axes, scalar_call("select", condition, a, b))


@lowers("IsNaN")
def lower_is_nan(site: Site) -> Lowered:
    """Lower ``IsNaN``: whether an element is NaN."""
    require_dtype(site.required(0), FLOATS, "IsNaN")
    axes, (x,) = result_axes_and_operand_elements(site)
    return pointwise_stage(site, axes, _storable_condition(scalar_call("isnan", x)))


@lowers("IsInf")
def lower_is_inf(site: Site) -> Lowered:
    """Lower ``IsInf``: whether an element is infinite, or one of the two infinities."""
    require_dtype(site.required(0), FLOATS, "IsInf")
    axes, (x,) = result_axes_and_operand_elements(site)
    high, low = bool(site.attribute("detect_positive", 1)), bool(site.attribute("detect_negative", 1))
    dtype = computation_dtype(site.required(0).dtype)
    sides = [Const(float("inf"), dtype)] * high + [Const(float("-inf"), dtype)] * low
    found: Scalar = FALSE
    for side in sides:
        found = scalar_call("select", scalar_call("eq", x, side), TRUE, found)
    return pointwise_stage(site, axes, found)


@lowers("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def lower_bitwise(site: Site) -> Lowered:
    """Lower ``BitwiseAnd``, ``BitwiseOr`` and ``BitwiseXor`` of two integers."""
    require_dtype(site.output, INTEGERS, site.node.op)
    axes, (a, b) = result_axes_and_operand_elements(site)
    return pointwise_stage(site, axes, scalar_call(f"bit{site.node.op[len('Bitwise') :].lower()}", a, b))


@lowers("BitwiseNot")
def lower_bitwise_not(site: Site) -> Lowered:
    """Lower ``BitwiseNot``: the complement of every bit."""
    dtype = site.output.dtype
    require_dtype(site.output, INTEGERS, "BitwiseNot")
    axes, (x,) = result_axes_and_operand_elements(site)
    return pointwise_stage(site, axes, scalar_call("bitxor", x, literal(255 if dtype == "uint8" else -1, dtype)))


@lowers("BitShift")
def lower_bit_shift(site: Site) -> Lowered:
    """Lower ``BitShift`` of unsigned integers; a shift by at least their width gives 0."""
    require_dtype(site.output, ("uint8",), "BitShift")
    direction = site.attribute("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise Unsupported(f"BitShift direction='{direction}' is neither LEFT nor RIGHT")
    axes, (x, by) = result_axes_and_operand_elements(site)
    most = literal(7, "uint8")
    shifted = scalar_call("shl" if direction == "LEFT" else "shr", x, scalar_call("min", by, most))
    return pointwise_stage(site, axes, scalar_call("select", scalar_call("lt", most, by), literal(0, "uint8"), shifted))
