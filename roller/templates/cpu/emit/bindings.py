"""Functions of functions: what an inner one gives is stored before the outer one binds it.

Bindings (``Let``) nest one in the value of another there, and TVM's analyzer visits the value of each several times
over: every function more multiplied the time of a build. TVM substitutes bindings made by statements too, unless they
read memory. So the argument goes through a local buffer, one element a lane, which LLVM keeps in a register.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from roller.te.compat import dtype_of, structural_map, structural_walk, tirx, tvm
from roller.te.emit import Expr
from roller.templates.cpu.emit.nest import Buffer, Stmt, allocate, declare, integer, read, seq, when, write


def without_nested_bindings(body: Stmt) -> Stmt:
    """Return ``body`` with no binding inside the value of another."""

    def vector(loop: Any) -> Stmt:
        if loop.kind != tirx.ForKind.VECTORIZED:
            return loop
        made = _Steps(loop.loop_var, int(loop.extent))
        inside = structural_map(loop.body, (tirx.BufferStore, made.store))
        if not made.buffers:
            return loop
        return seq(*map(allocate, made.buffers), tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, inside))

    def scalar(store: Any) -> Stmt:
        made = _Steps(integer(0), 1)
        inside = made.store(store)
        return seq(*map(allocate, made.buffers), inside)

    # Vector loops first; what is left is stored once.
    return structural_map(structural_map(body, (tirx.For, vector)), (tirx.BufferStore, scalar))


@dataclass
class _Steps:
    """Statements before a store, and the buffers they go through.

    Parameters
    ----------
    lane, lanes
        Element of a buffer that a lane has to itself, and how many there are.
    """

    lane: Expr
    lanes: int
    buffers: list[Buffer] = field(default_factory=list)

    def store(self, s: Any) -> Stmt:
        """Return a store behind the statements that it needs."""
        steps: list[Stmt] = []
        value = self._flat(s.value, steps) if _nests(s.value) else s.value
        return seq(*steps, tirx.BufferStore(s.buffer, value, s.indices)) if steps else s

    def _flat(self, expr: Expr, steps: list[Stmt]) -> Expr:
        """Return ``expr`` without a binding in the value of another, and note what must run before."""
        callbacks = [(tirx.Let, functools.partial(self._let, steps)), (tvm.ir.Call, self._branches(steps))]
        flat: Expr = structural_map(expr, callbacks, order="pre")
        return flat

    def _let(self, steps: list[Stmt], let: Any) -> Expr:
        if not _binds(let.value):
            return let
        value = self._kept(let.var.name, self._flat(let.value, steps), steps)
        return tirx.Let(let.var, value, let.body)

    def _branches(self, steps: list[Stmt]) -> Callable[[Any], Expr]:
        """Return what keeps the steps of a branch in it: one not taken may read what is not there."""

        def branches(call: Any) -> Expr:
            if getattr(call.op, "name", "") != "prim.if_then_else" or not any(map(_nests, call.args[1:])):
                return call
            condition = self._flat(call.args[0], steps)
            chosen = declare("chosen", (self.lanes,), dtype_of(call), scope="local")
            self.buffers.append(chosen)
            sides = []
            for arg in call.args[1:]:
                inner: list[Stmt] = []
                value = self._flat(arg, inner)
                sides.append(seq(*inner, write(chosen, value, self.lane)))
            steps.append(when(condition, *sides))
            return read(chosen, self.lane)

        return branches

    def _kept(self, name: str, value: Expr, steps: list[Stmt]) -> Expr:
        buffer = declare(f"{name}_of", (self.lanes,), dtype_of(value), scope="local")
        self.buffers.append(buffer)
        steps.append(write(buffer, value, self.lane))
        return read(buffer, self.lane)


def _binds(expr: Expr) -> bool:
    return any(True for _ in _lets(expr))


def _nests(expr: Expr) -> bool:
    return any(_binds(let.value) for let in _lets(expr))


def _lets(expr: Expr) -> list[Any]:
    found: list[Any] = []
    structural_walk(expr, (tirx.Let, found.append), order="pre")
    return found
