"""What a board's limit of power leaves of its clock.

A board that would draw more than it may lowers its clock within milliseconds, which is less than anybody measures a
kernel over. What it draws is mostly what its arithmetic does: a cycle of a unit whose pipes multiply and add has an
energy (``execution.busy_cycle_j``), any other cycle that instructions need a smaller one, and a second holds no more
cycles than the limit pays for. A unit that only waits for memory loses nothing as its clock falls.

Bytes that pass the shared cache, and those from and to memory, have energies of their own (``byte_j`` of their layers),
so that a small tile, which loads more for the same products, lowers the clock further than a large one; where they are
not told apart, the energies of cycles include them. Beside all that the board draws what it does without a kernel
(``execution.standing_w``: memory, leakage, clocks that run); where that is not told apart, the energies include it.
Where the energy takes longer than the waves at the boost clock, the clock falls until both agree. The capped form of
the roofline of energy (Choi, Dukhan, Liu, Vuduc 2014), by cycles and bytes, with its constant power.
"""

from __future__ import annotations

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.templates.gpu.common.compute import Work
from roller.tile.geometry import Floats


def cycle_energies_j(batch: TileBatch, spec: DeviceSpec) -> tuple[float, float] | None:
    """Return the energies of a busy cycle of a unit in a batch's programs, and of any other; ``None``: not known."""
    ex = spec.execution
    own = ex.matrix_cycle_j if batch.fragment is not None else None
    busy = ex.busy_cycle_j if own is None else own
    return None if busy is None else (busy, ex.idle_cycle_j or 0.0)


def byte_energies_j(spec: DeviceSpec) -> tuple[float, float]:
    """Return the energies of a byte through the shared cache, and of one from or to the device's memory."""
    return spec.layer("l2").byte_j or 0.0, spec.layer("global").byte_j or 0.0


def least_power_s(
    batch: TileBatch, spec: DeviceSpec, work: Work, core_s: Floats, moved: tuple[Floats, Floats] | None = None
) -> Floats | float:
    """Return the least seconds in which the board's power pays for a launch, 0 where it is no limit.

    ``work`` is that of a block, ``core_s`` the seconds in which the instructions of all waves run at the boost clock,
    ``moved`` the bytes through the shared cache and from and to memory.
    """
    energies = cycle_energies_j(batch, spec)
    if spec.power_w is None or energies is None:
        return 0.0
    busy = busy_cycles(batch, spec, work)
    idle = other_cycles(spec, busy, core_s)
    drawn = busy * energies[0] + idle * energies[1]
    for n, each in zip(moved or (), byte_energies_j(spec), strict=False):
        drawn = drawn + n * each
    return np.asarray(drawn / cycles_w(spec))


def cycles_w(spec: DeviceSpec) -> float:
    """Return the power that cycles may draw on a board with a limit of it."""
    return (spec.power_w or float("inf")) - (spec.execution.standing_w or 0.0)


def other_cycles(spec: DeviceSpec, busy: Floats, core_s: Floats) -> Floats:
    """Return the cycles of all units beside the busy ones, in the seconds in which instructions run."""
    return np.asarray(np.maximum(core_s * spec.clock_hz * spec.units - busy, 0.0))


def busy_cycles(batch: TileBatch, spec: DeviceSpec, work: Work) -> Floats:
    """Return the cycles of all units in which their arithmetic is busy over a launch."""
    return batch.blocks * work.busy(spec.teu.schedulers_per_unit)
