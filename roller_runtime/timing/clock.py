"""Clock for timing kernels: elapsed time, and the time during which the kernel was kept from running.

Lost time is derived from the operating system's counters: the time for which a thread was ready but waited for a
processor (``schedstat``), the caller's processor time compared with wall time, or involuntary context switches.
Counters are read at both ends of a window, so that a short window between two disturbances is known to be undisturbed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from roller_runtime.core.processor_features_and_count import busy_and_stolen_seconds, may_share_cores
from roller_runtime.cpu import threads

try:
    import resource
except ImportError:  # without it there are no counts of context switches
    resource = None  # type: ignore[assignment]

#: Environment variable that makes the clock accept every measurement, for machines that are never quiet.
TRUSTED = "ROLLER_TRUST_CLOCK"
#: Fraction of a quiet window that may be lost, and time assumed lost per context switch, in seconds, if the system
#: reports only switches.
QUIET_SHARE = 0.05
_SWITCH_S = 1e-3


@dataclass(frozen=True)
class ClockSample:
    """A window of wall time and the time that the kernel's threads lost in it, in seconds.

    Parameters
    ----------
    lost_s
        Time lost, in seconds, by the thread that lost most: simultaneous waits delay a kernel only once.
    together_s
        Total time lost by all threads, in seconds: consecutive waits add up. The kernel's own loss lies between
        ``lost_s`` and ``together_s``.
    """

    wall_s: float
    lost_s: float = 0.0
    together_s: float = 0.0

    @property
    def quiet(self) -> bool:
        """Whether the lost time is negligible."""
        return self.lost_s <= QUIET_SHARE * self.wall_s

    @property
    def least_s(self) -> float:
        """Lower bound, in seconds, on the time that the window would take without any loss."""
        return self.wall_s - min(self.wall_s, max(self.lost_s, self.together_s))


@dataclass(frozen=True)
class Load:
    """Cumulative counters of the processors that this process may use.

    Parameters
    ----------
    wall_s
        Time of the reading, in seconds.
    own_s, busy_s
        Processor time, in seconds, of this process and its reaped children, and of all processes.
    stolen_s
        Time, in seconds, that the hypervisor gave to other machines.
    throttled
        Number of times that the control group was throttled after using up its quota.
    shared_cores
        Whether two processors may share one core, so that other processes can slow a kernel down without taking its
        processor.
    known
        Whether the system reports the counters; otherwise, all are zero.
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
    """Interface to the machine that timing needs; tests substitute their own clocks."""

    #: Whether every measurement is accepted.
    trusting: bool

    def attend(self) -> None:
        """Find the threads of the kernel that ran last."""

    def release(self) -> None:
        """Stop observing the threads."""

    def begin(self) -> None:
        """Begin a sample."""

    def end(self) -> ClockSample:
        """End the current sample."""

    def now(self) -> float:
        """Return the monotonic time in seconds."""

    def rest(self, seconds: float) -> None:
        """Yield the processor to other processes; the scheduler lets a rested thread run longer."""

    def load(self) -> Load:
        """Return the counters of the machine's processors."""


class SystemClock:
    """The clock of this machine.

    Parameters
    ----------
    thread_ids
        Function that returns the ids of the kernel's threads, or ``None`` if unknown, in which case all threads of this
        process count.
    root
        Folder that contains ``proc`` and ``sys``.
    """

    trusting = False

    def __init__(
        self, thread_ids: Callable[[], Iterable[int] | None] = threads.kernel_thread_ids, root: Path = Path("/")
    ) -> None:
        self._thread_ids, self._root = thread_ids, root
        self._stats: dict[int, int] = {}
        self._begun: tuple[dict[int, int], float, int, float] = ({}, 0.0, 0, 0.0)

    def attend(self) -> None:
        """Open the statistics of every thread, so that each reading takes a microsecond."""
        tasks, known = self._root / "proc/self/task", self._thread_ids()
        wanted: set[int] = set()
        with contextlib.suppress(OSError):
            wanted = set(known) if known is not None else {int(p.name) for p in tasks.iterdir()}
        self._close([i for i in self._stats if i not in wanted])
        for thread in wanted - self._stats.keys():
            with contextlib.suppress(OSError):
                self._stats[thread] = os.open(tasks / str(thread) / "schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def release(self) -> None:
        """Close the statistics."""
        self._close(list(self._stats))

    def begin(self) -> None:
        """Begin a sample; read the counters before the time, so that reading them is not timed."""
        waited, switches = self._waited_ns_by_thread(), _count_involuntary_switches()
        self._begun = (waited, time.thread_time(), switches, time.perf_counter())

    def end(self) -> ClockSample:
        """End the sample; read the time before the counters."""
        wall, own_s = time.perf_counter(), time.thread_time()
        before, thread_s, switches, start = self._begun
        wall_s = wall - start
        waits_s = [1e-9 * (ns - before.get(thread, ns)) for thread, ns in self._waited_ns_by_thread().items()]
        if not self._stats:
            waits_s = [(_count_involuntary_switches() - switches) * _SWITCH_S]
        # Two clocks read in succession differ by about a microsecond.
        asleep_s = wall_s - (own_s - thread_s) - 2e-6
        return ClockSample(wall_s, max(0.0, asleep_s, *waits_s), sum(waits_s))

    def now(self) -> float:
        """Return the system's monotonic time in seconds."""
        return time.perf_counter()

    def rest(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def load(self) -> Load:
        """Read ``/proc/stat``, this process's own times, and the throttling count of its control group."""
        # Reaped children count as own work: nothing was timed while they ran.
        found = busy_and_stolen_seconds(threads.processors(), self._root)
        at, own_s = time.perf_counter(), time.process_time() + _reaped_children_s()
        count = len(threads.processors())
        if found is None:
            return Load(at, own_s, processors=count)
        throttled = _count_throttlings(self._root / "sys/fs/cgroup/cpu.stat")
        return Load(at, own_s, *found, throttled, count, may_share_cores(threads.processors(), self._root), True)

    def _waited_ns_by_thread(self) -> dict[int, int]:
        """Return the time, in nanoseconds, during which each thread was ready but not running, by thread id."""
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
    """A clock that attributes all time to the kernel."""

    trusting = True

    def attend(self) -> None:
        """Do nothing: no threads are observed."""

    def begin(self) -> None:
        """Begin a sample."""
        self._begun = ({}, 0.0, 0, time.perf_counter())

    def end(self) -> ClockSample:
        """End the sample without lost time."""
        return ClockSample(time.perf_counter() - self._begun[-1])


def system_or_trusting_clock() -> SystemClock:
    """Return this machine's clock, or a trusting clock if ``ROLLER_TRUST_CLOCK`` is set."""
    return TrustingClock() if os.environ.get(TRUSTED, "").strip() not in ("", "0") else SystemClock()


def _count_involuntary_switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw if resource is not None else 0


def _reaped_children_s() -> float:
    """Return the processor time, in seconds, of children that ended and were reaped."""
    if resource is None:
        return 0.0
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def _count_throttlings(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return next((int(x.split()[1]) for x in path.read_text().splitlines() if x.startswith("nr_throttled ")), 0)
    return 0
