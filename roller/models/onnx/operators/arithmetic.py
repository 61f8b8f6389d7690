"""Lowerings of broadcasting arithmetic on several tensors."""

from __future__ import annotations

from functools import reduce

import numpy as np
from onnx import helper

from roller.expr import Cast, Const, Scalar
from roller.models.onnx.build_elementwise_stages import (
    FALSE,
    computation_dtype,
    convert_scalar,
    literal,
    pointwise_stage,
    require_dtype,
    result_axes_and_operand_elements,
    scalar_call,
    scalar_constant,
)
from roller.models.onnx.lowering_registry import Lowered, Site, Unsupported, lowers
from roller.models.onnx.node_rewriter import NodeRewriter
from roller.models.onnx.onnx_types import onnx_dtype
from roller_runtime.core.dtypes import FLOATS, INTEGERS

_BY_OP = {"Add": "add", "Sub": "sub", "Mul": "mul", "Sum": "add", "Max": "max", "Min": "min"}

#: Maximum number of operands of one kernel, which limits its inputs and the depth of its scalar tree.
_MOST_OPERANDS = 8
#: Largest exponent that is computed by multiplications, which are exact on integers.
_MOST_PRODUCTS = 8


@lowers(*_BY_OP)
def lower_variadic_arithmetic(site: Site) -> Lowered:
    """Lower an operation with two or more inputs, which it combines from left to right."""
    require_dtype(site.output, (*FLOATS, *INTEGERS), site.node.op)
    if len(site.inputs) > _MOST_OPERANDS:
        return _rewrite_many_operands_as_chain(site, site.node.op)
    axes, args = result_axes_and_operand_elements(site)
    return pointwise_stage(site, axes, reduce(lambda a, b: scalar_call(_BY_OP[site.node.op], a, b), args))


@lowers("Mean")
def lower_mean_of_tensors(site: Site) -> Lowered:
    """Lower ``Mean`` of several tensors: their sum times a constant."""
    require_dtype(site.output, FLOATS, "Mean")
    if len(site.inputs) > _MOST_OPERANDS:
        return _rewrite_many_operands_as_chain(site, "Sum", 1 / len(site.inputs))
    axes, args = result_axes_and_operand_elements(site)
    total = reduce(lambda a, b: scalar_call("add", a, b), args)
    return pointwise_stage(
        site, axes, scalar_call("mul", total, literal(1 / len(args), computation_dtype(site.output.dtype)))
    )


def _rewrite_many_operands_as_chain(site: Site, op: str, factor: float = 1.0) -> Lowered:
    """Rewrite a node with many operands into a chain of nodes with few operands each."""
    steps, y = NodeRewriter(site), site.output
    wide = computation_dtype(y.dtype)
    given = [steps.add("Cast", (v,), v.shape, wide, to=_element_type(wide)) if wide != y.dtype else v
             for v in (site.required(n) for n in range(len(site.inputs)))]  # fmt: skip
    total, rest = given[0], given[1:]
    for at in range(0, len(rest), _MOST_OPERANDS - 1):
        group = (total, *rest[at : at + _MOST_OPERANDS - 1])
        total = steps.add(op, group, np.broadcast_shapes(*(v.shape for v in group)), wide)
    if factor != 1:
        total = steps.add("Mul", (total, steps.constant(np.array(factor, wide))), total.shape, wide)
    steps.add("Cast", (total,), y.shape, out=y, to=_element_type(y.dtype))
    return steps.finish()


def _element_type(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(onnx_dtype(dtype)))


@lowers("Div")
def lower_div(site: Site) -> Lowered:
    """Lower ``Div``; integer division rounds towards zero."""
    dtype = computation_dtype(site.output.dtype)
    axes, (a, b) = result_axes_and_operand_elements(site)
    if dtype in INTEGERS:
        return pointwise_stage(site, axes, scalar_call("idiv", a, b))
    require_dtype(site.output, FLOATS, "Div")
    by = scalar_constant(site, 1)
    if by and _is_power_of_two(by):
        return pointwise_stage(site, axes, scalar_call("mul", a, literal(1 / by, dtype)))
    return pointwise_stage(site, axes, scalar_call("div", a, b))


def _is_power_of_two(value: float) -> bool:
    mantissa, exponent = float(abs(value)).hex().split("p")
    return mantissa == "0x1.0000000000000" and -100 < int(exponent) < 100


@lowers("Mod")
def lower_mod(site: Site) -> Lowered:
    """Lower ``Mod``: the remainder with the sign of the divisor or, with ``fmod``, of the dividend."""
    require_dtype(site.output, (*FLOATS, *INTEGERS), "Mod")
    dtype = computation_dtype(site.output.dtype)
    c_style = bool(site.attribute("fmod", 0))
    axes, (a, b) = result_axes_and_operand_elements(site)
    rest = scalar_call("imod" if dtype in INTEGERS else "fmod", a, b)
    if c_style or dtype == "uint8":
        return pointwise_stage(site, axes, rest)
    zero = literal(0, dtype)
    # Add the divisor to a non-zero remainder whose sign differs from the divisor's.
    differs = scalar_call(
        "select", scalar_call("lt", rest, zero), scalar_call("lt", zero, b), scalar_call("lt", b, zero)
    )
    adjusted = scalar_call("select", differs, scalar_call("add", rest, b), rest)
    return pointwise_stage(site, axes, scalar_call("select", scalar_call("eq", rest, zero), zero, adjusted))


@lowers("Pow")
def lower_pow(site: Site) -> Lowered:
    """Lower ``Pow``: small constant integer exponents become products, and the result has the dtype of the base."""
    base, exponent = site.required(0), site.required(1)
    axes, (x, y) = result_axes_and_operand_elements(site)
    constant = scalar_constant(site, 1)
    if constant is not None and constant == int(constant) and 0 < constant <= _MOST_PRODUCTS:
        return pointwise_stage(site, axes, _integer_power_by_squaring(x, int(constant)))
    if base.dtype in INTEGERS:
        return pointwise_stage(site, axes, _integer_power(base.dtype, exponent.dtype, x, y))
    require_dtype(base, FLOATS, "Pow")
    dtype = computation_dtype(base.dtype)
    if constant == 0.5:
        # As with ``pow``, the result is 0 for -0, and inf for -inf.
        infinite = scalar_call("eq", x, Const(float("-inf"), dtype))
        root = scalar_call("sqrt", scalar_call("add", x, literal(0, dtype)))
        return pointwise_stage(site, axes, scalar_call("select", infinite, Const(float("inf"), dtype), root))
    if constant == -1:
        return pointwise_stage(site, axes, scalar_call("div", literal(1, dtype), x))
    wide = "float64" if "float64" in (dtype, exponent.dtype) or exponent.dtype == "int64" else "float32"
    raised = scalar_call(
        "pow", convert_scalar(x, dtype, wide), convert_scalar(y, computation_dtype(exponent.dtype), wide)
    )
    return pointwise_stage(site, axes, convert_scalar(raised, wide, dtype))


def _integer_power_by_squaring(x: Scalar, n: int) -> Scalar:
    """Return ``x ** n`` by squaring."""
    if n == 1:
        return x
    half = _integer_power_by_squaring(x, n // 2)
    square = scalar_call("mul", half, half)
    return scalar_call("mul", square, x) if n % 2 else square


def _integer_power(base: str, exponent: str, x: Scalar, y: Scalar) -> Scalar:
    """Return an integer power computed in float64, which represents every result in the dtype's range exactly."""
    if base == "int64":
        raise Unsupported("Pow of int64 whose exponent is no small constant: float64 does not hold all its results")
    # Negative powers of 0 are 0 and overflow saturates, because converting out-of-range floats is undefined.
    infinite = scalar_call(
        "select",
        scalar_call("eq", x, literal(0, base)),
        scalar_call("lt", y, literal(0, computation_dtype(exponent))),
        FALSE,
    )
    finite = Cast("float64", scalar_call("select", infinite, literal(1, base), x))
    raised = scalar_call("pow", finite, convert_scalar(y, computation_dtype(exponent), "float64"))
    limits = np.iinfo(base)
    bounded = scalar_call("max", scalar_call("trunc", raised), literal(limits.min, "float64"))
    bounded = scalar_call("min", bounded, literal(limits.max, "float64"))
    return scalar_call("select", infinite, literal(0, base), convert_scalar(bounded, "float64", base))
