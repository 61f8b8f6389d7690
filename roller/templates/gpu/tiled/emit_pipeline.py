"""The reduction of a tiled kernel as a pipeline: tiles of later steps are copied during the current step's arithmetic.

Staged tiles have several *slots*. With asynchronous copies, the ring is filled ``stages - 1`` steps ahead, without
registers. Otherwise two slots alternate, and meanwhile a thread holds its share of the next tile in registers. Either
way, one barrier per step separates a slot's last use from its next filling, and the filling from its first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from roller.core.dtypes import DTYPE_BYTES
from roller.errors import BuildError
from roller.te.compat import tirx
from roller.templates.gpu.emit import device_functions as device
from roller.templates.gpu.emit.context import Context
from roller.templates.gpu.emit.nest import (
    Buffer,
    Expr,
    Many,
    Stmt,
    buffer,
    dtype_name,
    is_certain,
    load,
    loop,
    num,
    seq,
    store,
    when,
    with_buffers,
)
from roller.templates.gpu.emit.staging import Chunk, Domain, Rounds, StagedTile, fill_chunk, transfer
from roller.tile.vectors import is_asynchronous


@dataclass(frozen=True)
class Pipeline:
    """A reduction of ``count`` steps whose tiles have ``stages`` slots.

    Parameters
    ----------
    base
        Start of the tile along every axis at a step.
    multiply
        Arithmetic of a step on its slot.
    """

    ctx: Context
    tiles: Sequence[StagedTile]
    domain: Domain
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
            return self._asynchronous()
        if self.stages > 2:
            raise BuildError(
                f"stages: expected at most 2 on a target without asynchronous copies, got {self.stages}. "
                "Construct the program for this device."
            )
        return self._through_registers()

    def _inside(self, step: int | Expr) -> list[Expr]:
        """Return the condition that a step exists."""
        if isinstance(step, int) and isinstance(self.count, Many):  # emit the test: the count varies
            return [tirx.LT(num(step), num(self.count))]
        if isinstance(step, int) and is_certain(self.count):
            return [] if step < self.count else [tirx.const(False, "bool")]
        return [step < self.count]

    def _slot(self, step: Expr) -> Expr:
        return tirx.floormod(step, num(self.stages))

    # ---- asynchronous copies

    def _asynchronous(self) -> Stmt:
        ahead = self.stages - 1

        def fill(step: Expr) -> Stmt:
            # Groups of nonexistent steps count too: the wait of step n is for group n.
            return seq([when(self._inside_loop(step, ahead), self._copy(step, step)), device.copy_commit()])

        def one(step: Expr) -> Stmt:
            later = step + ahead
            return seq(
                [
                    device.copy_wait(ahead - 1),
                    device.barrier(),
                    when(self._inside(later), self._copy(later, self._slot(later))),
                    device.copy_commit(),
                    self.multiply(step, self._slot(step)),
                ]
            )

        return seq([loop("fill", ahead, fill), loop("step", self.count, one)])

    def _inside_loop(self, step: Expr, extent: int) -> list[Expr]:
        """Return the condition that a step of a loop over ``extent`` steps exists."""
        return [] if is_certain(self.count) and extent <= self.count else self._inside(step)

    def _copy(self, step: Expr, slot: Expr) -> Stmt:
        """Return the copies of all tiles of a step into a slot."""
        base = self.base(step)
        return seq([self._copy_tile(t, base, t.slot(slot)) for t in self.tiles])

    def _copy_tile(self, t: StagedTile, base: Mapping[str, Expr], slot: Expr) -> Stmt:
        rounds = Rounds.of(self.ctx, t, self.domain, self.threads)
        nbytes = rounds.width * DTYPE_BYTES[dtype_name(t.target)]
        if not is_asynchronous(nbytes) or not self.ctx.in_memory(t.load.tensor):
            each = lambda c: transfer(self.ctx, t, c, slot)  # noqa: E731  # computed, or too narrow: through registers
            return rounds.statement(self.domain, base, self.thread, each, whole=False)
        source = self.ctx.buffers[t.load.tensor]

        def copy(c: Chunk) -> Stmt:
            target = device.address(t.target, slot + c.offset)
            where = device.address(source, *c.index)
            if t.fill == 0.0 or not c.conditions:
                return device.copy_async(nbytes, target, where, c.conditions)
            inside = device.copy_async(nbytes, target, where, [])
            return when(c.conditions, inside, fill_chunk(t, c, t.target, slot + c.offset))

        return rounds.statement(self.domain, base, self.thread, copy, whole=False)

    # ---- copies through registers

    def _through_registers(self) -> Stmt:
        rounds = [Rounds.of(self.ctx, t, self.domain, self.threads) for t in self.tiles]
        held = [
            buffer(f"next{n}", (r.count * r.width,), dtype_name(r.tile.target), "local") for n, r in enumerate(rounds)
        ]
        both = list(zip(rounds, held, strict=True))

        def fetch(step: Expr) -> Stmt:
            base = self.base(step)
            return seq([self._fetch(r, h, base) for r, h in both])

        def put(step: Expr) -> Stmt:
            base = self.base(step)
            return seq([self._put(r, h, base, r.tile.slot(self._slot(step))) for r, h in both])

        def one(step: Expr) -> Stmt:
            later = step + 1
            return seq(
                [
                    when(self._inside(later), fetch(later)),
                    self.multiply(step, self._slot(step)),
                    when(self._inside(later), put(later)),
                    device.barrier(),
                ]
            )

        first = when(self._inside_loop(num(0), 1), seq([fetch(num(0)), put(num(0))]))
        return with_buffers(held, seq([first, device.barrier(), loop("step", self.count, one)]))

    def _fetch(self, r: Rounds, held: Buffer, base: Mapping[str, Expr]) -> Stmt:
        """Load a thread's share of a step's tile."""

        def each(c: Chunk) -> Stmt:
            return transfer(self.ctx, r.tile, c, num(0), held, c.number * r.width)

        return r.statement(self.domain, base, self.thread, each, whole=True)

    def _put(self, r: Rounds, held: Buffer, base: Mapping[str, Expr], slot: Expr) -> Stmt:
        """Store a thread's share of a tile in a slot."""

        def each(c: Chunk) -> Stmt:
            move = lambda v: store(r.tile.target, load(held, c.number * r.width + v), slot + c.offset + v)  # noqa: E731
            return loop("v", r.width, move, vector=True)

        return r.statement(self.domain, base, self.thread, each, whole=True)
