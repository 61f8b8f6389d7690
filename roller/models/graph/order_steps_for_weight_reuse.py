"""Reuse of cached weights: orders steps so that they reread weights soon, and counts the bytes that are reloaded."""

from __future__ import annotations

import heapq
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from statistics import median_low

from roller.models.graph.step_dependencies import Dependencies
from roller_runtime.plan.program_steps import ParallelGroup, Program, Run, Step, View, values_read, values_written

#: Minimum size, in bytes, of a constant that affects the order of steps: smaller ones stay in a core's caches anyway.
_LARGE_BYTES = 1 << 15


def large_constant_per_step(program: Program) -> list[str | None]:
    """Return, for each step, the largest constant that it reads; ``None`` if it reads no large constant."""
    sizes = {n: program.values[n].nbytes for n in program.constants}
    found = [max((n for n in values_read(s) if n in sizes), key=sizes.__getitem__, default=None) for s in program.steps]
    return [n if n is not None and sizes[n] >= _LARGE_BYTES else None for n in found]


def order_lane_for_weight_reuse(lane: Sequence[int], graph: Dependencies, constants: Sequence[str | None]) -> list[int]:
    """Return a lane's steps in an order that rereads weights while they are still in a core's caches.

    Examples
    --------
    >>> graph = Dependencies(((), (), (0,), (1,)), ((2,), (3,), (), ()))
    >>> order_lane_for_weight_reuse([0, 1, 2, 3], graph, ["w", "w", "r", "r"])
    [0, 1, 2, 3]
    >>> order_lane_for_weight_reuse([0, 2, 1, 3], graph, ["w", "w", "r", "r"])
    [0, 1, 2, 3]
    """
    # The next step is one with the weights of the last step; otherwise one without weights, for which others may wait;
    # otherwise the first in the given order.
    place = {i: n for n, i in enumerate(lane)}
    missing = {i: sum(b in place for b in graph.before[i]) for i in lane}
    ready: dict[str | None, list[int]] = defaultdict(list)
    first: list[int] = []
    out: list[int] = []

    def release(i: int) -> None:
        heapq.heappush(ready[constants[i]], place[i])
        heapq.heappush(first, place[i])

    for i in lane:
        if not missing[i]:
            release(i)
    done, last = set[int](), None
    while first:
        if first[0] in done:
            heapq.heappop(first)
            continue
        heap = next(h for h in (ready[last], ready[None], ready[constants[lane[first[0]]]]) if h)
        n = heapq.heappop(heap)
        i = lane[n]
        done.add(n)
        out.append(i)
        last = constants[i] or last
        for j in graph.after[i]:
            if j in missing:
                missing[j] -= 1
                if not missing[j]:
                    release(j)
    return out


def reloaded_constant_bytes(program: Program, steps: Iterable[Step], kept_bytes: float) -> float:
    """Return the number of bytes of constants that a call reloads if a cache keeps the ``kept_bytes`` read last."""
    sizes = {n: program.values[n].nbytes for n in program.constants}
    if sum(sizes.values()) <= kept_bytes:
        return 0.0
    read = [(n, float(sizes[n])) for step in _interleave_lanes(steps) for n in values_read(step) if n in sizes]
    cache = _LruCache(kept_bytes)
    for _ in range(2):  # the second call finds the constants that the first one left
        missed = sum(size for name, size in read if not cache.read(name, size))
    return missed


def core_cached_constant_bytes(
    program: Program, steps: Iterable[Step], kept_bytes: float, lanes: int
) -> tuple[float, float]:
    """Return how many bytes of constants the steps outside lanes, and those inside, find in the cores' own caches."""
    sizes = {n: program.values[n].nbytes for n in program.constants}
    # A step on all cores leaves a part of its weights in each cache; a step in a lane leaves all in its core's cache.
    cores, alone, inside = [_LruCache(kept_bytes) for _ in range(lanes)], 0.0, 0.0
    for step in steps:
        if isinstance(step, ParallelGroup):
            for core, lane in zip(cores, step.lanes, strict=False):
                inside += sum(sizes[n] for s in lane for n in values_read(s) if n in sizes and core.read(n, sizes[n]))
            continue
        for name in values_read(step):
            if name in sizes:
                found = [core.read(f"{name}/part", sizes[name] / lanes) for core in cores]
                alone += sizes[name] * all(found)
    return alone, inside


def bytes_between_reads(program: Program) -> dict[str, int]:
    """Return, for each kernel with constants, how many bytes are touched between two reads of its largest constant."""
    # The result is the median over a kernel's runs. Each read and write of a value counts, but all values together
    # count at most the bytes that the largest step touches, because the memory of values is reused.
    sizes = {name: value.nbytes for name, value in program.values.items()} | dict.fromkeys(program.loose, 0)
    steps = [s for s in _interleave_lanes(program.steps) if not isinstance(s, View)]
    touched = [tuple(dict.fromkeys((*values_read(s), *values_written(s)))) for s in steps]
    changing = max((sum(sizes[n] for n in names if n not in program.constants) for names in touched), default=0)
    most = changing + sum(sizes[n] for n in {n for names in touched for n in names} if n in program.constants)
    total, read = 0, dict[str, int]()
    between: dict[str, list[int]] = {}
    for _ in range(2):  # calls follow each other
        between = defaultdict(list)
        for step, names in zip(steps, touched, strict=True):
            held = [n for n in names if n in program.constants]
            weights = max(held, key=sizes.__getitem__, default=None)
            if isinstance(step, Run) and weights is not None:
                between[step.kernel].append(min(most, total - read.get(weights, 0)))
            total += sum(sizes[n] for n in names)
            read |= dict.fromkeys(held, total)
    return {kernel: median_low(found) for kernel, found in between.items()}


class _LruCache:
    """Cache of constants with least-recently-used eviction."""

    def __init__(self, kept_bytes: float) -> None:
        self._kept, self._held = kept_bytes, 0.0
        self._sizes: OrderedDict[str, float] = OrderedDict()

    def read(self, name: str, size: float) -> bool:
        """Read a constant and return whether it was cached."""
        if name in self._sizes:
            self._sizes.move_to_end(name)
            return True
        if size <= self._kept:
            self._sizes[name] = size
            self._held += size
            while self._held > self._kept:
                self._held -= self._sizes.popitem(last=False)[1]
        return False


def _interleave_lanes(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield steps in order; take steps of parallel lanes in turn."""
    for step in steps:
        if isinstance(step, ParallelGroup):
            yield from (s for turn in zip_longest(*step.lanes) for s in turn if s is not None)
        else:
            yield step
