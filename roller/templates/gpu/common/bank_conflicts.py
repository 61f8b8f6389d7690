"""Bank conflicts in the price of a GPU program: the wavefronts of a read relative to a conflict-free read.

A scratchpad serves one word of each bank at a time. ``common/arithmetic_cycles.py`` (SIMT kernels),
``window/price.py`` and ``matrix/price.py`` multiply an operand's wavefronts by this ratio, its conflict degree.
:mod:`roller.tile.staged_tile_layout` (SIMT kernels) and :mod:`roller.tile.matrix_operands` (matrix units) count the
words per bank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.tile.geometry import Floats
from roller.tile.matrix_operands import bank_conflict_degree, program_operands
from roller.tile.program import RProgram
from roller.tile.staged_tile_layout import lane_reads


def scratchpad_banks(spec: DeviceSpec) -> tuple[int, int]:
    """Return the number of banks in a unit's scratchpad, and the width of a bank in bytes."""
    shared = spec.layer("shared")
    return shared.banks or spec.teu.lanes, shared.bank_width_bytes or 4


def conflict_degrees(program: RProgram, spec: DeviceSpec) -> dict[str, float]:
    """Return each padded staged tile's conflict degree, averaged over the reads of one TEU (1: no conflict)."""
    if not program.staged or program.traits.spreads_reductions:  # threads read back their own words, which are adjacent
        return {}
    padding, (banks, width) = dict(program.storage_padding), scratchpad_banks(spec)
    if program.fragment is not None and program.fragment.reads_scratchpad:  # swizzled: see roller.tile.warp_group_tiles
        return {}
    if program.fragment is not None:
        read = ((x, program.fragment, padding.get(x.tensor.name, 0)) for x in program_operands(program))
        return {x.tensor.name: float(bank_conflict_degree(x, f, pad, banks, width)) for x, f, pad in read}
    degrees = {
        t: r.conflict_degrees(padding.get(t, 0), banks, width) for t, r in lane_reads(program, spec.teu.lanes).items()
    }
    return {t: sum(d) / len(d) for t, d in degrees.items()}


def unavoidable_conflicts(batch: TileBatch, spec: DeviceSpec) -> dict[str, Floats]:
    """Return the conflict degrees that no storage padding removes, before padding is chosen."""
    # Lanes that read every ``s``-th word of a box's row use one in ``gcd(s, banks)`` banks; padding only moves rows.
    found: dict[str, Floats] = {}
    banks, _ = scratchpad_banks(spec)
    if batch.fragment is not None:  # padding spreads the rows of fragments over banks
        return found
    lanes = batch.lanes(spec.teu.lanes)
    for a in batch.geometry.loads if batch.staged else ():
        steps = np.abs(a.coefficients[-1]) if a.coefficients.shape[0] and a.shared[-1] else np.zeros(0, np.int64)
        for axis in np.flatnonzero(steps):
            apart = math.gcd(int(steps[axis]), banks)
            if batch.geometry.spatial[axis] and apart > 1:
                found[a.tensor.name] = np.maximum(1.0, np.ceil(np.minimum(lanes[:, axis], banks) * apart / banks))
    return found


def worst_conflicts(degrees: Mapping[str, Floats], count: int) -> Floats:
    """Return the largest conflict degree of any operand, per program, shape ``(N,)``; 1: no conflict."""
    worst: Floats = np.max([np.ones(count), *degrees.values()], axis=0)
    return worst
