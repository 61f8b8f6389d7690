"""Functions of several vectors side by side: a processor waits for the results of one while it computes the others.

A polynomial is a chain: each step waits for the one before. Vectors that are computed one after another hide that
only as far as the processor looks ahead, two of them on a small one. As one vector of several registers each step is
done for all of them before the next, since LLVM splits it instruction by instruction.
"""

from __future__ import annotations

from typing import Any

from roller.te.compat import structural_map, tirx
from roller.te.emit import Expr
from roller.templates.cpu.emit.lanewise import mentions, nodes
from roller.templates.cpu.emit.nest import Stmt, integer

#: Registers side by side. More have no room: a chain needs three beside its constants.
TOGETHER = 2


def side_by_side(body: Stmt) -> Stmt:
    """Return ``body`` with unrolled loops over vectors that bind values as loops over longer vectors.

    Only where the loops' variables stand for nothing but the element, ``step * lanes + lane``.
    """

    def wider(loop: Any) -> Any:
        inner = loop.body
        if loop.kind != tirx.ForKind.UNROLLED or int(loop.extent) % TOGETHER or not isinstance(inner, tirx.For):
            return loop
        if inner.kind != tirx.ForKind.VECTORIZED or next(nodes(inner, tirx.Let), None) is None:
            return loop
        lanes, steps = int(inner.extent), int(loop.extent) // TOGETHER
        step, lane = tirx.Var(loop.loop_var.name, "int32"), tirx.Var(inner.loop_var.name, "int32")
        at = lane if steps == 1 else step * (lanes * TOGETHER) + lane

        def element(n: Any) -> Expr:
            return at if _is_element(n, loop.loop_var, inner.loop_var, lanes) else n

        inside = structural_map(inner.body, (tirx.Add, element), order="pre")
        if mentions(inside, {loop.loop_var, inner.loop_var}):
            return loop
        vector = tirx.For(lane, integer(0), integer(lanes * TOGETHER), inner.kind, inside)
        return vector if steps == 1 else tirx.For(step, integer(0), integer(steps), loop.kind, vector)

    return structural_map(body, (tirx.For, wider))


def _is_element(n: Any, step: Any, lane: Any, lanes: int) -> bool:
    a, b = n.a, n.b
    return (
        b.same_as(lane) and isinstance(a, tirx.Mul) and a.a.same_as(step) and isinstance(a.b, tirx.IntImm)
        and int(a.b) == lanes
    )  # fmt: skip
