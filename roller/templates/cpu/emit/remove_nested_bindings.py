"""Removal of nested bindings: the value of an inner ``Let`` is stored before the outer ``Let`` binds it.

TVM's analyzer visits the value of each nested binding several times, so every level would multiply the build time. TVM
also substitutes bindings made by statements unless they read memory; hence the pass uses a local buffer, which LLVM
keeps in a register.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from roller.te.compat import dtype_of, structural_map, structural_walk, tirx, tvm
from roller.te.emit_tvm_expressions import Expr
from roller.templates.cpu.emit.tir_loop_constructors import (
    Buffer,
    Stmt,
    allocate_buffer,
    declare_buffer,
    if_then,
    int32_index,
    read_element,
    sequence_of_statements,
    write_element,
)


def remove_nested_bindings(body: Stmt) -> Stmt:
    """Return ``body`` with no binding inside the value of another binding."""

    def vector(loop: Any) -> Stmt:
        if loop.kind != tirx.ForKind.VECTORIZED:
            return loop
        made = _NestedBindingFlattener(loop.loop_var, int(loop.extent))
        inside = structural_map(loop.body, (tirx.BufferStore, made.store))
        if not made.buffers:
            return loop
        return sequence_of_statements(
            *map(allocate_buffer, made.buffers), tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, inside)
        )

    def scalar(store: Any) -> Stmt:
        made = _NestedBindingFlattener(int32_index(0), 1)
        inside = made.store(store)
        return sequence_of_statements(*map(allocate_buffer, made.buffers), inside)

    # Vector loops come first; stores outside of them need one element.
    return structural_map(structural_map(body, (tirx.For, vector)), (tirx.BufferStore, scalar))


@dataclass
class _NestedBindingFlattener:
    """Statements before a store, and the buffers that they use.

    Parameters
    ----------
    lane, lanes
        Index of the current lane's element in a buffer, and the number of lanes.
    """

    lane: Expr
    lanes: int
    buffers: list[Buffer] = field(default_factory=list)

    def store(self, s: Any) -> Stmt:
        """Return the store, preceded by the statements that it needs."""
        steps: list[Stmt] = []
        value = self._flat(s.value, steps) if _has_nested_let(s.value) else s.value
        return sequence_of_statements(*steps, tirx.BufferStore(s.buffer, value, s.indices)) if steps else s

    def _flat(self, expr: Expr, steps: list[Stmt]) -> Expr:
        """Return ``expr`` with no binding inside another's value; append to ``steps`` what must run before it."""
        callbacks = [
            (tirx.Let, functools.partial(self._flatten_let, steps)),
            (tvm.ir.Call, self._flatten_branches(steps)),
        ]
        flat: Expr = structural_map(expr, callbacks, order="pre")
        return flat

    def _flatten_let(self, steps: list[Stmt], let: Any) -> Expr:
        if not _has_let(let.value):
            return let
        value = self._kept(let.var.name, self._flat(let.value, steps), steps)
        return tirx.Let(let.var, value, let.body)

    def _flatten_branches(self, steps: list[Stmt]) -> Callable[[Any], Expr]:
        """Return the rewrite that keeps the steps of a branch inside it, where its reads are in bounds."""

        def branches(call: Any) -> Expr:
            if getattr(call.op, "name", "") != "prim.if_then_else" or not any(map(_has_nested_let, call.args[1:])):
                return call
            condition = self._flat(call.args[0], steps)
            chosen = declare_buffer("chosen", (self.lanes,), dtype_of(call), scope="local")
            self.buffers.append(chosen)
            sides = []
            for arg in call.args[1:]:
                inner: list[Stmt] = []
                value = self._flat(arg, inner)
                sides.append(sequence_of_statements(*inner, write_element(chosen, value, self.lane)))
            steps.append(if_then(condition, *sides))
            return read_element(chosen, self.lane)

        return branches

    def _kept(self, name: str, value: Expr, steps: list[Stmt]) -> Expr:
        buffer = declare_buffer(f"{name}_of", (self.lanes,), dtype_of(value), scope="local")
        self.buffers.append(buffer)
        steps.append(write_element(buffer, value, self.lane))
        return read_element(buffer, self.lane)


def _has_let(expr: Expr) -> bool:
    return any(True for _ in _lets_in_expression(expr))


def _has_nested_let(expr: Expr) -> bool:
    return any(_has_let(let.value) for let in _lets_in_expression(expr))


def _lets_in_expression(expr: Expr) -> list[Any]:
    found: list[Any] = []
    structural_walk(expr, (tirx.Let, found.append), order="pre")
    return found
