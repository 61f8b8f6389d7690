"""Times of several contenders side by side: blocks of calls in turn, with pauses between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

#: Blocks of each contender, seconds of one, and the pause after it, which lets threads fall asleep.
BLOCKS, BLOCK_S, PAUSE_S = 11, 0.1, 0.02


def median_seconds_in_blocks(*calls: Callable[[], object]) -> tuple[float, ...]:
    """Return the median seconds per call of each contender, in alternating blocks of equal time."""
    counts = []
    for run in calls:
        run()
        counts.append(max(1, int(BLOCK_S / max(1e-6, _seconds_per_call(run, 2)))))
    rounds = [[_seconds_per_call(run, n) for run, n in zip(calls, counts, strict=True)] for _ in range(BLOCKS)]
    return tuple(median(several) for several in zip(*rounds, strict=True))


def _seconds_per_call(run: Callable[[], object], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    seconds = (time.perf_counter() - begin) / calls
    time.sleep(PAUSE_S)
    return seconds
