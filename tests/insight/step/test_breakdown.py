"""Where the time goes by phase and layer, and how long a steady step takes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from roller.errors import RollerError
from roller.insight.step.breakdown import breakdown, join
from roller.insight.step.graph import Dependency, Lane, StepGraph, Task, TaskContext
from roller.insight.step.kineto_reader import Event
from roller.insight.step.profile_graph import build_graph
from roller.insight.step.replay import replay
from roller.insight.step.simulate import simulate
from roller.insight.step.steady_step_time import step_times_us
from roller.insight.trace.trace import Frame
from roller.insight.whatif.primitives import remove
from tests.offenders import every

THREAD, STREAM = "process 1, thread 1", "device 0, stream 7"


def steps(count, every_us=100.0):
    """Return steps of a launch, a kernel in a layer and a wait for it."""
    for n in range(count):
        at = n * every_us
        yield Event(f"ProfilerStep#{n}", "mark", at, every_us - 1, THREAD, None, {})
        yield Event("nn.Module: Linear_0", "mark", at + 1, 20.0, THREAD, None, {})
        yield Event("cudaLaunchKernel", "call", at + 2, 5.0, THREAD, 2 * n + 1, {})
        yield Event("gemm", "kernel", at + 12, 50.0, STREAM, 2 * n + 1, {})
        yield Event("cudaDeviceSynchronize", "call", at + 30, 35.0, THREAD, 2 * n + 2, {})


def test_a_steady_step_is_the_distance_between_steps():
    found = replay(build_graph(steps(5)))
    assert found.iteration_us == found.measured_iteration_us == pytest.approx(100.0)
    assert found.replayed_us == pytest.approx(463.0)  # without what was before the first call and behind the last


def test_a_single_step_is_the_whole():
    found = replay(build_graph(steps(1)))
    assert found.iteration_us == found.replayed_us == pytest.approx(63.0)


def test_layers_and_phases_account_for_every_task_and_the_whole_path():
    found = replay(build_graph(steps(3)))
    layers = {part.name: part for part in found.layers}
    assert layers["Linear_0"].device_us == pytest.approx(150.0) and layers["Linear_0"].tasks == 6
    assert layers[""].cpu_us == pytest.approx(9.0)  # what is left of three waits
    for rows in (found.phases, found.layers):
        assert sum(part.tasks for part in rows) == len(found.graph.tasks)
        assert sum(part.critical_us for part in rows) == pytest.approx(found.replayed_us)


def test_the_json_has_them():
    data = json.loads(json.dumps(replay(build_graph(steps(2))).to_dict()))
    assert data["iteration_us"] == pytest.approx(100.0) and data["phases"][0]["name"] == "forward"


def test_of_several_ranks_the_last_to_begin_counts():
    tasks = [
        Task(2 * step + rank, "op", "cpu", Lane(rank, "thread", "1"), 1.0, 0.0, 1.0, context=TaskContext(step))
        for step in range(2) for rank in range(2)
    ]  # fmt: skip
    assert step_times_us(StepGraph(tasks, [], {}, 0.0, 0.0), [0.0, 3.0, 10.0, 15.0], [1.0] * 4) == (12.0,)


FRAME = Frame("net.py", 7, "Net.forward")


def priced():
    """Return two kernels of one line, bound by memory and by products, and a collective."""
    at = TaskContext(0, "forward", "fc", "aten.mm.default", stack=(Frame("train.py", 3, "step"), FRAME))
    stream, channel = Lane(0, "stream", "7"), Lane(0, "channel", "network")
    return StepGraph(
        [
            Task(0, "gemm", "kernel", stream, 30.0, 0.0, 0.0, context=at, resource="compute"),
            Task(1, "bias", "kernel", stream, 10.0, 0.0, 0.0, context=at, resource="dram"),
            Task(2, "all-reduce", "collective", channel, 60.0, 0.0, 0.0),
        ],
        [Dependency(0, True, 1, False, 0.0, "stream"), Dependency(1, True, 2, False, 0.0, "communication")],
        {0: 0.0}, 0.0, 0.0,
    )  # fmt: skip


@every(("key", "names"), [
    ("module", ["", "fc"]), ("line", ["", "net.py:7"]), ("operator", ["", "aten.mm.default"]),
    ("phase", ["other", "forward"]), ("kernel", ["all-reduce", "gemm", "bias"]),
    (lambda task: task.kind[0], ["c", "k"]),
])  # fmt: skip
def test_rows_of_any_key_sum_to_the_whole(key, names):
    graph = priced()
    rows = breakdown(graph, simulate(graph), key)
    assert [row.name for row in rows] == names
    assert sum(r.critical_us for r in rows) == 100.0 and sum(r.device_us for r in rows) == 100.0
    assert sum(r.compute_us for r in rows) == 40.0 and sum(r.share for r in rows) == pytest.approx(1.0)
    assert sum(r.kernels for r in rows) == 2 and rows[0].kernels == 0  # a collective computes nothing
    assert rows[1].resource == "compute"


def test_an_unknown_key_is_refused():
    graph = priced()
    with pytest.raises(RollerError, match="expected one of module, line, operator, phase, kernel"):
        breakdown(graph, simulate(graph), "modul")


def test_a_measured_and_a_predicted_step_are_joined_by_their_names():
    measured = build_graph(steps(3))
    predicted = replace(priced(), tasks=[replace(t, context=TaskContext(module="Linear_0")) for t in priced().tasks])
    rows = join((measured, replay(measured).timeline), (predicted, simulate(predicted)), "module")
    assert [row.name for row in rows] == ["Linear_0", ""]
    linear, outside = rows
    assert linear.measured.device_us == pytest.approx(50.0) and linear.measured.tasks == 2  # of three steps
    assert linear.predicted.device_us == 100.0
    assert outside.predicted is None and outside.measured.cpu_us == pytest.approx(3.0)


def test_lags_behind_what_was_removed_stay_in_the_sum():
    work = [Task(n, "k", "kernel", Lane(0, "stream", str(n)), 10.0, 0.0, 0.0, context=TaskContext(0)) for n in range(2)]
    waits = [Dependency(0, True, 1, False, 3.0, "hand-over")]
    graph = remove(StepGraph(work, waits, {0: 0.0}, 0.0, 0.0), [0])
    run = simulate(graph)
    (row,) = breakdown(graph, run, "kernel")
    assert run.makespan_us == row.critical_us == pytest.approx(13.0) and row.tasks == 1
