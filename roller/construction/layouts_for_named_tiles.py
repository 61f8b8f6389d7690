"""Scratchpad layouts for user-named tiles.

In constructed tiles, lanes lie along the rows that they read, so rows are padded by whole vectors. In user-named tiles,
lanes may lie across rows (transposed operands); only an odd row pitch and interleaved threads then avoid conflicts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from roller.hardware import DeviceSpec
from roller.tile.program import RProgram
from roller.tile.staged_tile_layout import lane_reads, least_conflict_storage_padding


def scratchpad_layouts(program: RProgram, spec: DeviceSpec) -> Iterator[RProgram]:
    """Yield a laid-out program and, if its reads have bank conflicts, variants whose rows may have any pitch."""
    yield program
    shared = spec.layer("shared")
    banks, width = shared.banks or spec.teu.lanes, shared.bank_width_bytes or 4
    padding = dict(program.storage_padding)
    if all(
        r.worst_conflict_degree(padding.get(t, 0), banks, width) == 1
        for t, r in lane_reads(program, spec.teu.lanes).items()
    ):
        return
    for axis, elements in dict.fromkeys(((program.vector_axis, program.vector_elements), (None, 1))):
        apart = replace(program, interleaved=True, vector_axis=axis, vector_elements=elements, storage_padding=())
        reads = lane_reads(apart, spec.teu.lanes)
        pads = {t: least_conflict_storage_padding(r, banks, width, vectors=False)[0] for t, r in reads.items()}
        padded = replace(apart, storage_padding=tuple((t, pad) for t, pad in pads.items() if pad))
        yield padded.reading(reads)
