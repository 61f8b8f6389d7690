"""Time limit for emulated kernels in processor seconds, which other processes do not affect."""

from __future__ import annotations

import time

#: Ratio of the wall-clock limit to the processor-time limit, large enough for busy machines.
PATIENCE = 10.0
#: Seconds added to the wall-clock limit, because filling memory between runs is not charged.
_LEAST_S = 5.0


class Allowance:
    """Budget of processor seconds that several runs share; its wall-clock limit is over :data:`PATIENCE` times as long.

    Parameters
    ----------
    seconds
        Limit for each operating-system thread; a run is charged the time of its longest-running thread.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.spent_s = seconds, 0.0
        self.deadline_s = time.monotonic() + PATIENCE * seconds + _LEAST_S

    @property
    def left_s(self) -> float:
        """Remaining processor time in seconds."""
        return max(0.0, self.seconds - self.spent_s)

    def charge(self, seconds: float) -> None:
        """Charge a run's processor time in seconds to the budget."""
        self.spent_s += seconds
