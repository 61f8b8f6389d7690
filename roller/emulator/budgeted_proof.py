"""Proves a kernel correct within a time budget: all blocks if they fit, otherwise selected blocks.

Running some blocks of the actual kernel proves more than running a whole kernel for smaller shapes, because all
constants are the real ones. The time of a first block determines how many fit. A kernel with several launches runs
whole or not at all, because a launch reads what all blocks of earlier launches wrote.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from roller.artifact import KernelArtifact
from roller.emulator.emulate import EmulatedArtifact, GuardedBuffer, element_bytes
from roller.emulator.outputs_to_write_and_compare import (
    choose_blocks_to_run,
    describe_unwritten,
    sample_output_regions,
    sample_positions,
)
from roller.emulator.proof_result import BLOCKS, NOTHING, WHOLE, PointComparator, Proof
from roller.emulator.time_allowance import Allowance
from roller.errors import EmulationError, EmulationTimeout
from roller.expr import Stage

#: Maximum size of a kernel's arguments in bytes; inputs occupy twice their size.
MOST_BYTES = 1 << 30
#: Number of reference terms (outputs x reduction elements) to evaluate per second of the budget, which takes a fourth
#: of the budget.
_TERMS_PER_S = 2_000_000
#: Share of the budget to plan for all blocks, and for chosen ones; maximum number of chosen blocks.
_WHOLE, _CHOSEN, _MOST_BLOCKS = 0.6, 0.6, 256
#: If the first block takes less than this share of the budget, more blocks run, for a better estimate of a block's
#: time.
_SHORT = 0.02
#: Bytes with which outputs are filled before a run; integers need several, since every pattern is a valid number.
_POISONS = (0xFF, 0x5A, 0x3C)


def prove_within_budget(
    artifact: KernelArtifact,
    arrays: Sequence[np.ndarray],
    budget_s: float,
    compare: PointComparator,
    orders: Sequence[str],
    *,
    seed: int,
    check: bool,
    workers: int | None,
    cache_dir: str | os.PathLike[str] | None,
) -> Proof:
    """Prove as much of a kernel correct as the budget allows; see :func:`roller.emulator.prove`."""
    start = time.monotonic()
    blocks = sum(_count_blocks(x.grid) for x in artifact.launches)
    needed = sum(element_bytes(a) for a in artifact.arguments)
    if needed > MOST_BYTES:
        note = f"its arrays take {needed / 1e9:.2f} GB, an emulated kernel may have {MOST_BYTES / 1e9:.2f} GB"
        return Proof(True, (), NOTHING, blocks=blocks, note=note)
    # A kernel that was proven correct is not proven again, so its library is cached only in a folder that the caller
    # names.
    emulated = EmulatedArtifact(artifact, check=check, cache_dir=cache_dir, keep=cache_dir is not None)
    proof = _BudgetedProof(emulated, arrays, budget_s, compare, orders, seed, workers).prove()
    return replace(proof, seconds=time.monotonic() - start)


@dataclass
class _CompletedRuns:
    """Results of completed runs, the only basis of a proof.

    Parameters
    ----------
    outputs
        Outputs of the first order.
    written
        Flat positions that were written, for each output; ``None`` if every block ran.
    run
        Number of blocks that ran.
    orders
        Completed orders.
    """

    outputs: tuple[np.ndarray, ...]
    written: list[np.ndarray] | None
    run: int
    orders: list[str]

    @property
    def scope(self) -> str:
        """Scope of the proof: every block or some blocks."""
        return WHOLE if self.written is None else BLOCKS


class _BudgetedProof:
    """State of one kernel's proof while it is in progress."""

    def __init__(
        self,
        emulated: EmulatedArtifact,
        arrays: Sequence[np.ndarray],
        budget_s: float,
        compare: PointComparator,
        orders: Sequence[str],
        seed: int,
        workers: int | None,
    ) -> None:
        self.emulated, self.arrays, self.compare, self.orders = emulated, arrays, compare, tuple(orders)
        self.seed, self.workers, self.budget_s = seed, workers, budget_s
        self.random = np.random.default_rng(seed)
        artifact = emulated.artifact
        self.program, self.expression = artifact.program, artifact.expression
        canonical = {s.name: s for s in self.program.expr.stages}
        self.stages: list[Stage] = [canonical[n] for n in self.program.expr.outputs]
        self.names = [a.name for a in artifact.outputs]
        self.buffers: Mapping[str, GuardedBuffer] = emulated.buffers(arrays)
        self.grids = [_count_blocks(x.grid) for x in emulated.launches]
        self.failures: list[tuple[str, str]] = []
        self.note = ""
        self.found: _CompletedRuns | None = None
        self.allowance = Allowance(budget_s)

    def prove(self) -> Proof:
        """Run what fits into the budget and return the proof."""
        self._run()
        found, blocks = self.found, sum(self.grids)
        compared = self._compare_outputs(found) if found and not self.failures else 0
        if found and not compared and not self.failures:
            found, self.note = None, "its blocks wrote nothing that could be compared"
        orders = tuple(found.orders) if found else ()
        scope, ran = (found.scope, found.run) if found else (NOTHING, 0)
        return Proof(not self.failures, tuple(self.failures), scope, orders, ran, blocks, compared, self.note,
                     spent_s=self.allowance.spent_s)  # fmt: skip

    def _run(self) -> None:
        """Run the whole kernel, or blocks of it, in as many orders as the budget allows."""
        seconds = self._time_single_blocks()
        if seconds is None or self.failures:
            return
        alone = self.found
        whole_s = sum(s * n for s, n in zip(seconds, self.grids, strict=True)) * len(self.orders)
        left_s = self.allowance.left_s * self.emulated.workers(self.workers)
        # Several launches cannot run in part; one order is better than none.
        if whole_s <= (_WHOLE if len(self.grids) == 1 else len(self.orders)) * left_s:
            self._run_in_all_orders(None)
        else:
            self.note = f"all {sum(self.grids)} blocks would take about {whole_s:.0f} s of one processor"
            if len(self.grids) > 1:
                return
            most = int(_CHOSEN * left_s / max(seconds[0] * len(self.orders), 1e-6))
            chosen = choose_blocks_to_run(self.program, self.grids[0], max(2, min(most, _MOST_BLOCKS)), self.random)
            self._run_in_all_orders(chosen)
        if alone is not None and self.found is alone and not self.failures:
            self._verify_guards_and_inputs()

    def _time_single_blocks(self) -> list[float] | None:
        """Run a few blocks of each launch; return the times per block (s), or ``None`` if one is too slow or fails."""
        seconds: list[float] = []
        self._refill_buffers(_POISONS[0])
        for n, count in enumerate(self.grids):
            blocks = list(dict.fromkeys((0, count // 3, count - 1)))
            entry, before = self.emulated.launches[n].entry, self.allowance.spent_s
            self.note = f"one block of {entry} takes longer than {self.budget_s:g} s"
            numbers = [0]
            try:
                self._run_blocks([0], n)
                # The first block also pays for new stacks and memory; if it is short, time other blocks.
                if len(blocks) > 1 and self.allowance.spent_s - before < _SHORT * self.budget_s:
                    before, numbers = self.allowance.spent_s, blocks[1:]
                    self.note = f"{len(blocks)} blocks of {entry} take longer than {self.budget_s:g} s"
                    self._run_blocks(numbers, n)
                else:
                    blocks = [0]
            except EmulationTimeout:
                return None
            except EmulationError as err:
                # Later launches read data that the few blocks before did not write; only a whole run can fail there.
                if n == 0:
                    self.failures.append(("forward", str(err)))
                    self.note = ""
                    return None
            seconds.append((self.allowance.spent_s - before) / len(numbers))
        self.note = ""
        if len(self.grids) == 1:
            outputs, written = self._check_written_blocks(blocks, "forward")
            self.found = _CompletedRuns(outputs, written, len(blocks), ["forward"])
        return seconds

    def _run_blocks(self, numbers: list[int], launch: int) -> None:
        self.emulated.run(
            self.buffers, seed=self.seed, workers=1, blocks=numbers, allowance=self.allowance, only=launch
        )

    def _verify_guards_and_inputs(self) -> None:
        """Check guards and inputs; runs of single blocks have not checked them."""
        try:
            for buffer in self.buffers.values():
                buffer.verify(self.emulated.launches[0].entry)
        except EmulationError as err:
            self.failures.append(("forward", str(err)))

    def _refill_buffers(self, poison: int) -> None:
        for buffer in self.buffers.values():
            buffer.fill(poison)

    def _run_in_all_orders(self, chosen: list[int] | None) -> None:
        """Run in every order while time is left; the first completed run replaces earlier results."""
        found: _CompletedRuns | None = None
        for n, order in enumerate(self.orders):
            self._refill_buffers(
                _POISONS[n % len(_POISONS)] if chosen is None and self._has_integer_output else _POISONS[0]
            )
            try:
                self.emulated.run(self.buffers, order=order, seed=self.seed, workers=self.workers, blocks=chosen,
                                  allowance=self.allowance)  # fmt: skip
            except EmulationTimeout:
                self.note = self.note or f"{self.budget_s:g} s are not enough for all orders"
                return
            except EmulationError as err:
                self.failures.append((order, str(err)))
                continue
            if chosen is None:
                self._record_unwritten_elements(order)
                outputs, written = self.emulated.outputs(self.buffers), None
            else:
                outputs, written = self._check_written_blocks(chosen, order)
            if found is None:
                found = self.found = _CompletedRuns(
                    outputs, written, sum(self.grids) if chosen is None else len(chosen), []
                )
            found.orders.append(order)
            if not all(a.tobytes() == b.tobytes() for a, b in zip(found.outputs, outputs, strict=True)):
                hole = ", or an output is never written" if self._has_integer_output else ""
                text = f"the result differs from that in {found.orders[0]} order; a barrier may be missing{hole}"
                self.failures.append((order, text))

    @property
    def _has_integer_output(self) -> bool:
        return any(_is_integer_buffer(self.buffers[n]) for n in self.names)

    def _check_written_blocks(
        self, chosen: Sequence[int], order: str
    ) -> tuple[tuple[np.ndarray, ...], list[np.ndarray]]:
        """Return the outputs and, for each, the written positions; record a failure if blocks left out positions."""
        written: list[np.ndarray] = []
        for name, stage in zip(self.names, self.stages, strict=True):
            found = self.buffers[name].changed(_POISONS[0])
            written.append(found)
            if _is_integer_buffer(self.buffers[name]):  # -1 looks unwritten; the comparison checks it
                continue
            holes = describe_unwritten(self.program, stage, found, len(chosen), self.grids[0])
            if holes:
                self.failures.append((order, holes))
        return self.emulated.outputs(self.buffers), written

    def _record_unwritten_elements(self, order: str) -> None:
        """Record a failure for unwritten elements; in integers, they show as differences between orders instead."""
        for name in self.names:
            buffer = self.buffers[name]
            if _is_integer_buffer(buffer):
                continue
            left = buffer.elements - len(buffer.changed(_POISONS[0]))
            if left:
                text = f"output '{name}': {left} of {buffer.elements} elements are never written"
                self.failures.append((order, text))

    def _compare_outputs(self, found: _CompletedRuns) -> int:
        """Compare as many elements with the reference as the budget allows; return the number of compared elements."""
        terms = sum(int(np.prod([a.extent for a in s.reduction_axes], dtype=np.int64)) for s in self.expression.stages)
        most = max(64, int(_TERMS_PER_S * self.budget_s) // max(1, terms) // len(self.names))
        points, values = [], []
        for n, (t, got) in enumerate(zip(self.expression.output_tensors, found.outputs, strict=True)):
            if found.written is not None:
                flat = sample_positions([found.written[n]], most, self.random)
            elif t.elements <= most:
                flat = np.arange(t.elements, dtype=np.int64)
            else:
                flat = sample_positions(
                    list(sample_output_regions(self.program, self.stages[n], self.random)), most, self.random
                )
            where = np.unravel_index(flat, t.shape)
            points.append(np.stack(where, axis=1) if t.shape else np.zeros((len(flat), 0), np.int64))
            values.append(got.reshape(-1)[flat])
        wrong = self.compare(self.expression, self.arrays, points, values)
        if wrong:
            self.failures.append((found.orders[0], wrong))
        return sum(len(p) for p in points)


def _count_blocks(grid: tuple[int, int, int]) -> int:
    return grid[0] * grid[1] * grid[2]


def _is_integer_buffer(buffer: GuardedBuffer) -> bool:
    """Return whether a buffer holds integers, which can equal the fill pattern of unwritten memory."""
    return "float" not in buffer.argument.dtype
