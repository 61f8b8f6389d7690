"""Into how many tasks a launch is cut: as many as threads, or more of them where that costs nothing."""

from __future__ import annotations

#: Tasks a thread gets at most, and the least that one of them should take (seconds): a task costs some ten nanoseconds.
_PER_THREAD, _LEAST_S = 8, 1e-5


def cut(extent: int, threads: int, seconds: float) -> int:
    """Return the tasks that a parallel loop is cut into.

    TVM gives ``n`` tasks ``ceil(extent / n)`` iterations each, the last ones fewer or none. Threads that are disturbed
    take fewer tasks than others, so there are several per thread; but never so that an undisturbed thread has more
    iterations than in an even division.

    Examples
    --------
    >>> cut(56, 2, 1e-3), cut(49, 2, 1e-3), cut(9, 2, 1e-3), cut(2, 2, 1e-3), cut(56, 2, 1e-5)
    (14, 10, 9, 2, 2)
    """
    even = -(-extent // threads)
    most = max(1, min(_PER_THREAD, int(seconds / _LEAST_S)))
    for each in range(max(1, -(-extent // (most * threads))), even):
        count = -(-extent // each)
        if -(-count // threads) * each <= even:
            return count
    return threads
