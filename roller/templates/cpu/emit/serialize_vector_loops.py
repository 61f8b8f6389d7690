"""Serializes vector loops that bind values and that TVM would run lane by lane anyway.

TVM's vectorizer turns a whole statement into scalars at the first call or branch that it cannot vectorize. It may then
visit a ``Let`` twice, and reject the second visit as a different value of the same variable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from roller.te.compat import structural_map, structural_walk, tirx, tvm
from roller.templates.cpu.emit.tir_loop_constructors import Stmt

#: Calls that the vectorizer supports although they are not declared vectorizable.
_KNOWN = ("tirx.reinterpret",)


def serialize_vector_loops(body: Stmt) -> Stmt:
    """Return ``body`` with serial loops in place of vector loops that bind values and cannot be vectorized."""
    if next(nodes_of_kind(body, tirx.Let), None) is None:
        return body

    def settled(loop: Any) -> Any:
        if loop.kind != tirx.ForKind.VECTORIZED:
            return loop
        bound = list(nodes_of_kind(loop.body, tirx.Let))
        if not bound or not is_not_vectorizable(loop, bound):
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return structural_map(body, (tirx.For, settled))


def is_not_vectorizable(loop: Any, bound: list[Any]) -> bool:
    """Return whether a vector loop has a call without a vector form, or a branch, that depends on the lane."""
    varying = {loop.loop_var}
    grows = True
    while grows:  # bindings nest in values and in bodies, so their order is unknown
        new = {b.var for b in bound if b.var not in varying and contains_variables(b.value, varying)}
        varying |= new
        grows = bool(new)
    if any(contains_variables(branch.condition, varying) for branch in nodes_of_kind(loop.body, tirx.IfThenElse)):
        return True
    for call in nodes_of_kind(loop.body, tvm.ir.Call):
        if not isinstance(call.op, tvm.ir.Op) or call.op.name in _KNOWN or call.op.get_attr("TVectorizable"):
            continue
        decisive = call.args[:1] if call.op.name == "prim.if_then_else" else call.args
        if any(contains_variables(a, varying) for a in decisive):
            return True
    return False


def contains_variables(expr: Any, variables: set[Any]) -> bool:
    """Return whether any of the variables occurs in an expression or a statement."""
    return any(v in variables for v in nodes_of_kind(expr, tirx.Var))


def nodes_of_kind(root: Any, kind: type) -> Iterator[Any]:
    """Yield the nodes of a kind in an expression or a statement."""
    found: list[Any] = []
    structural_walk(root, (kind, found.append))
    return iter(found)
