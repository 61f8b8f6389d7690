"""Programs that split a deep reduction over tasks if outputs alone would leave cores idle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.options import ConstructOptions
from roller.templates.cpu.common.lanes_and_cache_room import usable_cache_bytes
from roller.templates.cpu.decisions import decisions_for_device

#: Candidate numbers of parts per core; more parts balance cores that other processes use as well.
_PARTS_PER_CORE = (1, 2)


def split_reduction_batches(batch: TileBatch, spec: DeviceSpec) -> list[TileBatch]:
    """Return the programs of a ``tiled`` batch with their reduction split over tasks, if that can pay off."""
    # Splitting can pay off if the tasks leave cores idle at the end, the reduction has a chunk per part, and the
    # partial results stay in a cache. Operands are read in place, because every part would pack them again.
    g = batch.geometry
    if batch.staged or spec.units == 1:
        return []
    tasks, chunks = decisions_for_device(batch, spec).count_tasks, decisions_for_device(batch, spec).split_chunks
    outputs_bytes = float(g.extents[g.spatial].prod()) * 4
    found = []
    for parts in (spec.units * n for n in _PARTS_PER_CORE):
        few = (tasks < 4 * spec.units) & (tasks % spec.units != 0) & (chunks >= parts)
        rows = np.flatnonzero(few & (parts * outputs_bytes <= usable_cache_bytes(spec, "l2")))
        if len(rows):
            chosen = batch.take(rows)
            found.append(replace(chosen, split_k=chosen.split_k * parts))
    return found


def split_reductions_if_allowed(batch: TileBatch, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return :func:`split_reduction_batches` if the options allow it and there are several outputs, else ``[]``."""
    g = batch.geometry
    return split_reduction_batches(batch, spec) if options.split_k and (g.extents[g.spatial] > 1).any() else []
