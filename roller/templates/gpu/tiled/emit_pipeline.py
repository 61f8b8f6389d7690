"""The reduction of a tiled kernel as a pipeline: tiles of later steps are copied during the current step's arithmetic.

Staged tiles have several *slots*. With asynchronous copies, the ring is filled ``stages - 1`` steps ahead, without
registers. Otherwise two slots alternate, and meanwhile a thread holds its share of the next tile in registers. Either
way, one barrier per step separates a slot's last use from its next filling, and the filling from its first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from roller.errors import BuildError
from roller.te.compat import tirx
from roller.templates.gpu.emit import device_functions as device
from roller.templates.gpu.emit.kernel_tensor_context import KernelContext
from roller.templates.gpu.emit.staged_tiles import (
    CopyChunk,
    CopyRounds,
    StagedTile,
    TileDomain,
    emit_chunk_copy,
    emit_chunk_fill,
)
from roller.templates.gpu.emit.tir_statements import (
    Buffer,
    Expr,
    Stmt,
    VaryingCount,
    allocate_buffers_around,
    block_barrier,
    declare_buffer,
    dtype_name,
    if_all,
    int32_literal,
    is_fixed_count,
    load,
    loop,
    sequence_of,
    store,
)
from roller.tile.vector_access_widths import may_copy_asynchronously
from roller_runtime.core.dtypes import DTYPE_BYTES


@dataclass(frozen=True)
class ReductionPipeline:
    """A reduction of ``count`` steps whose tiles have ``stages`` slots.

    Parameters
    ----------
    base
        Returns the start of a step's tile along each axis.
    multiply
        Returns the arithmetic of a step on its slot.
    """

    ctx: KernelContext
    tiles: Sequence[StagedTile]
    domain: TileDomain
    thread: Expr
    threads: int
    stages: int
    count: int | Expr
    base: Callable[[Expr], Mapping[str, Expr]]
    multiply: Callable[[Expr, Expr], Stmt]

    def statement(self) -> Stmt:
        """Return the whole reduction."""
        self.ctx.own_barriers = True  # TVM would put its own barriers around every access to a slot
        if self.ctx.async_copies:
            return self._pipeline_with_async_copies()
        if self.stages > 2:
            raise BuildError(
                f"stages: expected at most 2 on a target without asynchronous copies, got {self.stages}. "
                "Construct the program for this device."
            )
        return self._through_registers()

    def _inside(self, step: int | Expr) -> list[Expr]:
        """Return the condition that a step exists."""
        if isinstance(step, int) and isinstance(self.count, VaryingCount):  # emit the test: the count varies
            return [tirx.LT(int32_literal(step), int32_literal(self.count))]
        if isinstance(step, int) and is_fixed_count(self.count):
            return [] if step < self.count else [tirx.const(False, "bool")]
        return [step < self.count]

    def _slot(self, step: Expr) -> Expr:
        return tirx.floormod(step, int32_literal(self.stages))

    # ---- asynchronous copies

    def _pipeline_with_async_copies(self) -> Stmt:
        ahead = self.stages - 1

        def fill(step: Expr) -> Stmt:
            # Steps that do not exist commit empty groups, because step n waits for group n.
            return sequence_of(
                [
                    if_all(self._loop_step_exists(step, ahead), self._copy_tiles(step, step)),
                    device.commit_async_copies(),
                ]
            )

        def one(step: Expr) -> Stmt:
            later = step + ahead
            return sequence_of(
                [
                    device.wait_for_async_copies(ahead - 1),
                    block_barrier(),
                    if_all(self._inside(later), self._copy_tiles(later, self._slot(later))),
                    device.commit_async_copies(),
                    self.multiply(step, self._slot(step)),
                ]
            )

        return sequence_of([loop("fill", ahead, fill), loop("step", self.count, one)])

    def _loop_step_exists(self, step: Expr, extent: int) -> list[Expr]:
        """Return the condition that a step of a loop over ``extent`` steps exists."""
        return [] if is_fixed_count(self.count) and extent <= self.count else self._inside(step)

    def _copy_tiles(self, step: Expr, slot: Expr) -> Stmt:
        """Return the statements that copy all tiles of a step into a slot."""
        base = self.base(step)
        return sequence_of([self._copy_tile(t, base, t.slot_start(slot)) for t in self.tiles])

    def _copy_tile(self, t: StagedTile, base: Mapping[str, Expr], slot: Expr) -> Stmt:
        rounds = CopyRounds.of(self.ctx, t, self.domain, self.threads)
        nbytes = rounds.width * DTYPE_BYTES[dtype_name(t.target)]
        if not may_copy_asynchronously(nbytes) or not self.ctx.is_in_global_memory(t.load.tensor):
            each = lambda c: emit_chunk_copy(self.ctx, t, c, slot)  # noqa: E731  # computed or too narrow: through registers
            return rounds.statement(self.domain, base, self.thread, each, whole=False)
        source = self.ctx.buffers[t.load.tensor]

        def copy(c: CopyChunk) -> Stmt:
            target = device.address_of_element(t.target, slot + c.offset)
            where = device.address_of_element(source, *c.index)
            if t.fill == 0.0 or not c.conditions:
                return device.copy_async(nbytes, target, where, c.conditions)
            inside = device.copy_async(nbytes, target, where, [])
            return if_all(c.conditions, inside, emit_chunk_fill(t, c, t.target, slot + c.offset))

        return rounds.statement(self.domain, base, self.thread, copy, whole=False)

    # ---- copies through registers

    def _through_registers(self) -> Stmt:
        rounds = [CopyRounds.of(self.ctx, t, self.domain, self.threads) for t in self.tiles]
        held = [
            declare_buffer(f"next{n}", (r.count * r.width,), dtype_name(r.tile.target), "local")
            for n, r in enumerate(rounds)
        ]
        both = list(zip(rounds, held, strict=True))

        def fetch(step: Expr) -> Stmt:
            base = self.base(step)
            return sequence_of([self._fetch(r, h, base) for r, h in both])

        def put(step: Expr) -> Stmt:
            base = self.base(step)
            return sequence_of([self._put(r, h, base, r.tile.slot_start(self._slot(step))) for r, h in both])

        def one(step: Expr) -> Stmt:
            later = step + 1
            return sequence_of(
                [
                    if_all(self._inside(later), fetch(later)),
                    self.multiply(step, self._slot(step)),
                    if_all(self._inside(later), put(later)),
                    block_barrier(),
                ]
            )

        first = if_all(
            self._loop_step_exists(int32_literal(0), 1), sequence_of([fetch(int32_literal(0)), put(int32_literal(0))])
        )
        return allocate_buffers_around(held, sequence_of([first, block_barrier(), loop("step", self.count, one)]))

    def _fetch(self, r: CopyRounds, held: Buffer, base: Mapping[str, Expr]) -> Stmt:
        """Load a thread's share of a step's tile."""

        def each(c: CopyChunk) -> Stmt:
            return emit_chunk_copy(self.ctx, r.tile, c, int32_literal(0), held, c.number * r.width)

        return r.statement(self.domain, base, self.thread, each, whole=True)

    def _put(self, r: CopyRounds, held: Buffer, base: Mapping[str, Expr], slot: Expr) -> Stmt:
        """Store a thread's share of a tile in a slot."""

        def each(c: CopyChunk) -> Stmt:
            move = lambda v: store(r.tile.target, load(held, c.number * r.width + v), slot + c.offset + v)  # noqa: E731
            return loop("v", r.width, move, vector=True)

        return r.statement(self.domain, base, self.thread, each, whole=True)
