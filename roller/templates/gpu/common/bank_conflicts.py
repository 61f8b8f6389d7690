"""Bank conflicts in the price of a GPU program: a staged-tile read's wavefronts relative to a conflict-free read.

A scratchpad serves one word of every bank at a time. The price multiplies an operand's wavefronts by its degree, in
``common/compute.py`` (threads), ``window/price.py`` and ``matrix/price.py``. The words per bank are counted in
:mod:`roller.tile.layout` (threads) and :mod:`roller.tile.fragments` (matrix units).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.tile.fragments import bank_conflict_degree, program_operands
from roller.tile.geometry import Floats
from roller.tile.layout import lane_reads
from roller.tile.program import RProgram


def scratchpad_banks(spec: DeviceSpec) -> tuple[int, int]:
    """Return the number of banks in a unit's scratchpad, and the bytes per bank word."""
    shared = spec.layer("shared")
    return shared.banks or spec.teu.lanes, shared.bank_width_bytes or 4


def conflict_degrees(program: RProgram, spec: DeviceSpec) -> dict[str, float]:
    """Return each staged tile's mean degree over all reads of one TEU (1: no conflict), with its padding."""
    if not program.staged or program.traits.spreads_reductions:  # threads read back their own words, which are adjacent
        return {}
    padding, (banks, width) = dict(program.storage_padding), scratchpad_banks(spec)
    if program.fragment is not None and program.fragment.reads_scratchpad:  # swizzled: see roller.tile.warp_groups
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
    # Lanes that read every ``s``-th word of a box's row use one bank in ``gcd(s, banks)``; padding spreads rows.
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
    """Return the degree of the worst operand of ``count`` programs, ``(N,)``; 1: no conflict."""
    worst: Floats = np.max([np.ones(count), *degrees.values()], axis=0)
    return worst
