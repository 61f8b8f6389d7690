"""Waits in a profile that have no known cause, and the part of a profile that is explained."""

# A profile is cut only at its beginning, where the device still ran work that was queued before the first record or the
# first marked step. Such work is not in the profile, so waits for it cannot be explained.

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from roller.insight.step.graph import Dependency, Lane, StepGraph, Task

#: Largest share of unexplained waits for which changes to a profile are predicted.
MOST_UNEXPLAINED = 0.05


#: Largest relative error of a replay, in addition to unexplained waits; a larger one means that the graph is wrong.
MOST_ERROR = 0.05


def replay_disagrees(graph: StepGraph, replayed_us: float) -> bool:
    """Return whether a replay's time differs from the profile's by more than waits and :data:`MOST_ERROR` allow."""
    measured, unexplained = graph.measured_us, graph.unexplained_share
    error = replayed_us / measured - 1.0 if measured else 0.0
    return replayed_us > 0.0 and (error > MOST_ERROR or error < -unexplained - MOST_ERROR)


@dataclass(frozen=True)
class UnexplainedWait:
    """A time span in which a stream or a thread waited without a known cause."""

    lane: Lane
    #: Times since the profile's first task.
    start_us: float
    end_us: float
    #: The task after the wait, or the call that waited.
    task: str

    def __str__(self) -> str:
        """Return the wait in words."""
        rank = f"rank {self.lane.rank}: " if self.lane.rank else ""
        name = self.task if len(self.task) <= _LONGEST else f"{self.task[: _LONGEST - 3]}..."
        before = "before" if self.lane.kind == "stream" else "in"
        return f"{rank}{self.lane.name} from {self.start_us / 1e3:.3f} to {self.end_us / 1e3:.3f} ms ({before} {name})"


#: Largest share of a profile's device work that may be done before a wait for earlier work ends.
_DONE = 0.05
#: Maximum length of a kernel's name in a message, in characters.
_LONGEST = 48


def unexplained_waits(graph: StepGraph) -> tuple[UnexplainedWait, ...]:
    """Return the unexplained waits in a graph, longest first."""
    late = sorted((t for t in graph.tasks if t.unexplained_us > 0.0), key=lambda t: (-t.unexplained_us, t.id))
    return tuple(_wait_of_task(t) for t in late)


def _wait_of_task(task: Task) -> UnexplainedWait:
    until = task.measured_start_us if task.on_device else task.measured_end_us
    return UnexplainedWait(task.lane, until - task.unexplained_us, until, task.name)


def describe_longest_waits(graph: StepGraph, most: int = 3) -> str:
    """Return the longest unexplained waits in words: the stream, the time span, and the task that waited."""
    found = unexplained_waits(graph)
    said = "; ".join(str(wait) for wait in found[:most])
    return said + (f"; and {len(found) - most} shorter ones" if len(found) > most else "")


def drop_unexplained_start(graph: StepGraph) -> StepGraph:
    """Return a profile without its beginning, with a note, if the rest is explained; otherwise, return it unchanged."""
    if graph.unexplained_share <= MOST_UNEXPLAINED:
        return graph
    for since, first_step, why in sorted(_possible_profile_start_cuts(graph), key=lambda cut: cut[0]):
        made = drop_profile_start(graph, since, first_step)
        if made.tasks and made.unexplained_share <= MOST_UNEXPLAINED:
            return replace(made, notes=(*graph.notes, why))
    return graph


def _possible_profile_start_cuts(graph: StepGraph) -> Iterator[tuple[float, int, str]]:
    """Yield possible cuts: the time, the first step from then on, and the reason for the cut."""
    steps: dict[int, float] = {}
    for t in graph.tasks:
        if t.context.iteration >= 0 and not (graph.has_device and t.on_device):
            steps[t.context.iteration] = min(steps.get(t.context.iteration, t.measured_start_us), t.measured_start_us)
    held = _wait_for_work_before_profile(graph)
    if held is not None:
        why = f"until then {held.lane.name} was held, as by work that was queued before the profile began"
        yield _cut_at_next_step(steps, held.end_us, why)
    late = [w for t in graph.tasks if t.unexplained_us > 0.0 and t.context.iteration < 0 for w in (_wait_of_task(t),)]
    if steps and late:
        why = "what was queued before the first marked step waited for what the profile does not show"
        for since in {min(steps.values()), max(w.end_us for w in late)}:
            if since > max(steps.values()) and _profile_end_us(graph) - since < MOST_UNEXPLAINED * graph.measured_us:
                continue  # these kernels belong to no step, and hardly anything follows them
            yield _cut_at_next_step(steps, since, f"{why}: {describe_longest_waits(graph, 1)}")


def _profile_end_us(graph: StepGraph) -> float:
    return max(t.measured_end_us for t in graph.tasks)


def _cut_at_next_step(steps: dict[int, float], since: float, why: str) -> tuple[float, int, str]:
    """Return a cut at the beginning of the next step, or within the last step if no other step follows."""
    later = [(at, step) for step, at in steps.items() if at >= since]
    at, step = min(later) if later else (since, max(steps, default=0))
    until = f", up to the profile's step {step}," if later and len(steps) > 1 else ""
    return at, step, f"The first {at / 1e3:.3f} ms{until} are left off: {why}."


def _wait_for_work_before_profile(graph: StepGraph) -> UnexplainedWait | None:
    """Return the last wait of a call or of a stream's first task for work from before the profile, else ``None``."""
    # The device had done almost none of the profile's work when the wait ended.
    found: UnexplainedWait | None = None
    device = [t for t in graph.tasks if t.on_device]
    firsts: dict[Lane, Task] = {}
    for t in sorted(device, key=lambda t: (t.measured_start_us, t.id)):
        firsts.setdefault(t.lane, t)
    ends = sorted((t.measured_end_us, t.duration_us) for t in device)
    done = list(accumulate((took for _, took in ends), initial=0.0))
    for late in (t for t in graph.tasks if t.unexplained_us > 0.0):
        wait = _wait_of_task(late)
        is_first = firsts.get(late.lane) is late or not late.on_device
        is_before = done[bisect_right(ends, (wait.end_us, float("inf")))] <= _DONE * done[-1]
        if is_first and is_before and (found is None or wait.end_us > found.end_us):
            found = wait
    return found


def drop_profile_start(graph: StepGraph, since_us: float, first_step: int = 0) -> StepGraph:
    """Return a profile from a given time on; earlier tasks are dropped, and running ones are clipped."""
    # Tasks of steps before ``first_step`` then belong to no step.
    kept = [t for t in graph.tasks if t.measured_end_us > since_us or t.measured_start_us >= since_us]
    new = {t.id: n for n, t in enumerate(kept)}
    clipped = {t.id for t in kept if t.measured_start_us < since_us}
    starts = {new[n]: max(at, since_us) for n, at in graph.starts_us.items() if n in new}
    dependencies: list[Dependency] = []
    for d in graph.dependencies:
        if d.target not in new:
            continue
        if d.source in new and (d.of_end or d.source not in clipped):
            dependencies.append(replace(d, source=new[d.source], target=new[d.target]))
        elif not d.to_end:
            source, target = graph.tasks[d.source], new[d.target]
            at = (source.measured_end_us if d.of_end else source.measured_start_us) + d.lag_us
            starts[target] = max(starts.get(target, since_us), at)
    held = {d.target for d in dependencies if not d.to_end}
    for t in kept:
        if new[t.id] not in held:
            starts.setdefault(new[t.id], max(t.measured_start_us, since_us))
    return replace(
        graph, tasks=[_clip_task(t, new[t.id], since_us, first_step) for t in kept], dependencies=dependencies,
        starts_us=starts, overhead_us={new[n]: took for n, took in graph.overhead_us.items() if n in new},
        gradients=[g._replace(ready=new[g.ready], update=None if g.update is None else new.get(g.update))
                   for g in graph.gradients if g.ready in new and g.iteration >= first_step],
        operators={new[n]: o for n, o in graph.operators.items() if n in new},
    )  # fmt: skip


def _clip_task(task: Task, number: int, since_us: float, first_step: int) -> Task:
    context = task.context if task.context.iteration >= first_step else task.context._replace(iteration=-1)
    begin = max(task.measured_start_us, since_us)
    waited = (begin if task.on_device else task.measured_end_us) - since_us
    return replace(
        task, id=number, context=context, measured_start_us=begin,
        duration_us=min(task.duration_us, task.measured_end_us - begin) if begin > task.measured_start_us
        else task.duration_us, unexplained_us=min(task.unexplained_us, max(0.0, waited)),
    )  # fmt: skip
