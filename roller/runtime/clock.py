"""The clock kernels are timed with: seconds that passed, and how many of them the kernel did not have.

A time is only worth something where the kernel's threads ran all the while. The operating system counts what they
lost: seconds a thread was ready and waited for a processor (``schedstat``), processor time of the caller against the
wall, involuntary switches where the first is not told. Both ends of a window are read, so a short window between two
disturbances is known to be good.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from roller.backends.cpu import threads
from roller.core.processor import processor_times, shares_cores

try:
    import resource
except ImportError:  # a system without it tells of no switches
    resource = None  # type: ignore[assignment]

#: Environment variable that takes every measurement as it is: for machines that are never quiet.
TRUSTED = "ROLLER_TRUST_CLOCK"
#: Share of a window that may be lost; and seconds a switch is taken to cost where the system tells no more.
QUIET_SHARE = 0.05
_SWITCH_S = 1e-3


@dataclass(frozen=True)
class ClockSample:
    """Some seconds by the wall, and how many of them threads of the kernel were kept from running.

    ``lost_s`` is of the thread that lost most, ``together_s`` of all: waits at the same time delay a kernel once, waits
    one after the other add up, so that it lost something between the two.
    """

    wall_s: float
    lost_s: float = 0.0
    together_s: float = 0.0

    @property
    def quiet(self) -> bool:
        """Whether next to nothing was lost."""
        return self.lost_s <= QUIET_SHARE * self.wall_s

    @property
    def least_s(self) -> float:
        """What it would have taken at least, had nobody been kept from running."""
        return self.wall_s - min(self.wall_s, max(self.lost_s, self.together_s))


@dataclass(frozen=True)
class Load:
    """What the processors this process may use did so far.

    Parameters
    ----------
    wall_s
        When it was read.
    own_s, busy_s
        Seconds of processors that this process and the children it waited for had, and that all had together.
    stolen_s
        Seconds the hypervisor gave to other machines.
    throttled
        How often the control group was stopped for having used up its quota.
    processors
        How many there are.
    shared_cores
        Whether two of them may be one core: then others slow a kernel down without ever taking its processor.
    known
        Whether the system tells; all counts are zero where it does not.
    """

    wall_s: float
    own_s: float = 0.0
    busy_s: float = 0.0
    stolen_s: float = 0.0
    throttled: int = 0
    processors: int = 1
    shared_cores: bool = False
    known: bool = False


class Clock(Protocol):
    """What timing needs of a machine; tests bring their own."""

    #: Whether every measurement is taken as it is.
    trusting: bool

    def attend(self) -> None:
        """Find the threads of the kernel that ran last."""

    def release(self) -> None:
        """Let go of the threads."""

    def begin(self) -> None:
        """Begin a spell."""

    def end(self) -> ClockSample:
        """End the spell that was begun last."""

    def now(self) -> float:
        """Return seconds that pass."""

    def rest(self, seconds: float) -> None:
        """Leave the processor to others: whoever has rested is let run for longer."""

    def load(self) -> Load:
        """Return what the machine's processors did so far."""


class SystemClock:
    """The clock of this machine.

    Parameters
    ----------
    thread_ids
        Returns the ids of the kernel's threads; ``None`` where they are not known: then all of this process count.
    root
        Folder to read ``proc`` and ``sys`` under.
    """

    trusting = False

    def __init__(
        self, thread_ids: Callable[[], Iterable[int] | None] = threads.thread_ids, root: Path = Path("/")
    ) -> None:
        self._thread_ids, self._root = thread_ids, root
        self._stats: dict[int, int] = {}
        self._begun: tuple[dict[int, int], float, int, float] = ({}, 0.0, 0, 0.0)

    def attend(self) -> None:
        """Open the statistics of every thread, so that reading them takes a microsecond each."""
        tasks, known = self._root / "proc/self/task", self._thread_ids()
        wanted: set[int] = set()
        with contextlib.suppress(OSError):
            wanted = set(known) if known is not None else {int(p.name) for p in tasks.iterdir()}
        self._close([i for i in self._stats if i not in wanted])
        for thread in wanted - self._stats.keys():
            with contextlib.suppress(OSError):
                self._stats[thread] = os.open(tasks / str(thread) / "schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def release(self) -> None:
        """Close them."""
        self._close(list(self._stats))

    def begin(self) -> None:
        """Begin a spell: the counters first, so that reading them is no part of it."""
        waited, switches = self._waited_ns(), _switches()
        self._begun = (waited, time.thread_time(), switches, time.perf_counter())

    def end(self) -> ClockSample:
        """End the spell: the seconds first."""
        wall, own_s = time.perf_counter(), time.thread_time()
        before, thread_s, switches, start = self._begun
        wall_s = wall - start
        waits_s = [1e-9 * (ns - before.get(thread, ns)) for thread, ns in self._waited_ns().items()]
        if not self._stats:
            waits_s = [(_switches() - switches) * _SWITCH_S]
        # Two clocks that are read one after the other differ by a microsecond.
        asleep_s = wall_s - (own_s - thread_s) - 2e-6
        return ClockSample(wall_s, max(0.0, asleep_s, *waits_s), sum(waits_s))

    def now(self) -> float:
        """Return the monotonic seconds of the system."""
        return time.perf_counter()

    def rest(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def load(self) -> Load:
        """Read ``/proc/stat``, this process' own times, and how often its control group was stopped.

        A child that was waited for is this process' own work: nothing was timed meanwhile.
        """
        found = processor_times(threads.processors(), self._root)
        at, own_s = time.perf_counter(), time.process_time() + _children_s()
        count = len(threads.processors())
        if found is None:
            return Load(at, own_s, processors=count)
        throttled = _throttled(self._root / "sys/fs/cgroup/cpu.stat")
        return Load(at, own_s, *found, throttled, count, shares_cores(threads.processors(), self._root), True)

    def _waited_ns(self) -> dict[int, int]:
        """Return by thread the nanoseconds it was ready and did not run."""
        found = {}
        for thread, file in list(self._stats.items()):
            try:
                found[thread] = int(os.pread(file, 96, 0).split()[1])
            except (OSError, IndexError, ValueError):  # the thread has ended
                self._close([thread])
        return found

    def _close(self, ids: Iterable[int]) -> None:
        for thread in ids:
            with contextlib.suppress(OSError):
                os.close(self._stats.pop(thread))


class TrustingClock(SystemClock):
    """A clock that takes every second for the kernel's own."""

    trusting = True

    def attend(self) -> None:
        """Look at no thread."""

    def begin(self) -> None:
        """Begin a spell."""
        self._begun = ({}, 0.0, 0, time.perf_counter())

    def end(self) -> ClockSample:
        """End it; nothing was lost."""
        return ClockSample(time.perf_counter() - self._begun[-1])


def system_clock() -> SystemClock:
    """Return the clock of this machine, or one that trusts it where ``ROLLER_TRUST_CLOCK`` says so."""
    return TrustingClock() if os.environ.get(TRUSTED, "").strip() not in ("", "0") else SystemClock()


def _switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw if resource is not None else 0


def _children_s() -> float:
    """Return seconds of processors that children had which have ended and were waited for."""
    if resource is None:
        return 0.0
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def _throttled(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return next((int(x.split()[1]) for x in path.read_text().splitlines() if x.startswith("nr_throttled ")), 0)
    return 0
