"""Floating-point arithmetic that TVM's passes do not simplify.

TVM simplifies floating point as if it were exact: ``x + c - c`` becomes ``x``, ``x == x`` becomes true. Before a module
enters TVM's pipeline, :func:`opaque` turns its floating-point nodes into calls of operators that no simplifier knows;
integers and indices, those inside these calls too, stay nodes and are simplified. ``LowerIntrin``, the last pass of
every pipeline, turns the calls back into nodes; so does :func:`transparent`, for modules that are printed.
:func:`function_of` does both around ``te.create_prim_func``, which simplifies, too.

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
from collections.abc import Callable, Sequence
from typing import Any

from roller.te.compat import Call, compute_op, dtype_of, pure_operator, structural_map, te, tirx, tvm, tvm_ffi

_NODES = ("Add", "Sub", "Mul", "Div", "Max", "Min", "EQ", "NE", "LT", "LE", "GT", "GE")
#: Operands of nodes that become opaque; vectors have their lanes in the name.
_FLOATS = re.compile(r"float(?:16|32|64)(?:x\d+)?")
_ANY_FLOATS = re.compile(r"b?float.*")


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
    return _mapped(module, _hiding(_FLOATS))


def transparent(module: Any) -> Any:
    """Return the module whose :func:`opaque` form ``module`` is, with whatever passes have done since."""
    return _mapped(module, _SHOWING)


def function_of(tensors: Sequence[Any]) -> Any:
    """Return what ``te.create_prim_func`` makes of tensors, with floating-point arithmetic as they have it.

    Parameters
    ----------
    tensors : sequence of te.Tensor
        Placeholders and results of ``te.compute``, in call order.
    """
    function = te.create_prim_func(_opaque_tensors(tensors))
    return function.with_body(structural_map(function.body, _SHOWING))


def opaque_value(expr: Any) -> Any:
    """Return an expression in its opaque form, whichever floating-point dtypes it has."""
    return structural_map(expr, _hiding(_ANY_FLOATS))


def transparent_value(expr: Any) -> Any:
    """Return the expression whose :func:`opaque_value` ``expr`` is."""
    return structural_map(expr, _SHOWING)


def _opaque_tensors(tensors: Sequence[Any]) -> list[Any]:
    made: dict[Any, list[Any]] = {}

    def opaque_of(tensor: Any) -> Any:
        op = tensor.op
        if not isinstance(op, te.ComputeOp):
            return tensor
        if op not in made:
            changed = compute_op(op, hidden(op.body))
            made[op] = [changed.output(n) for n in range(op.num_outputs)]
        return made[op][tensor.value_index]

    def load(call: Any) -> Any:
        if getattr(call.op, "name", "") != "te.tensor_load":
            return call
        tensor, *indices = call.args
        return opaque_of(tensor)(*indices)

    rules = [*_hiding(_ANY_FLOATS), (Call, load)]

    def hidden(body: Sequence[Any]) -> list[Any]:
        if not isinstance(body[0], tirx.Reduce):
            return [structural_map(value, rules) for value in body]
        # The combiner stays what readers know; reductions of several results have one source, the same object.
        source = tvm_ffi.convert([structural_map(x, rules) for x in body[0].source])
        return [tirx.Reduce(r.combiner, source, r.axis, r.condition, r.value_index, r.init) for r in body]

    return [opaque_of(t) for t in tensors]


def _hiding(floats: re.Pattern[str]) -> list[tuple[Any, Callable[[Any], Any]]]:
    def hider(operator: Any) -> Callable[[Any], Any]:
        def hide(node: Any) -> Any:
            return Call(operator, [node.a, node.b], ret_ty=node.ty) if floats.fullmatch(dtype_of(node.a)) else node

        return hide

    return [(getattr(tirx, node), hider(operator)) for node, operator in _OPERATORS.items()]


def _shown(call: Any) -> Any:
    return _node_of(call) if getattr(call.op, "name", "") in _NAMES else call


_SHOWING = [(Call, _shown)]


def _mapped(module: Any, rules: Sequence[tuple[Any, Callable[[Any], Any]]]) -> Any:
    functions = {v: f.with_body(structural_map(f.body, list(rules))) for v, f in module.functions.items()}
    return tvm.IRModule(functions, attrs=module.attrs)
