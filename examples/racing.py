"""What both races share: contenders in turn, how far their times spread, and whether a ratio of them says anything."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.cpu.race import Pace, Race, Ratio, race
from roller_runtime.timing.clock import system_or_trusting_clock
from roller_runtime.timing.disturbance import Disturbance

#: Blocks of every contender, one after the other, of so many seconds each; the wait for the other's threads to sleep.
PACE = Pace(rounds=11, turn_s=0.03, settle_s=0.1)
#: Most that the middle half of a contender's blocks may spread, as a share of their median, for a ratio to be told.
MOST_SPREAD = 0.15
#: Most that the ends of the 95 % interval of a ratio may be apart, as a factor.
MOST_INTERVAL = 1.25


@dataclass
class Watched:
    """What others did on the processors within a ``with`` block: empty where nothing was seen."""

    doubt: str = ""


@contextmanager
def watched() -> Iterator[Watched]:
    """Watch the machine while something is timed."""
    clock, found = system_or_trusting_clock(), Watched()
    before = clock.load()
    try:
        yield found
    finally:
        if not clock.trusting:
            found.doubt = str(Disturbance.between(before, clock.load()))


@dataclass(frozen=True)
class Raced:
    """Times of contenders that took turns.

    Parameters
    ----------
    times
        Seconds per call by name, one per block.
    doubt
        What other programs did meanwhile; ``""`` where nothing was seen.
    """

    times: Mapping[str, tuple[float, ...]]
    doubt: str = ""

    def median_s(self, name: str) -> float:
        """Return the median seconds per call of a contender."""
        return statistics.median(self.times[name])

    def middle_s(self, name: str) -> tuple[float, float]:
        """Return the quartiles of a contender's blocks."""
        low, _, high = statistics.quantiles(self.times[name], n=4)
        return low, high

    def spread(self, name: str) -> float:
        """Return how far the middle half of a contender's blocks spreads, as a share of the median."""
        low, high = self.middle_s(name)
        return (high - low) / self.median_s(name)

    def text(self, name: str) -> str:
        """Return the median of a contender with its spread, in ms."""
        low, high = self.middle_s(name)
        blocks = len(self.times[name])
        return f"{self.median_s(name) * 1e3:.3f} ms ({low * 1e3:.3f} to {high * 1e3:.3f} in half of {blocks} blocks)"

    def ratio(self, mine: str) -> Ratio | None:
        """Return how many times as fast ``mine`` is as the fastest other, by pairs; ``None`` where :attr:`withheld`."""
        others = [n for n in self.times if n != mine]
        if not others or self.withheld:
            return None
        found = self._paired(mine, others)
        return None if found.high > MOST_INTERVAL * found.low else found

    def why(self, mine: str) -> str:
        """Say why there is no ratio; ``""`` where there is one, or nobody to compare with."""
        others = [n for n in self.times if n != mine]
        if not others or self.withheld:
            return self.withheld if others else ""
        found = self._paired(mine, others)
        if found.high <= MOST_INTERVAL * found.low:
            return ""
        return f"the ratio lies anywhere from {found.low:.2f} to {found.high:.2f}"

    @property
    def withheld(self) -> str:
        """Why no ratio of these times is told; ``""`` where they are steady and nothing disturbed them."""
        if self.doubt:
            return self.doubt
        name = max(self.times, key=self.spread)
        spread = self.spread(name)
        return f"half of the times of {name} spread over {spread:.0%}" if spread > MOST_SPREAD else ""

    def _paired(self, mine: str, others: list[str]) -> Ratio:
        found = Race(self.times)
        return found.ratio(found.best(others), mine)


def raced(calls: Mapping[str, Callable[[], object]], pace: Pace = PACE) -> Raced:
    """Run the contenders in turn, block by block, and watch the machine meanwhile."""
    with watched() as machine:
        found = race(calls, pace)
    return Raced(found.times, machine.doubt)
