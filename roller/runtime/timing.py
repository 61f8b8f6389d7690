"""Timing of kernels: medians of batched calls, one kernel at a time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

#: A sample shorter than this is dominated by the clock and the call (seconds).
MIN_SAMPLE_S = 50e-6


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median of ``samples`` batches of ``calls`` calls.

    ``complete`` is ``False`` for a candidate that was dropped after one run.
    """

    median_s: float
    best_s: float
    samples: int
    calls: int
    complete: bool = True


def run_once(run: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(
    run: Callable[[], object], *, budget_s: float = 0.3, min_samples: int = 5, max_samples: int = 100, warm_up: int = 2
) -> Timing:
    """Return the median time of ``run``.

    Parameters
    ----------
    run
        One call; it must finish its work before it returns.
    budget_s
        Seconds to spend, exceeded only to reach ``min_samples``.
    min_samples, max_samples
        Bounds on the number of samples.
    warm_up
        Calls before the first sample (caches, page faults, thread pools).

    Examples
    --------
    >>> measure(lambda: None, budget_s=0.001).samples >= 5
    True
    """
    once = min(run_once(run) for _ in range(max(1, warm_up)))
    calls = max(1, min(10_000, round(MIN_SAMPLE_S / max(once, 1e-9))))
    samples: list[float] = []
    end = time.perf_counter() + budget_s
    while len(samples) < max_samples and (len(samples) < min_samples or time.perf_counter() < end):
        start = time.perf_counter()
        for _ in range(calls):
            run()
        samples.append((time.perf_counter() - start) / calls)
    return Timing(statistics.median(samples), min(samples), len(samples), calls)


def compare(
    runs: Mapping[str, Callable[[], object]] | Iterable[tuple[str, Callable[[], object]]],
    *,
    budget_s: float = 0.3,
    drop_factor: float = 2.0,
) -> dict[str, Timing]:
    """Time several candidates alone, one after another, in the order given.

    A candidate whose warm first run takes more than ``drop_factor`` times the best median so far keeps
    that single time and is dropped: a loser does not earn a careful measurement.

    Parameters
    ----------
    runs
        One bare call per candidate id; of pairs, the next is asked for when the one before has been timed.
    budget_s
        Seconds per candidate that is measured.

    Returns
    -------
    dict
        Timing per id, in the order given.
    """
    out: dict[str, Timing] = {}
    best = float("inf")
    for name, run in runs.items() if isinstance(runs, Mapping) else runs:
        run_once(run)
        first = min(run_once(run), run_once(run))
        if first > drop_factor * best and first > MIN_SAMPLE_S:
            out[name] = Timing(first, first, 1, 1, complete=False)
            continue
        out[name] = measure(run, budget_s=budget_s, warm_up=1)
        best = min(best, out[name].median_s)
    return out
