"""Clock reduction due to a board's power limit.

A cycle of a unit with busy arithmetic pipes consumes ``execution.busy_cycle_j``, and any other cycle in which
instructions run consumes ``idle_cycle_j``. A byte through the shared cache or memory consumes ``byte_j`` of its layer,
and the board draws ``standing_w`` even without a kernel. If supplying the energy takes longer than the waves take at
the boost clock, the clock falls until both times agree. This is the capped form of the energy roofline (Choi, Dukhan,
Liu, Vuduc 2014) with constant power, counted in cycles and bytes.
"""

from __future__ import annotations

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.arithmetic_cycles import BlockWork
from roller.tile.geometry import Floats


def cycle_energies_j(batch: TileBatch, spec: DeviceSpec) -> tuple[float, float] | None:
    """Return the energies, in joules, of a busy cycle and of any other cycle of a unit, or ``None`` if unknown."""
    ex = spec.execution
    own = ex.matrix_cycle_j if batch.fragment is not None else None
    busy = ex.busy_cycle_j if own is None else own
    return None if busy is None else (busy, ex.idle_cycle_j or 0.0)


def byte_energies_j(spec: DeviceSpec) -> tuple[float, float]:
    """Return the energies, in joules, of a byte through the shared cache and of a byte to or from memory."""
    return spec.layer("l2").byte_j or 0.0, spec.layer("global").byte_j or 0.0


def least_time_at_power_limit_s(
    batch: TileBatch, spec: DeviceSpec, work: BlockWork, core_s: Floats, moved: tuple[Floats, Floats] | None = None
) -> Floats | float:
    """Return the minimum time, in seconds, that a launch takes within the board's power limit; 0 without a limit."""
    # ``core_s``: seconds that the instructions of all waves take at the boost clock; ``moved``: bytes through the
    # shared cache, and bytes to and from memory.
    energies = cycle_energies_j(batch, spec)
    if spec.power_w is None or energies is None:
        return 0.0
    busy = busy_cycles(batch, spec, work)
    idle = non_busy_cycles(spec, busy, core_s)
    drawn = busy * energies[0] + idle * energies[1]
    for n, each in zip(moved or (), byte_energies_j(spec), strict=False):
        drawn = drawn + n * each
    return np.asarray(drawn / power_left_for_cycles_w(spec))


def power_left_for_cycles_w(spec: DeviceSpec) -> float:
    """Return the power, in watts, that the board's limit leaves for cycles and bytes; infinite without a limit."""
    return (spec.power_w or float("inf")) - (spec.execution.standing_w or 0.0)


def non_busy_cycles(spec: DeviceSpec, busy: Floats, core_s: Floats) -> Floats:
    """Return the number of cycles, over all units, in which instructions run but arithmetic is not busy."""
    return np.asarray(np.maximum(core_s * spec.clock_hz * spec.units - busy, 0.0))


def busy_cycles(batch: TileBatch, spec: DeviceSpec, work: BlockWork) -> Floats:
    """Return the number of cycles of a launch, over all units, in which arithmetic is busy."""
    return batch.blocks * work.busy(spec.teu.schedulers_per_unit)
