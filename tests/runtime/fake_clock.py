"""A machine of two processors whose disturbances are known: seconds pass as kernels take them."""

from __future__ import annotations

from collections.abc import Callable

from roller_runtime.timing.clock import ClockSample, Load


class FakeClock:
    """A clock under a test's control.

    Parameters
    ----------
    period_s, held_s
        Others hold the kernel's processor for the first ``held_s`` of every ``period_s``.
    counted
        Whether the system counts what the kernel loses; where it does not, others only slow it down.
    others
        Processors others keep busy, as the system tells; what they take from the kernel by default.
    shared_cores
        As of ``Load``.
    """

    trusting = False

    def __init__(
        self,
        period_s: float = 1.0,
        held_s: float = 0.0,
        *,
        counted: bool = True,
        others: float | None = None,
        stolen: float = 0.0,
        shared_cores: bool = False,
        known: bool = True,
    ) -> None:
        self.at, self.lost_s, self.own_s, self.rested = 0.0, 0.0, 0.0, 0
        self.period_s, self.held_s, self.counted, self.known = period_s, held_s, counted, known
        self.others = 2 * held_s / period_s if others is None else others
        self.stolen, self.shared_cores = stolen, shared_cores
        self._begun = (0.0, 0.0)

    def kernel(self, seconds: float, calls: list[float] | None = None) -> Callable[[], None]:
        """Return a call that needs so many seconds of a processor; it notes when it was made."""

        def run() -> None:
            if calls is not None:
                calls.append(self.at)
            self.spend(seconds)

        return run

    def spend(self, seconds: float) -> None:
        """Run for so many seconds of the kernel's own, waiting while others hold the processor."""
        left = seconds
        while left > 0:
            phase = self.at % self.period_s
            if phase < self.held_s:
                self._pass(self.held_s - phase, lost=True)
            else:
                step = min(left, self.period_s - phase) if self.held_s else left
                self._pass(step, lost=False)
                left -= step

    def _pass(self, seconds: float, lost: bool) -> None:
        self.at += seconds + 1e-12
        self.lost_s += seconds if lost else 0.0
        self.own_s += 0.0 if lost else seconds

    def attend(self) -> None:
        """Look at nobody."""

    release = attend

    def begin(self) -> None:
        """Begin a spell."""
        self._begun = (self.at, self.lost_s)

    def end(self) -> ClockSample:
        """End it."""
        start, lost_s = self._begun
        return ClockSample(self.at - start, self.lost_s - lost_s if self.counted else 0.0)

    def now(self) -> float:
        """Return the seconds that passed."""
        return self.at

    def rest(self, seconds: float) -> None:
        """Let seconds pass."""
        self.rested += 1
        self.at += seconds

    def load(self) -> Load:
        """Return what both processors did."""
        busy_s = self.own_s + self.others * self.at
        return Load(self.at, self.own_s, busy_s, self.stolen * 2 * self.at, 0, 2, self.shared_cores, self.known)
