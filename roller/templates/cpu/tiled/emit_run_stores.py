"""Stores of a tile along a grouped vector axis: whole vectors, or piece by piece where it crosses into a new run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from roller.expr import Load, Scalar, Stage
from roller.te.emit_tvm_expressions import Expr, emit_scalar
from roller.templates.cpu.emit.axis_tiling_plans import SpatialPlan
from roller.templates.cpu.emit.copy_grouped_axis_runs import (
    ELEMENT,
    emit_axis_address,
    emit_loop_over_run,
    emit_row_major_address,
    emit_tile_by_runs,
    flatten_loads,
    indices_of_address,
    runs_of_output,
)
from roller.templates.cpu.emit.tir_loop_constructors import (
    Buffer,
    LoopBuilder,
    Stmt,
    addressed_extents,
    allocate_buffer,
    bind_value,
    computed_dtype,
    copy_elements,
    element_reader,
    int32_index,
    read_element,
    write_element,
)
from roller.tile import RProgram

Env = Mapping[str, Any]
_OUT = "@out"


class RegisterTileNest(Protocol):
    """The attributes of a loop nest needed to store its register tile."""

    program: RProgram
    stage: Stage
    buffers: dict[str, Buffer]
    nest: LoopBuilder
    order: list[SpatialPlan]
    acc: Buffer
    spill: Buffer

    def each(self, body: Callable[[tuple[Expr, ...]], Stmt]) -> Stmt:
        """Run ``body`` on every element of the tile."""

    def at(self, env: dict[str, Any], inner: tuple[Expr, ...]) -> dict[str, Any]:
        """Extend ``env`` from the tile's origin to one of its elements."""


def emit_stores_by_runs(tiled: RegisterTileNest, last: Stage, out: Buffer, v: SpatialPlan, env: Env) -> Stmt | None:
    """Return the stores of one micro-kernel, or ``None`` if runs along ``v`` are too short for whole vectors."""
    run = runs_of_output(last, v.name, v.extent)
    if run is None or run.length < v.lanes:
        return None
    alone = last is tiled.stage
    form = (last.body, dict[str, Load]()) if alone else flatten_loads(last.body, tiled.program.expr, v.name, run)
    if form is None:
        return None
    rows = _RowStores(tiled, last, out, v, env, *form)
    spill = tiled.each(rows.emit_spill)
    return emit_tile_by_runs(
        tiled.nest, run, env[v.name], v, rows.whole, rows.piece, (allocate_buffer(tiled.spill), spill)
    )


class _RowStores:
    """Stores one tile's rows through the epilogue; ``loads`` are the epilogue's inputs along the vector axis."""

    def __init__(
        self,
        tiled: RegisterTileNest,
        last: Stage,
        out: Buffer,
        v: SpatialPlan,
        env: Env,
        body: Scalar,
        loads: dict[str, Load],
    ) -> None:
        self.tiled, self.last, self.out, self.v, self.env, self.body, self.loads = tiled, last, out, v, env, body, loads
        self.accesses = {_OUT: (last.store, addressed_extents(out, last.store))}
        self.accesses.update(
            {n: (ld.index, addressed_extents(tiled.buffers[ld.tensor], ld.index)) for n, ld in loads.items()}
        )
        #: Whether spilled rows are final, so that pieces are copied; otherwise, pieces are computed element by element.
        self.finished = not loads and str(out.ty.dtype) == str(tiled.spill.ty.dtype)

    def emit_spill(self, inner: tuple[Expr, ...]) -> Stmt:
        """Move an element out of the registers; it is final if only the accumulator varies along the row."""
        value = read_element(self.tiled.acc, *inner)
        if self.finished:
            at = {**self.tiled.at(dict(self.env), inner), self.v.name: int32_index(0)}
            value = self._value(value, at, int32_index(0))
        return write_element(self.tiled.spill, value, *inner)

    def whole(self) -> Stmt:
        """Store all rows from the registers, in vectors."""
        zero, tile = int32_index(0), self.v.tile
        rows = [s.tile for s in self.tiled.order[:-1]]
        return self._with_base_addresses(
            zero,
            lambda base: self.tiled.nest.grid(rows, lambda i: self._row(i, self.tiled.acc, zero, tile, base), "unroll"),
        )

    def piece(self, first: Expr, length: Expr) -> Stmt:
        """Store ``length`` elements of each row, starting at ``first``."""
        rows = [s.tile for s in self.tiled.order[:-1]]

        def row(inner: tuple[Expr, ...], base: Env) -> Stmt:
            if not self.finished:
                return self._row(inner, self.tiled.spill, first, length, base)
            to = indices_of_address(self.out, self._places(inner, first, base)[_OUT])
            return copy_elements(self.out, to, self.tiled.spill, (*inner, first), length)

        return self._with_base_addresses(first, lambda base: self.tiled.nest.grid(rows, lambda i: row(i, base)))

    def _with_base_addresses(self, first: Expr, body: Callable[[Env], Stmt]) -> Stmt:
        """Bind each address's part that depends on the vector axis, at ``first``, so that it is divided only once."""

        def named(left: tuple[str, ...], base: dict[str, Any]) -> Stmt:
            if not left:
                return body(base)
            place = emit_axis_address(*self.accesses[left[0]], self.v.name, self.env[self.v.name] + first)
            return bind_value(place, "base", lambda b: named(left[1:], {**base, left[0]: b}))

        return named(tuple(self.accesses), {})

    def _at(self, inner: tuple[Expr, ...], first: Expr) -> dict[str, Any]:
        return {**self.tiled.at(dict(self.env), (*inner, first)), self.v.name: int32_index(0)}

    def _places(self, inner: tuple[Expr, ...], first: Expr, base: Env) -> dict[str, Expr]:
        """Return the address of the first element of a row, per access."""
        at = self._at(inner, first)
        return {n: base[n] + emit_row_major_address(*access, at) for n, access in self.accesses.items()}

    def _row(self, inner: tuple[Expr, ...], acc: Buffer, first: Expr, length: int | Expr, base: Env) -> Stmt:
        at, places = self._at(inner, first), self._places(inner, first, base)

        def element(x: Expr) -> Stmt:
            value = self._value(read_element(acc, *inner, first + x), {**at, **places}, x)
            return write_element(self.out, value, *indices_of_address(self.out, places[_OUT] + x))

        return emit_loop_over_run(self.tiled.nest, length, self.v.lanes, element)

    def _value(self, accumulated: Expr, at: Env, element: Expr) -> Expr:
        """Return the output element for an accumulator's element."""
        result = accumulated.astype(computed_dtype(self.tiled.stage.output.dtype))
        if self.last is self.tiled.stage:
            return result
        buffers = self.tiled.buffers
        tensors: dict[str, Callable[..., Expr]] = {n: element_reader(b) for n, b in buffers.items()}
        tensors[self.tiled.stage.name] = lambda *_: result
        for n, ld in self.loads.items():
            tensors[n] = functools.partial(_read_at_address, buffers[ld.tensor])
        return emit_scalar(self.body, {**at, ELEMENT: element}, tensors)


def _read_at_address(buffer: Buffer, place: Expr) -> Expr:
    return read_element(buffer, *indices_of_address(buffer, place))
