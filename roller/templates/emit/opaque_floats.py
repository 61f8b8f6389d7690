"""Floating-point arithmetic that TVM's passes do not simplify.

TVM simplifies floating point as if it were exact: ``x + c - c`` becomes ``x``, ``x == x`` becomes true. Before a module
enters TVM's pipeline, :func:`opaque` turns its floating-point nodes into calls of operators that no simplifier knows;
integers and indices, those inside these calls too, stay nodes and are simplified. ``LowerIntrin``, the last pass of
every pipeline, turns the calls back into nodes; so does :func:`transparent`, for modules that are printed.

Notes
-----
- An opaque product within an opaque sum becomes a node together with the sum: ``LowerIntrin`` makes a multiply-add of
  a sum only where it sees the product as a node. TVM lets LLVM contract both (``AllowFPOpFusion``).
- TVM gives LLVM an *ordered* comparison for ``!=``, which is false where an operand is NaN. LLVM therefore gets the
  negation of ``==``; in C, ``!=`` is right.
- bfloat16 and float8 stay nodes: TVM's legalising passes convert them, and must recognise them. The maximum and minimum
  of what is narrower than float32 are those of float32, where nothing is rounded.
- NaN wins in a maximum or minimum (:mod:`roller.templates.emit.extrema`), unless the module is to ignore it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from roller.te.compat import Call, dtype_of, pure_operator, structural_map, tirx, tvm
from roller.templates.emit.extrema import EXTREMA, in_c, in_llvm

_NODES = ("Add", "Sub", "Mul", "Div", "Max", "Min", "EQ", "NE", "LT", "LE", "GT", "GE")
#: Operands of nodes that become opaque; vectors have their lanes in the name.
_FLOATS = re.compile(r"float(?:16|32|64)(?:x\d+)?")
_NARROW = re.compile(r"(?:b?float16|float8_\w+?)(x\d+)?")


def _node_of(call: Any) -> Any:
    """Return the node of a call of an opaque operator."""
    name, operands = call.op.name, list(call.args)
    if name == _name("Add"):
        operands = [_node_of(x) if _is_opaque(x, "Mul") else x for x in operands]
    return getattr(tirx, name.removeprefix("roller."))(*operands)


def _negated_equality(call: Any) -> Any:
    return tirx.Not(tirx.EQ(*call.args))


def _name(node: str) -> str:
    return f"roller.{node}"


def _is_opaque(expr: Any, node: str) -> bool:
    return isinstance(expr, Call) and getattr(expr.op, "name", "") == _name(node)


def _plain(call: Any) -> Any:
    """Return the node of an extremum that the target computes as it likes where an operand is NaN."""
    return getattr(tirx, call.op.name.removeprefix("roller.Any"))(*call.args)


_LOWERINGS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "NE": {"llvm": _negated_equality},
    **{node: {"llvm": in_llvm(node), "cuda": in_c(node)} for node in EXTREMA},
}
_OPERATORS = {node: pure_operator(_name(node), {"default": _node_of, **_LOWERINGS.get(node, {})}) for node in _NODES}
_ANY = {node: pure_operator(f"roller.Any{node}", {"default": _plain}) for node in EXTREMA}
_NAMES = {**{_name(node): _node_of for node in _NODES}, **{f"roller.Any{node}": _plain for node in EXTREMA}}


def opaque(module: Any, *, propagate_nan: bool = True) -> Any:
    """Return a module with its floating-point arithmetic as calls of operators that TVM does not simplify.

    Parameters
    ----------
    module : tvm.IRModule
        TIR functions, before any pass that simplifies.
    propagate_nan
        Whether a maximum or minimum of NaN and a number is NaN; else it is whatever is cheapest.
    """
    chosen = _OPERATORS if propagate_nan else {**_OPERATORS, **_ANY}
    return _mapped(module, *((getattr(tirx, node), _hiding(node, operator)) for node, operator in chosen.items()))


def transparent(module: Any) -> Any:
    """Return the module whose :func:`opaque` form ``module`` is, with whatever passes have done since."""
    return _mapped(module, (Call, lambda call: _NAMES.get(getattr(call.op, "name", ""), lambda same: same)(call)))


def _hiding(name: str, operator: Any) -> Callable[[Any], Any]:
    def hide(node: Any) -> Any:
        dtype = dtype_of(node.a)
        narrow = _NARROW.fullmatch(dtype) if name in EXTREMA else None
        if narrow is not None:
            wide = (tirx.Cast(f"float32{narrow[1] or ''}", x) for x in (node.a, node.b))
            return tirx.Cast(dtype, hide(getattr(tirx, name)(*wide)))
        return Call(operator, [node.a, node.b], ret_ty=node.ty) if _FLOATS.fullmatch(dtype) else node

    return hide


def _mapped(module: Any, *rules: tuple[Any, Callable[[Any], Any]]) -> Any:
    functions = {v: f.with_body(structural_map(f.body, list(rules))) for v, f in module.functions.items()}
    return tvm.IRModule(functions, attrs=module.attrs)
