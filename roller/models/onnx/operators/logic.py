"""Lowerings of comparisons, logic, bit operations and selection."""

from __future__ import annotations

from roller.core.dtypes import FLOATS, INTEGERS
from roller.expr import Const, Scalar
from roller.models.onnx.elementwise import (
    FALSE,
    TRUE,
    call,
    computed,
    invert,
    literal,
    operands,
    pointwise,
    require,
)
from roller.models.onnx.lowering import Lowered, Site, Unsupported, lowers

_NUMBERS = (*FLOATS, *INTEGERS)


def _condition(condition: Scalar) -> Scalar:
    """Return a comparison as a value that a tensor can store."""
    return call("select", condition, TRUE, FALSE)


@lowers("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
def comparison(site: Site) -> Lowered:
    """Lower a comparison, which is false for NaN."""
    op = site.node.op
    require(site.required(0), (*_NUMBERS, "bool") if op == "Equal" else _NUMBERS, op)
    axes, (a, b) = operands(site)
    if site.required(0).dtype == "bool":
        return pointwise(site, axes, call("select", a, b, invert(b)))
    fn = {"Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "lt", "GreaterOrEqual": "le"}[op]
    a, b = (b, a) if op.startswith("Greater") else (a, b)
    return pointwise(site, axes, _condition(call(fn, a, b)))


@lowers("And", "Or", "Xor")
def logic(site: Site) -> Lowered:
    """Lower a binary logical operation."""
    axes, (a, b) = operands(site)
    body = {
        "And": call("select", a, b, FALSE),
        "Or": call("select", a, TRUE, b),
        "Xor": call("select", a, invert(b), b),  # LLVM cannot compare vectors of bits
    }[site.node.op]
    return pointwise(site, axes, body)


@lowers("Not")
def negation(site: Site) -> Lowered:
    """Lower the negation of a condition."""
    axes, (x,) = operands(site)
    return pointwise(site, axes, invert(x))


@lowers("Where")
def where(site: Site) -> Lowered:
    """Lower a choice between two tensors."""
    axes, (condition, a, b) = operands(site)
    return pointwise(site, axes, call("select", condition, a, b))


@lowers("IsNaN")
def is_nan(site: Site) -> Lowered:
    """Lower the test for NaN."""
    require(site.required(0), FLOATS, "IsNaN")
    axes, (x,) = operands(site)
    return pointwise(site, axes, _condition(call("isnan", x)))


@lowers("IsInf")
def is_infinite(site: Site) -> Lowered:
    """Lower the test for both infinities or for one of them."""
    require(site.required(0), FLOATS, "IsInf")
    axes, (x,) = operands(site)
    high, low = bool(site.attribute("detect_positive", 1)), bool(site.attribute("detect_negative", 1))
    dtype = computed(site.required(0).dtype)
    sides = [Const(float("inf"), dtype)] * high + [Const(float("-inf"), dtype)] * low
    found: Scalar = FALSE
    for side in sides:
        found = call("select", call("eq", x, side), TRUE, found)
    return pointwise(site, axes, found)


@lowers("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bits(site: Site) -> Lowered:
    """Lower a bitwise operation on two integers."""
    require(site.output, INTEGERS, site.node.op)
    axes, (a, b) = operands(site)
    return pointwise(site, axes, call(f"bit{site.node.op[len('Bitwise') :].lower()}", a, b))


@lowers("BitwiseNot")
def complement(site: Site) -> Lowered:
    """Lower the complement of every bit."""
    dtype = site.output.dtype
    require(site.output, INTEGERS, "BitwiseNot")
    axes, (x,) = operands(site)
    return pointwise(site, axes, call("bitxor", x, literal(255 if dtype == "uint8" else -1, dtype)))


@lowers("BitShift")
def shift(site: Site) -> Lowered:
    """Lower a shift of unsigned integers; a shift by all bits gives 0."""
    require(site.output, ("uint8",), "BitShift")
    direction = site.attribute("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise Unsupported(f"BitShift direction='{direction}' is neither LEFT nor RIGHT")
    axes, (x, by) = operands(site)
    most = literal(7, "uint8")
    shifted = call("shl" if direction == "LEFT" else "shr", x, call("min", by, most))
    return pointwise(site, axes, call("select", call("lt", most, by), literal(0, "uint8"), shifted))
