"""The time of each step in eight categories, as in the overview of PyTorch's TensorBoard plugin."""

# Every instant of a step belongs to the first active category of :data:`CATEGORIES`, or to the last one if none is
# active. The order follows ``ProfileRole`` in ``torch_tb_profiler/profiler/event_parser.py`` of pytorch/kineto
# (``tb_plugin``, removed since): Kernel, Memcpy, Memset, Communication, Runtime, DataLoader, CpuOp, Other. Active
# events are: tasks of devices (a kernel of a communication library is communication), calls of the runtime and of the
# driver (the plugin left out the driver's), marks of batch loading, marks that libraries set around communication, and,
# as operators, all other operators and marks. Frames of modules are not operators, as in the plugin.

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from roller.errors import RollerError
from roller.insight.step.graph import DEVICE_KINDS
from roller.insight.step.kineto_reader import MODULE, Event, Profile
from roller.insight.step.marks_around_calls import is_batch_loading, is_communication_mark, is_step_mark

#: Category of an instant.
Category = Literal["kernel", "memcpy", "memset", "communication", "runtime", "loader", "CPU", "other"]
#: All categories; of several active ones, the first counts.
CATEGORIES: tuple[Category, ...] = get_args(Category)
_OF_KIND: Mapping[str, Category] = {
    "kernel": "kernel", "copy": "memcpy", "set": "memset", "collective": "communication", "call": "runtime"
}  # fmt: skip
#: A last step with fewer device tasks than this share of the previous step's is omitted, as in the plugin.
_FULL = 0.8


@dataclass(frozen=True)
class CategorizedStep:
    """A step and its time by category.

    Parameters
    ----------
    name
        Name of the step's mark; ``""`` for a profile without marks, which is one step.
    start_us, end_us
        Times in the profile.
    category_us
        Microseconds in each of :data:`CATEGORIES`; they add up to ``duration_us``.
    """

    name: str
    start_us: float
    end_us: float
    category_us: Mapping[Category, float]

    @property
    def duration_us(self) -> float:
        """Measured time of the step."""
        return self.end_us - self.start_us


@dataclass(frozen=True)
class StepCategories:
    """The steps of a profile in order, with the time of each step by category.

    Parameters
    ----------
    steps
        The steps, at least one.
    notes
        Omitted steps, one sentence each.
    """

    steps: tuple[CategorizedStep, ...]
    notes: tuple[str, ...] = ()

    @property
    def mean_us(self) -> Mapping[Category, float]:
        """Mean of each category over the steps; the means add up to the mean step time."""
        return {name: fmean(step.category_us[name] for step in self.steps) for name in CATEGORIES}

    @property
    def median_us(self) -> Mapping[Category, float]:
        """Median of each category over the steps; the medians need not add up to the median step time."""
        return {name: median(step.category_us[name] for step in self.steps) for name in CATEGORIES}

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "steps": [
                {"name": x.name, "start_us": x.start_us, "end_us": x.end_us, "category_us": dict(x.category_us)}
                for x in self.steps
            ],
            "mean_us": dict(self.mean_us), "median_us": dict(self.median_us), "notes": list(self.notes),
        }  # fmt: skip


def step_categories(profile: Profile | Iterable[Event]) -> StepCategories:
    """Return the time of each step of a profile by category.

    A step begins with its ``ProfilerStep`` mark or when the previous step ends, whichever is later. It ends with its
    mark or with the last device task that a call within the mark launched, whichever is later. As in the plugin, final
    steps that launched nothing and a final step that launched much less than the step before it are omitted and noted,
    since their device tasks may be missing. A profile without marks is one step, from its first event to its last.

    Parameters
    ----------
    profile
        A profile from :func:`~roller.insight.step.kineto_reader.read_profile`, or its events in any order.

    Returns
    -------
    StepCategories
        The steps by category; the categories of each step add up to its time, except for rounding.

    Raises
    ------
    RollerError
        If there are no events.

    Examples
    --------
    >>> events = [
    ...     Event("aten::mm", "operator", 0.0, 10.0, "thread 1", None, {}),
    ...     Event("cudaLaunchKernel", "call", 2.0, 5.0, "thread 1", 1, {}),
    ...     Event("gemm", "kernel", 6.0, 9.0, "stream 7", 1, {}),
    ... ]
    >>> found = step_categories(events).steps[0]
    >>> {name: took for name, took in found.category_us.items() if took}
    {'kernel': 9.0, 'runtime': 4.0, 'CPU': 2.0}
    """
    events = list(profile.events if isinstance(profile, Profile) else profile)
    if not events:
        raise RollerError("step_categories: expected events of a profile, got none. Read a profile with read_profile.")
    steps, notes = _step_spans_and_notes(events)
    spans: dict[Category, _Spans] = {name: _Spans(array("d"), array("d")) for name in CATEGORIES[:-1]}
    for event in events:
        category = _category_of_event(event)
        if category is not None and event.duration_us > 0.0:
            spans[category].starts.append(event.start_us)
            spans[category].ends.append(event.end_us)
    bounds = [at for step in steps for at in (step.start_us, step.end_us)]
    times, first = _bounds_and_categories_between([_union_of_spans(own) for own in spans.values()], bounds)
    found = []
    for step in steps:
        begin, end = np.searchsorted(times, (step.start_us, step.end_us))
        lengths, own = np.diff(times[begin : end + 1]), first[begin:end]
        each = {name: math.fsum(lengths[own == n]) for n, name in enumerate(CATEGORIES)}
        found.append(CategorizedStep(step.name, step.start_us, step.end_us, each))
    return StepCategories(tuple(found), notes)


class _Spans(NamedTuple):
    starts: array[float]
    ends: array[float]


class _StepSpan(NamedTuple):
    name: str
    start_us: float
    end_us: float


def _category_of_event(event: Event) -> Category | None:
    """Return the category of an event; ``None`` for steps and modules, which only contain other events."""
    if event.kind in _OF_KIND:
        return _OF_KIND[event.kind]
    if event.kind == "operator":
        return "communication" if is_communication_mark(event) else "CPU"
    if event.kind != "mark" or is_step_mark(event) or event.name.startswith(MODULE):
        return None
    if is_batch_loading(event):
        return "loader"
    return "communication" if is_communication_mark(event) else "CPU"


def _union_of_spans(spans: _Spans) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the union of spans as sorted starts and ends, in which no two spans touch."""
    starts, ends = np.asarray(spans.starts), np.asarray(spans.ends)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    begins = np.flatnonzero(np.concatenate(([True], starts[1:] > ends[:-1]))) if len(starts) else np.arange(0)
    return starts[begins], ends[np.append(begins[1:] - 1, len(ends) - 1)] if len(begins) else ends


def _bounds_and_categories_between(
    unions: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]], bounds: Sequence[float]
) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """Return all times at which a span begins or ends, and the category between each time and the next."""
    times = np.unique(np.concatenate([*(part for union in unions for part in union), np.asarray(bounds)]))
    first = np.full(max(0, len(times) - 1), len(CATEGORIES) - 1, dtype=np.int8)
    for number in reversed(range(len(unions))):
        starts, ends = unions[number]
        change = np.zeros(len(times), dtype=np.int8)
        change[np.searchsorted(times, starts)] += 1
        change[np.searchsorted(times, ends)] -= 1
        first[np.cumsum(change, dtype=np.int8)[:-1] > 0] = number
    return times, first


def _step_spans_and_notes(events: Sequence[Event]) -> tuple[list[_StepSpan], tuple[str, ...]]:
    """Return the steps of a profile, extended to the ends of the tasks they launched, and notes on omitted steps."""
    marks = {(e.start_us, e.end_us, e.name) for e in events if e.kind == "mark" and is_step_mark(e)}
    steps = [_StepSpan(name, start, end) for start, end, name in sorted(marks)]
    if not steps:
        begin, end = min(e.start_us for e in events), max(e.end_us for e in events)
        return [_StepSpan("", begin, end)], ()
    step_of = _step_by_correlation_id(events, steps)
    device = [e for e in events if e.kind in DEVICE_KINDS]
    counts, firsts, lasts = [0] * len(steps), [math.inf] * len(steps), [-math.inf] * len(steps)
    for task in device:
        at = step_of.get(-1 if task.correlation is None else task.correlation)
        if at is not None:
            counts[at] += 1
            firsts[at], lasts[at] = min(firsts[at], task.start_us), max(lasts[at], task.end_us)
    if not any(counts):
        return list(_extend_to_launched_tasks(steps, lasts, steps[0].start_us)), ()
    earlier = (e.end_us for e in device if step_of.get(-1 if e.correlation is None else e.correlation) is None)
    held = max((end for end in earlier if counts[0] and end < firsts[0]), default=steps[0].start_us)
    found = list(_extend_to_launched_tasks(steps, lasts, max(held, steps[0].start_us)))
    kept = max(n for n, count in enumerate(counts) if count) + 1
    if kept > 1 and counts[kept - 1] < _FULL * counts[kept - 2]:
        kept -= 1
    left_out = ", ".join(step.name for step in steps[kept:])
    said = f"{left_out}: left out, since the profile may lack device tasks that were launched there."
    return found[:kept], (said,) if left_out else ()


def _step_by_correlation_id(events: Sequence[Event], steps: Sequence[_StepSpan]) -> dict[int, int]:
    """Map the correlation id of each call to the step whose mark contains the whole call."""
    starts, found = [step.start_us for step in steps], dict[int, int]()
    for call in events:
        if call.kind == "call" and call.correlation is not None:
            at = bisect_right(starts, call.start_us) - 1
            if at >= 0 and call.end_us <= steps[at].end_us:
                found[call.correlation] = at
    return found


def _extend_to_launched_tasks(steps: Sequence[_StepSpan], lasts: Sequence[float], until: float) -> Iterator[_StepSpan]:
    """Yield the steps; each starts no earlier than the previous one ends, and lasts until its last task ends."""
    for step, last in zip(steps, lasts, strict=True):
        start = max(until, step.start_us)
        until = max(start, step.end_us, last)
        yield _StepSpan(step.name, start, until)
