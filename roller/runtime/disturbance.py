"""What disturbed a measurement, named in one sentence from what the operating system counted meanwhile."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from roller.runtime.clock import Clock, Load

#: Share of the processors (of what a kernel leaves of them, for ``beside``) from which on something is named.
NAMED = 0.05
#: Share of the processors beside a kernel at which others slow it down, where processors may be halves of a core.
BESIDE = 0.25
#: Ticks of ``/proc/stat`` below which nothing is told of others (seconds).
_TICKS_S = 0.04
#: Seconds a look at the machine takes: some twenty ticks.
_LOOK_S = 0.25
_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class Disturbance:
    """What others did on the processors while something ran.

    Parameters
    ----------
    wall_s
        For how long.
    processors
        How many there are.
    others
        How many of them other programs kept busy, on average.
    stolen
        Share of the time of all that the hypervisor gave to other machines.
    throttled
        Whether the control group was stopped for having used up its quota.
    shared_cores
        As of :class:`roller.runtime.clock.Load`.
    """

    wall_s: float
    processors: int = 1
    others: float = 0.0
    stolen: float = 0.0
    throttled: bool = False
    shared_cores: bool = False

    @classmethod
    def between(cls, before: Load, after: Load) -> Disturbance:
        """Return what happened between two looks at the machine."""
        wall_s, count = after.wall_s - before.wall_s, after.processors
        if not (before.known and after.known) or wall_s <= 0:
            return cls(max(wall_s, 0.0), count)
        others_s = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
        others = others_s / wall_s if others_s > _TICKS_S else 0.0
        stolen_s = after.stolen_s - before.stolen_s
        stolen = stolen_s / (wall_s * count) if stolen_s > _TICKS_S else 0.0
        return cls(
            wall_s, count, min(others, float(count)), stolen, after.throttled > before.throttled, after.shared_cores
        )

    def beside(self, used: int) -> bool:
        """Whether others slowed down a kernel of ``used`` threads from processors it left them.

        They never took its own, so no thread of it waited: they were the other halves of its cores.
        """
        left = self.processors - used
        return self.shared_cores and left > 0 and self.others > BESIDE * left

    def __str__(self) -> str:
        """Say what it was, the strongest first; empty where nothing was seen."""
        found = []
        if self.others > NAMED * self.processors:
            found.append((self.others / self.processors, f"other programs kept {self.others:.1f} of "
                          f"{self.processors} processors busy"))  # fmt: skip
        if self.stolen > NAMED:
            found.append((self.stolen, f"the hypervisor took {100 * self.stolen:.0f} % of the processors' time"))
        if self.throttled:
            found.append((0.0, "the control group used up its quota of processor time and was stopped"))
        return ", and ".join(text for _, text in sorted(found, key=lambda f: -f[0]))


def look(clock: Clock, seconds: float = _LOOK_S) -> Disturbance:
    """Return what other programs do on this machine just now, from watching it for some seconds without working."""
    before = clock.load()
    clock.rest(seconds)
    return Disturbance.between(before, clock.load())


def grouped(texts: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Return texts that differ in nothing but numbers once, with how many there are; the most frequent first.

    Examples
    --------
    >>> grouped(["1.9 of 2 processors", "a hypervisor", "1.7 of 2 processors"])
    (('1.9 of 2 processors', 2), ('a hypervisor', 1))
    """
    alike: dict[str, list[str]] = {}
    for text in texts:
        alike.setdefault(_NUMBER.sub("", text), []).append(text)
    return tuple(sorted(((found[0], len(found)) for found in alike.values()), key=lambda g: (-g[1], g[0])))
