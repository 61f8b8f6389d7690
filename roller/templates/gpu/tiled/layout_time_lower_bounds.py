"""A lower bound over all layouts of tiled programs, tight enough to determine which programs are worth laying out.

A layout chooses storage padding and vectors. Padding reduces the blocks per unit and may narrow copies, but the
resulting waves may still fit better, so the bound is the minimum over all numbers of blocks that padding may leave.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.l2_and_dram_traffic import counted_l2_bytes
from roller.templates.gpu.common.load_instruction_counts import count_unstaged_load_instructions
from roller.templates.gpu.common.occupancy import (
    BASE_REGISTERS,
    blocks_per_unit_with_registers,
    operand_registers,
    registers_for_prefetched_tile,
    registers_needed_per_thread,
    scratchpad_bytes,
)
from roller.templates.gpu.common.price import least_s_with_resident_blocks
from roller.templates.gpu.common.staged_copy_counts import (
    StagedCopy,
    elements_per_staged_copy,
    staged_tile_axes,
    tile_extents,
)
from roller.templates.gpu.common.staging_instruction_counts import count_staging_copy_instructions
from roller.templates.gpu.tiled.price import PHASES
from roller.tile.access import VECTOR_BYTES
from roller.tile.geometry import Floats, Ints
from roller.tile.staged_tile_layout import PADDING_STEPS


class LayoutBounds:
    """Lower bounds on the times of tiled programs over all layouts."""

    def __init__(self, batch: TileBatch, spec: DeviceSpec) -> None:
        self._batch, self._spec = batch, spec
        self._fewest, self._most = _range_of_resident_blocks(batch, spec)
        self._copies = _least_copy_instruction_counts(batch, spec)

    def bounds_without_padding_s(self) -> Floats:
        """Return bounds for layouts with the most blocks per unit, shape ``(N,)``; infinite if no block fits."""
        resident = np.maximum(self._most, 1)
        # The result covers the whole batch, whose memo its parts share.
        every = least_s_with_resident_blocks(self._batch, self._spec, resident, self._copies, PHASES)
        return np.where(self._most > 0, every, np.inf)

    def least_s(self, likely: Floats, limit_s: float) -> Floats:
        """Return bounds over all layouts, shape ``(N,)``; they are exact only up to ``limit_s``."""
        found = np.full(len(self._batch), np.inf)
        rows = np.flatnonzero((likely > limit_s) & (self._fewest < self._most))
        fewer = rows[self._of(rows, self._most, most=True)[rows] <= limit_s]
        rows = np.sort(np.concatenate([np.flatnonzero(likely <= limit_s), fewer]))
        if not len(rows):
            return found
        counted = counted_l2_bytes(self._batch.take(rows), self._spec)
        found[rows] = now = self._bounds_with_resident_blocks(rows, self._most[rows], counted)
        more = np.flatnonzero(now > limit_s)
        times = self._most[rows[more]] - np.minimum(self._fewest, self._most)[rows[more]]
        place = np.repeat(more, times)  # once for every smaller number of blocks
        if len(place):
            fewer_by = 1 + np.arange(len(place)) - np.repeat(times.cumsum() - times, times)
            each = rows[place]
            now = self._bounds_with_resident_blocks(
                each, self._most[each] - fewer_by, {n: x[place] for n, x in counted.items()}
            )
            np.minimum.at(found, each, now)
        return found

    def _of(self, rows: NDArray[np.intp], resident: Ints, *, most: bool = False) -> Floats:
        found = np.full(len(self._batch), np.inf)
        if len(rows):
            found[rows] = self._bounds_with_resident_blocks(rows, resident[rows], {}, most=most)
        return found

    def _bounds_with_resident_blocks(
        self, rows: NDArray[np.intp], resident: Ints, counted: dict[int, Floats], *, most: bool = False
    ) -> Floats:
        every, addresses = self._copies
        copies = every[rows], addresses[rows]
        return least_s_with_resident_blocks(
            self._batch.take(rows), self._spec, resident, copies, PHASES, most=most, counted=counted
        )


def _range_of_resident_blocks(batch: TileBatch, spec: DeviceSpec) -> tuple[Ints, Ints]:
    """Return the minimum (at least one) and the maximum number of blocks that a unit holds, over all layouts."""
    pads = {
        a.tensor.name: np.full(len(batch), _largest_padding_elements(a.tensor.itemsize_bytes))
        for a in batch.staged_loads
    }
    fewest, _ = blocks_per_unit_with_registers(
        batch, spec, scratchpad_bytes(batch, pads), registers_needed_per_thread(batch, spec)
    )
    least_wanted = operand_registers(batch) + registers_for_prefetched_tile(batch, spec) + BASE_REGISTERS
    most, _ = blocks_per_unit_with_registers(batch, spec, scratchpad_bytes(batch), least_wanted)
    return np.maximum(fewest, 1), most


def _largest_padding_elements(itemsize_bytes: int) -> int:
    return PADDING_STEPS * max(1, VECTOR_BYTES // itemsize_bytes)


def _least_copy_instruction_counts(batch: TileBatch, spec: DeviceSpec) -> tuple[Floats, Floats]:
    """Return the minimum numbers of copy and address instructions per block and step over all paddings."""
    every, addresses = count_unstaged_load_instructions(batch), np.zeros(len(batch))
    for a in batch.staged_loads:
        axes, widths, counted = staged_tile_axes(a, batch), list[Ints](), []
        padding = 0  # whole vectors, then narrower and narrower ones
        while padding < max(1, VECTOR_BYTES // a.tensor.itemsize_bytes):
            width = elements_per_staged_copy(a, batch, axes, padding)
            if not any(np.array_equal(width, x) for x in widths):
                copy = StagedCopy.in_vectors(width, tile_extents(a, batch, axes), batch.threads_per_block)
                counted.append(count_staging_copy_instructions(a, batch, copy, spec))
            widths.append(width)
            padding = 2 * padding or 1
        every, addresses = (x + np.minimum.reduce([c[n] for c in counted]) for n, x in enumerate((every, addresses)))
    return every, addresses
