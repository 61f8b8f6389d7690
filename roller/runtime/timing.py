"""Timing of kernels: medians of batched calls, one kernel at a time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

#: A sample shorter than this is dominated by the clock and the call (seconds).
MIN_SAMPLE_S = 50e-6
#: A kernel longer than this needs no warm run, and one sample (seconds).
_LONG_S = 0.02
#: A first run may take so many times a warm one, whose workspace has been touched before.
_COLD = 3.0
#: Turns of every finalist.
_ROUNDS = 7
#: Part of its seconds that a candidate is timed for before the final, which decides.
_HEAT = 1 / 3


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


@dataclass(frozen=True)
class Contender:
    """One bare call, and how long its first run took (the one that was checked; page faults and all)."""

    name: str
    run: Callable[[], object]
    first_s: float


def compare(
    contenders: Iterable[Contender], *, budget_s: float = 0.3, drop_factor: float = 1.3, finalists: int = 3
) -> dict[str, Timing]:
    """Time several candidates alone, one after another, then the best few in turn.

    A candidate whose first run (or warm run, where it is short) takes more than ``drop_factor`` times the best median
    so far keeps that single time and is dropped: a loser does not earn a careful measurement. The ``finalists`` best
    run in turn at the end, so that a disturbance during one of them does not decide.

    Parameters
    ----------
    contenders
        The next is asked for when the one before has been timed.
    budget_s
        Seconds for all finalists together, and a third of them per candidate before; exceeded only for kernels that are
        long themselves.

    Returns
    -------
    dict
        Timing per name, in the order given.
    """
    out: dict[str, Timing] = {}
    ahead: list[Contender] = []
    for c in contenders:
        best = min((t.median_s for t in out.values() if t.complete), default=float("inf"))
        first = c.first_s if c.first_s > _LONG_S else min(run_once(c.run) for _ in range(3))
        if c.first_s > _LONG_S and drop_factor * best < first < _COLD * best:
            first = run_once(c.run)
        if first > drop_factor * best and first > MIN_SAMPLE_S:
            out[c.name] = Timing(first, first, 1, 1, complete=False)
            continue
        if first > _LONG_S:  # the checked run was the warm one
            once = run_once(c.run)
            out[c.name] = Timing(once, min(once, first), 1, 1)
        else:
            out[c.name] = measure(c.run, budget_s=_HEAT * budget_s, min_samples=3, warm_up=1)
        ahead = sorted([*ahead, c], key=lambda a: out[a.name].median_s)[:finalists]  # the others may be forgotten
    if len(ahead) > 1 and out[ahead[0].name].median_s <= _LONG_S:
        out.update(_final(ahead, out, budget_s))
    return out


def _final(ahead: Sequence[Contender], known: Mapping[str, Timing], budget_s: float) -> dict[str, Timing]:
    """Time the contenders in turn: as many rounds as the budget allows."""
    turn_s = budget_s / (_ROUNDS * len(ahead))
    samples: dict[str, list[float]] = {c.name: [] for c in ahead}
    calls = {c.name: max(1, round(turn_s / known[c.name].median_s)) for c in ahead}
    for _ in range(_ROUNDS):
        for c in ahead:
            start = time.perf_counter()
            for _ in range(calls[c.name]):
                c.run()
            samples[c.name].append((time.perf_counter() - start) / calls[c.name])
    return {n: Timing(statistics.median(s), min(s), len(s), calls[n]) for n, s in samples.items()}
