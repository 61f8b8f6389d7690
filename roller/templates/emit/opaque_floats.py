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
- bfloat16 and float8 stay nodes: TVM's legalising passes convert them, and must recognise them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from roller.te.compat import Call, dtype_of, pure_operator, structural_map, tirx, tvm

_NODES = ("Add", "Sub", "Mul", "Div", "Max", "Min", "EQ", "NE", "LT", "LE", "GT", "GE")
#: Operands of nodes that become opaque; vectors have their lanes in the name.
_FLOATS = re.compile(r"float(?:16|32|64)(?:x\d+)?")


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


_OPERATORS = {
    node: pure_operator(
        _name(node), {"default": _node_of, **({"llvm": _negated_equality} if node == "NE" else {})}
    )
    for node in _NODES
}  # fmt: skip
_NAMES = frozenset(_name(node) for node in _NODES)


def opaque(module: Any) -> Any:
    """Return a module with its floating-point arithmetic as calls of operators that TVM does not simplify.

    Parameters
    ----------
    module : tvm.IRModule
        TIR functions, before any pass that simplifies.
    """
    return _mapped(module, *((getattr(tirx, node), _hiding(operator)) for node, operator in _OPERATORS.items()))


def transparent(module: Any) -> Any:
    """Return the module whose :func:`opaque` form ``module`` is, with whatever passes have done since."""
    return _mapped(module, (Call, lambda call: _node_of(call) if getattr(call.op, "name", "") in _NAMES else call))


def _hiding(operator: Any) -> Callable[[Any], Any]:
    def hide(node: Any) -> Any:
        return Call(operator, [node.a, node.b], ret_ty=node.ty) if _FLOATS.fullmatch(dtype_of(node.a)) else node

    return hide


def _mapped(module: Any, *rules: tuple[Any, Callable[[Any], Any]]) -> Any:
    functions = {v: f.with_body(structural_map(f.body, list(rules))) for v, f in module.functions.items()}
    return tvm.IRModule(functions, attrs=module.attrs)
