"""Protects floating-point arithmetic from TVM's passes, which simplify it as if it were exact (``x + c - c`` to ``x``).

:func:`hide_float_arithmetic` turns float nodes into calls to operators that no simplifier knows; integers and indices
remain nodes. ``LowerIntrin``, the last pass of every pipeline, turns the calls back into nodes, as does
:func:`reveal_float_arithmetic`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from roller.te.compat import Call, compute_op, dtype_of, register_pure_operator, structural_map, te, tirx, tvm, tvm_ffi
from roller.te.nan_propagating_extrema import EXTREMA, lower_extremum_to_c, lower_extremum_to_llvm

#: Nodes that become opaque, and their NumPy functions.
_NODES: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Max": np.maximum, "Min": np.minimum,
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal,
}  # fmt: skip
#: Dtypes whose operations become opaque; vectors have their lanes in the name. bfloat16 and float8 remain nodes: TVM's
#: legalizing passes must recognize and convert them.
_FLOATS = re.compile(r"float(?:16|32|64)(?:x\d+)?")
_ANY_FLOATS = re.compile(r"b?float.*")
_NARROW = re.compile(r"(?:b?float16|float8_\w+?)(x\d+)?")


def _node_of_opaque_call(call: Any) -> Any:
    """Return the node for a call to an opaque operator; arithmetic on literals is folded."""
    name, operands = call.op.name, list(call.args)
    number = _literal_value(call)
    if number is not None:
        return number
    if name == _opaque_operator_name("Div"):
        divisor = _literal_value(operands[1])
        return tirx.Div(*operands) if divisor is None else _quotient_by_literal(operands[0], divisor)
    # An opaque product within an opaque sum becomes a node together with the sum: ``LowerIntrin`` makes a multiply-add
    # only if the product is a node. TVM lets LLVM contract both (``AllowFPOpFusion``).
    if name == _opaque_operator_name("Add"):
        operands = [_node_of_opaque_call(x) if _is_opaque(x, "Mul") else x for x in operands]
    return getattr(tirx, name.removeprefix("roller."))(*operands)


def _quotient_by_literal(dividend: Any, divisor: Any) -> Any:
    """Return a quotient by a literal; division by zero, which TVM rejects, becomes an equal product with infinity."""
    literal = divisor.value if isinstance(divisor, tirx.Broadcast) else divisor
    if literal.value != 0:
        return tirx.Div(dividend, divisor)
    infinity = tirx.const(math.copysign(math.inf, literal.value), dtype_of(literal))
    broadcast = isinstance(divisor, tirx.Broadcast)
    return tirx.Mul(dividend, tirx.Broadcast(infinity, divisor.lanes) if broadcast else infinity)


def _negated_equality(call: Any) -> Any:
    number = _literal_value(call)
    return number if number is not None else tirx.Not(tirx.EQ(*call.args))


def _literal_value(expr: Any) -> Any:
    """Return the literal value of arithmetic on literals, or ``None`` if an operand is not a literal."""
    if isinstance(expr, tirx.FloatImm):
        return expr
    if isinstance(expr, tirx.Broadcast):
        value = _literal_value(expr.value)
        return None if value is None else tirx.Broadcast(value, expr.lanes)
    if not isinstance(expr, Call) or getattr(expr.op, "name", "") not in _NAMES:
        return None
    a = _literal_value(expr.args[0])
    b = None if a is None else _literal_value(expr.args[1])
    if a is None or b is None:
        return None
    if isinstance(a, tirx.Broadcast):
        return tirx.Broadcast(_compute_literal(expr.op.name, a.value, b.value), a.lanes)
    return _compute_literal(expr.op.name, a, b)


def _compute_literal(name: str, a: Any, b: Any) -> Any:
    # The arithmetic is folded in its own dtype, after unrolling: TVM folds in float64 and rejects a division by zero.
    dtype = dtype_of(a)
    with np.errstate(all="ignore"):
        value = _NODES[name.removeprefix("roller.")](*(np.dtype(dtype).type(x.value) for x in (a, b)))
    return tirx.const(value.item(), "bool" if isinstance(value, np.bool_) else dtype)


def _opaque_operator_name(node: str) -> str:
    return f"roller.{node}"


def _is_opaque(expr: Any, node: str) -> bool:
    return isinstance(expr, Call) and getattr(expr.op, "name", "") == _opaque_operator_name(node)


def _plain_extremum(call: Any) -> Any:
    """Return the node for an extremum that may return any operand if one is NaN."""
    return getattr(tirx, call.op.name.removeprefix("roller.Any"))(*call.args)


#: Lowering of each operator to nodes by language, ``"default"`` for all others. TVM gives LLVM an *ordered* comparison
#: for ``!=``, which is false for NaN, so LLVM gets the negation of ``==``; in C, ``!=`` is right.
_LOWERINGS: dict[str, dict[str, Callable[[Any], Any]]] = {
    **{_opaque_operator_name(node): {"default": _node_of_opaque_call} for node in _NODES},
    **{
        _opaque_operator_name(node): {
            "default": _node_of_opaque_call,
            "llvm": lower_extremum_to_llvm(node),
            "cuda": lower_extremum_to_c(node),
        }
        for node in EXTREMA
    },
    **{f"roller.Any{node}": {"default": _plain_extremum} for node in EXTREMA},
    _opaque_operator_name("NE"): {"default": _node_of_opaque_call, "llvm": _negated_equality},
}
_NAMES = frozenset(map(_opaque_operator_name, _NODES))
_OPERATORS = {name: register_pure_operator(name, lowerings) for name, lowerings in _LOWERINGS.items()}
#: Operators used in conditions while ``LowerIntrin``, which does not lower them, runs.
_HELD = {name: register_pure_operator(f"{name}.held", {}) for name in _LOWERINGS}


def emit_any_maximum(a: Any, b: Any) -> Any:
    """Return the maximum of float values, which may be either operand if one is NaN."""
    return Call(_OPERATORS["roller.AnyMax"], [a, b], ret_ty=a.ty)


def hide_float_arithmetic(module: Any, *, propagate_nan: bool = True) -> Any:
    """Return ``module`` with its float arithmetic turned into calls to operators that TVM does not simplify."""
    return _rewrite_functions(module, _hiding_rules(_FLOATS, narrow=_NARROW, propagate_nan=propagate_nan))


def reveal_float_arithmetic(module: Any) -> Any:
    """Return ``module``, a result of :func:`hide_float_arithmetic`, with its float nodes restored."""
    return _rewrite_functions(module, _SHOWING)


def run_last_passes(passes: Any, module: Any, *, language: str) -> Any:
    """Run the last passes of a pipeline, which turn opaque calls into nodes, and return the module."""

    # ``LowerIntrin`` simplifies the conditions of branches and selections to learn from them, so conditions on data
    # stay opaque until it has run.
    def held(call: Any) -> Any:
        operator = _HELD.get(getattr(call.op, "name", ""))
        return call if operator is None else Call(operator, list(call.args), ret_ty=call.ty)

    def condition(expr: Any) -> Any:
        return structural_map(expr, (Call, held))

    def branch(call: Any) -> Any:
        if getattr(call.op, "name", "") != "prim.if_then_else":
            return call
        return Call(call.op, [condition(call.args[0]), *call.args[1:]], ret_ty=call.ty)

    def shown(call: Any) -> Any:
        name = getattr(call.op, "name", "").removesuffix(".held")
        if name not in _HELD or name == call.op.name:
            return call
        lowerings = _LOWERINGS[name]
        return lowerings.get(language, lowerings["default"])(Call(_OPERATORS[name], list(call.args), ret_ty=call.ty))

    holding = [
        (tirx.Select, lambda s: tirx.Select(condition(s.condition), s.true_value, s.false_value)),
        (tirx.IfThenElse, lambda s: tirx.IfThenElse(condition(s.condition), s.then_case, s.else_case)),
        (Call, branch),
    ]
    return _rewrite_functions(passes(_rewrite_functions(module, holding)), [(Call, shown)])


def create_exact_prim_func(tensors: Sequence[Any]) -> Any:
    """Return the PrimFunc for tensors, with their float arithmetic unsimplified."""
    function = te.create_prim_func(_hide_in_tensors(tensors))
    return function.with_body(structural_map(function.body, _SHOWING))


def hide_value(expr: Any) -> Any:
    """Return an expression in its opaque form, for all float dtypes."""
    return structural_map(expr, _hiding_rules(_ANY_FLOATS))


def reveal_value(expr: Any) -> Any:
    """Return the expression whose :func:`hide_value` is ``expr``."""
    return structural_map(expr, _SHOWING)


def _hide_in_tensors(tensors: Sequence[Any]) -> list[Any]:
    made: dict[Any, list[Any]] = {}

    def opaque_of(tensor: Any) -> Any:
        return made[tensor.op][tensor.value_index] if isinstance(tensor.op, te.ComputeOp) else tensor

    def load(call: Any) -> Any:
        if getattr(call.op, "name", "") != "te.tensor_load":
            return call
        tensor, *indices = call.args
        return opaque_of(tensor)(*indices)

    rules = [*_hiding_rules(_ANY_FLOATS), (Call, load)]

    def hidden(body: Sequence[Any]) -> list[Any]:
        if not isinstance(body[0], tirx.Reduce):
            return [structural_map(value, rules) for value in body]
        # The combiner keeps the form that readers recognize; reductions of several results share one source object.
        source = tvm_ffi.convert([structural_map(x, rules) for x in body[0].source])
        return [tirx.Reduce(r.combiner, source, r.axis, r.condition, r.value_index, r.init) for r in body]

    waiting = [t.op for t in tensors]
    while waiting:  # producers first, without recursion: chains are long
        op = waiting[-1]
        producers = [t.op for t in op.input_tensors if isinstance(t.op, te.ComputeOp) and t.op not in made]
        if producers:
            waiting += producers
            continue
        waiting.pop()
        if isinstance(op, te.ComputeOp) and op not in made:
            changed = compute_op(op, hidden(op.body))
            made[op] = [changed.output(n) for n in range(op.num_outputs)]
    return [opaque_of(t) for t in tensors]


def _hiding_rules(
    floats: re.Pattern[str], *, narrow: re.Pattern[str] | None = None, propagate_nan: bool = True
) -> list[tuple[Any, Callable[[Any], Any]]]:
    """Return the rules that turn float arithmetic into calls; extrema of ``narrow`` dtypes become float32 extrema."""

    def hider(node: str) -> Callable[[Any], Any]:
        name = f"roller.Any{node}" if node in EXTREMA and not propagate_nan else _opaque_operator_name(node)

        def hide(e: Any) -> Any:
            dtype = dtype_of(e.a)
            found = narrow.fullmatch(dtype) if narrow is not None and node in EXTREMA else None
            if found is not None:
                wide = (tirx.Cast(f"float32{found[1] or ''}", x) for x in (e.a, e.b))
                return tirx.Cast(dtype, hide(getattr(tirx, node)(*wide)))
            return Call(_OPERATORS[name], [e.a, e.b], ret_ty=e.ty) if floats.fullmatch(dtype) else e

        return hide

    return [(getattr(tirx, node), hider(node)) for node in _NODES]


def _node_if_opaque_call(call: Any) -> Any:
    lowerings = _LOWERINGS.get(getattr(call.op, "name", ""))
    return call if lowerings is None else lowerings["default"](call)


_SHOWING = [(Call, _node_if_opaque_call)]


def _rewrite_functions(module: Any, rules: Sequence[tuple[Any, Callable[[Any], Any]]]) -> Any:
    functions = {v: f.with_body(structural_map(f.body, list(rules))) for v, f in module.functions.items()}
    return tvm.IRModule(functions, attrs=module.attrs)
