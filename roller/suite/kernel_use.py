"""How well operators use the peak of the arithmetic units, and which long ones use it less than the average."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from roller.insight.cost.operator_price import Price
from roller.insight.cost.pipe_work import PipeWork

#: Rows of the published table of long kernels below the average.
LONGEST = 5


class TimedWork(NamedTuple):
    """An operator with its seconds and its countable work.

    Parameters
    ----------
    name
        Of the operator.
    seconds
        Time in which its kernels are active.
    works
        Operations of its launches; a launch that is only given by its bytes has none.
    """

    name: str
    seconds: float
    works: tuple[PipeWork, ...]


class OperatorUse(NamedTuple):
    """All calls of an operator in a step.

    Parameters
    ----------
    name, calls
        Of the operator.
    seconds, share
        Active time, and its share of that of the step.
    peak_share
        Time of the operations at the peak over the active time; ``None`` if no operation is counted, as of a copy.
    """

    name: str
    calls: int
    seconds: float
    share: float
    peak_share: float | None


def works_of(price: Price) -> tuple[PipeWork, ...]:
    """Return the countable work of an operator's launches."""
    return tuple(launch.work for launch in price.launches if launch.work is not None)


def peak_share_by_pipe(operators: Iterable[TimedWork]) -> Mapping[str, float]:
    """Return pipe -> time of its operations at its peak, as a share of the time in which kernels are active.

    Each launch counts on the pipe that takes longest for it at the peak; a launch given by its bytes counts none.

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


def operator_uses(operators: Iterable[TimedWork]) -> tuple[OperatorUse, ...]:
    """Return operators by name, the one with the longest active time first."""
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


def longest_below_average(uses: Sequence[OperatorUse]) -> tuple[OperatorUse, ...]:
    """Return the operators with the longest time among those that use the peak less than the step does.

    Operators whose operations are not counted are below any average.

    Examples
    --------
    >>> uses = [OperatorUse("mm", 9, 0.6, 0.6, 0.8), OperatorUse("norm", 2, 0.3, 0.3, 0.1),
    ...         OperatorUse("copy_", 1, 0.1, 0.1, None)]
    >>> [use.name for use in longest_below_average(uses)]
    ['norm', 'copy_']
    """
    average = sum((use.peak_share or 0.0) * use.share for use in uses)
    below = [use for use in uses if use.seconds > 0 and (use.peak_share is None or use.peak_share < average)]
    return tuple(sorted(below, key=lambda use: (-use.seconds, use.name))[:LONGEST])
