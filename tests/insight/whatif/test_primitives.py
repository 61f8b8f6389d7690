"""Changes of graphs, solved by hand, and what every change must keep."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller.errors import RollerError
from roller.insight.step.graph import Dependency, Lane, StepGraph, Task
from roller.insight.step.replay import replay
from roller.insight.step.simulate import simulate
from roller.insight.whatif.insertion import NewTask, insert
from roller.insight.whatif.primitives import remove, scale, schedule, select, set_duration

THREAD, STREAM = Lane(0, "thread", "1"), Lane(0, "stream", "7")


def training(kernels, call_us=4.0, think_us=2.0, latency_us=8.0, gap_us=1.0, back_us=3.0):
    """A thread that launches kernels one after the other, and waits for the last."""
    tasks, dependencies, count = [], [], len(kernels)
    for n in range(count):
        tasks.append(Task(n, "launch", "launch", THREAD, call_us, 0.0, 0.0))
    for n, took in enumerate(kernels):
        tasks.append(Task(count + n, f"k{n}", "kernel", STREAM, float(took), 0.0, 0.0))
    tasks.append(Task(2 * count, "sync", "sync", THREAD, back_us, 0.0, 0.0))
    for n in range(count):
        after = n + 1 if n + 1 < count else 2 * count
        dependencies.append(Dependency(n, True, after, False, think_us, "thread"))
        dependencies.append(Dependency(n, False, count + n, False, latency_us, "launch"))
        if n:
            dependencies.append(Dependency(count + n - 1, True, count + n, False, gap_us, "stream"))
    dependencies.append(Dependency(2 * count - 1, True, 2 * count, True, 0.0, "synchronisation"))
    return StepGraph(tasks, dependencies, {0: 0.0}, latency_us, gap_us)


def test_kernels_that_wait_for_each_other_are_scaled():
    graph = training([100, 100, 100])
    assert simulate(graph).makespan_us == 8 + 300 + 2 + 3
    kernels = select(graph, lambda t: t.kind == "kernel")
    half = scale(graph, kernels, 0.5)
    assert simulate(half).makespan_us == 8 + 150 + 2 + 3 and half.name == "profile, 3 tasks times 0.5"
    assert {t.provenance for t in half.tasks if t.kind == "kernel"} == {"assumed"}
    assert {t.provenance for t in graph.tasks} == {"measured"}
    own = set_duration(graph, kernels, lambda t: 10.0 * (1 + int(t.name[1:])), provenance="predicted")
    # Launches at 0, 6, 12: kernels from 8 to 18, 19 to 39, 40 to 70.
    assert simulate(own).makespan_us == 70 + 3


def test_a_removed_kernel_takes_its_launch_along_unless_told_not_to():
    graph = training([1, 1, 1])  # bound by launches: 0, 6, 12; the last kernel from 20 to 21
    assert simulate(graph).makespan_us == 24
    assert simulate(remove(graph, [4])).makespan_us == 18
    assert simulate(remove(graph, [4], launches=False)).makespan_us == 24
    assert [t.is_removed for t in remove(graph, [4]).tasks] == [False, True, False, False, True, False, False]
    assert select(remove(graph, [4]), lambda t: True) == {0, 2, 3, 5, 6}


def test_an_inserted_kernel_brings_its_launch():
    graph = training([1, 1, 1])
    more = insert(graph, NewTask("cast", "kernel", 1.0, behind=4))
    assert simulate(more).makespan_us == 24 + 4 and len(more.tasks) == len(graph.tasks) + 2  # one more launch
    fused = insert(graph, NewTask("cast", "kernel", 50.0, behind=4, launch=False))
    # k1 from 14 to 15, the new one from 16 to 66, k2 from 67 to 68.
    assert simulate(fused).makespan_us == 68 + 3
    assert simulate(insert(graph, NewTask("cast", "kernel", 50.0, ahead=5, launch=False))) == simulate(fused)
    last = insert(graph, NewTask("cast", "kernel", 5.0, behind=5, launch=False))
    assert simulate(last).end_us[-1] == 21 + 1 + 5
    # Ahead of the first: launched first, from 0 to 4, and run from 8 to 18; then k0 from 19, which its own launch at 4
    # does not hold back.
    first = insert(graph, NewTask("cast", "kernel", 10.0, ahead=3))
    assert simulate(first).start_us[3] == 19 and simulate(first).start_us[7] == 8


def test_tasks_on_channels_wait_for_ends_and_are_waited_for():
    graph = training([10, 10, 10])  # from 8 to 18, from 19 to 29, from 30 to 40
    channel, count = Lane(0, "channel", "all-reduce"), len(graph.tasks)
    more = insert(
        graph,
        NewTask("one", "collective", 20.0, lane=channel, after=[3]),
        NewTask("two", "collective", 5.0, lane=channel, after=[4], before=[5]),
    )
    found = simulate(more)
    assert [found.start_us[n] for n in (count, count + 1, 5)] == [18.0, 38.0, 43.0]
    first = insert(
        graph,
        NewTask("busy", "collective", 20.0, lane=channel),
        NewTask("one", "collective", 5.0, lane=channel, after=[3]),
        NewTask("two", "collective", 5.0, lane=channel, after=[3], priority=1),
    )
    assert [simulate(first).start_us[count + n] for n in range(3)] == [0.0, 25.0, 20.0]
    by_id = schedule(first, lambda t: t.id)
    assert [simulate(by_id).start_us[count + n] for n in range(3)] == [0.0, 20.0, 25.0]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.data())
def test_changes_that_are_none_and_changes_that_only_grow(kernels, data):
    graph = training(kernels)
    before = simulate(graph)
    everything = select(graph, lambda t: True)
    assert simulate(scale(graph, everything, 1.0)) == before
    number = data.draw(st.integers(0, len(kernels) - 1)) + len(kernels)
    bare = remove(graph, [number], launches=False)
    assert simulate(bare).makespan_us <= before.makespan_us
    back = insert(bare, NewTask("again", "kernel", graph.tasks[number].duration_us, behind=number, launch=False))
    assert simulate(back).makespan_us == pytest.approx(before.makespan_us)
    chosen = data.draw(st.sets(st.sampled_from(sorted(everything))))
    assert simulate(scale(graph, chosen, 1.7)).makespan_us >= before.makespan_us
    gone = remove(graph, everything)
    assert simulate(gone).makespan_us <= before.makespan_us
    assert replay(gone).overlap.total_us == pytest.approx(simulate(gone).makespan_us)


def test_wrong_changes_say_so():
    graph = training([1, 2])
    for change in (
        lambda: scale(graph, [99], 1.0), lambda: scale(graph, [0], -1.0), lambda: scale(graph, [0], float("nan")),
        lambda: set_duration(graph, [0], lambda t: -3.0), lambda: remove(graph, ["k1"]),
        lambda: insert(graph, NewTask("n", "kernel", float("inf"), behind=2)),
        lambda: insert(graph, NewTask("n", "kernel", 1.0)),
        lambda: insert(graph, NewTask("n", "kernel", 1.0, behind=99)),
        lambda: insert(graph, NewTask("n", "kernel", 1.0, lane=STREAM, behind=2)),
        lambda: insert(replace(graph, tasks=graph.tasks[2:], dependencies=[]), NewTask("n", "kernel", 1, 0)),
    ):  # fmt: skip
        with pytest.raises(RollerError, match="expected"):
            change()
