"""Emission of scalar trees and indices of :mod:`roller.expr` as TVM expressions, the inverse of the reader.

CPU and GPU code generators build staged TVM programs (padded, packed, tiled) and fill in the arithmetic here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from roller.expr import COMBINERS, Bound, Call, Cast, Const, Index, IndexValue, Load, Scalar, Term, loads
from roller.expr.evaluate import convert_values
from roller.te.combiners import MAX, MIN, TVM_COMBINERS, with_bool_variant
from roller.te.compat import Call as TvmCall
from roller.te.compat import TensorLoad, dtype_of, te, tirx
from roller.te.functions_near_zero import expm1, log1p
from roller.te.read_primfunc_blocks import subexpressions
from roller_runtime.core.dtypes import DTYPES, NARROW_FLOATS, NARROW_INTEGERS, round_to_dtype

#: Bits of the integer dtypes that C computes in 32 bits.
_DIGITS = {name: 8 * DTYPES[name].itemsize_bytes for name in NARROW_INTEGERS}
#: A TVM primitive expression; the type checker sees TVM as untyped.
Expr: TypeAlias = Any


def emit_index(index: Index, env: Mapping[str, Expr]) -> Expr:
    """Return ``index`` with each axis replaced by ``env[axis]``.

    Examples
    --------
    >>> from roller.expr import Term
    >>> print(emit_index(Index((Term("i", 2),), -1), {"i": tirx.Var("i", "int32")}))
    i * 2 - 1
    """
    index = remove_opposite_remainders(index)
    total: Expr = None
    for t in index.terms:
        v = env[t.axis]
        v = v if t.div == 1 else tirx.floordiv(v, t.div)
        v = tirx.floormod(v, t.mod) if t.mod else v
        v = v if t.coef == 1 else v * t.coef
        total = v if total is None else total + v
    if total is None:
        return tirx.const(index.const, "int32")
    if index.const == 0:
        return total
    return total + index.const if index.const > 0 else total - (-index.const)


def remove_opposite_remainders(index: Index) -> Index:
    """Return an equal index without remainders of quotients that other terms subtract.

    Examples
    --------
    >>> [(t.coef, t.div, t.mod) for t in remove_opposite_remainders(Index((Term("i", 1, 2), Term("i", -1, 2,
    ...     4)))).terms]
    [(4, 8, 0)]
    """
    # TVM 0.27 simplifies guards loop by loop: where both terms are equal (``i // 2`` and ``i // 2 % 4`` for eight
    # lanes), it keeps their difference as a term of scale 0 and divides by that scale. As quotients they differ.
    signs: dict[tuple[str, int], set[bool]] = {}
    for t in index.terms:
        signs.setdefault((t.axis, t.div), set()).add(t.coef > 0)
    mixed = [quotient for quotient, found in signs.items() if len(found) > 1]
    if not mixed:
        return index
    axis, div = min(mixed, key=lambda quotient: quotient[1])
    whole, rest = 0, dict[tuple[str, int, int], int]()
    for t in index.terms:
        if (t.axis, t.div) != (axis, div):
            rest[t.axis, t.div, t.mod] = rest.get((t.axis, t.div, t.mod), 0) + t.coef
            continue
        whole += t.coef
        if t.mod:  # q % m is q - m * (q // m)
            above = axis, div * t.mod, 0
            rest[above] = rest.get(above, 0) - t.coef * t.mod
    rest[axis, div, 0] = rest.get((axis, div, 0), 0) + whole
    return remove_opposite_remainders(Index(tuple(Term(a, c, d, m) for (a, d, m), c in rest.items() if c), index.const))


def emit_bounds(guard: tuple[Bound, ...], env: Mapping[str, Expr]) -> list[Expr]:
    """Return the conditions ``low <= index`` and ``index < high`` of each bound."""
    out = []
    for b in guard:
        i = emit_index(b.index, env)
        out += [i >= b.low, i < b.high]
    return out


def conjunction_of(conditions: list[Expr]) -> Expr:
    """Return the conjunction of one or more conditions."""
    return conditions[0] if len(conditions) == 1 else tirx.all(*conditions)


def constant(value: float, dtype: str) -> Expr:
    """Return a literal; a value beyond ``dtype`` becomes an infinity, or the nearest integer of the dtype."""
    if dtype == "bool":
        return tirx.const(value not in (0.0, float("-inf")), dtype)
    if "float" not in dtype:
        low, high = int(tirx.min_value(dtype)), int(tirx.max_value(dtype))
        return tirx.const(low if value <= low else high if value >= high else int(value), dtype)
    if abs(value) > float(tirx.max_value(dtype).value):
        value = float("inf") if value > 0 else float("-inf")
    return tirx.const(float(value), dtype)


def emit_load(node: Load, env: Mapping[str, Expr], tensors: Mapping[str, Any]) -> Expr:
    """Return the TVM expression for a load, which is ``outside`` if a guard fails."""
    value = tensors[node.tensor](*(emit_index(i, env) for i in node.index))
    value = value.asobject() if hasattr(value, "asobject") else value
    if not node.guard:
        return value
    return tirx.if_then_else(
        conjunction_of(emit_bounds(node.guard, env)), value, constant(node.outside, dtype_of(value))
    )


def emit_scalar(node: Scalar, env: Mapping[str, Expr], tensors: Mapping[str, Any], *, as_written: bool = False) -> Expr:
    """Return the TVM expression for a scalar tree."""
    if isinstance(node, Const):
        return constant(node.value, node.dtype)
    if isinstance(node, Load):
        return emit_load(node, env, tensors)
    if isinstance(node, IndexValue):
        position = emit_index(node.index, env)
        return (
            _to_bool(position)
            if node.dtype == "bool"
            else _emit_conversion(_keep_low_bits(position, node.dtype), node.dtype)
        )
    if isinstance(node, Cast):
        value = emit_scalar(node.arg, env, tensors, as_written=as_written)
        if node.dtype in NARROW_FLOATS and isinstance(value, tirx.FloatImm):  # TVM converts literals without rounding
            value = constant(float(round_to_dtype(value.value, node.dtype)), "float32")
        as_is = node.dtype != "bool" or (as_written and not isinstance(value, (tirx.IntImm, tirx.FloatImm)))
        if not any(True for _ in loads(node.arg)):  # TVM assumes that converted positions keep their value
            value = _keep_low_bits(value, node.dtype)
        return _emit_conversion(value, node.dtype) if as_is else _to_bool(value)
    assert isinstance(node, Call)
    function = _ARITHMETIC.get(node.fn) if as_written else None
    return (function or _FUNCTIONS[node.fn])(*(emit_scalar(a, env, tensors, as_written=as_written) for a in node.args))


def _emit_conversion(value: Expr, dtype: str) -> Expr:
    """Return ``value`` converted to ``dtype``; integer literals, which TVM rejects out of range, wrap as in C."""
    if "int" in dtype and isinstance(value, (tirx.IntImm, tirx.FloatImm)):
        held = np.int64(value.value) if isinstance(value, tirx.IntImm) else np.float64(value.value)
        return tirx.const(int(convert_values(np.asarray(held), dtype)), dtype)
    return value.astype(dtype)


def tvm_reducer(combiner: str) -> Callable[..., Expr]:
    """Return the TVM reducer ``f(expr, axis=[...])`` of a combiner, with its exact neutral value."""
    neutral, step = COMBINERS[combiner].neutral, TVM_COMBINERS[combiner].step
    reduce: Callable[..., Expr] = te.comm_reducer(
        lambda x, y: step(x, y), lambda dtype: constant(neutral, dtype), name=f"roller_{combiner}"
    )
    return reduce


def emit_combine_step(combiner: str, a: Expr, b: Expr) -> Expr:
    """Return ``a`` and ``b`` combined by one step of a combiner."""
    return TVM_COMBINERS[combiner].step(a, b)


def _to_bool(x: Expr) -> Expr:
    """Return whether a number is not zero; TVM cannot convert literals above 1 to bool."""
    kind = dtype_of(x)
    return x if kind == "bool" else tirx.NE(x, constant(0, kind))


def _integer_to_float32(x: Expr) -> Expr:
    return x if "float" in dtype_of(x) else x.astype("float32")


def _select(condition: Expr, a: Expr, b: Expr) -> Expr:
    kind = dtype_of(condition)
    if "float" in kind:
        condition = _to_bool(condition)
    elif kind != "bool":
        condition = condition != constant(0, kind)
    return emit_choice(condition, *_promote_operands(a, b))


def _promote_operands(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Return both operands in the dtype to which TVM's operators promote them."""
    kinds = dtype_of(a), dtype_of(b)
    if kinds[0] == kinds[1]:
        return a, b
    dtype = dtype_of(tirx.Var("a", kinds[0]) + tirx.Var("b", kinds[1]))
    return a.astype(dtype), b.astype(dtype)


def _unfolded_float_operator(
    node: Callable[[Expr, Expr], Expr], plain: Callable[[Expr, Expr], Expr]
) -> Callable[[Expr, Expr], Expr]:
    """Return arithmetic that builds ``node`` for floats and ``plain`` for integers."""

    # TVM's operators fold ``x + 0``, ``x * 0`` and ``0 / x``, which is exact for real numbers only.
    def built(a: Expr, b: Expr) -> Expr:
        a, b = _promote_operands(a, b) if "float" in dtype_of(a) + dtype_of(b) else (a, b)
        return node(a, b) if "float" in dtype_of(a) else plain(a, b)

    return built


def _divide_floats(a: Expr, b: Expr) -> Expr:
    """Return a float quotient; division by a literal zero, which TVM rejects, becomes a product with infinity."""
    a, b = _promote_operands(_integer_to_float32(a), _integer_to_float32(b))
    if isinstance(b, tirx.FloatImm) and b.value == 0:
        return tirx.Mul(a, constant(math.copysign(math.inf, b.value), dtype_of(b)))
    return tirx.Div(a, b)


def emit_choice(condition: Expr, a: Expr, b: Expr) -> Expr:
    """Return ``a`` if ``condition`` holds, else ``b``, using control flow if a select could read out of bounds.

    Examples
    --------
    >>> i, x = tirx.Var("i", "int32"), tirx.decl_buffer((4,), name="x")
    >>> guarded = tirx.if_then_else(i < 4, x[i], 0.0)
    >>> type(emit_choice(i < 4, guarded, x[0])).__name__, type(emit_choice(x[0] < x[1], guarded, x[0])).__name__
    ('Call', 'Select')
    """
    # A vector select evaluates both sides, and TVM simplifies each as if its condition held: a guard that the condition
    # implies, or the remainder of an index (``x[i % 4]`` where ``i < 4``), would be dropped, and the load would leave
    # its tensor. With control flow this simplification is correct. Conditions on data imply nothing about positions and
    # stay selects, which vectorize.
    if _is_positional(condition) and any(
        _contains_conditional(x) or _divides_condition_variable(x, condition) for x in (a, b)
    ):
        return tirx.if_then_else(condition, a, b)
    return tirx.Select(condition, a, b)


def _is_positional(condition: Expr) -> bool:
    """Return whether a condition reads loop variables other than through loads, which are opaque values."""
    return any(isinstance(e, tirx.Var) for e in subexpressions(condition, enter=lambda e: not _is_conditional(e)))


def _contains_conditional(e: Expr) -> bool:
    return any(_is_conditional(x) for x in subexpressions(e))


def _divides_condition_variable(e: Expr, condition: Expr) -> bool:
    """Return whether an index in ``e`` takes a quotient or remainder of a variable of ``condition``."""
    spoken_of = {
        x for x in subexpressions(condition, enter=lambda e: not _is_conditional(e)) if isinstance(x, tirx.Var)
    }
    indices = (i for x in subexpressions(e) if isinstance(x, TensorLoad) for i in x.indices)
    folded = (x for i in indices for x in subexpressions(i) if isinstance(x, (tirx.FloorDiv, tirx.FloorMod)))
    return any(x in spoken_of for f in folded for x in subexpressions(f))


def _is_conditional(e: Expr) -> bool:
    return isinstance(e, TvmCall) and getattr(e.op, "name", "") == "prim.if_then_else"


def _trap_free_division(divide: Callable[[Expr, Expr], Expr], a: Expr, b: Expr, negated: Callable[[], Expr]) -> Expr:
    """Return an integer division that never traps: 0 for division by zero, and ``negated()`` for division by -1."""
    dtype = dtype_of(b)
    zero, one = constant(0, dtype), constant(1, dtype)
    if dtype.startswith("u") or dtype == "bool":
        return emit_choice(b.equal(zero), zero, divide(a, emit_choice(b.equal(zero), one, b)))
    odd = tirx.any(b.equal(zero), b.equal(constant(-1, dtype)))
    return emit_choice(odd, emit_choice(b.equal(zero), zero, negated()), divide(a, emit_choice(odd, one, b)))


def _negate(a: Expr) -> Expr:
    dtype = dtype_of(a)
    if "float" in dtype:
        return tirx.Mul(a, constant(-1, dtype))
    return constant(0, dtype) - a if dtype.startswith("u") else -a


def _absolute_value(x: Expr) -> Expr:
    """Return the absolute value; for an integer, return it as a choice that keeps guards."""
    dtype = dtype_of(x)
    if "float" in dtype or dtype.startswith("u"):
        return tirx.abs(x)
    return emit_choice(x >= constant(0, dtype), x, _wrap_narrow_integers(_negate)(x))


def _wrap_narrow_integers(fn: Callable[..., Expr]) -> Callable[..., Expr]:
    """Return integer arithmetic that wraps in its dtype."""

    # C computes integers below 32 bits in 32 bits, and TVM simplifies as if none wrapped: a comparison or a quotient
    # would see bits that the dtype does not have. Wider integers must not overflow at all.
    def wrapped(*operands: Expr) -> Expr:
        narrow = all(dtype_of(x) in _DIGITS for x in operands)
        if not narrow:
            return fn(*operands)
        dtype = dtype_of(fn(*(tirx.Var("x", dtype_of(x)) for x in operands)))  # operands may differ in their sign
        wide = fn(*(x.astype("int32") for x in operands))
        return _keep_low_bits(wide, dtype).astype(dtype)

    return wrapped


def _keep_low_bits(x: Expr, dtype: str) -> Expr:
    """Return 32-bit integers wrapped to a narrower dtype, still as 32-bit integers; return others unchanged."""
    if dtype not in _DIGITS or dtype_of(x) != "int32":
        return x
    past = 1 << _DIGITS[dtype]
    half = 0 if dtype.startswith("u") else past // 2
    # Bit operations, which compilers remove: TVM rejects the conversion of a constant that overflows the dtype.
    return (x + half & past - 1) - half


def _on_floats(fn: Callable[[Expr], Expr]) -> Callable[[Expr], Expr]:
    return lambda x: fn(_integer_to_float32(x))


_TRIGONOMETRIC = ("sin", "cos", "tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh")

#: Functions whose results may overflow the dtype of their operands.
_ARITHMETIC: dict[str, Callable[..., Expr]] = {
    "add": _unfolded_float_operator(tirx.Add, operator.add),
    "sub": _unfolded_float_operator(tirx.Sub, operator.sub),
    "mul": _unfolded_float_operator(tirx.Mul, operator.mul),
    "neg": _negate,
    "shl": lambda a, b: a << b,
}

_FUNCTIONS: dict[str, Callable[..., Expr]] = {
    **{fn: _wrap_narrow_integers(plain) for fn, plain in _ARITHMETIC.items()},
    "div": _divide_floats,
    "max": MAX,
    "min": MIN,
    "abs": _absolute_value,
    "exp": _on_floats(tirx.exp),
    "log": _on_floats(tirx.log),
    "log1p": _on_floats(log1p),
    "expm1": _on_floats(expm1),
    "sqrt": _on_floats(tirx.sqrt),
    "rsqrt": _on_floats(tirx.rsqrt),
    "tanh": _on_floats(tirx.tanh),
    "erf": _on_floats(tirx.erf),
    "sigmoid": _on_floats(tirx.sigmoid),
    "pow": lambda a, b: tirx.power(_integer_to_float32(a), _integer_to_float32(b)),
    "floor": _on_floats(tirx.floor),
    "ceil": _on_floats(tirx.ceil),
    "eq": with_bool_variant(
        _unfolded_float_operator(tirx.EQ, lambda a, b: (a - b).equal(0) if dtype_of(a) != dtype_of(b) else a.equal(b)),
        lambda a, b: tirx.Not(a ^ b),
    ),
    "lt": with_bool_variant(_unfolded_float_operator(tirx.LT, operator.lt), lambda a, b: tirx.Not(a) & b),
    "le": with_bool_variant(_unfolded_float_operator(tirx.LE, operator.le), lambda a, b: tirx.Not(a) | b),
    "select": _select,
    "isnan": tirx.isnan,
    "trunc": _on_floats(tirx.trunc),
    "round": _on_floats(tirx.nearbyint),
    **{n: _on_floats(getattr(tirx, n)) for n in _TRIGONOMETRIC},
    "fmod": tirx.fmod,
    "idiv": lambda a, b: _trap_free_division(tirx.truncdiv, a, b, lambda: _wrap_narrow_integers(_negate)(a)),
    "imod": lambda a, b: _trap_free_division(tirx.truncmod, a, b, lambda: constant(0, dtype_of(a))),
    "bitand": lambda a, b: a & b,
    "bitor": lambda a, b: a | b,
    "bitxor": lambda a, b: a ^ b,
    "shr": lambda a, b: a >> b,
}
