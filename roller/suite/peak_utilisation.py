"""Use of peak arithmetic rates by operators, and the longest operators with below-average use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from roller.insight.cost.arithmetic_pipe_work import PipeWork
from roller.insight.cost.operator_price import Price

#: Number of rows in the published table of long kernels with below-average utilisation.
LONGEST = 5


class TimedWork(NamedTuple):
    """An operator's active time (s) and the counted operations of its launches (none for launches priced by bytes)."""

    name: str
    seconds: float
    works: tuple[PipeWork, ...]


class OperatorUse(NamedTuple):
    """All calls of an operator in a step."""

    name: str
    calls: int
    # seconds, share: active time, and its share of the step's active time
    seconds: float
    share: float
    # Time of the operations at peak rate divided by the active time; ``None`` if none are counted, as for a copy
    peak_share: float | None


def counted_operations(price: Price) -> tuple[PipeWork, ...]:
    """Return the counted operations of an operator's launches."""
    return tuple(launch.work for launch in price.launches if launch.work is not None)


def peak_share_by_pipe(operators: Iterable[TimedWork]) -> Mapping[str, float]:
    """Map each pipe to the time its operations would take at peak rate, as a share of the active kernel time.

    Examples
    --------
    >>> rows = [TimedWork("mm", 0.3, (PipeWork("fma", 1e9, 0.2),)), TimedWork("copy_", 0.1, ())]
    >>> dict(peak_share_by_pipe(rows))
    {'fma': 0.5}
    """
    at_peak_s: dict[str, float] = defaultdict(float)
    active_s = 0.0
    for one in operators:
        active_s += one.seconds
        for work in one.works:
            at_peak_s[work.pipe] += work.at_peak_s
    return {pipe: at_peak_s[pipe] / active_s for pipe in sorted(at_peak_s)} if active_s > 0 else {}


def peak_use_by_operator(operators: Iterable[TimedWork]) -> tuple[OperatorUse, ...]:
    """Return the use of each operator, over all its calls, in descending order of active time."""
    rows: dict[str, list[TimedWork]] = defaultdict(list)
    for one in operators:
        rows[one.name].append(one)
    total_s = sum(one.seconds for own in rows.values() for one in own)
    found = []
    for name, own in rows.items():
        seconds = sum(one.seconds for one in own)
        works = [work for one in own for work in one.works]
        share = sum(work.at_peak_s for work in works) / seconds if works and seconds > 0 else None
        found.append(OperatorUse(name, len(own), seconds, seconds / total_s if total_s > 0 else 0.0, share))
    return tuple(sorted(found, key=lambda use: (-use.seconds, use.name)))


def longest_operators_below_average(uses: Sequence[OperatorUse]) -> tuple[OperatorUse, ...]:
    """Return the longest operators whose share of the peak is below the step's share or is not counted.

    Examples
    --------
    >>> uses = [OperatorUse("mm", 9, 0.6, 0.6, 0.8), OperatorUse("norm", 2, 0.3, 0.3, 0.1),
    ...         OperatorUse("copy_", 1, 0.1, 0.1, None)]
    >>> [use.name for use in longest_operators_below_average(uses)]
    ['norm', 'copy_']
    """
    average = sum((use.peak_share or 0.0) * use.share for use in uses)
    below = [use for use in uses if use.seconds > 0 and (use.peak_share is None or use.peak_share < average)]
    return tuple(sorted(below, key=lambda use: (-use.seconds, use.name))[:LONGEST])
