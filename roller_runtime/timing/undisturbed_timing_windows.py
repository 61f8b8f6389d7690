"""Timing windows for a kernel: which of them are undisturbed, and whether they agree."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from roller_runtime.timing.clock import Clock, ClockSample

#: Time, in seconds, below which a sample is dominated by the clock and the call.
MIN_SAMPLE_S = 50e-6
#: Length, in seconds, of a window of short calls: far shorter than a scheduler's time slice, and far longer than
#: reading the counters takes.
WINDOW_S = 2e-4
#: Time, in seconds, from which a kernel needs no warm run and only few samples.
LONG_S = 0.02
#: Largest relative difference between block medians that agree; number of blocks in a series.
AGREE, _BLOCKS = 0.15, 5
#: Maximum number of calls in a window.
_MOST_CALLS = 10_000
#: Time, in seconds, to sleep after a disturbed window; the scheduler prefers a rested thread.
REST_S = 4e-3


@dataclass(frozen=True)
class Timing:
    """Time per call in seconds: the median of ``samples`` batches of ``calls`` calls.

    Parameters
    ----------
    complete
        ``False`` for a candidate that was dropped after one run.
    doubt
        Reason why the time may be wrong; empty if it was measured undisturbed.
    least_s
        Lower bound on the time, in seconds, without the time lost to other programs.
    tied
        Reason why a correct time does not determine its rank: the other times are too close for a busy machine.
    """

    median_s: float
    best_s: float
    samples: int
    calls: int
    complete: bool = True
    doubt: str = ""
    least_s: float = 0.0
    tied: str = ""


class ExtraTime:
    """Extra time beyond the budget, shared by the measurements of a comparison.

    Parameters
    ----------
    seconds
        Total extra time in seconds.
    shares
        Expected number of measurements. Each gets an equal share plus the time that earlier ones left; an overrun of
        the last try is deducted from the following shares.
    """

    def __init__(self, clock: Clock, seconds: float, shares: int = 1) -> None:
        self._clock, self._share_s, self._later = clock, seconds / max(1, shares), max(1, shares) - 1
        self._left_s = self._share_s
        self._until: float | None = None

    def start_next_share(self) -> None:
        """Start the next measurement's share of time; an extra measurement gets the remainder."""
        self.pause()
        if self._later:
            self._left_s, self._later = self._left_s + self._share_s, self._later - 1

    def count_and_has_time_left(self) -> bool:
        """Return whether time is left; time counts from now until :meth:`pause` is called."""
        if self._until is None:
            self._until = self._clock.now() + self._left_s
        return self._clock.now() < self._until

    def pause(self) -> None:
        """Stop counting time."""
        if self._until is not None:
            self._left_s, self._until = self._until - self._clock.now(), None


@dataclass
class TimingSeries:
    """Timing windows for one kernel.

    Parameters
    ----------
    calls
        Number of calls in a window.
    needed
        Minimum number of quiet windows for a result.
    """

    run: Callable[[], object]
    clock: Clock
    calls: int = 1
    needed: int = 5
    windows: list[ClockSample] = field(default_factory=list)

    def take(self) -> ClockSample:
        """Time one window; restart the series if the number of calls was chosen from a disturbed run."""
        # The series is never empty afterwards, whenever the extra seconds end.
        found = time_calls_together(self.run, self.clock, self.calls)
        while found.wall_s < MIN_SAMPLE_S / 2 and self.calls < _MOST_CALLS:
            self.calls = calls_per_window(found.wall_s / self.calls, WINDOW_S)
            self.windows.clear()
            found = time_calls_together(self.run, self.clock, self.calls)
        self.windows.append(found)
        return found

    def retry(self) -> None:
        """Take another window after a disturbed one, after a pause and a warm-up run."""
        if self.windows and not self.windows[-1].quiet:
            self.clock.rest(REST_S)
            if self.windows[-1].wall_s <= LONG_S:
                self.run()
        self.take()

    @property
    def quiet(self) -> list[float]:
        """Times per call in the undisturbed windows, in seconds, in order."""
        return [w.wall_s / self.calls for w in self.windows if w.quiet]

    def do_windows_agree(self) -> bool:
        """Return whether there are enough quiet windows and their blocks agree."""
        quiet = self.quiet
        return len(quiet) >= self.needed and (self.clock.trusting or _relative_spread(quiet) <= AGREE)

    def timing(self) -> Timing:
        """Return the median of the quiet windows that agree with the fastest; otherwise a doubtful best time."""
        every = [w.wall_s / self.calls for w in self.windows]
        quiet = self.quiet
        if self.do_windows_agree():
            kept = quiet if self.clock.trusting else _fast_block_values(quiet)
            return Timing(statistics.median(kept), min(kept), len(kept), self.calls, least_s=min(kept))
        least_s = min(w.least_s / self.calls for w in self.windows)
        if len(quiet) >= self.needed:
            doubt = f"repeated windows differ by {_relative_spread(quiet):.0%}".replace("%", " %")
            return Timing(min(_block_medians(quiet)), min(quiet), len(quiet), self.calls, True, doubt, least_s)
        doubt = f"{len(quiet)} of {len(every)} windows were quiet, expected at least {self.needed}"
        return Timing(min(quiet or every), min(every), len(every), self.calls, True, doubt, least_s)


def time_calls_together(run: Callable[[], object], clock: Clock, calls: int = 1) -> ClockSample:
    """Time a number of calls as one sample."""
    clock.begin()
    for _ in range(calls):
        run()
    return clock.end()


def calls_per_window(once_s: float, window_s: float) -> int:
    """Return the number of calls that fill a window."""
    return max(1, min(_MOST_CALLS, round(window_s / max(once_s, 1e-9))))


def _block_medians(values: Sequence[float]) -> list[float]:
    """Return the medians of consecutive blocks of values."""
    size = max(1, len(values) // _BLOCKS)
    blocks = [values[i : i + size] for i in range(0, len(values) - size + 1, size)]
    return [statistics.median(b) for b in blocks]


def _relative_spread(values: Sequence[float]) -> float:
    """Return the relative difference between the two fastest blocks, because disturbances only add time."""
    least = sorted(_block_medians(values))[:2]
    return least[-1] / least[0] - 1 if least[0] > 0 else 0.0


def _fast_block_values(values: Sequence[float]) -> list[float]:
    """Return the values of the blocks that agree with the fastest one."""
    size, medians = max(1, len(values) // _BLOCKS), _block_medians(values)
    kept = [n for n, m in enumerate(medians) if m <= (1 + AGREE) * min(medians)]
    return [v for n in kept for v in values[n * size : (n + 1) * size]]
