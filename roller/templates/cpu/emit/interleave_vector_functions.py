"""Interleaves functions of several vectors, so that the latency of one vector overlaps the computation of the others.

The steps of a polynomial depend on each other. LLVM splits a vector that takes several registers instruction by
instruction, so every step is done for all registers before the next step, without relying on out-of-order execution.
"""

from __future__ import annotations

from typing import Any

from roller.te.compat import structural_map, tirx
from roller.te.emit_tvm_expressions import Expr
from roller.templates.cpu.emit.serialize_vector_loops import contains_variables, nodes_of_kind
from roller.templates.cpu.emit.tir_loop_constructors import Stmt, int32_index

#: Number of interleaved registers. More would not fit, because a chain needs three in addition to its constants.
TOGETHER = 2


def interleave_vector_loops(body: Stmt) -> Stmt:
    """Return ``body`` with unrolled loops over vectors that bind values turned into loops over longer vectors."""

    # This applies only if the loop variables occur only in the element ``step * lanes + lane``.
    def wider(loop: Any) -> Any:
        inner = loop.body
        if loop.kind != tirx.ForKind.UNROLLED or int(loop.extent) % TOGETHER or not isinstance(inner, tirx.For):
            return loop
        if inner.kind != tirx.ForKind.VECTORIZED or next(nodes_of_kind(inner, tirx.Let), None) is None:
            return loop
        lanes, steps = int(inner.extent), int(loop.extent) // TOGETHER
        step, lane = tirx.Var(loop.loop_var.name, "int32"), tirx.Var(inner.loop_var.name, "int32")
        at = lane if steps == 1 else step * (lanes * TOGETHER) + lane

        def element(n: Any) -> Expr:
            return at if _is_vector_element(n, loop.loop_var, inner.loop_var, lanes) else n

        inside = structural_map(inner.body, (tirx.Add, element), order="pre")
        if contains_variables(inside, {loop.loop_var, inner.loop_var}):
            return loop
        vector = tirx.For(lane, int32_index(0), int32_index(lanes * TOGETHER), inner.kind, inside)
        return vector if steps == 1 else tirx.For(step, int32_index(0), int32_index(steps), loop.kind, vector)

    return structural_map(body, (tirx.For, wider))


def _is_vector_element(n: Any, step: Any, lane: Any, lanes: int) -> bool:
    a, b = n.a, n.b
    return (
        b.same_as(lane) and isinstance(a, tirx.Mul) and a.a.same_as(step) and isinstance(a.b, tirx.IntImm)
        and int(a.b) == lanes
    )  # fmt: skip
