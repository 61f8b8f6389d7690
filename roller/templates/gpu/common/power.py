"""What a board's limit of power leaves of its clock.

A board that would draw more than it may lowers its clock within milliseconds, which is less than anybody measures a
kernel over. What it draws is mostly what its arithmetic does: a cycle of a unit whose pipes multiply and add has an
energy (``execution.busy_cycle_j``), any other cycle a smaller one, and a second holds no more cycles than the limit
pays for. Beside them the board draws what it does without a kernel (``execution.standing_w``: memory, leakage, clocks
that run); where that is not told apart, the energies include it. Where all that takes longer than the waves at the
boost clock, the clock falls until both agree. The capped form of the roofline of energy (Choi, Dukhan, Liu, Vuduc
2014), by cycles, with its constant power.
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


def least_power_s(batch: TileBatch, spec: DeviceSpec, work: Work, boost_s: Floats) -> Floats | float:
    """Return the least seconds in which the board's power pays for a launch, 0 where it is no limit.

    ``work`` is that of a block, ``boost_s`` the seconds of all waves at the boost clock.
    """
    energies = cycle_energies_j(batch, spec)
    if spec.power_w is None or energies is None:
        return 0.0
    busy = busy_cycles(batch, spec, work)
    idle = np.maximum(boost_s * spec.clock_hz * spec.units - busy, 0.0)
    return np.asarray((busy * energies[0] + idle * energies[1]) / cycles_w(spec))


def cycles_w(spec: DeviceSpec) -> float:
    """Return the power that cycles may draw on a board with a limit of it."""
    return (spec.power_w or float("inf")) - (spec.execution.standing_w or 0.0)


def busy_cycles(batch: TileBatch, spec: DeviceSpec, work: Work) -> Floats:
    """Return the cycles of all units in which their arithmetic is busy over a launch."""
    return batch.blocks * work.busy(spec.teu.schedulers_per_unit)
