"""Time limit for emulated kernels in processor seconds, so that other processes do not matter."""

from __future__ import annotations

import time

#: Wall-clock limit relative to the processor limit, for busy machines.
PATIENCE = 10.0
#: Extra wall-clock seconds, since filling memory between runs is not charged.
_LEAST_S = 5.0


class Allowance:
    """Processor seconds shared by several runs, with a wall-clock limit above :data:`PATIENCE` times as many.

    Parameters
    ----------
    seconds
        Limit of each operating-system thread; a run is charged the time of its longest thread.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.spent_s = seconds, 0.0
        self.deadline_s = time.monotonic() + PATIENCE * seconds + _LEAST_S

    @property
    def left_s(self) -> float:
        """Remaining seconds."""
        return max(0.0, self.seconds - self.spent_s)

    def charge(self, seconds: float) -> None:
        """Subtract the seconds that a run took."""
        self.spent_s += seconds
