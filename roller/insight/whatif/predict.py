"""Predicted effects of changes: a step's graph is changed, simulated and compared with the unchanged graph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any, Protocol

from roller.errors import RollerError
from roller.insight.step.breakdown import BreakdownRow, breakdown, critical_path
from roller.insight.step.cpu_device_overlap import Overlap, overlap_of_cpu_and_device
from roller.insight.step.graph import Provenance, StepGraph
from roller.insight.step.simulate import Timeline, simulate
from roller.insight.step.steady_step_time import steady_step_us, step_times_us
from roller.insight.step.unexplained_waits import MOST_UNEXPLAINED, describe_longest_waits, replay_disagrees
from roller.insight.whatif.median_task_durations import use_median_durations
from roller.insight.whatif.primitives import without_overhead
from roller.insight.whatif.remove_cuda_module_loading import remove_module_loading
from roller.insight.whatif.unroll_steps import unroll_steps
from roller_runtime.core.gc_pause import gc_paused

#: Assumed error of the logarithm of a time by its provenance, unless the device's model has one.
ERRORS: Mapping[Provenance, float] = {"measured": 0.0, "predicted": 0.15, "calibrated": 0.15, "assumed": 0.3}
#: Gain below which a change is negligible, because profiles of the same step differ by as much.
HARDLY = 0.02
_LEAST_SURE: tuple[Provenance, ...] = ("assumed", "calibrated", "predicted")
_ALWAYS = (
    "Nothing is said about accuracy: whether the model still converges is not looked at.",
    "The order of tasks within a lane stays as it was.",
)
_OVERHEAD = "What recording took is not known and was left in: calls of the host are shorter where nobody records."


class GraphTransform(Protocol):
    """A what-if: any function that maps a graph to a changed graph whose name describes the change."""

    def __call__(self, graph: StepGraph, /) -> StepGraph:
        """Return the changed graph."""
        ...


@dataclass(frozen=True)
class Answer:
    """A predicted step and the unchanged step. Times of the changed step are predicted.

    Parameters
    ----------
    baseline_us, iteration_us
        Time of a steady step in the unchanged graph and in the changed graph.
    lower_us, upper_us
        Time of the changed step if all new and changed times are lower or higher by the expected error.
    before, after
        Overlap of CPU and device before and after the change.
    spread
        Range of the profile's step times, relative to the median; 0 for a single step.
    provenance
        Shares of the predicted critical path by the provenance of its times.
    graphs, timelines
        Unchanged and changed graphs, and their simulations.
    """

    name: str
    baseline_us: float
    iteration_us: float
    lower_us: float
    upper_us: float
    before: Overlap
    after: Overlap
    phases_before: tuple[BreakdownRow, ...] = field(repr=False)
    phases_after: tuple[BreakdownRow, ...] = field(repr=False)
    spread: float
    unexplained_share: float
    provenance: Mapping[str, float]
    assumptions: tuple[str, ...]
    graphs: tuple[StepGraph, StepGraph] = field(repr=False)
    timelines: tuple[Timeline, Timeline] = field(repr=False)

    @property
    def notes(self) -> tuple[str, ...]:
        """Omitted parts of the profile, and defects in its file."""
        graph = self.graphs[0]
        return (*graph.notes, *((graph.incomplete,) if graph.incomplete else ()))

    @property
    def in_place(self) -> tuple[str, ...]:
        """Changes that the profile already had, with the reasons."""
        return self.graphs[1].in_place

    @property
    def is_changed(self) -> bool:
        """Whether the graph changed; it does not if the profile already had all changes."""
        before, after = self.graphs
        return before.tasks != after.tasks or before.dependencies != after.dependencies

    @property
    def rests_on(self) -> Provenance:
        """Provenance of the least certain new or changed time, or of the unchanged times if tasks were only removed."""
        before, after = (graph.tasks for graph in self.graphs)
        changed = {
            t.provenance for t in after if not t.is_removed
            and (t.id >= len(before) or t.duration_us != before[t.id].duration_us)
        }  # fmt: skip
        known = changed or {t.provenance for t in before}
        if "measured" in known and not changed & set(_LEAST_SURE):
            return "measured"
        return next((one for one in _LEAST_SURE if one in changed), "predicted")

    @property
    def speedup(self) -> float:
        """Time of the unchanged step divided by the time of the changed step."""
        return self.baseline_us / self.iteration_us if self.iteration_us else float("inf")

    @property
    def gain(self) -> float:
        """Share of the step's time that the change saves; negative if the step takes longer."""
        return 1.0 - self.iteration_us / self.baseline_us if self.baseline_us else 0.0

    @property
    def is_hardly_anything(self) -> bool:
        """Whether the gain or loss is smaller than the usual difference between steps."""
        return abs(self.gain) < HARDLY

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "name": self.name, "kind": "predicted", "baseline_us": self.baseline_us,
            "iteration_us": self.iteration_us, "lower_us": self.lower_us, "upper_us": self.upper_us,
            "speedup": self.speedup, "hardly_anything": self.is_hardly_anything,
            "before": asdict(self.before), "after": asdict(self.after),
            "phases_before": [asdict(x) for x in self.phases_before],
            "phases_after": [asdict(x) for x in self.phases_after],
            "spread": self.spread, "unexplained_share": self.unexplained_share, "provenance": dict(self.provenance),
            "rests_on": self.rests_on, "in_place": list(self.in_place),
            "assumptions": list(self.assumptions), "notes": list(self.notes),
        }  # fmt: skip


@gc_paused()
def what_if(
    graph: StepGraph, *changes: GraphTransform, force: bool = False, baseline: Timeline | None = None
) -> Answer:
    """Predict a steady step under changes that are applied in order.

    Parameters
    ----------
    graph
        Graph of a profile or of a traced step.
    changes
        What-ifs from :mod:`roller.insight.whatif.whatifs`, or any functions from a graph to a graph.
    force
        Whether to predict even if too much of the profile is unexplained.
    baseline
        Simulation of the graph without recording overhead and module loading, to avoid simulating it again.

    Notes
    -----
    With three or more steps, every task takes its median time over the steps, and the ratio between the two simulations
    is applied to the median step.

    Raises
    ------
    RollerError
        If too much of the profile is unexplained, there is no change, or a change does not apply to the profile.
    """
    if not changes:
        raise RollerError("what_if: expected at least one change, got none. Name one, such as AMP().")
    if graph.incomplete and not force:
        raise RollerError(
            f"{graph.name}: expected what the device did, got none of it or too little. {graph.incomplete}"
        )
    if graph.unexplained_share > MOST_UNEXPLAINED and not force:
        raise RollerError(
            f"{graph.name}: unexplained waiting: expected at most {100 * MOST_UNEXPLAINED:.0f} % of the time, got "
            f"{100 * graph.unexplained_share:.1f} %: {describe_longest_waits(graph)}. What a change would bring cannot "
            f"be said. Record another profile, or ask all the same with --force (force=True)."
        )
    # a caller with a baseline has already checked the replay
    replayed_us = 0.0 if force or baseline is not None else simulate(graph).makespan_us
    if replay_disagrees(graph, replayed_us):
        raise RollerError(
            f"{graph.name}: expected a replay of {graph.measured_us / 1e3:.3f} ms, as the profile took, got "
            f"{replayed_us / 1e3:.3f} ms: its tasks wait in another way than they did. Record another profile, or ask "
            f"all the same with --force (force=True)."
        )
    known, graph = bool(graph.overhead_us), remove_module_loading(without_overhead(graph))
    step_us = steady_step_us(graph, baseline or simulate(graph))
    common = use_median_durations(graph)
    changed = common
    for change in changes:
        changed = change(changed)
    base = unroll_steps(common, len(changed.iterations)) if len(changed.iterations) > len(graph.iterations) else common
    before, after = simulate(base), simulate(changed)
    middle = low = high = steady_step_us(changed, after)
    if any(t.provenance != "measured" for t in changed.tasks):
        low, high = (
            steady_step_us(g, simulate(g)) for g in (_shift_by_error(base, changed, sign) for sign in (-1.0, 1.0))
        )
    if not all(map(math.isfinite, (low, middle, high))):
        raise RollerError(f"{changed.name}: expected a step of finite time, got {middle} us. Change by less.")
    if not step_us > 0.0:
        raise RollerError(f"{graph.name}: expected a profile in which something takes time, got none. Record a step.")
    # a step of median tasks is shorter than the median step, so only the ratio is used
    median_us = steady_step_us(base, before)
    scale = step_us / median_us if common is not graph and median_us else 1.0
    return Answer(
        changed.name, median_us * scale, middle * scale, min(low, middle) * scale, max(high, middle) * scale,
        overlap_of_cpu_and_device(base, before), overlap_of_cpu_and_device(changed, after), breakdown(base, before,
                                                                                                      "phase"),
        breakdown(changed, after, "phase"),
        _relative_step_range(graph), graph.unexplained_share, _provenance_shares(changed, after),
        changed.assumptions + _ALWAYS + (() if known or not _has_measured_host_times(graph) else (_OVERHEAD,)),
        (base, changed), (before, after),
    )  # fmt: skip


def _relative_step_range(graph: StepGraph) -> float:
    tasks = graph.tasks
    steps = step_times_us(graph, [t.measured_start_us for t in tasks], [t.measured_end_us for t in tasks])
    return (max(steps) - min(steps)) / median(steps) if len(steps) > 1 and median(steps) else 0.0


def _has_measured_host_times(graph: StepGraph) -> bool:
    return any(t.provenance == "measured" and not t.on_device for t in graph.tasks)


def _shift_by_error(base: StepGraph, graph: StepGraph, sign: float) -> StepGraph:
    """Shift all new and changed times by their expected error in one direction."""
    own = graph.device.accuracy.prediction_error if graph.device is not None else None
    errors = {**ERRORS, "predicted": own or ERRORS["predicted"]}
    count = len(base.tasks)
    tasks = [
        t if t.id < count and t.duration_us == base.tasks[t.id].duration_us
        else replace(t, duration_us=t.duration_us * math.exp(sign * errors[t.provenance]))
        for t in graph.tasks
    ]  # fmt: skip
    return replace(graph, tasks=tasks)


def _provenance_shares(graph: StepGraph, timeline: Timeline) -> dict[str, float]:
    """Return the shares of the critical path by provenance; host code between calls counts as measured."""
    shares: dict[str, float] = {}
    path: Sequence[tuple[int, float]] = critical_path(graph, timeline)
    whole = sum(took for _, took in path) or 1.0
    for number, took in path:
        provenance = graph.tasks[number].provenance
        shares[provenance] = shares.get(provenance, 0.0) + took / whole
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
