"""The wall time of a step, divided among its tasks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller.insight.step.divide_wall_time_among_tasks import wall_time_us
from roller.insight.step.graph import Lane, StepGraph, Task
from roller.insight.step.simulate import simulate
from tests.insight.step.graphs import training

KINDS = {
    "kernel": Lane(0, "stream", "7"), "copy": Lane(0, "stream", "8"), "collective": Lane(0, "channel", "nccl"),
    "launch": Lane(0, "thread", "1"), "cpu": Lane(0, "thread", "2"),
}  # fmt: skip
CLASS = {"kernel": 0, "copy": 0, "collective": 1, "launch": 2, "cpu": 2}
TASK = st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, 60), st.integers(0, 12))


@given(st.lists(TASK, min_size=1, max_size=25))
def test_every_instant_belongs_to_the_first_task_of_the_first_class(rows):
    tasks = [Task(n, kind, kind, KINDS[kind], took, 0.0, 0.0) for n, (kind, _, took) in enumerate(rows)]
    starts, ends = [float(s) for _, s, _ in rows], [float(s + took) for _, s, took in rows]
    found, rest = wall_time_us(StepGraph(tasks, [], {}, 0.0, 0.0), starts, ends)
    wanted, nothing = dict.fromkeys(range(len(tasks)), 0.0), 0.0
    for at in range(int(min(starts)), int(max(ends))):
        active = [t for t in tasks if starts[t.id] <= at < ends[t.id]]
        if not active:
            nothing += 1.0
            continue
        first = min(active, key=lambda t: (CLASS[t.kind], starts[t.id], ends[t.id], t.id))
        wanted[first.id] += 1.0
    assert rest == nothing and sum(found.values()) + rest == max(ends) - min(starts)
    by_class = [sum(wanted[t.id] for t in tasks if CLASS[t.kind] == n) for n in range(3)]
    assert [sum(found[t.id] for t in tasks if CLASS[t.kind] == n) for n in range(3)] == by_class
    for name in KINDS:  # tasks of one lane that follow each other have what they run
        own = [t for t in tasks if t.kind == name]
        assert all(found[t.id] <= t.duration_us for t in own)


def test_a_step_that_waits_for_kernels_is_theirs():
    graph = training()
    run = simulate(graph)
    found, rest = wall_time_us(graph, run.start_us, run.end_us)
    kernels = math.fsum(found[t.id] for t in graph.tasks if t.on_device)
    assert kernels == pytest.approx(sum(t.duration_us for t in graph.tasks if t.on_device))
    assert math.fsum(found.values()) + rest == pytest.approx(run.makespan_us)


@given(st.lists(TASK, min_size=1, max_size=15), st.lists(st.integers(0, 80), max_size=8, unique=True).map(sorted))
def test_time_outside_of_the_spans_that_count_is_nobodys(rows, bounds):
    tasks = [Task(n, kind, kind, KINDS[kind], took, 0.0, 0.0) for n, (kind, _, took) in enumerate(rows)]
    starts, ends = [float(s) for _, s, _ in rows], [float(s + took) for _, s, took in rows]
    spans = [(float(a), float(b)) for a, b in zip(bounds[::2], bounds[1::2], strict=False)]
    found, rest = wall_time_us(StepGraph(tasks, [], {}, 0.0, 0.0), starts, ends, within=spans)
    within = [at for at in range(80) if any(a <= at < b for a, b in spans)]
    busy = [at for at in within if any(starts[t.id] <= at < ends[t.id] for t in tasks)]
    assert sum(found.values()) == len(busy) and rest == len(within) - len(busy)
