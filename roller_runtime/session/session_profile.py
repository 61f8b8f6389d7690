"""Predicted and measured times of a model, step by step."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from roller_runtime.core.display import html_table, one_line_repr, seconds_text
from roller_runtime.core.validation import validate_integer
from roller_runtime.errors import LaunchError, counted, shown
from roller_runtime.plan.execution_plan import Plan
from roller_runtime.plan.program_steps import Call, Copy, Foreign, ParallelGroup, Run, Step, Value, iterate_kernel_runs
from roller_runtime.session.plan_binding import Bound, BoundParallelGroup
from roller_runtime.timing.clock import Clock, TrustingClock, system_or_trusting_clock
from roller_runtime.timing.disturbance import Disturbance
from roller_runtime.timing.measure_median import measure_median
from roller_runtime.timing.undisturbed_timing_windows import Timing

#: Predicted seconds (``None`` without a prediction) and bottleneck by kernel key.
KernelPredictions: TypeAlias = "Mapping[str, tuple[float | None, str]]"
#: Time budget, in seconds, for timing whole calls and for timing steps, and the number of samples that ends either
#: early.
_TIMED_S, _ENOUGH = 0.3, 100
#: Number of discarded calls before the calls with timed steps.
_WARMUPS = 2


@dataclass(frozen=True)
class StepTime:
    """Times of one step.

    Parameters
    ----------
    kind
        ``"kernel"``, ``"copy"``, ``"function"``, ``"foreign"``, or ``"together"`` for a group of lanes, whose steps
        follow.
    kernel
        Key of the kernel; empty for other kinds.
    predicted_s
        Predicted time in seconds; ``None`` without a prediction.
    measured_s
        Median measured time in seconds.
    share
        Fraction of the measured time of all steps; for a step in a lane, of the lane's time.
    bottleneck
        Predicted bottleneck.
    lane
        Index of the lane in the preceding group; ``None`` for steps outside lanes.
    """

    label: str
    kind: str
    kernel: str
    nodes: tuple[str, ...]
    predicted_s: float | None
    measured_s: float
    share: float
    bottleneck: str = ""
    lane: int | None = None

    def __repr__(self) -> str:
        """Return kind, times and label on one line."""
        times = f"measured {seconds_text(self.measured_s)}, predicted {seconds_text(self.predicted_s)}"
        return one_line_repr("StepTime", f"{self.kind}: {times}", self.label)


@dataclass(frozen=True)
class Profile:
    """Times of a whole model.

    Parameters
    ----------
    steps
        Times of the steps, in order of execution.
    measured_s, best_s
        Median and minimum time, in seconds, of whole calls in which steps are not timed.
    predicted_s
        Sum of the steps' predicted times in seconds; a group counts as its longest lane.
    repeats
        Number of timed whole calls; steps are timed in other calls.
    doubt
        A sentence that names disturbances of the timing; empty if there were none.
    """

    name: str
    steps: tuple[StepTime, ...]
    measured_s: float
    predicted_s: float
    repeats: int
    best_s: float = 0.0
    doubt: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as JSON data."""
        return asdict(self)

    def __repr__(self) -> str:
        """Return the times of whole calls on one line."""
        times = f"measured {seconds_text(self.measured_s)}, predicted {seconds_text(self.predicted_s)} a call"
        return one_line_repr("Profile", f"{self.name}: {times}", counted(len(self.steps), "step"))

    def _repr_html_(self) -> str:
        """Return an HTML table of all steps for a notebook."""
        rows = (
            (f"{s.share:.1%}", seconds_text(s.measured_s), seconds_text(s.predicted_s), s.bottleneck, s.label)
            for s in self.steps
        )
        return html_table(repr(self)[1:-1], ("share", "measured", "predicted", "bound by", "step"), rows)

    def __str__(self) -> str:
        """Return the steps with the largest shares, one per line."""
        top = sorted((s for s in self.steps if s.lane is None), key=lambda s: -s.share)
        lines = [f"{self.name}: measured {self.measured_s * 1e3:.4g} ms, predicted {self.predicted_s * 1e3:.4g} ms"]
        for s in top[:20]:
            predicted = "-" if s.predicted_s is None else f"{s.predicted_s * 1e6:.4g} us"
            lines.append(f"{s.share:6.1%} {s.measured_s * 1e6:9.4g} us, predicted {predicted}: {s.label}")
        return "\n".join(lines)


class ProfilableSession(Protocol):
    """Protocol of a session that can be timed."""

    @property
    def name(self) -> str:
        """Name of the model."""

    @property
    def plan(self) -> Plan:
        """Steps and places."""

    @property
    def waits_for_device(self) -> bool:
        """Whether a call waits for another device."""

    @property
    def said(self) -> KernelPredictions:
        """Predicted seconds and bottleneck by kernel key."""

    def run(self, *arguments: Any) -> Any:
        """Run on arrays given by name."""

    def time_steps(self, feeds: Mapping[str, Any], count: int) -> Mapping[int, float]:
        """Return the median time of every step, in seconds by ``id``."""


def profile_session(session: ProfilableSession, feeds: Mapping[str, Any] | None, repeats: int) -> Profile:
    """Time every step of a session and whole calls; return the profile."""
    validate_integer(repeats, f"{session.name}: argument 'repeats'", 1, expected="at least 1", error=LaunchError)
    if not (feeds is None or isinstance(feeds, Mapping)):
        raise LaunchError(f"{session.name}: argument 'feeds': expected arrays by name, got {shown(feeds)}.")
    plan, program = session.plan, session.plan.program
    given = random_feeds([program.values[n] for n in program.inputs]) if feeds is None else feeds
    whole, measured = time_calls(session, given, repeats), session.time_steps(given, repeats)
    estimates = {key: (plan.predicted_s.get(key, seconds), bound) for key, (seconds, bound) in session.said.items()}
    steps = tuple(
        _step_times(program.steps, measured, estimates, distinct_label_by_outputs(iterate_kernel_runs(program.steps)))
    )
    calls = whole.samples * whole.calls
    predicted = _predicted_total_s(program.steps, estimates)
    return Profile(session.name, steps, whole.median_s, predicted, calls, whole.best_s, whole.doubt)


def time_bound_steps(
    steps: Sequence[Step], bound: Sequence[Bound], run: Callable[[dict[int, float]], object], count: int
) -> dict[int, float]:
    """Return each step's median time in seconds by ``id``, including steps in lanes."""
    taken, end = list[dict[int, float]](), time.perf_counter() + _TIMED_S
    while len(taken) < _WARMUPS + count or (len(taken) < _ENOUGH and time.perf_counter() < end):
        taken.append({})
        run(taken[-1])
    taken = taken[_WARMUPS:]
    return dict(_step_seconds(steps, bound, {key: statistics.median(s[key] for s in taken) for key in taken[0]}))


def time_calls(session: ProfilableSession, feeds: Mapping[str, Any], repeats: int) -> Timing:
    """Time whole calls with at least ``repeats`` samples; short calls are repeated within a sample."""
    # The system clock would count the caller's wait for a GPU as time taken by other processes.
    clock: Clock = TrustingClock() if session.waits_for_device else system_or_trusting_clock()
    before = clock.load()
    try:
        found = measure_median(lambda: session.run(feeds), budget_s=_TIMED_S, min_samples=repeats,
                        max_samples=max(repeats, _ENOUGH), clock=clock)  # fmt: skip
    finally:
        clock.release()
    return replace(found, doubt=found.doubt and str(Disturbance.between(before, clock.load())))


def _step_seconds(
    steps: Sequence[Step], bound: Sequence[Bound], medians: Mapping[int, float]
) -> Iterator[tuple[int, float]]:
    """Yield each step's ``id`` and its time in seconds, given the times of the bound steps."""
    for step, own in zip(steps, bound, strict=True):
        yield id(step), medians.get(id(own), 0.0)
        if isinstance(step, ParallelGroup) and isinstance(own, BoundParallelGroup):
            for lane, bounds in zip(step.lanes, own.lanes, strict=True):
                yield from _step_seconds(lane, bounds, medians)


def distinct_label_by_outputs(runs: Iterable[Run]) -> dict[tuple[str, ...], str]:
    """Return a unique label for each run by its outputs; a label shared by several runs is followed by the outputs.

    Examples
    --------
    >>> runs = [Run("gru", "a", (), ("h1",)), Run("gru", "b", (), ("y",)), Run("relu", "c", (), ("z",))]
    >>> list(distinct_label_by_outputs(runs).values())
    ['gru -> h1', 'gru -> y', 'relu']
    """
    every = list(runs)
    counts = Counter(run.label for run in every)
    return {r.outputs: r.label if counts[r.label] == 1 else f"{r.label} -> {', '.join(r.outputs)}" for r in every}


def random_feeds(values: Sequence[Value], seed: int = 0) -> dict[str, np.ndarray]:
    """Return arrays for timing a model: floats from -1 to 1, and zeros for other dtypes."""
    from roller_runtime.core.dtypes import numpy_dtype

    rng = np.random.default_rng(seed)
    found = {}
    for value in values:
        dtype = numpy_dtype(value.dtype)
        floating = value.dtype.startswith(("float", "bfloat"))
        # Integers are mostly indices, for which 0 is always valid.
        found[value.name] = rng.uniform(-1, 1, value.shape).astype(dtype) if floating else np.zeros(value.shape, dtype)
    return found


def _step_times(
    steps: Sequence[Step], measured: Mapping[int, float], said: KernelPredictions, labels: Mapping[tuple[str, ...],
                                                                                                   str],
    lane: int | None = None,
) -> Iterator[StepTime]:  # fmt: skip
    """Yield the times of steps; steps in lanes follow their group."""
    total = sum(measured.get(id(s), 0.0) for s in steps) or 1.0
    for step in steps:
        seconds = measured.get(id(step), 0.0)
        label, kind, kernel, nodes = _label_kind_kernel_and_nodes(step)
        if isinstance(step, Run):
            label = labels[step.outputs]
        bottleneck = "memory" if isinstance(step, Copy) else said.get(kernel, (None, ""))[1]
        yield StepTime(
            label, kind, kernel, nodes, _predicted_step_s(step, said), seconds, seconds / total, bottleneck, lane
        )
        if isinstance(step, ParallelGroup):
            for number, inner in enumerate(step.lanes):
                yield from _step_times(inner, measured, said, labels, number)


def _label_kind_kernel_and_nodes(step: Step) -> tuple[str, str, str, tuple[str, ...]]:
    if isinstance(step, Run):
        return step.label, "kernel", step.kernel, step.nodes
    if isinstance(step, Copy):
        return f"copy {step.source} to {step.target}", "copy", "", ()
    if isinstance(step, ParallelGroup):
        return f"{len(step.lanes)} lanes together", "together", "", ()
    if isinstance(step, Foreign):
        return f"{step.runtime} ({counted(len(step.nodes), 'node')})", "foreign", "", step.nodes
    assert isinstance(step, Call), "plans have no views and no joins"
    return step.label or step.function, "function", "", ()


def _predicted_step_s(step: Step, said: KernelPredictions) -> float | None:
    if isinstance(step, Run):
        return said.get(step.kernel, (None, ""))[0]
    if isinstance(step, ParallelGroup):
        return max((_predicted_total_s(lane, said) for lane in step.lanes), default=0.0)
    return None


def _predicted_total_s(steps: Sequence[Step], said: KernelPredictions) -> float:
    return sum(_predicted_step_s(s, said) or 0.0 for s in steps)
