"""Copies of operand tiles into a ring of the scratchpad: asynchronously, or through registers.

A copy of aligned vectors of 16, 8 or 4 bytes is asynchronous if the device allows it. Otherwise a thread *fetches* its
elements of a tile into registers and *puts* them into the scratchpad later, after the arithmetic of another tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from roller.core.matrix_instruction_fragment import Fragment
from roller.te.compat import tirx
from roller.templates.gpu.emit.device_functions import (
    address_of_element,
    copy_async,
    load_vector_into_registers,
    store_vector_from_registers,
)
from roller.templates.gpu.emit.kernel_tensor_context import KernelContext
from roller.templates.gpu.emit.staged_tiles import CopyChunk, CopyRounds, StagedTile, TileDomain, chunk_element
from roller.templates.gpu.emit.tir_statements import Buffer, Expr, Stmt, declare_buffer, store
from roller.tile.matrix_operands import PHASE_ROWS, Operand, swizzle_of_operand
from roller.tile.vector_access_widths import may_copy_asynchronously

#: Map from an unswizzled offset in a tile to the position of its element.
Moved = Callable[[Expr], Expr]


def swizzle_map(operand: Operand, fragment: Fragment, padding: int) -> Moved:
    """Return the map from offsets to positions in the staged tile; see :class:`roller.tile.matrix_operands.Swizzle`."""
    found = swizzle_of_operand(operand, fragment, padding)
    if found is None:
        return lambda offset: offset

    def moved(offset: Expr) -> Expr:
        key = tirx.floormod(tirx.floordiv(offset, found.period), found.keys)
        return tirx.bitwise_xor(offset, key * found.chunk)

    return moved


class OperandCopyEmitter:
    """Copy of one operand's tile by all threads of a block.

    Parameters
    ----------
    layout
        Storage padding, and the map from an offset to the position of its element.
    pool
        Elements of all tiles, as plain integers of the element size.
    threads
        Index of this thread, and number of threads.
    """

    def __init__(
        self, ctx: KernelContext, operand: Operand, domain: TileDomain, layout: tuple[int, Moved], pool: Buffer,
        threads: tuple[Expr, int],
    ) -> None:  # fmt: skip
        self.ctx, self.operand, self.domain, self.pool, self.thread = ctx, operand, domain, pool, threads[0]
        padding, self.moved = layout
        self.period = PHASE_ROWS * operand.layout.extents[-1]
        dtype = operand.tensor.dtype
        whole = declare_buffer(f"fetched_{operand.tensor.name}", (1,), dtype, "local")
        tile = StagedTile(operand.load, operand.tensor, operand.layout, padding, 0.0, whole, operand.elements(padding))
        self.rounds = CopyRounds.of(ctx, tile, domain, threads[1])
        self.nbytes = self.rounds.width * operand.tensor.itemsize_bytes
        self.asynchronous = ctx.async_copies and bool(may_copy_asynchronously(self.nbytes))
        self.registers = declare_buffer(whole.name, (self.rounds.count * self.rounds.width,), dtype, "local")

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Register arrays that live from a fetch to its put."""
        return () if self.asynchronous else (self.registers,)

    def issue(self, base: Mapping[str, Expr], start: Expr) -> Stmt:
        """Start the asynchronous copy of the tile at ``base`` to pool element ``start``, without committing it."""
        source = self.ctx.buffers.get(self.operand.load.tensor)
        assert source is not None  # only tensors in memory have vectors

        def one(c: CopyChunk) -> Stmt:
            return copy_async(
                self.nbytes,
                address_of_element(self.pool, start + self._place(c)),
                address_of_element(source, *c.index),
                c.conditions,
            )

        return self._emit_all_chunks(base, one)

    def fetch(self, base: Mapping[str, Expr]) -> Stmt:
        """Load this thread's elements of the tile at ``base`` into registers."""
        source = self.ctx.buffers.get(self.operand.load.tensor)

        def one(c: CopyChunk) -> Stmt:
            if c.width == 1:
                return store(self.registers, chunk_element(self.ctx, self.rounds.tile, c), c.number)
            return load_vector_into_registers(
                self.nbytes,
                address_of_element(self.registers, c.number * c.width),
                address_of_element(source, *c.index),
                c.conditions,
            )

        return self._emit_all_chunks(base, one)

    def put(self, base: Mapping[str, Expr], start: Expr) -> Stmt:
        """Store the fetched elements to the tile that begins at element ``start`` of the pool."""

        def one(c: CopyChunk) -> Stmt:
            return store_vector_from_registers(
                self.nbytes,
                address_of_element(self.pool, start + self._place(c)),
                address_of_element(self.registers, c.number * c.width),
            )

        return self._emit_all_chunks(base, one)

    def now(self, base: Mapping[str, Expr], start: Expr) -> list[Stmt]:
        """Return the statements that fetch and store the tile without look-ahead."""
        return [self.fetch(base), self.put(base, start)]

    def _place(self, c: CopyChunk) -> Expr:
        """Return the position of a chunk in the tile."""
        # Rounds that are whole periods of a swizzle apart differ by a constant, so only the rounds of one period need
        # separate addresses. With more addresses, the compiler keeps the address of every round in registers.
        r = self.rounds
        step = r.rows_per_round * r.tile.pitch[0] if r.lead == 1 else 0
        if not step:
            return self.moved(c.offset)
        several = self.period // math.gcd(step, self.period)  # rounds from one whole number of periods to the next
        rounds = (c.number if several == 1 else tirx.floordiv(c.number, several) * several) * step
        return self.moved(c.offset - rounds) + rounds

    def _emit_all_chunks(self, base: Mapping[str, Expr], one: Callable[[CopyChunk], Stmt]) -> Stmt:
        return self.rounds.statement(self.domain, base, self.thread, one, whole=True)
