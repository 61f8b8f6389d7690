"""Lowerings of broadcasting arithmetic on several tensors."""

from __future__ import annotations

from functools import reduce

import numpy as np
from onnx import helper

from roller.core.dtypes import FLOATS, INTEGERS
from roller.expr import Cast, Const, Scalar
from roller.models.onnx.elementwise import (
    FALSE,
    call,
    computed,
    converted,
    literal,
    operands,
    pointwise,
    require,
    scalar_constant,
)
from roller.models.onnx.lowering import Lowered, Site, Unsupported, lowers
from roller.models.onnx.rewriting import Steps
from roller.models.onnx.types import onnx_dtype

_BY_OP = {"Add": "add", "Sub": "sub", "Mul": "mul", "Sum": "add", "Max": "max", "Min": "min"}

#: Maximum number of operands of one kernel, which limits its inputs and the depth of its scalar tree.
_MOST_OPERANDS = 8
#: Largest exponent that is computed by multiplications, which are exact on integers.
_MOST_PRODUCTS = 8


@lowers(*_BY_OP)
def folded(site: Site) -> Lowered:
    """Lower a binary or associative operation: inputs combined from left to right."""
    require(site.output, (*FLOATS, *INTEGERS), site.node.op)
    if len(site.inputs) > _MOST_OPERANDS:
        return _in_groups(site, site.node.op)
    axes, args = operands(site)
    return pointwise(site, axes, reduce(lambda a, b: call(_BY_OP[site.node.op], a, b), args))


@lowers("Mean")
def mean(site: Site) -> Lowered:
    """Lower the mean of several tensors: their sum times a constant."""
    require(site.output, FLOATS, "Mean")
    if len(site.inputs) > _MOST_OPERANDS:
        return _in_groups(site, "Sum", 1 / len(site.inputs))
    axes, args = operands(site)
    total = reduce(lambda a, b: call("add", a, b), args)
    return pointwise(site, axes, call("mul", total, literal(1 / len(args), computed(site.output.dtype))))


def _in_groups(site: Site, op: str, factor: float = 1.0) -> Lowered:
    """Rewrite into a chain of nodes with few operands."""
    steps, y = Steps(site), site.output
    wide = computed(y.dtype)
    given = [steps.add("Cast", (v,), v.shape, wide, to=_element_type(wide)) if wide != y.dtype else v
             for v in (site.required(n) for n in range(len(site.inputs)))]  # fmt: skip
    total, rest = given[0], given[1:]
    for at in range(0, len(rest), _MOST_OPERANDS - 1):
        group = (total, *rest[at : at + _MOST_OPERANDS - 1])
        total = steps.add(op, group, np.broadcast_shapes(*(v.shape for v in group)), wide)
    if factor != 1:
        total = steps.add("Mul", (total, steps.constant(np.array(factor, wide))), total.shape, wide)
    steps.add("Cast", (total,), y.shape, out=y, to=_element_type(y.dtype))
    return steps.done()


def _element_type(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(onnx_dtype(dtype)))


@lowers("Div")
def divide(site: Site) -> Lowered:
    """Lower a division; integer division rounds towards zero."""
    dtype = computed(site.output.dtype)
    axes, (a, b) = operands(site)
    if dtype in INTEGERS:
        return pointwise(site, axes, call("idiv", a, b))
    require(site.output, FLOATS, "Div")
    by = scalar_constant(site, 1)
    if by and _is_power_of_two(by):
        return pointwise(site, axes, call("mul", a, literal(1 / by, dtype)))
    return pointwise(site, axes, call("div", a, b))


def _is_power_of_two(value: float) -> bool:
    mantissa, exponent = float(abs(value)).hex().split("p")
    return mantissa == "0x1.0000000000000" and -100 < int(exponent) < 100


@lowers("Mod")
def modulo(site: Site) -> Lowered:
    """Lower a remainder with the sign of the divisor or, with ``fmod``, of the dividend."""
    require(site.output, (*FLOATS, *INTEGERS), "Mod")
    dtype = computed(site.output.dtype)
    c_style = bool(site.attribute("fmod", 0))
    axes, (a, b) = operands(site)
    rest = call("imod" if dtype in INTEGERS else "fmod", a, b)
    if c_style or dtype == "uint8":
        return pointwise(site, axes, rest)
    zero = literal(0, dtype)
    # Add the divisor to a non-zero remainder of the other sign.
    differs = call("select", call("lt", rest, zero), call("lt", zero, b), call("lt", b, zero))
    adjusted = call("select", differs, call("add", rest, b), rest)
    return pointwise(site, axes, call("select", call("eq", rest, zero), zero, adjusted))


@lowers("Pow")
def power(site: Site) -> Lowered:
    """Lower a power; small integer exponents become products, and the result has the dtype of the base."""
    base, exponent = site.required(0), site.required(1)
    axes, (x, y) = operands(site)
    constant = scalar_constant(site, 1)
    if constant is not None and constant == int(constant) and 0 < constant <= _MOST_PRODUCTS:
        return pointwise(site, axes, _product(x, int(constant)))
    if base.dtype in INTEGERS:
        return pointwise(site, axes, _integer_power(base.dtype, exponent.dtype, x, y))
    require(base, FLOATS, "Pow")
    dtype = computed(base.dtype)
    if constant == 0.5:
        # As in pow: the root of -0 is 0, and that of -inf is inf.
        infinite = call("eq", x, Const(float("-inf"), dtype))
        root = call("sqrt", call("add", x, literal(0, dtype)))
        return pointwise(site, axes, call("select", infinite, Const(float("inf"), dtype), root))
    if constant == -1:
        return pointwise(site, axes, call("div", literal(1, dtype), x))
    wide = "float64" if "float64" in (dtype, exponent.dtype) or exponent.dtype == "int64" else "float32"
    raised = call("pow", converted(x, dtype, wide), converted(y, computed(exponent.dtype), wide))
    return pointwise(site, axes, converted(raised, wide, dtype))


def _product(x: Scalar, n: int) -> Scalar:
    """Return ``x ** n`` by squaring."""
    if n == 1:
        return x
    half = _product(x, n // 2)
    square = call("mul", half, half)
    return call("mul", square, x) if n % 2 else square


def _integer_power(base: str, exponent: str, x: Scalar, y: Scalar) -> Scalar:
    """Return a power of integers computed in float64, which represents exactly every result in the dtype's range."""
    if base == "int64":
        raise Unsupported("Pow of int64 whose exponent is no small constant: float64 does not hold all its results")
    # Negative powers of 0 are 0 and overflow saturates, because converting out-of-range floats is undefined.
    infinite = call("select", call("eq", x, literal(0, base)), call("lt", y, literal(0, computed(exponent))), FALSE)
    finite = Cast("float64", call("select", infinite, literal(1, base), x))
    raised = call("pow", finite, converted(y, computed(exponent), "float64"))
    limits = np.iinfo(base)
    bounded = call("max", call("trunc", raised), literal(limits.min, "float64"))
    bounded = call("min", bounded, literal(limits.max, "float64"))
    return call("select", infinite, literal(0, base), converted(bounded, "float64", base))
