"""How long emulated kernels may run: in seconds of the processor, so that other processes decide nothing."""

from __future__ import annotations

import time

#: How many times as long as on an idle machine the same may take on a busy one before it is given up.
PATIENCE = 10.0
#: And at least so much longer (seconds): what fills memory between runs is not counted.
_LEAST_S = 5.0


class Allowance:
    """Seconds that several runs may take together.

    Each thread of the operating system that runs blocks is held to what is left, and what the longest of them took is
    gone. A limit by the wall clock, more than :data:`PATIENCE` times as long, is there for a
    machine that gets nowhere.

    Parameters
    ----------
    seconds
        Of the processor, for each thread.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.spent_s = seconds, 0.0
        self.deadline_s = time.monotonic() + PATIENCE * seconds + _LEAST_S

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.seconds - self.spent_s)

    def charge(self, seconds: float) -> None:
        """Take off what a run took."""
        self.spent_s += seconds
