"""Vector loops whose statement TVM runs lane by lane are serial loops from the start, where the statement binds values.

TVM's vectoriser takes a whole statement back to scalars at the first thing it has no vectors for: a call (an inverse
sine), or a branch that lanes take differently. On the way it may visit a ``Let`` twice, and refuses the second as
another value of the same variable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from roller.te.compat import structural_map, structural_walk, tirx, tvm
from roller.templates.cpu.emit.nest import Stmt

#: Calls that the vectoriser knows by themselves, though nothing declares it.
_KNOWN = ("tirx.reinterpret",)


def without_vain_vectors(body: Stmt) -> Stmt:
    """Return ``body`` with the vector loops made serial that bind values and cannot become vectors."""
    if next(nodes(body, tirx.Let), None) is None:
        return body

    def settled(loop: Any) -> Any:
        if loop.kind != tirx.ForKind.VECTORIZED:
            return loop
        bound = list(nodes(loop.body, tirx.Let))
        if not bound or not _falls_back(loop, bound):
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return structural_map(body, (tirx.For, settled))


def _falls_back(loop: Any, bound: list[Any]) -> bool:
    """Whether a vector loop holds a call without vectors, or a branch, that depends on the lane."""
    varying = {loop.loop_var}
    grows = True
    while grows:  # bindings nest in values and bodies alike: none is known to come first
        new = {b.var for b in bound if b.var not in varying and mentions(b.value, varying)}
        varying |= new
        grows = bool(new)
    if any(mentions(branch.condition, varying) for branch in nodes(loop.body, tirx.IfThenElse)):
        return True
    for call in nodes(loop.body, tvm.ir.Call):
        if not isinstance(call.op, tvm.ir.Op) or call.op.name in _KNOWN or call.op.get_attr("TVectorizable"):
            continue
        decisive = call.args[:1] if call.op.name == "prim.if_then_else" else call.args
        if any(mentions(a, varying) for a in decisive):
            return True
    return False


def mentions(expr: Any, variables: set[Any]) -> bool:
    """Whether any of some variables is in an expression or a statement."""
    return any(v in variables for v in nodes(expr, tirx.Var))


def nodes(root: Any, kind: type) -> Iterator[Any]:
    """Return the nodes of a kind in an expression or a statement."""
    found: list[Any] = []
    structural_walk(root, (kind, found.append))
    return iter(found)
