"""Programs that split a deep reduction over tasks, where outputs alone would leave cores idle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.cpu import chunk_count, room, task_count

#: Parts per core considered: more of them even out cores that others use as well.
_PARTS_PER_CORE = (1, 2)


def split_batches(batch: TileBatch, spec: DeviceSpec) -> list[TileBatch]:
    """Return the programs of a ``tiled`` batch with their reduction split over tasks, where that can pay.

    Those whose tasks leave cores idle at the end, whose reduction has a chunk per part, and whose partial results stay
    in a cache. Operands are read in place: a packed one would be packed by every part.
    """
    g = batch.geometry
    if batch.staged or spec.units == 1:
        return []
    tasks = task_count(batch, spec)
    chunks = chunk_count(batch)
    outputs_bytes = float(g.extents[g.spatial].prod()) * 4
    found = []
    for parts in (spec.units * n for n in _PARTS_PER_CORE):
        few = (tasks < 4 * spec.units) & (tasks % spec.units != 0) & (chunks >= parts)
        rows = np.flatnonzero(few & (parts * outputs_bytes <= room(spec, "l2")))
        if len(rows):
            chosen = batch.take(rows)
            found.append(replace(chosen, split_k=chosen.split_k * parts))
    return found
