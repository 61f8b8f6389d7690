"""Lowerings of element-wise functions of one tensor."""

from __future__ import annotations

from collections.abc import Callable

from roller.core.dtypes import DTYPES, FLOATS, INTEGERS
from roller.expr import Scalar, Stage
from roller.models.onnx.elementwise import (
    axes_of,
    call,
    computed,
    literal,
    moved,
    operand,
    operands,
    pointwise,
    require,
    tensor,
)
from roller.models.onnx.lowering import Compute, Lowered, Reshaped, Site, Unsupported, lowers
from roller.models.onnx.rewriting import Steps
from roller.ops.build import indices
from roller.ops.scalars import ELEMENT_FUNCTIONS

#: Creates a literal in the computation dtype.
_Literal = Callable[[float], Scalar]

#: Scalar functions by operator: for floats only, and for integers too.
_REAL = {
    "Sigmoid": "sigmoid", "Tanh": "tanh", "Exp": "exp", "Sqrt": "sqrt", "Erf": "erf", "Log": "log", "Floor": "floor",
    "Ceil": "ceil", "Round": "round", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "asin", "Acos": "acos",
    "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh",
}  # fmt: skip
_ANY = {"Neg": "neg", "Abs": "abs"}


@lowers(*_REAL, *_ANY)
def unary(site: Site) -> Lowered:
    """Lower a function of one tensor without parameters."""
    op = site.node.op
    require(site.output, FLOATS if op in _REAL else (*FLOATS, *INTEGERS), op)
    axes, (x,) = operands(site)
    if op == "Abs" and site.output.dtype == "uint8":
        return Reshaped()
    return pointwise(site, axes, call(_REAL.get(op) or _ANY[op], x))


def _clipped(x: Scalar, low: Scalar | None, high: Scalar | None) -> Scalar:
    """Return ``min(max(x, low), high)`` with optional bounds, in ONNX's order if they cross."""
    # The bound comes first: where processors compare with NaN, the second operand results.
    x = x if low is None else call("max", low, x)
    return x if high is None else call("min", high, x)


@lowers("Clip")
def clip(site: Site) -> Lowered:
    """Lower bounds from attributes (before version 11) or scalar inputs; absent bounds become the dtype's limits."""
    require(site.output, (*FLOATS, *INTEGERS), "Clip")
    axes, dtype = axes_of(site.output.shape), site.output.dtype

    def bound(position: int, name: str, sign: int) -> Scalar | None:
        value = site.attribute(name)
        if value is None and site.input(position) is not None:
            return operand(site, position, axes)
        if value is None and dtype in FLOATS:  # infinities are clipped
            value = sign * DTYPES[dtype].largest
        return None if value is None else literal(value, computed(dtype))

    return pointwise(site, axes, _clipped(operand(site, 0, axes), bound(1, "min", -1), bound(2, "max", 1)))


def _less(a: Scalar, b: Scalar, yes: Scalar, no: Scalar) -> Scalar:
    return call("select", call("lt", a, b), yes, no)


def _elu(c: _Literal, x: Scalar, alpha: float, gamma: float = 1.0) -> Scalar:
    low = call("mul", c(alpha * gamma), call("sub", call("exp", call("min", x, c(0))), c(1)))
    return _less(x, c(0), low, x if gamma == 1 else call("mul", c(gamma), x))


def _celu(c: _Literal, x: Scalar, alpha: float) -> Scalar:
    scaled = call("exp", call("div", call("min", x, c(0)), c(alpha)))
    return _less(x, c(0), call("mul", c(alpha), call("sub", scaled, c(1))), x)


def _hard_sigmoid(c: _Literal, x: Scalar, alpha: float, beta: float) -> Scalar:
    return _clipped(call("add", call("mul", c(alpha), x), c(beta)), c(0), c(1))


def _shrink(c: _Literal, x: Scalar, bias: float, lambd: float) -> Scalar:
    high = _less(c(lambd), x, call("sub", x, c(bias)), c(0))
    return _less(x, c(-lambd), call("add", x, c(bias)), high)


def _sign(c: _Literal, x: Scalar) -> Scalar:
    return _less(c(0), x, c(1), _less(x, c(0), c(-1), x))


#: Function of the scalar tree, and attributes with defaults in the order of its parameters.
_PARAMETRIC: dict[str, tuple[Callable[..., Scalar], dict[str, float]]] = {
    "Relu": (lambda c, x: call("max", c(0), x), {}),  # this order propagates NaN
    "Elu": (_elu, {"alpha": 1.0}),
    "Selu": (_elu, {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}),
    "Celu": (_celu, {"alpha": 1.0}),
    "LeakyRelu": (lambda c, x, alpha: _less(x, c(0), call("mul", c(alpha), x), x), {"alpha": 0.01}),
    "ThresholdedRelu": (lambda c, x, alpha: _less(c(alpha), x, x, c(0)), {"alpha": 1.0}),
    "HardSigmoid": (_hard_sigmoid, {"alpha": 0.2, "beta": 0.5}),
    "HardSwish": (lambda c, x: call("mul", x, _hard_sigmoid(c, x, 1 / 6, 0.5)), {}),
    "Softplus": (ELEMENT_FUNCTIONS["softplus"].build, {}),
    "Softsign": (lambda c, x: call("div", x, call("add", c(1), call("abs", x))), {}),
    "Mish": (lambda c, x: call("mul", x, call("tanh", ELEMENT_FUNCTIONS["softplus"].build(c, x))), {}),
    "Swish": (lambda c, x, alpha: call("mul", x, call("sigmoid", call("mul", c(alpha), x))), {"alpha": 1.0}),
    "Shrink": (_shrink, {"bias": 0.0, "lambd": 0.5}),
    "Reciprocal": (lambda c, x: call("div", c(1), x), {}),
    "Sign": (_sign, {}),
}

#: Those that support integers.
_WHOLE = ("Relu", "Sign")


@lowers(*_PARAMETRIC)
def parametric(site: Site) -> Lowered:
    """Lower a function of one tensor with numeric attributes."""
    op = site.node.op
    build, defaults = _PARAMETRIC[op]
    require(site.output, (*FLOATS, *INTEGERS) if op in _WHOLE else FLOATS, op)
    dtype = computed(site.output.dtype)
    parameters = [float(site.attribute(name, value)) for name, value in defaults.items()]
    axes, (x,) = operands(site)
    return pointwise(site, axes, build(lambda v: literal(v, dtype), x, *parameters))


@lowers("PRelu")
def prelu(site: Site) -> Lowered:
    """Lower a leaky rectifier with a slope per element (broadcast)."""
    require(site.output, (*FLOATS, *INTEGERS), "PRelu")
    # Models converted from set 6 have slopes per channel, which do not broadcast.
    x_type, slopes = site.required(0), site.required(1)
    per_channel = len(x_type.shape) > 2 and slopes.shape == x_type.shape[1:2]
    if per_channel and slopes.elements not in (1, x_type.shape[-1]):
        steps = Steps(site)
        wide = steps.reshape(slopes, (slopes.elements, *(1,) * (len(x_type.shape) - 2)))
        steps.add("PRelu", (x_type, wide), site.output.shape, out=site.output, version=16)
        return steps.done()
    axes, (x, slope) = operands(site)
    return pointwise(site, axes, _less(x, literal(0, computed(site.output.dtype)), call("mul", x, slope), x))


@lowers("Gelu")
def gelu(site: Site) -> Lowered:
    """Lower the Gaussian error linear unit, exact or by its tanh approximation."""
    name = {"none": "gelu", "tanh": "gelu_tanh"}.get(site.attribute("approximate", "none"))
    if name is None:
        raise Unsupported(f"Gelu approximate='{site.attribute('approximate')}' is neither none nor tanh")
    require(site.output, FLOATS, "Gelu")
    axes, (x,) = operands(site)
    dtype = computed(site.output.dtype)
    return pointwise(site, axes, ELEMENT_FUNCTIONS[name].build(lambda v: literal(v, dtype), x))


@lowers("Dropout")
def dropout(site: Site) -> Lowered:
    """Lower inference: the input itself, and a mask that is true everywhere."""
    training = site.known(2, "Dropout's training mode")
    ratio = site.known(1, "Dropout's ratio") if training is not None and bool(training) else None
    if training is not None and bool(training) and (ratio is None or float(ratio) != 0):
        raise Unsupported("Dropout in training mode draws random numbers; only inference is supported")
    mask = site.outputs[1] if len(site.outputs) > 1 else None
    if mask is None:
        return Reshaped()
    copied = moved(site, indices)
    axes = axes_of(mask.shape)
    everywhere = Stage(tensor(mask), axes, indices(axes), literal(1, mask.dtype), None, mask.dtype)
    return Compute((*copied.stages, everywhere))
