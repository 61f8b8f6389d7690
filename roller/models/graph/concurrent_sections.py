"""Co-scheduling: independent kernels that do not fill the device run concurrently, as in the Roller paper and Rammer.

A model is divided into *sections*. Within a section, each lane runs a sequence of kernels constructed for its share of
the units and reads only values of earlier sections or its own; at the end of the section, the lanes synchronize.
Sections grow greedily, starting with the kernel on the longest path to the end, and are kept if they are predicted to
be faster than serial kernels.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from roller.models.graph.order_steps_for_weight_reuse import (
    core_cached_constant_bytes,
    large_constant_per_step,
    order_lane_for_weight_reuse,
    reloaded_constant_bytes,
)
from roller.models.graph.step_dependencies import Dependencies, peak_live_bytes
from roller_runtime.plan.program_steps import Copy, Join, KernelSource, ParallelGroup, Program, Run, Step, View

#: Maximum number of steps in a section, per lane.
_LONGEST = 256
#: Number of steps per lane by which a section may grow without further gain.
_PATIENCE = 8
#: After a section that gained nothing, one in this many of its steps runs alone before the next attempt.
_RETREAT = 8
#: Minimum predicted relative gain of a section: about the error of predicted ratios.
LEAST_GAIN = 0.05
#: A new order may need, for values, this multiple of the old order's memory, this fraction of the constants' bytes, or
#: this many bytes, whichever is largest.
_MORE_MEMORY, _OF_CONSTANTS, _FREE_BYTES = 1.25, 1 / 8, 1 << 20
#: How far a section may run ahead, as fractions of the critical path; smaller values need less memory.
AHEAD = (1.0, 1 / 16, 1 / 64, 1 / 256)


@dataclass(frozen=True)
class LaneCosts:
    """Predicted costs of kernels by key.

    Parameters
    ----------
    whole_s
        Time on the whole device, in seconds; missing kernels count as 0.
    share_s
        Time on one lane's share, in seconds; missing kernels do not run in lanes.
    sync_s
        Time, in seconds, to start the lanes of a section and wait for the last one.
    lanes
        Number of lanes in a section.
    units
        Number of units per lane.
    common_s
        Time, in seconds, during which a kernel occupies resources shared by all lanes (memory, shared caches). These
        times do not overlap.
    bytes_per_s
        Bandwidth of copies.
    kept_bytes
        Number of bytes of constants that stay cached; predictions assume that all constants do.
    reload_bytes_per_s
        Bandwidth at which evicted constants are reloaded.
    least_gain
        Minimum predicted relative gain for a whole model: about the error of the ratio of two predictions.
    own_bytes
        Number of bytes of constants that a core's own cache keeps; predictions assume that they are in a shared cache.
    own_s_per_byte
        Time saved, in seconds, per byte found in the core's own cache: for a step on the whole device, and in a lane.
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
        """Return the time, in seconds, that a step takes alone on the device."""
        return self.whole_s.get(step.kernel, 0.0) if isinstance(step, Run) else self._copy_s(step)

    def share(self, step: Step) -> float | None:
        """Return the time, in seconds, that a step takes in a lane; ``None`` if it must not run in lanes."""
        if isinstance(step, Run):
            found = self.share_s.get(step.kernel)
            # A kernel whose speed-up is superlinear in the number of units loses in lanes.
            return found if found is not None and found < self.lanes * self.whole(step) else None
        return self._copy_s(step) if isinstance(step, (View, Copy)) else None

    def common(self, step: Step) -> float:
        """Return the time, in seconds, during which a step occupies resources shared by all lanes."""
        return self.common_s.get(step.kernel, 0.0) if isinstance(step, Run) else self._copy_s(step)

    def _copy_s(self, step: Step) -> float:
        return step.rows * step.row_bytes / self.bytes_per_s if isinstance(step, Copy) else 0.0


@dataclass(frozen=True)
class CoscheduleResult:
    """Result of co-scheduling.

    Parameters
    ----------
    program
        Program with sections; the same object as the input if no section was predicted to be faster.
    serial_s, together_s
        Predicted time, in seconds, of all kernels in sequence, and predicted time of ``program``.
    sections, runs
        Number of sections, and number of kernels that run in them.
    """

    program: Program
    serial_s: float
    together_s: float
    sections: int = 0
    runs: int = 0


def device_share_kernel_key(key: str, units: int) -> str:
    """Return the key of a kernel constructed for a share of the units.

    Examples
    --------
    >>> device_share_kernel_key("3fa2", 1)
    '3fa2@1'
    """
    return f"{key}@{units}"


def schedule_sections(program: Program, costs: LaneCosts) -> CoscheduleResult:
    """Return the program with sections if these are predicted to be faster; O(n log n) for n steps."""
    serial_s = sum(costs.whole(s) for s in program.steps) + _weight_reading_change_s(program, program.steps, costs)
    unchanged = CoscheduleResult(program, serial_s, serial_s)
    if costs.lanes < 2 or not costs.share_s:
        return unchanged
    most = live_bytes_limit(program)
    best: tuple[float, list[Step]] = ((1.0 - costs.least_gain) * serial_s, [])
    for ahead in AHEAD:
        scheduler = _SectionScheduler(program, costs, ahead)
        scheduler.run()
        if not any(isinstance(s, ParallelGroup) for s in scheduler.out):
            break
        if peak_live_bytes(program, scheduler.out) <= most:
            weights_s = _weight_reading_change_s(program, scheduler.out, costs)
            best = min(best, (scheduler.seconds + weights_s, scheduler.out), key=lambda found: found[0])
            if not weights_s:
                break
    together_s, steps = best
    if not steps:
        return unchanged
    sections = [s for s in steps if isinstance(s, ParallelGroup)]
    runs = sum(isinstance(s, Run) for t in sections for lane in t.lanes for s in lane)
    made = replace(program, steps=tuple(steps), kernels=_kernels_of_steps(program, steps, costs))
    return CoscheduleResult(made, serial_s, together_s, len(sections), runs)


def live_bytes_limit(program: Program) -> float:
    """Return the maximum number of bytes that may be live at once in a new order of a program's steps."""
    constants = sum(program.values[n].nbytes for n in program.constants)
    return max(_FREE_BYTES, _OF_CONSTANTS * constants, _MORE_MEMORY * peak_live_bytes(program, program.steps))


def _weight_reading_change_s(program: Program, steps: Iterable[Step], costs: LaneCosts) -> float:
    """Return the change, in seconds, that the order of steps causes in the time to read constants."""
    order = list(steps)
    reload_s = reloaded_constant_bytes(program, order, costs.kept_bytes) / costs.reload_bytes_per_s
    if not costs.own_bytes:
        return reload_s
    alone, inside = core_cached_constant_bytes(program, order, costs.own_bytes, costs.lanes)
    # Lanes save time concurrently.
    return reload_s - alone * costs.own_s_per_byte[0] - inside * costs.own_s_per_byte[1] / costs.lanes


def _kernels_of_steps(program: Program, steps: Iterable[Step], costs: LaneCosts) -> dict[str, KernelSource]:
    """Return the kernels that the steps need, including those for a share of the units."""
    shares = {device_share_kernel_key(key, costs.units): replace(source, units=costs.units)
              for key, source in program.kernels.items()}  # fmt: skip
    every = {**program.kernels, **shares}
    lanes = (lane for s in steps for lane in (s.lanes if isinstance(s, ParallelGroup) else ((s,),)))
    return {s.kernel: every[s.kernel] for lane in lanes for s in lane if isinstance(s, Run)}


class _SectionScheduler:
    """Builds sections from ready steps, kept both in program order and in order of the longest path to the end."""

    def __init__(self, program: Program, costs: LaneCosts, ahead: float) -> None:
        steps = self.steps = program.steps
        self.costs, self.graph = costs, Dependencies.of(steps)
        self.constants = large_constant_per_step(program)
        self.share = [costs.share(s) for s in steps]
        self.longest = self.graph.critical_path_s_from_each_step([costs.whole(s) for s in steps])
        self.ahead_s = ahead * max(self.longest, default=0.0)
        self.missing = [len(b) for b in self.graph.before]
        self.done = [False] * len(steps)
        self.by_place: list[int] = []
        self.by_length: list[tuple[float, int]] = []
        self.out: list[Step] = []
        self.seconds = 0.0
        self._add_ready_steps([i for i, n in enumerate(self.missing) if n == 0])

    def run(self) -> None:
        """Move every step to ``out``, in sections if these are faster."""
        while self.by_place:
            if self.done[self.by_place[0]]:
                heapq.heappop(self.by_place)
                continue
            alone = 1
            if self.share[self.by_place[0]] is not None:
                section = _Section(self)
                section.grow()
                alone = max(1, len(section.order) // _RETREAT)
                if self._take_best_prefix(section):
                    continue
            for _ in range(alone):
                while self.by_place and self.done[self.by_place[0]]:
                    heapq.heappop(self.by_place)
                if self.by_place:
                    self._run_alone(heapq.heappop(self.by_place))

    def _take_best_prefix(self, section: _Section) -> bool:
        """Take the prefix of a section with the largest gain; return whether any prefix gains."""
        kept = section.order[: section.best]
        lanes: list[list[int]] = [[] for _ in range(self.costs.lanes)]
        for i, lane in kept:
            lanes[lane].append(i)
            self.done[i] = True
        for i in section.taken:
            if not self.done[i]:
                heapq.heappush(self.by_length, (-self.longest[i], i))
        if kept:
            orders = (order_lane_for_weight_reuse(lane, self.graph, self.constants) for lane in lanes if lane)
            self.out.append(ParallelGroup(tuple(tuple(self._lane_step(i) for i in order) for order in orders)))
            self.seconds += section.best_s
            self._release_successors(i for i, _ in kept)
        return bool(kept)

    def _lane_step(self, i: int) -> Step:
        """Return a step as it runs in a lane."""
        step = self.steps[i]
        return (
            replace(step, kernel=device_share_kernel_key(step.kernel, self.costs.units))
            if isinstance(step, Run)
            else step
        )

    def _run_alone(self, i: int) -> None:
        self.done[i] = True
        self.out.append(self.steps[i])
        self.seconds += self.costs.whole(self.steps[i])
        self._release_successors((i,))

    def _release_successors(self, finished: Iterable[int]) -> None:
        ready = []
        for i in finished:
            for j in self.graph.after[i]:
                self.missing[j] -= 1
                if self.missing[j] == 0 and not self.done[j]:
                    ready.append(j)
        self._add_ready_steps(ready)

    def _add_ready_steps(self, steps: Iterable[int]) -> None:
        """Add ready steps; views and joins, which run no kernel, complete immediately."""
        for i in steps:
            if isinstance(self.steps[i], (View, Join)):
                self._run_alone(i)
                continue
            heapq.heappush(self.by_place, i)
            if self.share[i] is not None:
                heapq.heappush(self.by_length, (-self.longest[i], i))


class _Section:
    """A growing section: the least loaded lane takes the ready step with the longest path to the end."""

    def __init__(self, scheduler: _SectionScheduler) -> None:
        self._s, count = scheduler, scheduler.costs.lanes
        self.order: list[tuple[int, int]] = []
        self.taken: list[int] = []
        self.best, self.best_s = 0, 0.0
        self._gain = self._serial = self._common = 0.0
        self._load = [0.0] * count
        self._own: list[list[tuple[float, int]]] = [[] for _ in range(count)]
        self._missing: dict[int, int] = {}
        self._lane: dict[int, int] = {}
        first = self._first_step_for_any_lane()
        self._least = -first[0] - scheduler.ahead_s if first else 0.0

    def grow(self) -> None:
        """Place steps until no lane has steps left or further steps gain nothing."""
        lanes = range(len(self._load))
        for size in range(_LONGEST * len(lanes)):
            if size - self.best > _PATIENCE * len(lanes):
                return
            for lane in sorted(lanes, key=self._load.__getitem__):
                found = self._take_next_step(lane)
                if found is not None:
                    self._place_step(found, lane)
                    break
            else:
                return
            if size == 0 and self._first_step_for_any_lane() is None:
                return  # all further steps would run in the same lane

    def _first_step_for_any_lane(self) -> tuple[float, int] | None:
        """Return the sort key and index of the first step that any lane may take; ``None`` if there is none."""
        heap = self._s.by_length
        while heap and (self._s.done[heap[0][1]] or heap[0][1] in self._lane):
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _take_next_step(self, lane: int) -> int | None:
        """Take a lane's next step, or return ``None``; of equal steps, prefer one that only this lane may take."""
        own, every = self._own[lane], self._first_step_for_any_lane()
        if every is not None and -every[0] < self._least:
            every = None
        if own and (every is None or own[0][0] <= every[0]):
            return heapq.heappop(own)[1]
        if every is None:
            return None
        self.taken.append(heapq.heappop(self._s.by_length)[1])
        return self.taken[-1]

    def _place_step(self, i: int, lane: int) -> None:
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
