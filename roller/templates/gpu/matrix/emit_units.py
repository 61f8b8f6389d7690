"""Matrix units: a thread group's share of a tile, its fragment loads and their products.

There is one class per instruction family. It clears the accumulators, loads and multiplies the fragments of one k step,
and writes rows of accumulators to a scratchpad tile with a plain layout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from roller.core.matrix_instruction_fragment import Fragment
from roller.errors import BuildError
from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import constant
from roller.templates.gpu.emit.device_functions import (
    address_of_element,
    call_device_function,
    store_vector_from_registers,
)
from roller.templates.gpu.emit.tir_statements import (
    Buffer,
    Expr,
    Stmt,
    declare_buffer,
    int32_literal,
    load,
    loop,
    sequence_of,
    store,
)
from roller.tile.matrix_operands import PHASE_ROWS, Operand
from roller_runtime.core.dtypes import DTYPE_BYTES


@dataclass(frozen=True)
class OperandPlace:
    """A group's part of one operand's staged tile.

    Parameters
    ----------
    address
        Returns the address of an element, given the offset along the tile's rows that all lanes share, and the lane's
        own distances from that offset along m (n) and along k.
    across_bytes
        Distance in bytes between rows.
    swizzled
        Whether chunks are permuted within rows, so that neighbours along a row are not a constant distance apart.
    """

    operand: Operand
    address: Callable[[int, Expr, Expr], Expr]
    across_bytes: int
    swizzled: bool

    def split(self, position: int, k: int) -> tuple[int, int]:
        """Return the offset along the row that an address must include, and the constant byte distance from there."""
        # ``position`` is along m (n), a multiple of eight; ``k`` along k.
        along, across = (position, k) if self.operand.transposed else (k, position)
        if self.swizzled:
            return along, across * self.across_bytes
        return 0, across * self.across_bytes + along * self.operand.tensor.itemsize_bytes


#: Returns the scratchpad address to which an accumulator is written, by row and column.
Spread = Callable[[Expr, Expr], Expr]


class MatrixUnit(Protocol):
    """One family of matrix instructions in a kernel.

    There are two copies of the fragments: the fragments of the next k step are loaded before the current ones are
    multiplied.
    """

    sums: Buffer
    buffers: tuple[Buffer, ...]

    def clear(self) -> Stmt:
        """Set the accumulators to zero."""

    def load(self, a: OperandPlace, b: OperandPlace, k: int) -> Stmt:
        """Load all fragments of the ``k``-th k step of a tile; steps are loaded in order."""

    def multiply(self, k: int) -> Stmt:
        """Multiply the fragments of the ``k``-th step into the accumulators."""

    def spread(self, i: Expr, place: Spread, pitch: int) -> Stmt:
        """Store the ``i``-th row of fragments at ``place(row, column)``, with rows ``pitch`` apart."""


class Mma:
    """``mma.sync`` and ``ldmatrix``: fragments of 16 x 8 with a known layout per lane.

    Element ``e`` of an accumulator lies at row ``lane / 4 + 8 (e / 2)``, column ``2 (lane % 4) + e % 2``.
    """

    def __init__(self, fragment: Fragment, a: Operand, b: Operand, m: int, n: int, lane: Expr) -> None:
        self.fragment, self.a, self.b, self.lane = fragment, a, b, lane
        self.rows, self.columns = m // fragment.m, n // fragment.n
        self.sums = declare_buffer("sums", (self.rows * self.columns * 4,), fragment.accumulator, "local")
        self.a_registers = declare_buffer("a_fragments", (2 * self.rows * 4,), "uint32", "local")
        self.b_registers = declare_buffer("b_fragments", (2 * self.columns * 2,), "uint32", "local")
        self.a_bases = declare_buffer("a_bases", (self.rows,), "uint32", "local")
        self.b_bases = declare_buffer("b_bases", (-(-self.columns // 2),), "uint32", "local")
        self.buffers = (self.sums, self.a_registers, self.b_registers, self.a_bases, self.b_bases)
        self.name = "roller_" + fragment.name.replace(".", "_")

    def clear(self) -> Stmt:
        """Set the accumulators to zero."""
        return _clear_accumulators(self.sums)

    def load(self, a: OperandPlace, b: OperandPlace, k: int) -> Stmt:
        """Load all fragments of one k step; see :class:`MatrixUnit`."""
        # A lane addresses one row of matrix ``lane / 8``; ``second`` and ``third`` are bits 0 and 1 of this index.
        second = tirx.floormod(tirx.floordiv(self.lane, PHASE_ROWS), 2)
        third = tirx.floordiv(self.lane, 2 * PHASE_ROWS)
        # Matrices of A: m halves first, then k halves; of B: k halves first, then the next fragment along n.
        pairs = -(-self.columns // 2)
        parity, f = k % 2, self.fragment
        a_reads = [(f.m * i, 4, (parity * self.rows + i) * 4) for i in range(self.rows)]
        b_reads = [
            (f.n * 2 * j, 2 * min(2, self.columns - 2 * j), (parity * self.columns + 2 * j) * 2) for j in range(pairs)
        ]
        return sequence_of(
            [
                *self._load(a, k, (second, third), a_reads, (self.a_bases, self.a_registers)),
                *self._load(b, k, (third, second), b_reads, (self.b_bases, self.b_registers)),
            ]
        )

    def _load(
        self, place: OperandPlace, k: int, halves: tuple[Expr, Expr], reads: list[tuple[int, int, int]],
        buffers: tuple[Buffer, Buffer],
    ) -> list[Stmt]:  # fmt: skip
        """Load one operand: ``reads`` holds positions along m (n), matrices, and the first register."""
        # Base addresses are computed once per tile, or once per k step if swizzled rows run along k.
        spatial, inner = halves[0] * PHASE_ROWS, halves[1] * place.operand.chunk
        row = tirx.floormod(self.lane, PHASE_ROWS)
        if place.operand.transposed:
            inner = inner + row
        else:
            spatial = spatial + row
        bases, registers = buffers
        suffix = "_trans" if place.operand.transposed else ""
        found: list[Stmt] = []
        known: list[int] = []
        for position, matrices, register in reads:
            along, nbytes = place.split(position, k * self.fragment.k)
            if along not in known:
                known.append(along)
                if k == 0 or (place.swizzled and not place.operand.transposed):
                    found.append(_keep_address_in_register(bases, len(known) - 1, place.address(along, spatial, inner)))
            base = _address_from_register(bases, known.index(along), nbytes)
            found.append(
                call_device_function(
                    f"roller_ldmatrix_x{matrices}{suffix}", address_of_element(registers, int32_literal(register)), base
                )
            )
        return found

    def multiply(self, k: int) -> Stmt:
        """Multiply the fragments of one k step into the accumulators."""
        parity = k % 2

        def one(i: Expr, j: Expr) -> Stmt:
            return call_device_function(
                self.name,
                address_of_element(self.sums, (i * self.columns + j) * 4),
                address_of_element(self.a_registers, (parity * self.rows + i) * 4),
                address_of_element(self.b_registers, (parity * self.columns + j) * 2),
            )

        return _loops_over_fragments(self.rows, self.columns, one)

    def spread(self, i: Expr, place: Spread, pitch: int) -> Stmt:
        """Store one row of fragments, two neighbours at once; see :class:`MatrixUnit`."""
        nbytes = 2 * DTYPE_BYTES[self.fragment.accumulator]

        def one(j: Expr, half: Expr) -> Stmt:
            row = tirx.floordiv(self.lane, 4) + half * PHASE_ROWS
            column = j * self.fragment.n + tirx.floormod(self.lane, 4) * 2
            return store_vector_from_registers(
                nbytes, place(row, column), address_of_element(self.sums, (i * self.columns + j) * 4 + half * 2)
            )

        return _loops_over_fragments(self.columns, 2, one)


class Wmma:
    """``wmma``: 16 x 16 fragments whose distribution over lanes is unspecified."""

    #: Number of 32-bit registers that hold an operand's fragment, and of accumulator elements per lane.
    _OPERAND = 8
    _SUMS = 8

    def __init__(self, fragment: Fragment, a: Operand, b: Operand, m: int, n: int, pitches: tuple[int, int]) -> None:
        self.fragment, self.pitches = fragment, pitches
        self.rows, self.columns = m // fragment.m, n // fragment.n
        self.sums = declare_buffer("sums", (self.rows * self.columns * self._SUMS,), fragment.accumulator, "local")
        self.a_registers = declare_buffer("a_fragments", (2 * self.rows * self._OPERAND,), "uint32", "local")
        self.b_registers = declare_buffer("b_fragments", (2 * self.columns * self._OPERAND,), "uint32", "local")
        self.bases = declare_buffer("bases", (2,), "uint32", "local")
        self.buffers = (self.sums, self.a_registers, self.b_registers, self.bases)
        # A is m x k and B is k x n: rows of the scratchpad tile along k are rows of A, columns of B.
        self.layouts = ("col" if a.transposed else "row", "row" if b.transposed else "col")
        self.kind = {"float32": "f32", "float16": "f16"}[fragment.accumulator]

    def clear(self) -> Stmt:
        """Set the accumulators to zero."""
        return _clear_accumulators(self.sums)

    def load(self, a: OperandPlace, b: OperandPlace, k: int) -> Stmt:
        """Load all fragments of one k step; see :class:`MatrixUnit`."""
        f = self.fragment
        a_name, b_name = (f"roller_wmma_load_{o}_{x}" for o, x in zip("ab", self.layouts, strict=True))
        return sequence_of(
            [
                *self._load(a, k, 0, a_name, (self.a_registers, self.rows, f.m)),
                *self._load(b, k, 1, b_name, (self.b_registers, self.columns, f.n)),
            ]
        )

    def _load(
        self, place: OperandPlace, k: int, which: int, name: str, fragments: tuple[Buffer, int, int]
    ) -> list[Stmt]:
        """Load one operand's fragments; ``fragments`` holds registers, count and distance along m (n)."""
        registers, count, extent = fragments
        found = (
            [_keep_address_in_register(self.bases, which, place.address(0, int32_literal(0), int32_literal(0)))]
            if k == 0
            else []
        )
        for i in range(count):
            _, nbytes = place.split(i * extent, k * self.fragment.k)
            target = address_of_element(registers, int32_literal((k % 2 * count + i) * self._OPERAND))
            found.append(
                call_device_function(
                    name, target, _address_from_register(self.bases, which, nbytes), int32_literal(self.pitches[which])
                )
            )
        return found

    def multiply(self, k: int) -> Stmt:
        """Multiply the fragments of one k step into the accumulators."""
        parity = k % 2
        name = f"roller_wmma_mma_{'_'.join(self.layouts)}_{self.kind}"

        def one(i: Expr, j: Expr) -> Stmt:
            return call_device_function(
                name,
                address_of_element(self.sums, (i * self.columns + j) * self._SUMS),
                address_of_element(self.a_registers, (parity * self.rows + i) * self._OPERAND),
                address_of_element(self.b_registers, (parity * self.columns + j) * self._OPERAND),
            )

        return _loops_over_fragments(self.rows, self.columns, one)

    def spread(self, i: Expr, place: Spread, pitch: int) -> Stmt:
        """Store one row of fragments; see :class:`MatrixUnit`."""

        def one(j: Expr) -> Stmt:
            sums = address_of_element(self.sums, (i * self.columns + j) * self._SUMS)
            return call_device_function(
                f"roller_wmma_store_{self.kind}",
                place(int32_literal(0), j * self.fragment.n),
                sums,
                int32_literal(pitch),
            )

        return loop("j", self.columns, one, unroll=True)


def _clear_accumulators(sums: Buffer) -> Stmt:
    return loop("r", int(sums.shape[0]), lambda r: store(sums, constant(0, str(sums.dtype)), r), unroll=True)


def _loops_over_fragments(rows: int, columns: int, one: Callable[[Expr, Expr], Stmt]) -> Stmt:
    return loop("i", rows, lambda i: loop("j", columns, lambda j: one(i, j), unroll=True), unroll=True)


def _keep_address_in_register(bases: Buffer, n: int, place: Expr) -> Stmt:
    """Keep a scratchpad address in a register; other addresses are at constant distances from it."""
    return store(bases, tirx.call_extern("uint32", "roller_held", place), int32_literal(n))


def _address_from_register(bases: Buffer, n: int, nbytes: int) -> Expr:
    return load(bases, int32_literal(n)) + tirx.const(nbytes, "uint32")


def make_matrix_unit(
    fragment: Fragment, operands: tuple[Operand, Operand], m: int, n: int, lane: Expr, padding: tuple[int, int]
) -> MatrixUnit:
    """Return the unit of a fragment's family for a group tile of ``m`` by ``n``."""
    if fragment.family == "mma":
        return Mma(fragment, *operands, m, n, lane)
    if fragment.family == "wmma":
        a, b = (o.pitch(p) for o, p in zip(operands, padding, strict=True))
        return Wmma(fragment, *operands, m, n, (a, b))
    raise BuildError(f"{fragment.name}: expected a family of ['mma', 'wmma']. Use another fragment.")
