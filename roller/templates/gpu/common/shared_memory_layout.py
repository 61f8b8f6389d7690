"""Scratchpad layouts of programs: exact once they have been chosen, expected before that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.bank_conflicts import conflict_degrees, unavoidable_conflicts
from roller.templates.gpu.common.convert_winograd_batches import find_matrix_product, to_matrix_product_batch
from roller.templates.gpu.common.l2_and_dram_traffic import counted_l2_bytes
from roller.templates.gpu.common.occupancy import matrix_scratchpad_bytes, scratchpad_bytes
from roller.tile.geometry import Floats, Ints
from roller.tile.program import RProgram
from roller.tile.staged_tile_layout import thread_read_ratio


@dataclass(frozen=True)
class SharedMemoryLayout:
    """Effects of the scratchpad layouts of a batch's programs, as arrays of shape ``(N,)``.

    Parameters
    ----------
    scratchpad
        Bytes that one block allocates, including storage padding.
    conflicts
        Per staged tensor, wavefronts of one TEU's read relative to a conflict-free read.
    spread
        Per staged tensor, elements that a thread reads relative to the elements of a contiguous register tile.
    counted
        Bytes that the launch moves through L2, keyed by position in ``reads`` with stores last, for accesses whose rows
        are counted one by one.
    padding
        Per staged tensor, elements appended to each row.
    """

    scratchpad: Ints
    conflicts: Mapping[str, Floats] = field(default_factory=dict)
    spread: Mapping[str, Floats] = field(default_factory=dict)
    counted: Mapping[int, Floats] = field(default_factory=dict)
    padding: Mapping[str, Ints] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: TileBatch, programs: Sequence[RProgram], spec: DeviceSpec) -> SharedMemoryLayout:
        """Return the layouts of the programs of a batch."""
        found = find_matrix_product(batch)
        if found is not None:
            batch, programs = to_matrix_product_batch(batch, found), [found.inner(p) for p in programs]
        pads = [dict(p.storage_padding) for p in programs]
        padding = {t: np.array([p.get(t, 0) for p in pads], np.int64) for t in {t for p in pads for t in p}}
        used = [matrix_scratchpad_bytes(p) for p in programs if p.fragment is not None]
        return cls(
            np.array(used, np.int64) if used else scratchpad_bytes(batch, padding),
            _arrays_by_tensor([conflict_degrees(p, spec) for p in programs]),
            {} if batch.fragment else _arrays_by_tensor([thread_read_ratio(p) for p in programs]),
            counted_l2_bytes(batch, spec),
            padding,
        )

    @classmethod
    def expected(cls, batch: TileBatch, spec: DeviceSpec) -> SharedMemoryLayout:
        """Return the best case of any layout: no storage padding, only unavoidable conflicts."""
        return cls(scratchpad_bytes(batch), unavoidable_conflicts(batch, spec))


def _arrays_by_tensor(values: Sequence[Mapping[str, float]]) -> dict[str, Floats]:
    return {t: np.array([v[t] for v in values]) for t in values[0]}
