"""Describes what disturbed a measurement, based on counters of the operating system."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from roller_runtime.timing.clock import Clock, Load

#: Minimum share of the processors' time that is named as a disturbance.
NAMED = 0.05
#: Busy share of the processors that a kernel does not use above which other programs slow it down, if processors share
#: cores.
BESIDE = 0.25
#: Time, in seconds, below which the time of other programs counts as zero: a few ticks of ``/proc/stat``.
_TICKS_S = 0.04
#: Time, in seconds, for which the machine is observed: some twenty ticks.
_LOOK_S = 0.25
_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class Disturbance:
    """Activity of other programs on the processors during a measurement.

    Parameters
    ----------
    others
        Average number of processors that other programs kept busy.
    stolen
        Share of all processors' time that the hypervisor gave to other machines.
    throttled
        Whether the control group was stopped after using up its quota.
    shared_cores
        See :class:`roller_runtime.timing.clock.Load`.
    """

    wall_s: float
    processors: int = 1
    others: float = 0.0
    stolen: float = 0.0
    throttled: bool = False
    shared_cores: bool = False

    @classmethod
    def between(cls, before: Load, after: Load) -> Disturbance:
        """Return the activity between two readings of the counters."""
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
        """Return whether programs on the remaining processors slowed down a kernel with ``used`` threads."""
        # They may run on the other hardware threads of the kernel's cores, so that no thread of the kernel waits.
        left = self.processors - used
        return self.shared_cores and left > 0 and self.others > BESIDE * left

    def __str__(self) -> str:
        """Describe the disturbances, the strongest first; return an empty text if there are none."""
        found = []
        if self.others > NAMED * self.processors:
            found.append((self.others / self.processors, f"other programs kept {self.others:.1f} of "
                          f"{self.processors} processors busy"))  # fmt: skip
        if self.stolen > NAMED:
            found.append((self.stolen, f"the hypervisor took {100 * self.stolen:.0f} % of the processors' time"))
        if self.throttled:
            found.append((0.0, "the control group used up its quota of processor time and was stopped"))
        return ", and ".join(text for _, text in sorted(found, key=lambda f: -f[0]))


def observe_machine(clock: Clock, seconds: float = _LOOK_S) -> Disturbance:
    """Stay idle for ``seconds`` seconds and return the disturbance by other programs on this machine."""
    before = clock.load()
    clock.rest(seconds)
    return Disturbance.between(before, clock.load())


def count_alike_texts(texts: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Group texts that differ only in numbers; return each group's first text and count, most frequent first.

    Examples
    --------
    >>> count_alike_texts(["1.9 of 2 processors", "a hypervisor", "1.7 of 2 processors"])
    (('1.9 of 2 processors', 2), ('a hypervisor', 1))
    """
    alike: dict[str, list[str]] = {}
    for text in texts:
        alike.setdefault(_NUMBER.sub("", text), []).append(text)
    return tuple(sorted(((found[0], len(found)) for found in alike.values()), key=lambda g: (-g[1], g[0])))
