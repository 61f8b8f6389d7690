"""Waits that a profile tells of hold after a change, also where nothing had to wait before."""

from __future__ import annotations

import pytest

from roller.insight.step.kineto_reader import Event
from roller.insight.step.profile_graph import build_graph
from roller.insight.step.replay import replay
from roller.insight.step.simulate import simulate
from roller.insight.whatif.primitives import scale, select

THREAD = "process 1, thread 1"


def call(name, number, start, duration=3.0):
    return Event(name, "call", start, duration, THREAD, number, {})


def launch(number, start, duration, stream, name):
    yield call("cudaLaunchKernel", number, start)
    yield Event(name, "kernel", start + 8.0, duration, f"device 0, stream {stream}", number, {})


def wait(number, **said):
    return Event("wait", "wait", 0.0, 0.0, "process 0, thread 7", number, {"device": 0, **said})


def end_of(graph, name, changed="first", factor=20.0):
    """Return when a task ends where another one takes longer."""
    timeline = simulate(scale(graph, select(graph, lambda t: t.name == changed), factor))
    return timeline.end_us[next(t.id for t in graph.tasks if t.name == name)]


def test_a_synchronisation_that_had_nothing_to_wait_for_waits_for_a_longer_kernel():
    graph = build_graph([*launch(1, 0.0, 5.0, 7, "first"), call("cudaDeviceSynchronize", 2, 100.0)])
    assert abs(replay(graph).error) < 1e-6
    assert end_of(graph, "cudaDeviceSynchronize") == pytest.approx(8.0 + 100.0 + 3.0)


def test_the_device_is_waited_for_on_all_its_streams_and_a_stream_on_its_own():
    kernels = [*launch(1, 0.0, 5.0, 7, "first"), *launch(2, 20.0, 5.0, 9, "second")]
    whole = build_graph([*kernels, call("cudaDeviceSynchronize", 3, 100.0)])
    one = build_graph([*kernels, call("cudaStreamSynchronize", 3, 100.0), wait(3, stream=9)])
    assert end_of(whole, "cudaDeviceSynchronize", "first") == pytest.approx(111.0)
    assert end_of(one, "cudaStreamSynchronize", "first") == pytest.approx(103.0)
    assert end_of(one, "cudaStreamSynchronize", "second") == pytest.approx(28.0 + 100.0 + 3.0)


def _with_event(*after):
    return build_graph([
        *launch(1, 0.0, 5.0, 7, "first"), call("cudaEventRecord", 2, 20.0), *launch(3, 30.0, 5.0, 7, "unrelated"),
        call("cudaStreamWaitEvent", 4, 40.0), *launch(5, 100.0, 5.0, 9, "second"), *after,
        wait(4, stream=9, wait_on_stream=7, wait_on_cuda_event_record_corr_id=2),
    ])  # fmt: skip


def test_a_stream_waits_for_what_was_issued_before_the_event_was_recorded():
    graph = _with_event()
    assert abs(replay(graph).error) < 1e-6 and replay(graph).unexplained_share == 0.0
    (event,) = [d for d in graph.dependencies if d.kind == "event"]
    assert [graph.tasks[n].name for n in (event.source, event.target)] == ["first", "second"]
    assert end_of(graph, "second", "first", 40.0) == pytest.approx(8.0 + 200.0 + 5.0)


def test_a_call_waits_for_the_event_it_is_told_of():
    told = wait(6, wait_on_stream=7, wait_on_cuda_event_record_corr_id=2, stream=-1)
    graph = _with_event(call("cudaEventSynchronize", 6, 130.0), told)
    assert end_of(graph, "cudaEventSynchronize", "first", 40.0) == pytest.approx(8.0 + 200.0 + 3.0)


def test_records_that_the_times_contradict_or_that_name_nothing_are_left_out():
    late = [
        e._replace(start_us=300.0) if e.name == "first" else e
        for e in [
            *launch(1, 0.0, 5.0, 7, "first"), call("cudaEventRecord", 2, 20.0), call("cudaStreamWaitEvent", 4, 40.0),
            *launch(5, 100.0, 5.0, 9, "second"),
            wait(4, stream=9, wait_on_stream=7, wait_on_cuda_event_record_corr_id=2),
            wait(99, stream=-1, wait_on_stream=-1, wait_on_cuda_event_record_corr_id=-1),
        ]
    ]  # fmt: skip
    assert not [d for d in build_graph(late).dependencies if d.kind == "event"]


def test_what_a_told_wait_does_not_explain_is_counted():
    events = [e._replace(start_us=400.0) if e.name == "second" else e for e in (
        *launch(1, 0.0, 5.0, 7, "first"), call("cudaEventRecord", 2, 20.0), call("cudaStreamWaitEvent", 4, 40.0),
        *launch(5, 100.0, 5.0, 9, "second"), *launch(6, 500.0, 5.0, 7, "third"),
        wait(4, stream=9, wait_on_stream=7, wait_on_cuda_event_record_corr_id=2),
    )]  # fmt: skip
    assert replay(build_graph(events)).unexplained_share > 0.5
