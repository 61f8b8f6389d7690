"""Results of a matrix kernel: bias, residual and activation on the accumulators, then the stores.

If each lane's elements are known and two neighbours fill a large part of a transaction, lanes store pairs directly from
their accumulators. Otherwise each group of threads writes one row of fragments at a time to a slice of the scratchpad
that the ring no longer needs, and stores whole rows from there in vectors of up to 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from roller.core.dtypes import DTYPE_BYTES
from roller.core.fragment import Fragment
from roller.expr import Load, Stage, loads
from roller.te.compat import tirx
from roller.te.emit import emit_index, emit_scalar
from roller.templates.gpu.common.stores import Results
from roller.templates.gpu.emit.context import Context, Reader, as_output, named_loads, promote
from roller.templates.gpu.emit.device_functions import address, barrier, call, put
from roller.templates.gpu.emit.mapping import AxisMap, vector_loop
from roller.templates.gpu.emit.nest import (
    Buffer,
    Expr,
    Stmt,
    buffer,
    dtype_name,
    load,
    loop,
    seq,
    store,
    unravel,
    when,
    with_buffers,
)
from roller.templates.gpu.matrix.emit_units import MatrixUnit
from roller.templates.gpu.matrix.stores import MatrixStore
from roller.tile.access import VECTOR_BYTES
from roller.tile.fragments import Operand, spread_bytes, spread_pitch
from roller.tile.vectors import vectorizable


class Template(Protocol):
    """Attributes of a kernel needed to finish a sum."""

    ctx: Context
    stage: Stage


class Accumulators(Template, Protocol):
    """Attributes of a kernel needed to store all sums of a block: their owners and positions."""

    fragment: Fragment
    unit: MatrixUnit
    operands: tuple[Operand, Operand]
    maps: tuple[AxisMap, ...]
    m_axis: str
    n_axis: str
    register: Mapping[str, int]
    base: Mapping[str, Expr]
    group: Mapping[str, Expr]
    group_index: Expr
    lane: Expr
    pool: Buffer


class Writer:
    """Stores of one kernel: ``result`` (the stage or its epilogue) to ``target`` at leading indices ``prefix``."""

    def __init__(self, ctx: Context, stage: Stage, result: Stage, target: Buffer, prefix: tuple[Expr, ...]) -> None:
        self.ctx, self.stage, self.result, self.target, self.prefix = ctx, stage, result, target, prefix
        self.itemsize = DTYPE_BYTES[dtype_name(target)]

    def width(self, axis: str, most: int) -> int:
        """Return the number of neighbours along ``axis``, up to ``most``, that always form an aligned vector."""
        return Results.of(self.result).widest(axis, self.stage.extents[axis], most)

    def way(self, fragment: Fragment, axis: str, columns: int) -> MatrixStore:
        """Return how to store the results of a group of threads with ``columns`` along the n axis."""
        return MatrixStore.of(fragment, Results.of(self.result), axis, self.stage.extents[axis], columns)

    def value(self, total: Expr, env: Mapping[str, Expr], held: Mapping[Load, Reader]) -> Expr:
        """Return the stored value of one sum; ``held`` holds the epilogue's loads that are in registers."""
        return finished(self, self.result, total, env, held)

    def put(self, env: Mapping[str, Expr], values: Buffer, width: int) -> Stmt:
        """Store ``width`` finished values from registers."""
        index = place(self.result, self.prefix, env)
        return vector_loop(width, lambda v: store(self.target, load(values, v), *index[:-1], index[-1] + v))

    def vector_loads(self, axis: str, width: int) -> dict[Load, Buffer]:
        """Return registers for the epilogue's loads that are one aligned vector along ``axis``."""
        found: dict[Load, Buffer] = {}
        for n, ld in enumerate(loads(self.result.body) if self.result is not self.stage and width > 1 else ()):
            tensor = self.ctx.expr.tensors[ld.tensor]
            fits = width * tensor.itemsize_bytes <= VECTOR_BYTES and not ld.guard and self.ctx.in_memory(ld.tensor)
            moves = any(axis in i.axes for i in ld.index)
            if fits and moves and vectorizable(ld.index, tensor, axis, self.stage.extents[axis], width):
                found[ld] = buffer(f"held{n}", (width,), tensor.dtype, "local")
        return {ld: b for ld, b in found.items() if ld.tensor != self.stage.name}

    def read(self, ld: Load, into: Buffer, env: Mapping[str, Expr], width: int) -> Stmt:
        """Load one vector of an epilogue's operand."""
        index, source = [emit_index(i, env) for i in ld.index], self.ctx.buffers[ld.tensor]
        return vector_loop(width, lambda v: store(into, load(source, *index[:-1], index[-1] + v), v))


def write(t: Accumulators, result: Stage, target: Buffer, prefix: tuple[Expr, ...]) -> Stmt:
    """Return the statements that store the results of all accumulators of a block."""
    writer = Writer(t.ctx, t.stage, result, target, prefix)
    way = writer.way(t.fragment, t.n_axis, t.register[t.n_axis])
    return _direct(t, writer) if way.direct else _through_scratchpad(t, writer, way.width)


def _direct(t: Accumulators, writer: Writer) -> Stmt:
    rows, columns = t.register[t.m_axis] // t.fragment.m, t.register[t.n_axis] // t.fragment.n
    out = buffer("out", (2,), dtype_name(writer.target), "local")

    def pair(i: Expr, j: Expr, half: Expr) -> Stmt:
        row = i * t.fragment.m + tirx.floordiv(t.lane, 4) + half * 8
        column = j * t.fragment.n + tirx.floormod(t.lane, 4) * 2
        first = (i * columns + j) * 4 + half * 2
        sums: Callable[[Expr], Expr] = lambda v: load(t.unit.sums, first + v)  # noqa: E731
        return finish(t, writer, row, column, 2, out, sums)

    body = loop(
        "i", rows,
        lambda i: loop("j", columns, lambda j: loop("h", 2, lambda h: pair(i, j, h), unroll=True), unroll=True),
        unroll=True,
    )  # fmt: skip
    return with_buffers([out], body)


def _through_scratchpad(t: Accumulators, writer: Writer, width: int) -> Stmt:
    """Write a row of fragments to the group's own slice, read it back by rows, and store the rows."""
    m, n = t.fragment.m, t.register[t.n_axis]
    accumulator = t.fragment.accumulator
    size = DTYPE_BYTES[accumulator]
    pitch = spread_pitch(n)
    unit = t.operands[0].tensor.itemsize_bytes
    start = t.group_index * (spread_bytes(t.fragment, n) // unit)
    totals = buffer("totals", (width,), accumulator, "local")
    out = buffer("out", (width,), dtype_name(writer.target), "local")
    piece = min(VECTOR_BYTES, width * size)
    vectors = m * n // width
    lanes = t.fragment.threads

    def spread_at(row: Expr, column: Expr) -> Expr:
        return address(t.pool, start + (row * pitch + column) * (size // unit))

    def one(i: Expr, r: Expr) -> Stmt:
        number = r * lanes + t.lane
        row, column = unravel(number, [m, n // width])
        column = column * width

        def part(p: Expr) -> Stmt:
            first = p * (piece // size)
            return put(piece, address(totals, first), spread_at(row, column + first))

        take = loop("p", width * size // piece, part, unroll=True)
        stored = finish(t, writer, i * m + row, column, width, out, lambda v: load(totals, v))
        inside = [number < vectors] if vectors % lanes else []
        return when(inside, seq([take, stored]))

    def fragments(i: Expr) -> Stmt:
        rounds = loop("r", -(-vectors // lanes), lambda r: one(i, r), unroll=True)
        return seq([t.unit.spread(i, spread_at, pitch), call("roller_group_sync"), rounds, call("roller_group_sync")])

    rows = t.register[t.m_axis] // m
    return with_buffers([totals, out], seq([barrier(), loop("i", rows, fragments, unroll=True)]))


def finish(
    t: Accumulators, writer: Writer, row: Expr, column: Expr, width: int, out: Buffer, sums: Callable[[Expr], Expr]
) -> Stmt:
    """Compute ``width`` neighbours along n and store them unless they are padding."""
    env = dict(t.base)
    env[t.m_axis] = t.base[t.m_axis] + t.group[t.m_axis] + row
    env[t.n_axis] = t.base[t.n_axis] + t.group[t.n_axis] + column
    held = writer.vector_loads(t.n_axis, width)
    reads = [writer.read(ld, b, env, width) for ld, b in held.items()]

    def element(v: Expr) -> Stmt:
        readers: dict[Load, Reader] = {ld: _reader(b, v) for ld, b in held.items()}
        return store(out, writer.value(sums(v), {**env, t.n_axis: env[t.n_axis] + v}, readers), v)

    compute = loop("e", width, element, unroll=True)
    return when(inside(t, env), with_buffers(list(held.values()), seq([*reads, compute, writer.put(env, out, width)])))


def finished(
    t: Template, result: Stage, total: Expr, env: Mapping[str, Expr], held: Mapping[Load, Reader] | None = None
) -> Expr:
    """Return the stored value of one sum: the sum itself, or the epilogue's value."""
    acc = as_output(total, t.stage)
    if result is t.stage:
        return acc
    prefix = t.ctx.prefix("held")
    names = {ld: f"{prefix}{n}" for n, ld in enumerate(held or {})}
    readers = t.ctx.readers({t.stage.name: lambda *_: promote(acc)})
    readers.update({names[ld]: reader for ld, reader in (held or {}).items()})
    return as_output(emit_scalar(named_loads(result.body, names), env, readers), result)


def inside(t: Accumulators, env: Mapping[str, Expr]) -> list[Expr]:
    """Return the conditions under which a point is not padding."""
    return [env[m.name] < m.extent for m in t.maps if m.padded]


def place(result: Stage, prefix: tuple[Expr, ...], env: Mapping[str, Expr]) -> list[Expr]:
    """Return the index of a result in the output."""
    return [*prefix, *(emit_index(i, env) for i in result.store)]


def _reader(held: Buffer, v: Expr) -> Reader:
    return lambda: promote(load(held, v))
