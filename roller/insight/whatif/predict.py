"""Asks what a change of a step would bring: the graph is changed, run, and held to the one that was not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any, Protocol

from roller.core.cyclic import held_back
from roller.errors import RollerError
from roller.insight.step.breakdown import BreakdownRow, breakdown, critical_path
from roller.insight.step.graph import Provenance, StepGraph, Task
from roller.insight.step.overlap import Overlap, overlap
from roller.insight.step.simulate import Timeline, simulate
from roller.insight.step.steady_step import steady_step_us, step_times_us
from roller.insight.step.unexplained_waits import MOST_UNEXPLAINED, describe_longest_waits, is_replay_off
from roller.insight.whatif.first_launches import warm
from roller.insight.whatif.median_steps import median_step
from roller.insight.whatif.primitives import without_overhead
from roller.insight.whatif.unroll_steps import unrolled

#: Error of the logarithm of a time by where it is from, where the device's model says none. Assumed.
ERRORS: Mapping[Provenance, float] = {"measured": 0.0, "predicted": 0.15, "calibrated": 0.15, "assumed": 0.3}
#: A change that gains less than this is hardly any: a profile of the same step differs by as much from one to the next.
HARDLY = 0.02
_LEAST_SURE: tuple[Provenance, ...] = ("assumed", "calibrated", "predicted")
_ALWAYS = (
    "Nothing is said about accuracy: whether the model still converges is not looked at.",
    "The order of tasks within a lane stays as it was.",
)
_OVERHEAD = "What recording took is not known and was left in: calls of the host are shorter where nobody records."


class GraphTransform(Protocol):
    """What a what-if is: anything that makes a graph of a graph, and says so in its name."""

    def __call__(self, graph: StepGraph, /) -> StepGraph:
        """Return the changed graph."""
        ...


@dataclass(frozen=True)
class Answer:
    """A predicted step beside the one of the profile. All times of ``after`` are predicted.

    Parameters
    ----------
    name
        Of the profile and what was changed.
    baseline_us, iteration_us
        A steady step of the graph as it was, and as it is changed.
    lower_us, upper_us
        One expected error of all new and changed times below and above, should they agree.
    before, after
        Where the time goes.
    phases_before, phases_after
        By phase.
    spread
        Difference of the longest and the shortest step of the profile, of the median one; 0 of a single step.
    unexplained_share
        Of the profile's time: what device tasks waited for nobody knows.
    provenance
        Share of the predicted critical path by where its times are from.
    assumptions
        What the changes took for granted.
    graphs, timelines
        Both, as they were run.
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
        """What of the profile was left off, or is wrong with its file."""
        graph = self.graphs[0]
        return (*graph.notes, *((graph.incomplete,) if graph.incomplete else ()))

    @property
    def in_place(self) -> tuple[str, ...]:
        """Changes that were in place already, and why: they changed nothing."""
        return self.graphs[1].in_place

    @property
    def is_changed(self) -> bool:
        """Whether anything of the graph differs: nothing does where all changes were in place."""
        before, after = self.graphs
        return before.tasks != after.tasks or before.dependencies != after.dependencies

    @property
    def rests_on(self) -> Provenance:
        """What the least sure of the new and changed times is from; ``"measured"`` where tasks only went."""
        before, after = (graph.tasks for graph in self.graphs)
        changed = {
            t.provenance for t in after if not t.is_removed
            and (t.id >= len(before) or t.duration_us != before[t.id].duration_us)
        }  # fmt: skip
        return next((one for one in _LEAST_SURE if one in changed), "measured")

    @property
    def speedup(self) -> float:
        """How many times as fast a step is."""
        return self.baseline_us / self.iteration_us if self.iteration_us else float("inf")

    @property
    def gain(self) -> float:
        """Share of the step that goes; below 0 where it takes longer."""
        return 1.0 - self.iteration_us / self.baseline_us if self.baseline_us else 0.0

    @property
    def is_hardly_anything(self) -> bool:
        """Whether the change is lost among what differs between steps anyway."""
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


@held_back()
def what_if(
    graph: StepGraph, *changes: GraphTransform, force: bool = False, baseline: Timeline | None = None
) -> Answer:
    """Predict a steady step under changes, made one after the other.

    Parameters
    ----------
    graph
        Of a profile, or of a traced step.
    changes
        Those of :mod:`roller.insight.whatif.whatifs`, or any function that makes a graph of a graph.
    force
        Also where more of the profile is unexplained than a prediction can bear.
    baseline
        A run of the graph without what recording took and without loading, where there is one already.

    Notes
    -----
    Steps of a profile differ: every task is taken at its median over them, where there are three or more, and the
    ratio of the two runs is what is predicted, of the median step.

    Raises
    ------
    RollerError
        The profile cannot be explained, no change is named, or one does not suit the profile.
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
    # whoever has a baseline has asked before
    replayed_us = 0.0 if force or baseline is not None else simulate(graph).makespan_us
    if is_replay_off(graph, replayed_us):
        raise RollerError(
            f"{graph.name}: expected a replay of {graph.measured_us / 1e3:.3f} ms, as the profile took, got "
            f"{replayed_us / 1e3:.3f} ms: its tasks wait in another way than they did. Record another profile, or ask "
            f"all the same with --force (force=True)."
        )
    known, graph = bool(graph.overhead_us), warm(without_overhead(graph))
    step_us = steady_step_us(graph, baseline or simulate(graph))
    common = median_step(graph)
    changed = common
    for change in changes:
        changed = change(changed)
    base = unrolled(common, len(changed.iterations)) if len(changed.iterations) > len(graph.iterations) else common
    before, after = simulate(base), simulate(changed)
    middle = low = high = steady_step_us(changed, after)
    if any(t.provenance != "measured" for t in changed.tasks):
        low, high = (steady_step_us(g, simulate(g)) for g in (_with_error(base, changed, sign) for sign in (-1.0, 1.0)))
    if not all(map(math.isfinite, (low, middle, high))):
        raise RollerError(f"{changed.name}: expected a step of finite time, got {middle} us. Change by less.")
    if not step_us > 0.0:
        raise RollerError(f"{graph.name}: expected a profile in which something takes time, got none. Record a step.")
    # tasks at their medians make a step shorter than the median step: what is predicted is the ratio
    median_us = steady_step_us(base, before)
    scale = step_us / median_us if common is not graph and median_us else 1.0
    return Answer(
        changed.name, median_us * scale, middle * scale, min(low, middle) * scale, max(high, middle) * scale,
        overlap(base, before), overlap(changed, after), breakdown(base, before, "phase"),
        breakdown(changed, after, "phase"),
        _spread(graph), graph.unexplained_share, _provenance(changed, after),
        changed.assumptions + _ALWAYS + (() if known or not _is_measured(graph) else (_OVERHEAD,)),
        (base, changed), (before, after),
    )  # fmt: skip


def _spread(graph: StepGraph) -> float:
    """Return by how much the profile's own steps differ, as a share of the median one."""
    tasks = graph.tasks
    steps = step_times_us(graph, [t.measured_start_us for t in tasks], [t.measured_end_us for t in tasks])
    return (max(steps) - min(steps)) / median(steps) if len(steps) > 1 and median(steps) else 0.0


def _is_measured(graph: StepGraph) -> bool:
    """Whether the host's times are from a profile."""
    return any(t.provenance == "measured" and not t.on_device for t in graph.tasks)


def _phase(task: Task) -> str:
    return task.context.phase


def _with_error(base: StepGraph, graph: StepGraph, sign: float) -> StepGraph:
    """Return a graph whose new and changed times are off, all of them in the same direction."""
    own = graph.device.accuracy.prediction_error if graph.device is not None else None
    errors = {**ERRORS, "predicted": own or ERRORS["predicted"]}
    count = len(base.tasks)
    tasks = [
        t if t.id < count and t.duration_us == base.tasks[t.id].duration_us
        else replace(t, duration_us=t.duration_us * math.exp(sign * errors[t.provenance]))
        for t in graph.tasks
    ]  # fmt: skip
    return replace(graph, tasks=tasks)


def _provenance(graph: StepGraph, timeline: Timeline) -> dict[str, float]:
    """Return what share of the critical path rests on what; the host's code between calls is measured."""
    shares: dict[str, float] = {}
    path: Sequence[tuple[int, float]] = critical_path(graph, timeline)
    whole = sum(took for _, took in path) or 1.0
    for number, took in path:
        provenance = graph.tasks[number].provenance
        shares[provenance] = shares.get(provenance, 0.0) + took / whole
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
