"""Matrix units: what a group of threads holds of a tile, how it loads fragments and multiplies them.

One class per instruction family. A template clears the accumulators, has the fragments of one k step loaded and
multiplied, and has rows of accumulators spread over a scratchpad tile, where their layout is plain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from roller.codegen.gpu.device_functions import address, call, put
from roller.codegen.gpu.nest import Buffer, Expr, Stmt, buffer, loop, num, seq, store
from roller.errors import BuildError
from roller.expr import DTYPE_BYTES
from roller.fragment import Fragment
from roller.te.compat import tirx
from roller.te.emit import constant
from roller.tile.fragments import PHASE_ROWS, Operand

#: Address of an element of a staged tile, by its position along m (n) and along k within the group's tile.
Place = Callable[[Expr, Expr], Expr]


class MatrixUnit(Protocol):
    """What one family of matrix instructions needs in a kernel.

    ``sums`` are the accumulators and ``buffers`` all register arrays; :meth:`load` fills copy ``parity`` (0 or 1) of
    the fragments, so that those of the next k step can be loaded before this one's are multiplied. ``per_lane`` says
    whether it is known which elements a lane holds.
    """

    sums: Buffer
    buffers: tuple[Buffer, ...]
    per_lane: bool

    def clear(self) -> Stmt:
        """Set the accumulators to zero."""

    def load(self, a: Place, b: Place, parity: int) -> Stmt:
        """Load all fragments of one k step; the places give the scratchpad address of the step's elements."""

    def multiply(self, parity: int) -> Stmt:
        """Multiply the fragments into the accumulators."""

    def spread(self, i: Expr, place: Place, pitch: int) -> Stmt:
        """Store accumulators of the ``i``-th row of fragments at ``place(row, column)``, ``pitch`` apart."""


class Mma:
    """``mma.sync`` and ``ldmatrix``: fragments of 16 x 8 with a layout that is known per lane.

    Element ``e`` of an accumulator lies at row ``lane / 4 + 8 (e / 2)``, column ``2 (lane % 4) + e % 2``.
    """

    per_lane = True

    def __init__(self, fragment: Fragment, a: Operand, b: Operand, m: int, n: int, lane: Expr) -> None:
        self.fragment, self.a, self.b, self.lane = fragment, a, b, lane
        self.rows, self.columns = m // fragment.m, n // fragment.n
        self.sums = buffer("sums", (self.rows * self.columns * 4,), fragment.accumulator, "local")
        self.a_registers = buffer("a_fragments", (2 * self.rows * 4,), "uint32", "local")
        self.b_registers = buffer("b_fragments", (2 * self.columns * 2,), "uint32", "local")
        self.buffers = (self.sums, self.a_registers, self.b_registers)
        self.name = "roller_" + fragment.name.replace(".", "_")

    def clear(self) -> Stmt:
        """Set the accumulators to zero."""
        return _clear(self.sums)

    def load(self, a: Place, b: Place, parity: int) -> Stmt:
        """Load all fragments of one k step; see :class:`MatrixUnit`."""
        row, half = tirx.floormod(self.lane, PHASE_ROWS), PHASE_ROWS
        # A lane addresses one row of matrix lane / 8: bit 0 and bit 1 of that number.
        second = tirx.floormod(tirx.floordiv(self.lane, PHASE_ROWS), 2)
        third = tirx.floordiv(self.lane, 2 * PHASE_ROWS)
        chunk = self.a.chunk

        # Matrices of A: m halves first, then k halves; of B: k halves first, then the next fragment along n.
        def load_a(i: Expr) -> Stmt:
            m, k = (second * half + row, third * chunk)
            if self.a.transposed:
                m, k = second * half, third * chunk + row
            target = address(self.a_registers, (parity * self.rows + i) * 4)
            return call(f"roller_ldmatrix_x4{_trans(self.a)}", target, a(i * self.fragment.m + m, k))

        def load_b(j: Expr, matrices: int) -> Stmt:
            apart = third * half if matrices == 4 else num(0)
            n, k = (apart + row, second * chunk)
            if self.b.transposed:
                n, k = apart, second * chunk + row
            target = address(self.b_registers, (parity * self.columns + j) * 2)
            return call(f"roller_ldmatrix_x{matrices}{_trans(self.b)}", target, b(j * self.fragment.n + n, k))

        pairs = self.columns // 2
        found = [loop("i", self.rows, load_a, unroll=True)]
        if pairs:
            found.append(loop("j", pairs, lambda j: load_b(j * 2, 4), unroll=True))
        if self.columns % 2:
            found.append(load_b(num(self.columns - 1), 2))
        return seq(found)

    def multiply(self, parity: int) -> Stmt:
        """Multiply the fragments into the accumulators."""

        def one(i: Expr, j: Expr) -> Stmt:
            return call(
                self.name,
                address(self.sums, (i * self.columns + j) * 4),
                address(self.a_registers, (parity * self.rows + i) * 4),
                address(self.b_registers, (parity * self.columns + j) * 2),
            )

        return _each(self.rows, self.columns, one)

    def spread(self, i: Expr, place: Place, pitch: int) -> Stmt:
        """Store one row of fragments, two neighbours at once; see :class:`MatrixUnit`."""
        nbytes = 2 * DTYPE_BYTES[self.fragment.accumulator]

        def one(j: Expr, half: Expr) -> Stmt:
            row = tirx.floordiv(self.lane, 4) + half * PHASE_ROWS
            column = j * self.fragment.n + tirx.floormod(self.lane, 4) * 2
            return put(nbytes, place(row, column), address(self.sums, (i * self.columns + j) * 4 + half * 2))

        return _each(self.columns, 2, one)


class Wmma:
    """``wmma``: fragments of 16 x 16 of which a lane holds it is not said which elements."""

    per_lane = False
    #: Registers of 32 bits that hold an operand's fragment, and elements a lane holds of an accumulator.
    _OPERAND = 8
    _SUMS = 8

    def __init__(self, fragment: Fragment, a: Operand, b: Operand, m: int, n: int, pitches: tuple[int, int]) -> None:
        self.fragment, self.pitches = fragment, pitches
        self.rows, self.columns = m // fragment.m, n // fragment.n
        self.sums = buffer("sums", (self.rows * self.columns * self._SUMS,), fragment.accumulator, "local")
        self.a_registers = buffer("a_fragments", (2 * self.rows * self._OPERAND,), "uint32", "local")
        self.b_registers = buffer("b_fragments", (2 * self.columns * self._OPERAND,), "uint32", "local")
        self.buffers = (self.sums, self.a_registers, self.b_registers)
        # A is m x k and B is k x n: rows of the scratchpad tile along k are rows of A, columns of B.
        self.layouts = ("col" if a.transposed else "row", "row" if b.transposed else "col")
        self.kind = {"float32": "f32", "float16": "f16"}[fragment.accumulator]

    def clear(self) -> Stmt:
        """Set the accumulators to zero."""
        return _clear(self.sums)

    def load(self, a: Place, b: Place, parity: int) -> Stmt:
        """Load all fragments of one k step; see :class:`MatrixUnit`."""
        f = self.fragment

        def operand(name: str, registers: Buffer, count: int, extent: int, place: Place, which: int) -> Stmt:
            return loop(
                "i", count,
                lambda i: call(
                    f"roller_wmma_load_{name}_{self.layouts[which]}",
                    address(registers, (parity * count + i) * self._OPERAND), place(i * extent, num(0)),
                    num(self.pitches[which]),
                ),
                unroll=True,
            )  # fmt: skip

        return seq(
            [
                operand("a", self.a_registers, self.rows, f.m, a, 0),
                operand("b", self.b_registers, self.columns, f.n, b, 1),
            ]
        )

    def multiply(self, parity: int) -> Stmt:
        """Multiply the fragments into the accumulators."""
        name = f"roller_wmma_mma_{'_'.join(self.layouts)}_{self.kind}"

        def one(i: Expr, j: Expr) -> Stmt:
            return call(
                name,
                address(self.sums, (i * self.columns + j) * self._SUMS),
                address(self.a_registers, (parity * self.rows + i) * self._OPERAND),
                address(self.b_registers, (parity * self.columns + j) * self._OPERAND),
            )

        return _each(self.rows, self.columns, one)

    def spread(self, i: Expr, place: Place, pitch: int) -> Stmt:
        """Store one row of fragments; see :class:`MatrixUnit`."""

        def one(j: Expr) -> Stmt:
            sums = address(self.sums, (i * self.columns + j) * self._SUMS)
            return call(f"roller_wmma_store_{self.kind}", place(num(0), j * self.fragment.n), sums, num(pitch))

        return loop("j", self.columns, one, unroll=True)


def _clear(sums: Buffer) -> Stmt:
    return loop("r", int(sums.shape[0]), lambda r: store(sums, constant(0, str(sums.dtype)), r), unroll=True)


def _each(rows: int, columns: int, one: Callable[[Expr, Expr], Stmt]) -> Stmt:
    return loop("i", rows, lambda i: loop("j", columns, lambda j: one(i, j), unroll=True), unroll=True)


def _trans(operand: Operand) -> str:
    return "_trans" if operand.transposed else ""


def matrix_unit(
    fragment: Fragment, operands: tuple[Operand, Operand], m: int, n: int, lane: Expr, padding: tuple[int, int]
) -> MatrixUnit:
    """Return the unit of a fragment's family for a group tile of ``m`` by ``n``.

    ``padding`` is the storage padding of A and of B (elements).

    Raises
    ------
    BuildError
        Where there are no device functions for the family.
    """
    if fragment.family == "mma":
        return Mma(fragment, *operands, m, n, lane)
    if fragment.family == "wmma":
        a, b = (o.pitch(p) for o, p in zip(operands, padding, strict=True))
        return Wmma(fragment, *operands, m, n, (a, b))
    raise BuildError(f"{fragment.name}: expected a family of ['mma', 'wmma']. Use another fragment.")
