"""Results of a matrix kernel: bias, residual and activation on the accumulators, then the stores.

If each lane's elements are known and two neighbours fill a large part of a transaction, lanes store pairs directly from
their accumulators. Otherwise each group of threads writes one row of fragments at a time to a slice of the scratchpad
that the ring no longer needs, and stores whole rows from there in vectors of up to 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from roller.core.matrix_instruction_fragment import Fragment
from roller.expr import Load, Stage, loads
from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import emit_index, emit_scalar
from roller.templates.gpu.common.stored_results import StoredResults
from roller.templates.gpu.emit.axis_map import AxisMap, vector_loop
from roller.templates.gpu.emit.device_functions import (
    address_of_element,
    call_device_function,
    store_vector_from_registers,
)
from roller.templates.gpu.emit.kernel_tensor_context import (
    KernelContext,
    Reader,
    convert_to_output_dtype,
    promote_narrow_float,
    replace_loads_by_names,
)
from roller.templates.gpu.emit.tir_statements import (
    Buffer,
    Expr,
    Stmt,
    allocate_buffers_around,
    block_barrier,
    declare_buffer,
    dtype_name,
    if_all,
    load,
    loop,
    sequence_of,
    store,
    unravel_index,
)
from roller.templates.gpu.matrix.emit_units import MatrixUnit
from roller.templates.gpu.matrix.store_method import MatrixStore
from roller.tile.access import VECTOR_BYTES
from roller.tile.matrix_operands import Operand, accumulator_row_bytes, accumulator_row_pitch
from roller.tile.vector_access_widths import is_vectorizable
from roller_runtime.core.dtypes import DTYPE_BYTES


class SumKernel(Protocol):
    """Attributes of a kernel that are needed to finish a sum."""

    ctx: KernelContext
    stage: Stage


class Accumulators(SumKernel, Protocol):
    """Attributes of a kernel that are needed to store all sums of a block: their owners and positions."""

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


class ResultWriter:
    """Stores of one kernel: ``result`` (the stage or its epilogue) to ``target`` at leading indices ``prefix``."""

    def __init__(
        self, ctx: KernelContext, stage: Stage, result: Stage, target: Buffer, prefix: tuple[Expr, ...]
    ) -> None:
        self.ctx, self.stage, self.result, self.target, self.prefix = ctx, stage, result, target, prefix
        self.itemsize = DTYPE_BYTES[dtype_name(target)]

    def width(self, axis: str, most: int) -> int:
        """Return the largest number of neighbours along ``axis``, up to ``most``, that form an aligned vector."""
        return StoredResults.of(self.result).widest_aligned_vector_elements(axis, self.stage.extents[axis], most)

    def choose_store_method(self, fragment: Fragment, axis: str, columns: int) -> MatrixStore:
        """Return how to store the results of a group of threads with ``columns`` along the n axis."""
        return MatrixStore.of(fragment, StoredResults.of(self.result), axis, self.stage.extents[axis], columns)

    def value(self, total: Expr, env: Mapping[str, Expr], held: Mapping[Load, Reader]) -> Expr:
        """Return the stored value of one sum; ``held`` holds the epilogue's loads that are in registers."""
        return finished_value(self, self.result, total, env, held)

    def put(self, env: Mapping[str, Expr], values: Buffer, width: int) -> Stmt:
        """Store ``width`` finished values from registers."""
        index = result_index(self.result, self.prefix, env)
        return vector_loop(width, lambda v: store(self.target, load(values, v), *index[:-1], index[-1] + v))

    def epilogue_vector_registers(self, axis: str, width: int) -> dict[Load, Buffer]:
        """Return registers for the epilogue's loads that are one aligned vector along ``axis``."""
        found: dict[Load, Buffer] = {}
        for n, ld in enumerate(loads(self.result.body) if self.result is not self.stage and width > 1 else ()):
            tensor = self.ctx.expr.tensors[ld.tensor]
            fits = (
                width * tensor.itemsize_bytes <= VECTOR_BYTES
                and not ld.guard
                and self.ctx.is_in_global_memory(ld.tensor)
            )
            moves = any(axis in i.axes for i in ld.index)
            if fits and moves and is_vectorizable(ld.index, tensor, axis, self.stage.extents[axis], width):
                found[ld] = declare_buffer(f"held{n}", (width,), tensor.dtype, "local")
        return {ld: b for ld, b in found.items() if ld.tensor != self.stage.name}

    def read(self, ld: Load, into: Buffer, env: Mapping[str, Expr], width: int) -> Stmt:
        """Load one vector of an epilogue's operand."""
        index, source = [emit_index(i, env) for i in ld.index], self.ctx.buffers[ld.tensor]
        return vector_loop(width, lambda v: store(into, load(source, *index[:-1], index[-1] + v), v))


def store_all_results(t: Accumulators, result: Stage, target: Buffer, prefix: tuple[Expr, ...]) -> Stmt:
    """Return the statements that store the results of all accumulators of a block."""
    writer = ResultWriter(t.ctx, t.stage, result, target, prefix)
    way = writer.choose_store_method(t.fragment, t.n_axis, t.register[t.n_axis])
    return _store_from_accumulators(t, writer) if way.direct else _store_through_scratchpad(t, writer, way.width)


def _store_from_accumulators(t: Accumulators, writer: ResultWriter) -> Stmt:
    rows, columns = t.register[t.m_axis] // t.fragment.m, t.register[t.n_axis] // t.fragment.n
    out = declare_buffer("out", (2,), dtype_name(writer.target), "local")

    def pair(i: Expr, j: Expr, half: Expr) -> Stmt:
        row = i * t.fragment.m + tirx.floordiv(t.lane, 4) + half * 8
        column = j * t.fragment.n + tirx.floormod(t.lane, 4) * 2
        first = (i * columns + j) * 4 + half * 2
        sums: Callable[[Expr], Expr] = lambda v: load(t.unit.sums, first + v)  # noqa: E731
        return finish_and_store(t, writer, row, column, 2, out, sums)

    body = loop(
        "i", rows,
        lambda i: loop("j", columns, lambda j: loop("h", 2, lambda h: pair(i, j, h), unroll=True), unroll=True),
        unroll=True,
    )  # fmt: skip
    return allocate_buffers_around([out], body)


def _store_through_scratchpad(t: Accumulators, writer: ResultWriter, width: int) -> Stmt:
    """Write a row of fragments to the group's own slice, read it back by rows, and store the rows."""
    m, n = t.fragment.m, t.register[t.n_axis]
    accumulator = t.fragment.accumulator
    size = DTYPE_BYTES[accumulator]
    pitch = accumulator_row_pitch(n)
    unit = t.operands[0].tensor.itemsize_bytes
    start = t.group_index * (accumulator_row_bytes(t.fragment, n) // unit)
    totals = declare_buffer("totals", (width,), accumulator, "local")
    out = declare_buffer("out", (width,), dtype_name(writer.target), "local")
    piece = min(VECTOR_BYTES, width * size)
    vectors = m * n // width
    lanes = t.fragment.threads

    def spread_at(row: Expr, column: Expr) -> Expr:
        return address_of_element(t.pool, start + (row * pitch + column) * (size // unit))

    def one(i: Expr, r: Expr) -> Stmt:
        number = r * lanes + t.lane
        row, column = unravel_index(number, [m, n // width])
        column = column * width

        def part(p: Expr) -> Stmt:
            first = p * (piece // size)
            return store_vector_from_registers(piece, address_of_element(totals, first), spread_at(row, column + first))

        take = loop("p", width * size // piece, part, unroll=True)
        stored = finish_and_store(t, writer, i * m + row, column, width, out, lambda v: load(totals, v))
        conditions_inside = [number < vectors] if vectors % lanes else []
        return if_all(conditions_inside, sequence_of([take, stored]))

    def fragments(i: Expr) -> Stmt:
        rounds = loop("r", -(-vectors // lanes), lambda r: one(i, r), unroll=True)
        return sequence_of(
            [
                t.unit.spread(i, spread_at, pitch),
                call_device_function("roller_group_sync"),
                rounds,
                call_device_function("roller_group_sync"),
            ]
        )

    rows = t.register[t.m_axis] // m
    return allocate_buffers_around(
        [totals, out], sequence_of([block_barrier(), loop("i", rows, fragments, unroll=True)])
    )


def finish_and_store(
    t: Accumulators,
    writer: ResultWriter,
    row: Expr,
    column: Expr,
    width: int,
    out: Buffer,
    sums: Callable[[Expr], Expr],
) -> Stmt:
    """Compute ``width`` neighbours along n and store them unless they are padding."""
    env = dict(t.base)
    env[t.m_axis] = t.base[t.m_axis] + t.group[t.m_axis] + row
    env[t.n_axis] = t.base[t.n_axis] + t.group[t.n_axis] + column
    held = writer.epilogue_vector_registers(t.n_axis, width)
    reads = [writer.read(ld, b, env, width) for ld, b in held.items()]

    def element(v: Expr) -> Stmt:
        readers: dict[Load, Reader] = {ld: _element_reader(b, v) for ld, b in held.items()}
        return store(out, writer.value(sums(v), {**env, t.n_axis: env[t.n_axis] + v}, readers), v)

    compute = loop("e", width, element, unroll=True)
    return if_all(
        conditions_inside(t, env),
        allocate_buffers_around(list(held.values()), sequence_of([*reads, compute, writer.put(env, out, width)])),
    )


def finished_value(
    t: SumKernel, result: Stage, total: Expr, env: Mapping[str, Expr], held: Mapping[Load, Reader] | None = None
) -> Expr:
    """Return the stored value of one sum: the sum itself, or the epilogue's value."""
    acc = convert_to_output_dtype(total, t.stage)
    if result is t.stage:
        return acc
    prefix = t.ctx.prefix("held")
    names = {ld: f"{prefix}{n}" for n, ld in enumerate(held or {})}
    readers = t.ctx.readers({t.stage.name: lambda *_: promote_narrow_float(acc)})
    readers.update({names[ld]: reader for ld, reader in (held or {}).items()})
    return convert_to_output_dtype(emit_scalar(replace_loads_by_names(result.body, names), env, readers), result)


def conditions_inside(t: Accumulators, env: Mapping[str, Expr]) -> list[Expr]:
    """Return the conditions under which a point is not padding."""
    return [env[m.name] < m.extent for m in t.maps if m.padded]


def result_index(result: Stage, prefix: tuple[Expr, ...], env: Mapping[str, Expr]) -> list[Expr]:
    """Return the index of a result in the output."""
    return [*prefix, *(emit_index(i, env) for i in result.store)]


def _element_reader(held: Buffer, v: Expr) -> Reader:
    return lambda: promote_narrow_float(load(held, v))
