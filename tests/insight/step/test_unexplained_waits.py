"""No lag hides a wait; what cannot be explained is left off at the beginning, or refused with its span and stream."""

from __future__ import annotations

import json

import pytest

from roller.errors import RollerError
from roller.insight.cost.host_costs import load_host_costs
from roller.insight.step.kineto_reader import Event
from roller.insight.step.profile_graph import build_graph
from roller.insight.step.replay import from_kineto, replay
from roller.insight.step.unexplained_waits import (
    describe_longest_waits,
    drop_profile_start,
    drop_unexplained_start,
    unexplained_waits,
)
from roller.insight.whatif.predict import what_if
from roller.insight.whatif.remove_cuda_module_loading import remove_module_loading
from roller.insight.whatif.whatifs import Batch
from tests.offenders import every

THREAD, STREAM, SIDE = "process 1, thread 1", "device 0, stream 7", "device 0, stream 9"


def call(name, number, start, took=4.0):
    return Event(name, "call", start, took, THREAD, number, {})


def kernel(number, start, took, lane=STREAM, name="gemm", kind="kernel"):
    return Event(name, kind, start, took, lane, number, {})


def mark(name, start, end):
    return Event(name, "mark", start, end - start, THREAD, None, {})


def busy_before(kernels=40, held_us=8000.0):
    """All is launched within 400 us, and the device, busy from before, begins 8 ms later."""
    calls = [call("cudaLaunchKernel", n, 10.0 * n) for n in range(kernels)]
    return calls + [kernel(n, held_us + 51.0 * n, 50.0) for n in range(kernels)]


def test_a_device_that_was_busy_before_the_profile_tells_no_latency():
    graph = build_graph(busy_before())
    assert (graph.latency_us, graph.is_latency_measured) == (load_host_costs().launch_latency_us, False)
    assert 5 < graph.latency_us < 20
    # the check of honesty fires: 7,990 of 10,039 us are no launch
    (wait,) = unexplained_waits(graph)
    assert (wait.start_us, wait.end_us, wait.lane.name) == (10.0, 8000.0, STREAM)
    assert graph.unexplained_share == pytest.approx(7990 / (8000 + 39 * 51 + 50))


def test_what_follows_a_beginning_that_cannot_be_explained_is_answered():
    part = drop_unexplained_start(build_graph(busy_before()))
    found = replay(part)
    assert found.is_explained and abs(found.error) < 1e-6
    assert found.measured_us == pytest.approx(39 * 51 + 50)
    assert "The first 8.000 ms are left off" in part.notes[0] and STREAM in part.notes[0]
    twice = what_if(part, Batch(2.0, floor_us=0.0))
    assert twice.iteration_us == pytest.approx(40 * 100 + 39) and twice.notes == part.notes


def steps(count=4, held_us=0.0, before=()):
    """Steps of 2 ms: a launch, a kernel of 1 ms, a wait for it."""
    found = list(before)
    for n in range(count):
        at = 10_000.0 + 2000.0 * n + (held_us if n else 0.0)
        late = held_us if n == 0 else 0.0
        found += [
            mark(f"ProfilerStep#{n}", at, at + 1990.0 + late), call("cudaLaunchKernel", 10 * n + 1, at + 10.0),
            kernel(10 * n + 1, at + 18.0 + late, 1000.0),
            call("cudaDeviceSynchronize", 10 * n + 2, at + 20.0, 1004.0 + late),
        ]  # fmt: skip
    return found


def test_a_step_that_work_from_before_the_profile_held_up_is_left_off():
    graph = drop_unexplained_start(build_graph(steps(held_us=6000.0)))
    assert graph.iterations == (1, 2, 3) and "up to the profile's step 1" in graph.notes[0]
    assert replay(graph).iteration_us == pytest.approx(2000.0)
    whole = build_graph(steps())
    assert drop_unexplained_start(whole) is whole


def test_waits_before_the_first_marked_step_are_left_off():
    before = [
        call("cudaLaunchKernel", 901, 0.0), kernel(901, 8.0, 500.0), call("cudaLaunchKernel", 902, 600.0),
        kernel(902, 6000.0, 50.0, SIDE), call("cudaLaunchKernel", 903, 700.0), kernel(903, 708.0, 20.0),
    ]  # fmt: skip
    graph = build_graph(steps(before=before))
    assert graph.unexplained_share > 0.05
    part = drop_unexplained_start(graph)
    assert part.iterations == (0, 1, 2, 3) and replay(part).is_explained
    assert "before the first marked step" in part.notes[0] and SIDE in part.notes[0]
    assert min(t.measured_start_us for t in part.tasks) == 10_010.0


def test_a_wait_in_the_middle_is_refused_with_its_span_and_stream():
    events = steps(4)
    late = events.index(next(e for e in events if e.correlation == 21 and e.kind == "kernel"))
    events[late] = events[late]._replace(start_us=events[late].start_us + 900.0)
    events[late + 1] = events[late + 1]._replace(duration_us=1904.0)
    graph = drop_unexplained_start(build_graph(events))
    assert not graph.notes and not replay(graph).is_explained
    with pytest.raises(RollerError, match=r"device 0, stream 7 from 4\.0\d\d to 4\.9\d\d ms \(before gemm\)"):
        what_if(graph, Batch(2.0))


def test_a_call_that_waits_for_nothing_the_profile_shows_is_counted():
    events = [call("cudaLaunchKernel", 1, 0.0), kernel(1, 8.0, 50.0), call("cudaDeviceSynchronize", 2, 100.0, 5000.0)]
    graph = build_graph(events)
    assert graph.unexplained_share == pytest.approx(4994 / 5100) and THREAD in describe_longest_waits(graph)
    short = build_graph([*events[:2], call("cudaDeviceSynchronize", 2, 100.0, 30.0)])
    assert short.unexplained_share == 0.0


def test_a_synchronisation_waits_for_kernels_that_were_launched_before_the_profile():
    events = [call("cudaDeviceSynchronize", 1, 0.0, 5004.0), kernel(77, 10.0, 2000.0), kernel(78, 2011.0, 2989.0),
              call("cudaLaunchKernel", 2, 5010.0), kernel(2, 5018.0, 5.0)]  # fmt: skip
    graph = build_graph(events)
    assert graph.unexplained_share == 0.0 and abs(replay(graph).error) < 1e-6
    assert next(t for t in graph.tasks if "Synchronize" in t.name).duration_us == pytest.approx(4.0)


def usual(count=6, since=0.0, first=500):
    """Launches on an idle stream: a latency of 8 us, calls of 4."""
    launches = [(first + n, since + 100.0 * n) for n in range(count)]
    return [e for n, at in launches for e in (call("cudaLaunchKernel", n, at), kernel(n, at + 8.0, 20.0))]


def test_a_first_launch_loads_its_module_and_the_kernel_starts_at_the_calls_end():
    events = [*usual(), call("cudaLaunchKernel", 1, 1000.0, 6500.0), kernel(1, 7505.0, 5.0), *usual(3, 8000.0, 600)]
    graph = build_graph(events)
    assert graph.latency_us == 8.0 and graph.unexplained_share == 0.0 and abs(replay(graph).error) < 1e-3
    (slow,) = [t.id for t in graph.tasks if t.duration_us == 6500.0]
    assert [(d.of_end, d.lag_us) for d in graph.dependencies if d.source == slow and d.kind == "launch"] == [
        (True, 4.0)
    ]


def test_the_loading_of_modules_is_nothing_a_change_can_gain():
    events = [*usual(), call("cudaLaunchKernel", 1, 1000.0, 6500.0), kernel(1, 7505.0, 5.0, name="first")]
    events += [*usual(3, 8000.0, 600), call("cudaLaunchKernel", 2, 9000.0, 800.0), kernel(2, 9805.0, 5.0)]
    graph = build_graph(events)
    assert graph.measured_us == 9810.0
    found = what_if(graph, Batch(2.0, floor_us=0.0))
    # the kernel of the second slow call had run before: that call was only slow
    assert found.baseline_us == pytest.approx(9810 - 6496, abs=1.1) and "1 first launch of kernels" in found.notes[0]
    assert "6.496 ms" in found.notes[0]


def test_no_launch_gets_longer_where_loading_is_taken_out():
    slow = [e for n in range(8) for e in (call("cudaLaunchKernel", n, 1e3 * n, 150.0 + 9 * n),
                                          kernel(n, 1e3 * n + 155.0 + 9 * n, 5.0, name=f"kernel {n}"))]  # fmt: skip
    graph = build_graph(slow)
    assert remove_module_loading(graph).notes
    assert all(
        a.duration_us <= b.duration_us for a, b in zip(remove_module_loading(graph).tasks, graph.tasks, strict=True)
    )


def test_a_kernel_that_waits_behind_the_end_of_a_slow_call_is_not_explained_by_it():
    graph = build_graph([*usual(), call("cudaLaunchKernel", 1, 1000.0, 6500.0), kernel(1, 9500.0, 5.0)])
    (wait,) = unexplained_waits(graph)
    assert (wait.start_us, wait.end_us) == (7504.0, 9500.0)


def test_a_kernel_that_starts_late_within_its_own_long_call_waited():
    """A launch of one kernel has no latency of milliseconds: another stream held it, or nobody knows."""
    late = [*usual(), call("cudaLaunchKernel", 1, 1000.0, 6500.0), kernel(1, 4000.0, 5.0)]
    graph = build_graph(late)
    assert max(d.lag_us for d in graph.dependencies if d.kind == "launch") == 8.0
    (wait,) = unexplained_waits(graph)
    assert (wait.start_us, wait.end_us) == (1008.0, 4000.0)
    other = build_graph([*late, call("cudaLaunchKernel", 2, 900.0), kernel(2, 908.0, 3090.0, lane=SIDE)])
    assert other.unexplained_share == 0.0 and any(d.kind == "event" for d in other.dependencies)


def test_a_graph_that_is_launched_for_long_runs_meanwhile():
    kernels = [kernel(1, 1400.0 + 21.0 * n, 20.0) for n in range(30)]
    graph = build_graph([*usual(), call("cudaGraphLaunch", 1, 1000.0, 800.0), *kernels])
    assert graph.unexplained_share == 0.0 and abs(replay(graph).error) < 1e-3
    assert graph.captured_share == pytest.approx(30 / 36)


def test_a_copy_that_is_held_within_its_own_call_is_not_explained_by_it():
    events = [*usual(), call("cudaMemcpyAsync", 1, 1000.0, 6010.0),
              kernel(1, 7000.0, 5.0, name="Memcpy HtoD (Pageable -> Device)", kind="copy")]  # fmt: skip
    assert unexplained_waits(build_graph(events))[0].end_us - unexplained_waits(build_graph(events))[
        0
    ].start_us == pytest.approx(5992.0)


def test_a_gap_between_kernels_hides_no_wait():
    events = []
    for n, at in enumerate(4000.0 * n for n in range(8)):
        # the stream ends during each slow call, whose kernel starts 3 ms later
        events += [call("cudaLaunchKernel", 2 * n, at), kernel(2 * n, at + 8.0, 100.0)]
        events += [call("cudaLaunchKernel", 2 * n + 1, at + 20.0, 3000.0), kernel(2 * n + 1, at + 3024.0, 100.0)]
    graph = build_graph(events)
    assert graph.gap_us == 1.0 and graph.unexplained_share == 0.0 and abs(replay(graph).error) < 0.01


def _beside(busy_us):
    """A side stream's kernel waits 3 ms: the other stream computes for so long of it."""
    return [
        *usual(), call("cudaLaunchKernel", 1, 1000.0), kernel(1, 1008.0, busy_us), call("cudaLaunchKernel", 2, 1010.0),
        kernel(2, 4008.0, 100.0, SIDE), call("cudaDeviceSynchronize", 3, 1020.0, 3092.0),
    ]  # fmt: skip


def test_a_side_stream_waits_while_another_fills_the_device():
    full = build_graph(_beside(3010.0))
    assert full.unexplained_share == 0.0
    (event,) = [d for d in full.dependencies if d.kind == "event"]
    assert [full.tasks[n].lane.name for n in (event.source, event.target)] == [STREAM, SIDE]
    assert abs(replay(full).error) < 0.01
    half = build_graph(_beside(1500.0))
    assert describe_longest_waits(half).startswith(f"{SIDE} from 1.018 to 4.008 ms")


def test_a_stream_that_was_told_to_wait_waits_for_what_had_been_issued():
    events = [
        *usual(), call("cudaLaunchKernel", 1, 1000.0), kernel(1, 1008.0, 2000.0),
        call("cudaStreamWaitEvent", 2, 1010.0, 1.0),
        call("cudaLaunchKernel", 3, 1015.0), kernel(3, 3108.0, 100.0, SIDE),
    ]  # fmt: skip
    graph = build_graph(events)
    assert unexplained_waits(graph)[0].start_us == 3008.0  # of the 2.1 ms all but 100 us
    assert sum(t.unexplained_us for t in graph.tasks) == pytest.approx(100.0)


def test_what_is_under_way_when_a_profile_begins_is_shortened():
    graph = drop_profile_start(build_graph(steps()), 500.0)
    first = min((t for t in graph.tasks if t.on_device), key=lambda t: t.measured_start_us)
    assert (first.measured_start_us, first.duration_us) == (500.0, 508.0)
    assert replay(graph).replayed_us == pytest.approx(graph.measured_us)


def test_a_rest_of_hardly_anything_does_not_answer_for_a_profile():
    """Kernels that no call can be found for belong to no step: what lies behind the last of their waits is no step."""
    unlaunched = [e._replace(correlation=None) for e in steps(40)]
    part = drop_unexplained_start(build_graph(unlaunched))
    assert not part.notes and sum(t.on_device for t in part.tasks) == 40 and part.unexplained_share > 0.05


def rows(events):
    """Return events as Kineto writes them."""
    categories = {"call": "cuda_runtime", "mark": "user_annotation", "copy": "gpu_memcpy"}
    found = []
    for e in events:
        on_device = e.lane.startswith("device")
        pid, tid = (0, int(e.lane.split()[-1])) if on_device else (1, 1)
        args = {} if e.correlation is None else {"correlation": e.correlation}
        if on_device:
            args |= {"device": 0, "stream": tid}
        found.append({"ph": "X", "cat": categories.get(e.kind, "kernel"), "name": e.name, "ts": e.start_us,
                      "dur": e.duration_us, "pid": pid, "tid": tid, "args": args})  # fmt: skip
    return found


def written(events, path):
    path.write_text(json.dumps({"traceEvents": rows(events)}))
    return str(path)


def test_the_verbs_name_what_was_left_off_and_where_a_wait_is(cli, tmp_path):
    held = written(busy_before(), tmp_path / "held.json")
    code, said, _ = cli("replay", held)
    assert code == 0 and "The first 8.000 ms are left off" in said and "a latency of 10 us is assumed" in said
    assert "left off" in cli("whatif", held, "--do", "batch:factor=2")[1]
    late = [
        e._replace(start_us=e.start_us + 5000.0) if e.kind == "kernel" and e.correlation == 505 else e for e in usual()
    ]
    path = written(late, tmp_path / "late.json")
    span = "device 0, stream 7 from 0.508 to 5.508 ms"
    assert span in cli("replay", path)[1]
    code, _, error = cli("whatif", path, "--do", "batch:factor=2")
    assert code == 1 and span in error
    (found,) = json.loads(cli("replay", path, "--json")[1])
    assert found["unexplained"][0]["end_us"] == 5508.0 and not found["is_explained"]


@every("width", [80, 120])
def test_ranks_together_are_readable(cli, tmp_path, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    paths = []
    for rank in range(4):
        events = [
            call("cudaLaunchKernel", 1, 10.0 * rank),
            kernel(1, 100.0, 50.0, name="ncclKernel_AllReduce", kind="kernel"),
        ]
        paths.append(written(events, tmp_path / f"a_rank_of_one_job_{rank}.json"))
    said = cli("replay", "--joint", *paths)[1]
    assert "a_rank_of_one_job_0 and 3 more ranks" in said and "rank_1" not in said
    assert max(map(len, said.splitlines())) <= width
    from_kineto(paths)
