"""Number of tasks of a parallel launch: one per thread, or more where that costs nothing."""

from __future__ import annotations

#: Most tasks per thread, and the shortest task in seconds: a task costs some ten nanoseconds.
_PER_THREAD, _LEAST_S = 8, 1e-5


def cut(extent: int, threads: int, seconds: float) -> int:
    """Return the number of tasks of a parallel loop of ``extent`` iterations.

    Examples
    --------
    >>> cut(56, 2, 1e-3), cut(49, 2, 1e-3), cut(9, 2, 1e-3), cut(2, 2, 1e-3), cut(56, 2, 1e-5)
    (14, 10, 9, 2, 2)
    """
    # TVM gives each of ``n`` tasks ``ceil(extent / n)`` iterations, the last ones fewer or none. Several tasks per
    # thread balance disturbed threads, if no undisturbed thread gets more iterations than in an even division.
    even = -(-extent // threads)
    most = max(1, min(_PER_THREAD, int(seconds / _LEAST_S)))
    for each in range(max(1, -(-extent // (most * threads))), even):
        count = -(-extent // each)
        if -(-count // threads) * each <= even:
            return count
    return threads
