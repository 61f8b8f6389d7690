"""Matrix units: what a group of threads holds of a tile, how it loads fragments and multiplies them.

One class per instruction family. A template clears the accumulators, has the fragments of one k step loaded and
multiplied, and asks where in the group's tile an accumulator element lies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from roller.codegen.gpu.device_functions import address, call
from roller.codegen.gpu.nest import Buffer, Expr, Stmt, buffer, loop, num, seq, store
from roller.errors import BuildError
from roller.fragment import Fragment
from roller.te.compat import tirx
from roller.te.emit import constant
from roller.tile.fragments import PHASE_ROWS, Operand

#: Address of an element of a staged tile, by its position along m (n) and along k within the group's tile.
Place = Callable[[Expr, Expr], Expr]


class MatrixUnit(Protocol):
    """What one family of matrix instructions needs in a kernel.

    ``sums`` are the accumulators and ``buffers`` all register arrays; :meth:`load` fills copy ``parity`` (0 or 1) of
    the fragments, so that those of the next k step can be loaded before this one's are multiplied.
    """

    sums: Buffer
    buffers: tuple[Buffer, ...]

    def clear(self) -> Stmt:
        """Set the accumulators to zero."""

    def load(self, a: Place, b: Place, parity: int) -> Stmt:
        """Load all fragments of one k step; the places give the scratchpad address of the step's elements."""

    def multiply(self, parity: int) -> Stmt:
        """Multiply the fragments into the accumulators."""


class Mma:
    """``mma.sync`` and ``ldmatrix``: fragments of 16 x 8 with a layout that is known per lane."""

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
        zero = constant(0, self.fragment.accumulator)
        return loop("r", self.rows * self.columns * 4, lambda r: store(self.sums, zero, r), unroll=True)

    def load(self, a: Place, b: Place, parity: int) -> Stmt:
        """Load all fragments of one k step; see :class:`MatrixUnit`."""
        row, half = tirx.floormod(self.lane, PHASE_ROWS), PHASE_ROWS
        second = tirx.floormod(tirx.floordiv(self.lane, PHASE_ROWS), 2)  # of the lane's matrix: bit 0 and bit 1
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
            n, k = (third * half + row, second * chunk)
            if self.b.transposed:
                n, k = third * half, second * chunk + row
            if matrices == 2:  # lanes beyond 16 give no address; theirs must still be one of the tile
                n = row if not self.b.transposed else num(0)
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

        return loop("i", self.rows, lambda i: loop("j", self.columns, lambda j: one(i, j), unroll=True), unroll=True)


def _trans(operand: Operand) -> str:
    return "_trans" if operand.transposed else ""


def matrix_unit(fragment: Fragment, a: Operand, b: Operand, m: int, n: int, lane: Expr) -> MatrixUnit:
    """Return the unit of a fragment's family for a group tile of ``m`` by ``n``.

    Raises
    ------
    BuildError
        Where there are no device functions for the family.
    """
    if fragment.family != "mma":
        raise BuildError(f"{fragment.name}: expected a fragment of the mma family. Remove it from the specification.")
    return Mma(fragment, a, b, m, n, lane)
