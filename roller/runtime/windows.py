"""Windows of a kernel's calls: which of them nobody disturbed, and whether these agree on a time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from roller.runtime.clock import Clock, ClockSample

#: A sample shorter than this is dominated by the clock and the call (seconds).
MIN_SAMPLE_S = 50e-6
#: Seconds of a window of short calls: far shorter than a scheduler's time slice, long against reading the counters.
WINDOW_S = 2e-4
#: A kernel longer than this needs no warm run, and few samples (seconds).
LONG_S = 0.02
#: Medians of blocks of windows agree where they are apart by no more than this; blocks of one series.
AGREE, _BLOCKS = 0.15, 5
#: Calls of a window, however short they are.
_MOST_CALLS = 10_000
#: Seconds to rest after a disturbed window: a scheduler lets whoever has rested run first.
REST_S = 4e-3


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median of ``samples`` batches of ``calls`` calls.

    ``complete`` is ``False`` for a candidate that was dropped after one run. ``doubt`` says in one sentence why the
    time may be wrong, empty where it was measured undisturbed; ``least_s`` is what it takes at least, whatever
    disturbed it: the seconds that nobody took from it. ``tied`` says why a time that is right does not tell its rank:
    those it was compared with are too close for a busy machine.
    """

    median_s: float
    best_s: float
    samples: int
    calls: int
    complete: bool = True
    doubt: str = ""
    least_s: float = 0.0
    tied: str = ""


class Patience:
    """Seconds beyond any budget, which all measurements of a comparison share.

    Parameters
    ----------
    clock
        What they are counted with.
    seconds
        How many there are.
    shares
        How many measurements are expected: each has an equal share, and what those before it left. What one takes
        beyond its share, because its last try was long, the next ones lack.
    """

    def __init__(self, clock: Clock, seconds: float, shares: int = 1) -> None:
        self._clock, self._share_s, self._later = clock, seconds / max(1, shares), max(1, shares) - 1
        self._left_s = self._share_s
        self._until: float | None = None

    def pass_on(self) -> None:
        """Begin the share of the next measurement; one more than were expected has what is left."""
        self.pause()
        if self._later:
            self._left_s, self._later = self._left_s + self._share_s, self._later - 1

    def lasts(self) -> bool:
        """Whether more may be tried; what follows is on its account until :meth:`pause`."""
        if self._until is None:
            self._until = self._clock.now() + self._left_s
        return self._clock.now() < self._until

    def pause(self) -> None:
        """Stop counting."""
        if self._until is not None:
            self._left_s, self._until = self._until - self._clock.now(), None


@dataclass
class Series:
    """Windows of one kernel, as they come.

    Parameters
    ----------
    run, clock
        One call, and what it is timed with.
    calls
        Calls of a window.
    needed
        Quiet windows it takes at least.
    """

    run: Callable[[], object]
    clock: Clock
    calls: int = 1
    needed: int = 5
    windows: list[ClockSample] = field(default_factory=list)

    def take(self) -> ClockSample:
        """Time one window. Where it shows that the number of calls was taken from a disturbed run, begin anew.

        A series has a window from then on, whenever patience ends.
        """
        found = spell(self.run, self.clock, self.calls)
        while found.wall_s < MIN_SAMPLE_S / 2 and self.calls < _MOST_CALLS:
            self.calls = calls_of(found.wall_s / self.calls, WINDOW_S)
            self.windows.clear()
            found = spell(self.run, self.clock, self.calls)
        self.windows.append(found)
        return found

    def retry(self) -> None:
        """Take another window after a disturbed one, rested and warm."""
        if self.windows and not self.windows[-1].quiet:
            self.clock.rest(REST_S)
            if self.windows[-1].wall_s <= LONG_S:
                self.run()
        self.take()

    @property
    def quiet(self) -> list[float]:
        """Seconds per call of the windows nobody disturbed, in the order they were taken."""
        return [w.wall_s / self.calls for w in self.windows if w.quiet]

    def settled(self) -> bool:
        """Whether there are enough quiet windows, and blocks of them agree."""
        quiet = self.quiet
        return len(quiet) >= self.needed and (self.clock.trusting or _apart(quiet) <= AGREE)

    def timing(self) -> Timing:
        """Return the median of the quiet windows that agree with the fastest; of the best there are in doubt."""
        every = [w.wall_s / self.calls for w in self.windows]
        quiet = self.quiet
        if self.settled():
            kept = quiet if self.clock.trusting else _fast(quiet)
            return Timing(statistics.median(kept), min(kept), len(kept), self.calls, least_s=min(kept))
        least_s = min(w.least_s / self.calls for w in self.windows)
        if len(quiet) >= self.needed:
            doubt = f"repeated windows differ by {_apart(quiet):.0%}".replace("%", " %")
            return Timing(min(_medians(quiet)), min(quiet), len(quiet), self.calls, True, doubt, least_s)
        doubt = f"{len(quiet)} of {len(every)} windows were quiet, expected at least {self.needed}"
        return Timing(min(quiet or every), min(every), len(every), self.calls, True, doubt, least_s)


def spell(run: Callable[[], object], clock: Clock, calls: int = 1) -> ClockSample:
    """Time some calls together."""
    clock.begin()
    for _ in range(calls):
        run()
    return clock.end()


def calls_of(once_s: float, window_s: float) -> int:
    """Return the calls that fill a window."""
    return max(1, min(_MOST_CALLS, round(window_s / max(once_s, 1e-9))))


def _medians(values: Sequence[float]) -> list[float]:
    """Return the medians of blocks of values that follow each other."""
    size = max(1, len(values) // _BLOCKS)
    blocks = [values[i : i + size] for i in range(0, len(values) - size + 1, size)]
    return [statistics.median(b) for b in blocks]


def _apart(values: Sequence[float]) -> float:
    """Return by how much the second fastest block is above the fastest, relative: disturbances only add."""
    least = sorted(_medians(values))[:2]
    return least[-1] / least[0] - 1 if least[0] > 0 else 0.0


def _fast(values: Sequence[float]) -> list[float]:
    """Return the values of the blocks that agree with the fastest one."""
    size, medians = max(1, len(values) // _BLOCKS), _medians(values)
    kept = [n for n, m in enumerate(medians) if m <= (1 + AGREE) * min(medians)]
    return [v for n in kept for v in values[n * size : (n + 1) * size]]
