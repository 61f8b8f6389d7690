"""Co-scheduling: independent kernels that do not fill the device run side by side, as the paper does after Rammer.

A kernel that is spread over all units pays to spread: threads are woken and waited for, tiles shrink, units idle at the
end. Where kernels do not depend on each other each of them can have a share of the units instead. A model becomes
*sections*: within one every lane runs a sequence of kernels that were constructed for its share, and reads only what
earlier sections or the same lane have written; after it the lanes wait for each other once. Sections are grown
greedily, the kernel on the longest way to the end first, and kept only where they are predicted to be faster than the
same kernels one after another on the whole device. Everything is decided from predictions, before anything is built.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from roller.models.graph.dependencies import Dependencies, live_bytes
from roller.models.graph.steps import Copy, Join, KernelSource, ParallelGroup, Program, Run, Step, View
from roller.models.graph.weights import by_constants, large_constants, reloaded_bytes, resident_bytes

#: Steps a section takes at most, per lane.
_LONGEST = 256
#: Steps per lane that a section is grown on without gaining more.
_PATIENCE = 8
#: Of the steps a section was tried with in vain, one of so many then runs alone before the next try.
_RETREAT = 8
#: Predicted gain of a section below which its kernels stay one after another: what predictions of a ratio are good for.
LEAST_GAIN = 0.05
#: Another order may take this much more memory for values than the one it replaces, this part of the constants', or
#: this many bytes.
_MORE_MEMORY, _OF_CONSTANTS, _FREE_BYTES = 1.25, 1 / 8, 1 << 20
#: How far ahead of the others a section may run, as parts of the longest way through the model; less takes less memory.
AHEAD = (1.0, 1 / 16, 1 / 64, 1 / 256)


@dataclass(frozen=True)
class Costs:
    """What kernels are predicted to take, by key (seconds).

    Parameters
    ----------
    whole_s
        On the whole device; kernels that are not named count for nothing.
    share_s
        On the share of one lane; kernels that are not named stay out of lanes.
    sync_s
        To start the lanes of a section and to see the last one end.
    lanes
        Lanes of a section.
    units
        Units of a lane, as its kernels are constructed for them.
    common_s
        How long a kernel keeps busy what all lanes share (memory, common caches): lanes cannot overlap that.
    bytes_per_s
        Of copies.
    kept_bytes
        Constants that predictions find in a cache, as far as no more than these were read since.
    reload_bytes_per_s
        Of those that are in no cache.
    least_gain
        Predicted gain of a whole model below which it stays as it is: what the ratio of two predictions may be off by.
    own_bytes
        Constants a core keeps for itself, where predictions find them in no nearer cache than the common one.
    own_s_per_byte
        What a byte found there saves: a step with the whole device, and one in a lane.
    """

    whole_s: Mapping[str, float]
    share_s: Mapping[str, float]
    sync_s: float
    lanes: int
    units: int
    common_s: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: float = math.inf
    kept_bytes: float = math.inf
    reload_bytes_per_s: float = math.inf
    least_gain: float = 0.02
    own_bytes: float = 0.0
    own_s_per_byte: tuple[float, float] = (0.0, 0.0)

    def whole(self, step: Step) -> float:
        """Return the seconds of a step that has the device to itself."""
        return self.whole_s.get(step.kernel, 0.0) if isinstance(step, Run) else self._moved(step)

    def share(self, step: Step) -> float | None:
        """Return the seconds of a step in a lane; ``None`` where it stays out of lanes."""
        if isinstance(step, Run):
            found = self.share_s.get(step.kernel)
            # What is sped up by more units than it is given more of cannot gain from having fewer.
            return found if found is not None and found < self.lanes * self.whole(step) else None
        return self._moved(step) if isinstance(step, (View, Copy)) else None

    def common(self, step: Step) -> float:
        """Return the seconds a step keeps busy what all lanes share."""
        return self.common_s.get(step.kernel, 0.0) if isinstance(step, Run) else self._moved(step)

    def _moved(self, step: Step) -> float:
        return step.rows * step.row_bytes / self.bytes_per_s if isinstance(step, Copy) else 0.0


@dataclass(frozen=True)
class Outcome:
    """What co-scheduling made of a program.

    Parameters
    ----------
    program
        With sections; the very program that was given where none was predicted to gain.
    serial_s, together_s
        Predicted seconds of all kernels one after another, and of the program.
    sections, runs
        Sections, and kernels that run in them.
    """

    program: Program
    serial_s: float
    together_s: float
    sections: int = 0
    runs: int = 0


def share_key(key: str, units: int) -> str:
    """Return the key of a kernel constructed for a share of the units: another kernel than that of the whole device.

    Examples
    --------
    >>> share_key("3fa2", 1)
    '3fa2@1'
    """
    return f"{key}@{units}"


def coschedule(program: Program, costs: Costs) -> Outcome:
    """Return the program with independent kernels side by side wherever that is predicted to be faster.

    Takes O(n log n) for n steps. Steps change their order only where the new order needs about as much memory.
    """
    serial_s = sum(costs.whole(s) for s in program.steps) + _weights_s(program, program.steps, costs)
    unchanged = Outcome(program, serial_s, serial_s)
    if costs.lanes < 2 or not costs.share_s:
        return unchanged
    most = most_live_bytes(program)
    best: tuple[float, list[Step]] = ((1.0 - costs.least_gain) * serial_s, [])
    for ahead in AHEAD:
        scheduler = _Scheduler(program, costs, ahead)
        scheduler.run()
        if not any(isinstance(s, ParallelGroup) for s in scheduler.out):
            break
        if live_bytes(program, scheduler.out) <= most:
            weights_s = _weights_s(program, scheduler.out, costs)
            best = min(best, (scheduler.seconds + weights_s, scheduler.out), key=lambda found: found[0])
            if not weights_s:
                break
    together_s, steps = best
    if not steps:
        return unchanged
    sections = [s for s in steps if isinstance(s, ParallelGroup)]
    runs = sum(isinstance(s, Run) for t in sections for lane in t.lanes for s in lane)
    made = replace(program, steps=tuple(steps), kernels=_kernels(program, steps, costs))
    return Outcome(made, serial_s, together_s, len(sections), runs)


def most_live_bytes(program: Program) -> float:
    """Return how many bytes of values another order of a program's steps may need at the same time."""
    constants = sum(program.values[n].nbytes for n in program.constants)
    return max(_FREE_BYTES, _OF_CONSTANTS * constants, _MORE_MEMORY * live_bytes(program, program.steps))


def _weights_s(program: Program, steps: Iterable[Step], costs: Costs) -> float:
    """Return the seconds by which constants take longer than predicted, because of the order of steps; or less long."""
    order = list(steps)
    reload_s = reloaded_bytes(program, order, costs.kept_bytes) / costs.reload_bytes_per_s
    if not costs.own_bytes:
        return reload_s
    alone, inside = resident_bytes(program, order, costs.own_bytes, costs.lanes)
    # Lanes save side by side.
    return reload_s - alone * costs.own_s_per_byte[0] - inside * costs.own_s_per_byte[1] / costs.lanes


def _kernels(program: Program, steps: Iterable[Step], costs: Costs) -> dict[str, KernelSource]:
    """Return the kernels that the steps need, those for a share among them."""
    shares = {share_key(key, costs.units): replace(source, units=costs.units)
              for key, source in program.kernels.items()}  # fmt: skip
    every = {**program.kernels, **shares}
    lanes = (lane for s in steps for lane in (s.lanes if isinstance(s, ParallelGroup) else ((s,),)))
    return {s.kernel: every[s.kernel] for lane in lanes for s in lane if isinstance(s, Run)}


class _Scheduler:
    """Steps that are ready, in two orders: as they were given, and by the longest way to the end."""

    def __init__(self, program: Program, costs: Costs, ahead: float) -> None:
        steps = self.steps = program.steps
        self.costs, self.graph = costs, Dependencies.of(steps)
        self.constants = large_constants(program)
        self.share = [costs.share(s) for s in steps]
        self.longest = self.graph.longest_s([costs.whole(s) for s in steps])
        self.ahead_s = ahead * max(self.longest, default=0.0)
        self.missing = [len(b) for b in self.graph.before]
        self.done = [False] * len(steps)
        self.by_place: list[int] = []
        self.by_length: list[tuple[float, int]] = []
        self.out: list[Step] = []
        self.seconds = 0.0
        self._ready([i for i, n in enumerate(self.missing) if n == 0])

    def run(self) -> None:
        """Put every step into ``out``, in sections where they gain."""
        while self.by_place:
            if self.done[self.by_place[0]]:
                heapq.heappop(self.by_place)
                continue
            alone = 1
            if self.share[self.by_place[0]] is not None:
                section = _Section(self)
                section.grow()
                alone = max(1, len(section.order) // _RETREAT)
                if self._keep(section):
                    continue
            for _ in range(alone):
                while self.by_place and self.done[self.by_place[0]]:
                    heapq.heappop(self.by_place)
                if self.by_place:
                    self._alone(heapq.heappop(self.by_place))

    def _keep(self, section: _Section) -> bool:
        """Take over the part of a section that gains most, if it gains; what is beyond that part stays ready."""
        kept = section.order[: section.best]
        lanes: list[list[int]] = [[] for _ in range(self.costs.lanes)]
        for i, lane in kept:
            lanes[lane].append(i)
            self.done[i] = True
        for i in section.taken:
            if not self.done[i]:
                heapq.heappush(self.by_length, (-self.longest[i], i))
        if kept:
            orders = (by_constants(lane, self.graph, self.constants) for lane in lanes if lane)
            self.out.append(ParallelGroup(tuple(tuple(self._shared(i) for i in order) for order in orders)))
            self.seconds += section.best_s
            self._release(i for i, _ in kept)
        return bool(kept)

    def _shared(self, i: int) -> Step:
        """Return a step as it stands in a lane."""
        step = self.steps[i]
        return replace(step, kernel=share_key(step.kernel, self.costs.units)) if isinstance(step, Run) else step

    def _alone(self, i: int) -> None:
        self.done[i] = True
        self.out.append(self.steps[i])
        self.seconds += self.costs.whole(self.steps[i])
        self._release((i,))

    def _release(self, finished: Iterable[int]) -> None:
        ready = []
        for i in finished:
            for j in self.graph.after[i]:
                self.missing[j] -= 1
                if self.missing[j] == 0 and not self.done[j]:
                    ready.append(j)
        self._ready(ready)

    def _ready(self, steps: Iterable[int]) -> None:
        """Note steps that may run; what costs no kernel runs at once, so that it holds up nothing."""
        for i in steps:
            if isinstance(self.steps[i], (View, Join)):
                self._alone(i)
                continue
            heapq.heappush(self.by_place, i)
            if self.share[i] is not None:
                heapq.heappush(self.by_length, (-self.longest[i], i))


class _Section:
    """One section while it grows: the emptiest lane takes the next step, that with the longest way to the end."""

    def __init__(self, scheduler: _Scheduler) -> None:
        self._s, count = scheduler, scheduler.costs.lanes
        self.order: list[tuple[int, int]] = []
        self.taken: list[int] = []
        self.best, self.best_s = 0, 0.0
        self._gain = self._serial = self._common = 0.0
        self._load = [0.0] * count
        self._own: list[list[tuple[float, int]]] = [[] for _ in range(count)]
        self._missing: dict[int, int] = {}
        self._lane: dict[int, int] = {}
        first = self._from_all()
        self._least = -first[0] - scheduler.ahead_s if first else 0.0

    def grow(self) -> None:
        """Place steps until no lane has any, or more of them gain nothing."""
        lanes = range(len(self._load))
        for size in range(_LONGEST * len(lanes)):
            if size - self.best > _PATIENCE * len(lanes):
                return
            for lane in sorted(lanes, key=self._load.__getitem__):
                found = self._next(lane)
                if found is not None:
                    self._place(found, lane)
                    break
            else:
                return
            if size == 0 and self._from_all() is None:
                return  # all that could follow would stay in one lane

    def _from_all(self) -> tuple[float, int] | None:
        """Return the first of the steps that any lane may take, with what it is ordered by."""
        heap = self._s.by_length
        while heap and (self._s.done[heap[0][1]] or heap[0][1] in self._lane):
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _next(self, lane: int) -> int | None:
        """Take the next step of a lane: one that it alone may take comes first among equals."""
        own, every = self._own[lane], self._from_all()
        if every is not None and -every[0] < self._least:
            every = None
        if own and (every is None or own[0][0] <= every[0]):
            return heapq.heappop(own)[1]
        if every is None:
            return None
        self.taken.append(heapq.heappop(self._s.by_length)[1])
        return self.taken[-1]

    def _place(self, i: int, lane: int) -> None:
        s = self._s
        seconds = s.share[i]
        assert seconds is not None
        self.order.append((i, lane))
        self._lane[i] = lane
        self._load[lane] += seconds
        self._serial += s.costs.whole(s.steps[i])
        self._common += s.costs.common(s.steps[i])
        length = max(*self._load, self._common) + s.costs.sync_s
        gain = self._serial - length
        if gain > self._gain and gain > LEAST_GAIN * self._serial:
            self._gain, self.best, self.best_s = gain, len(self.order), length
        for j in s.graph.after[i]:
            self._missing[j] = self._missing.get(j, s.missing[j]) - 1
            inside = all(self._lane.get(b, lane) == lane for b in s.graph.before[j])
            if self._missing[j] == 0 and inside and s.share[j] is not None and s.longest[j] >= self._least:
                first = -math.inf if isinstance(s.steps[j], View) else -s.longest[j]
                heapq.heappush(self._own[lane], (first, j))
