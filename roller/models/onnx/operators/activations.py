"""Lowerings of element-wise functions of one tensor."""

from __future__ import annotations

from collections.abc import Callable

from roller.expr import Scalar, Stage
from roller.models.onnx.build_elementwise_stages import (
    computation_dtype,
    kernel_tensor_of_value,
    literal,
    movement_stage,
    operand_scalar,
    pointwise_stage,
    require_dtype,
    result_axes,
    result_axes_and_operand_elements,
    scalar_call,
)
from roller.models.onnx.lowering_registry import Compute, InputView, Lowered, Site, Unsupported, lowers
from roller.models.onnx.node_rewriter import NodeRewriter
from roller.ops.elementwise_functions import ELEMENT_FUNCTIONS
from roller.ops.operator_argument_checks import identity_indices
from roller_runtime.core.dtypes import DTYPES, FLOATS, INTEGERS

#: Creates a literal in the computation dtype.
_Literal = Callable[[float], Scalar]

#: Scalar functions by operator: those for floats only, and those for integers too.
_REAL = {
    "Sigmoid": "sigmoid", "Tanh": "tanh", "Exp": "exp", "Sqrt": "sqrt", "Erf": "erf", "Log": "log", "Floor": "floor",
    "Ceil": "ceil", "Round": "round", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "asin", "Acos": "acos",
    "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh",
}  # fmt: skip
_ANY = {"Neg": "neg", "Abs": "abs"}


@lowers(*_REAL, *_ANY)
def lower_unary(site: Site) -> Lowered:
    """Lower an element-wise function of one tensor without parameters."""
    op = site.node.op
    require_dtype(site.output, FLOATS if op in _REAL else (*FLOATS, *INTEGERS), op)
    axes, (x,) = result_axes_and_operand_elements(site)
    if op == "Abs" and site.output.dtype == "uint8":
        return InputView()
    return pointwise_stage(site, axes, scalar_call(_REAL.get(op) or _ANY[op], x))


def _clip(x: Scalar, low: Scalar | None, high: Scalar | None) -> Scalar:
    """Return ``min(max(x, low), high)`` with optional bounds, in ONNX's order if they cross."""
    # The bound is the first operand: if either is NaN, processors return the second.
    x = x if low is None else scalar_call("max", low, x)
    return x if high is None else scalar_call("min", high, x)


@lowers("Clip")
def lower_clip(site: Site) -> Lowered:
    """Lower ``Clip``; its bounds are attributes (before version 11) or scalar inputs, by default the dtype's limits."""
    require_dtype(site.output, (*FLOATS, *INTEGERS), "Clip")
    axes, dtype = result_axes(site.output.shape), site.output.dtype

    def bound(position: int, name: str, sign: int) -> Scalar | None:
        value = site.attribute(name)
        if value is None and site.input(position) is not None:
            return operand_scalar(site, position, axes)
        if value is None and dtype in FLOATS:  # infinities are clipped
            value = sign * DTYPES[dtype].largest
        return None if value is None else literal(value, computation_dtype(dtype))

    return pointwise_stage(site, axes, _clip(operand_scalar(site, 0, axes), bound(1, "min", -1), bound(2, "max", 1)))


def _select_if_less(a: Scalar, b: Scalar, yes: Scalar, no: Scalar) -> Scalar:
    return scalar_call("select", scalar_call("lt", a, b), yes, no)


def _elu_scalar(c: _Literal, x: Scalar, alpha: float, gamma: float = 1.0) -> Scalar:
    low = scalar_call("mul", c(alpha * gamma), scalar_call("expm1", x))
    return _select_if_less(x, c(0), low, x if gamma == 1 else scalar_call("mul", c(gamma), x))


def _celu_scalar(c: _Literal, x: Scalar, alpha: float) -> Scalar:
    return _select_if_less(
        x, c(0), scalar_call("mul", c(alpha), scalar_call("expm1", scalar_call("div", x, c(alpha)))), x
    )


def _hard_sigmoid_scalar(c: _Literal, x: Scalar, alpha: float, beta: float) -> Scalar:
    return _clip(scalar_call("add", scalar_call("mul", c(alpha), x), c(beta)), c(0), c(1))


def _shrink_scalar(c: _Literal, x: Scalar, bias: float, lambd: float) -> Scalar:
    high = _select_if_less(c(lambd), x, scalar_call("sub", x, c(bias)), c(0))
    return _select_if_less(x, c(-lambd), scalar_call("add", x, c(bias)), high)


def _sign_scalar(c: _Literal, x: Scalar) -> Scalar:
    return _select_if_less(c(0), x, c(1), _select_if_less(x, c(0), c(-1), x))


#: Function that builds the scalar expression of an operator, and the defaults of its attributes in parameter order.
_PARAMETRIC: dict[str, tuple[Callable[..., Scalar], dict[str, float]]] = {
    "Relu": (lambda c, x: scalar_call("max", c(0), x), {}),  # this order propagates NaN
    "Elu": (_elu_scalar, {"alpha": 1.0}),
    "Selu": (_elu_scalar, {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}),
    "Celu": (_celu_scalar, {"alpha": 1.0}),
    "LeakyRelu": (lambda c, x, alpha: _select_if_less(x, c(0), scalar_call("mul", c(alpha), x), x), {"alpha": 0.01}),
    "ThresholdedRelu": (lambda c, x, alpha: _select_if_less(c(alpha), x, x, c(0)), {"alpha": 1.0}),
    "HardSigmoid": (_hard_sigmoid_scalar, {"alpha": 0.2, "beta": 0.5}),
    "HardSwish": (lambda c, x: scalar_call("mul", x, _hard_sigmoid_scalar(c, x, 1 / 6, 0.5)), {}),
    "Softplus": (ELEMENT_FUNCTIONS["softplus"].build, {}),
    "Softsign": (lambda c, x: scalar_call("div", x, scalar_call("add", c(1), scalar_call("abs", x))), {}),
    "Mish": (lambda c, x: scalar_call("mul", x, scalar_call("tanh", ELEMENT_FUNCTIONS["softplus"].build(c, x))), {}),
    "Swish": (
        lambda c, x, alpha: scalar_call("mul", x, scalar_call("sigmoid", scalar_call("mul", c(alpha), x))),
        {"alpha": 1.0},
    ),
    "Shrink": (_shrink_scalar, {"bias": 0.0, "lambd": 0.5}),
    "Reciprocal": (lambda c, x: scalar_call("div", c(1), x), {}),
    "Sign": (_sign_scalar, {}),
}

#: Operators of ``_PARAMETRIC`` that support integers.
_WHOLE = ("Relu", "Sign")


@lowers(*_PARAMETRIC)
def lower_parametric_activation(site: Site) -> Lowered:
    """Lower an element-wise function of one tensor with numeric attributes."""
    op = site.node.op
    build, defaults = _PARAMETRIC[op]
    require_dtype(site.output, (*FLOATS, *INTEGERS) if op in _WHOLE else FLOATS, op)
    dtype = computation_dtype(site.output.dtype)
    parameters = [float(site.attribute(name, value)) for name, value in defaults.items()]
    axes, (x,) = result_axes_and_operand_elements(site)
    return pointwise_stage(site, axes, build(lambda v: literal(v, dtype), x, *parameters))


@lowers("PRelu")
def lower_prelu(site: Site) -> Lowered:
    """Lower ``PRelu``: a leaky rectifier whose slopes broadcast to its input."""
    require_dtype(site.output, (*FLOATS, *INTEGERS), "PRelu")
    # Models converted from set 6 have slopes per channel, which do not broadcast.
    x_type, slopes = site.required(0), site.required(1)
    per_channel = len(x_type.shape) > 2 and slopes.shape == x_type.shape[1:2]
    if per_channel and slopes.elements not in (1, x_type.shape[-1]):
        steps = NodeRewriter(site)
        wide = steps.reshape(slopes, (slopes.elements, *(1,) * (len(x_type.shape) - 2)))
        steps.add("PRelu", (x_type, wide), site.output.shape, out=site.output, version=16)
        return steps.finish()
    axes, (x, slope) = result_axes_and_operand_elements(site)
    return pointwise_stage(
        site,
        axes,
        _select_if_less(x, literal(0, computation_dtype(site.output.dtype)), scalar_call("mul", x, slope), x),
    )


@lowers("Gelu")
def lower_gelu(site: Site) -> Lowered:
    """Lower ``Gelu``, either exact or in its tanh approximation."""
    name = {"none": "gelu", "tanh": "gelu_tanh"}.get(site.attribute("approximate", "none"))
    if name is None:
        raise Unsupported(f"Gelu approximate='{site.attribute('approximate')}' is neither none nor tanh")
    require_dtype(site.output, FLOATS, "Gelu")
    axes, (x,) = result_axes_and_operand_elements(site)
    dtype = computation_dtype(site.output.dtype)
    return pointwise_stage(site, axes, ELEMENT_FUNCTIONS[name].build(lambda v: literal(v, dtype), x))


@lowers("Dropout")
def lower_dropout(site: Site) -> Lowered:
    """Lower ``Dropout`` for inference: the result is the input itself, and the mask is true everywhere."""
    training = site.known(2, "Dropout's training mode")
    ratio = site.known(1, "Dropout's ratio") if training is not None and bool(training) else None
    if training is not None and bool(training) and (ratio is None or float(ratio) != 0):
        raise Unsupported("Dropout in training mode draws random numbers; only inference is supported")
    mask = site.outputs[1] if len(site.outputs) > 1 else None
    if mask is None:
        return InputView()
    copied = movement_stage(site, identity_indices)
    axes = result_axes(mask.shape)
    everywhere = Stage(
        kernel_tensor_of_value(mask), axes, identity_indices(axes), literal(1, mask.dtype), None, mask.dtype
    )
    return Compute((*copied.stages, everywhere))
