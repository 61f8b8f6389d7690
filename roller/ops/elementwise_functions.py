"""Element-wise functions by name, as scalar trees for ``elementwise`` and epilogues."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import NamedTuple

from roller.errors import ExprError, did_you_mean, shown
from roller.expr import Call, Const, Scalar

_Build = Callable[..., Scalar]


class ElementFunction(NamedTuple):
    """An element-wise function: its numbers of tensors and of parameters, its builder, and whether it needs floats."""

    tensors: int
    parameters: int
    build: _Build
    needs_float: bool


def _call_node(fn: str, *args: Scalar) -> Scalar:
    return Call(fn, args)


def _relu(c: Callable[[float], Const], x: Scalar) -> Scalar:
    return _call_node("max", x, c(0))


def _clip(c: Callable[[float], Const], x: Scalar, low: float, high: float) -> Scalar:
    return _call_node("min", _call_node("max", x, c(low)), c(high))


def _leaky_relu(c: Callable[[float], Const], x: Scalar, slope: float) -> Scalar:
    return _call_node("add", _call_node("max", x, c(0)), _call_node("mul", c(slope), _call_node("min", x, c(0))))


def _gelu(c: Callable[[float], Const], x: Scalar) -> Scalar:
    inner = _call_node("add", c(1), _call_node("erf", _call_node("mul", x, c(0.5**0.5))))
    return _call_node("mul", _call_node("mul", c(0.5), x), inner)


def _gelu_tanh(c: Callable[[float], Const], x: Scalar) -> Scalar:
    cubic = _call_node("mul", _call_node("mul", x, x), _call_node("mul", x, c(0.044715)))
    inner = _call_node("tanh", _call_node("mul", c(0.7978845608028654), _call_node("add", x, cubic)))
    return _call_node("mul", _call_node("mul", c(0.5), x), _call_node("add", c(1), inner))


def _silu(c: Callable[[float], Const], x: Scalar) -> Scalar:
    return _call_node("mul", x, _call_node("sigmoid", x))


def _hardsigmoid(c: Callable[[float], Const], x: Scalar) -> Scalar:
    return _call_node("mul", _clip(c, _call_node("add", x, c(3)), 0, 6), c(1 / 6))


def _hardswish(c: Callable[[float], Const], x: Scalar) -> Scalar:
    return _call_node("mul", x, _hardsigmoid(c, x))


def _softplus(c: Callable[[float], Const], x: Scalar) -> Scalar:
    """Return ``log(1 + exp(x))`` without overflow, and with all digits of small results."""
    tail = _call_node("log1p", _call_node("exp", _call_node("neg", _call_node("abs", x))))
    return _call_node("add", _call_node("max", x, c(0)), tail)


def _elu(c: Callable[[float], Const], x: Scalar) -> Scalar:
    """Return ``exp(x) - 1`` if ``x`` is negative, else ``x``."""
    return _call_node("select", _call_node("lt", x, c(0)), _call_node("expm1", x), x)


def _builder_of_primitive(fn: str) -> _Build:
    return lambda c, *args: Call(fn, args)


_PLAIN = ("neg", "abs", "floor", "ceil")
_FLOAT = ("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "tanh", "erf", "sigmoid")
_BINARY = ("add", "sub", "mul", "max", "min")

#: Every element-wise function by name.
ELEMENT_FUNCTIONS: dict[str, ElementFunction] = {
    "identity": ElementFunction(1, 0, lambda c, x: x, False),
    "relu": ElementFunction(1, 0, _relu, False),
    "relu6": ElementFunction(1, 0, lambda c, x: _clip(c, x, 0, 6), False),
    "clip": ElementFunction(1, 2, _clip, False),
    "leaky_relu": ElementFunction(1, 1, _leaky_relu, True),
    "square": ElementFunction(1, 0, lambda c, x: _call_node("mul", x, x), False),
    "reciprocal": ElementFunction(1, 0, lambda c, x: _call_node("div", c(1), x), True),
    "gelu": ElementFunction(1, 0, _gelu, True),
    "gelu_tanh": ElementFunction(1, 0, _gelu_tanh, True),
    "silu": ElementFunction(1, 0, _silu, True),
    "hardsigmoid": ElementFunction(1, 0, _hardsigmoid, True),
    "hardswish": ElementFunction(1, 0, _hardswish, True),
    "softplus": ElementFunction(1, 0, _softplus, True),
    "elu": ElementFunction(1, 0, _elu, True),
    **{n: ElementFunction(1, 0, _builder_of_primitive(n), False) for n in _PLAIN},
    **{n: ElementFunction(1, 0, _builder_of_primitive(n), True) for n in _FLOAT},
    **{n: ElementFunction(2, 0, _builder_of_primitive(n), False) for n in _BINARY},
    "div": ElementFunction(2, 0, _builder_of_primitive("div"), True),
    "pow": ElementFunction(2, 0, _builder_of_primitive("pow"), True),
}

#: Alternative names that spec rows and frameworks use.
ALIASES: dict[str, str] = {
    "multiply": "mul", "subtract": "sub", "divide": "div", "maximum": "max", "minimum": "min", "power": "pow",
    "swish": "silu", "sum": "add", "residual": "add", "copy": "identity", "hard_swish": "hardswish",
    "hard_sigmoid": "hardsigmoid", "negative": "neg",
}  # fmt: skip


def parse_element_function(text: str, where: str, is_float: bool) -> tuple[ElementFunction, tuple[float, ...]]:
    """Return the function and the literal parameters that a text such as ``"relu"`` or ``"clip(0, 6)"`` specifies."""
    name, parameters = _parse_function_text(text, where)
    name = ALIASES.get(name, name)
    known = ELEMENT_FUNCTIONS.get(name)
    if known is None:
        names = [*ELEMENT_FUNCTIONS, *ALIASES]
        raise ExprError(
            f"{where}: unknown element-wise function '{name}'{did_you_mean(name, names) or '.'} "
            f"Use one of {sorted(ELEMENT_FUNCTIONS)}."
        )
    if len(parameters) != known.parameters:
        raise ExprError(
            f"{where}: '{name}' takes {known.parameters} literal parameters, got {len(parameters)}. "
            f"Write for example 'clip(0, 6)'."
        )
    if known.needs_float and not is_float:
        raise ExprError(f"{where}: '{name}' needs a floating-point dtype. Pass dtype='float32' or acc_dtype='float32'.")
    return known, parameters


def _parse_function_text(text: str, where: str) -> tuple[str, tuple[float, ...]]:
    if not isinstance(text, str):
        raise ExprError(f"{where}: expected the name of an element-wise function, got {shown(text)}. Give a string.")
    if "(" not in text:
        return text, ()
    try:
        node = ast.parse(text, mode="eval").body
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.keywords:
            raise ValueError(text)
        return node.func.id, tuple(float(ast.literal_eval(a)) for a in node.args)
    # Including numbers that are too long and expressions that are too deep.
    except (SyntaxError, ValueError, TypeError, OverflowError, RecursionError, MemoryError) as err:
        raise ExprError(f"{where}: cannot read '{text}'. Write a name, or a name with numbers: 'clip(0, 6)'.") from err
