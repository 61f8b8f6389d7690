"""Profiles as graphs: hand-solved ones, every spelling, broken files, and what a simulation must keep."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller.errors import ArtifactError, RollerError
from roller.insight.step.graph import Dependency, Lane, StepGraph, Task
from roller.insight.step.kineto_reader import read_events
from roller.insight.step.profile_graph import build_graph
from roller.insight.step.replay import from_kineto, replay
from roller.insight.step.simulate import simulate
from tests.offenders import every

LATENCY, GAP = 8.0, 1.0


class Machine:
    """Runs a made-up program on a made-up device, and writes the profile that Kineto would."""

    def __init__(self, rank=0):
        self.rows, self.now, self.free, self.number, self.rank = [], 1000.0 + 17 * rank, {}, 0, rank

    def row(self, category, name, start, duration, lane, **arguments):
        base = {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "args": arguments}
        self.rows.append({**base, **lane})

    def call(self, name, duration, thread=1, **arguments):
        self.number += 1
        lane = {"pid": 1, "tid": thread}
        self.row("cuda_runtime", name, self.now, duration, lane, correlation=self.number, **arguments)
        self.now += duration
        return self.number, self.now - duration

    def launch(self, duration, stream=7, call=4.0, name="gemm", category="kernel"):
        number, at = self.call("cudaLaunchKernel", call)
        start = max(at + LATENCY, self.free.get(stream, 0.0) + GAP)
        lane = {"pid": 0, "tid": f"stream {stream}"}
        self.row(category, name, start, duration, lane, device=0, stream=stream, correlation=number)
        self.free[stream] = start + duration
        return start + duration

    def synchronise(self, back=3.0):
        end = max([self.now, *self.free.values()]) + back
        self.call("cudaDeviceSynchronize", end - self.now)

    def think(self, duration):
        self.now += duration

    def profile(self, path, **keys):
        path.write_text(json.dumps({"schemaVersion": 1, **keys, "traceEvents": self.rows, "traceName": "x"}))
        return path


def program(seed=0, steps=6, kernels=12):
    machine, choose = Machine(), random.Random(seed)
    for _ in range(steps):
        for _ in range(kernels):
            machine.think(choose.uniform(0, 30))
            machine.launch(choose.uniform(1, 60))
        machine.synchronise()
    return machine


@every("seed", range(5))
def test_a_program_of_launches_and_waits_is_replayed(tmp_path, seed):
    found = replay(from_kineto(program(seed).profile(tmp_path / "p.json")))
    assert abs(found.error) < 1e-6 and found.unexplained_share == 0.0 and found.is_explained
    assert found.graph.latency_us == pytest.approx(LATENCY) and found.graph.gap_us == pytest.approx(GAP)
    assert found.overlap.total_us == pytest.approx(found.replayed_us)
    assert sum(x.critical_us for x in found.lanes) <= found.replayed_us * (1 + 1e-9)


def test_a_longer_kernel_moves_what_waits_for_it_and_nothing_else():
    machine = Machine()
    machine.launch(100.0)
    machine.launch(50.0)
    machine.synchronise(back=3.0)
    graph = build_graph(list(_events(machine)))
    kernel = next(t for t in graph.tasks if t.kind == "kernel")
    longer = StepGraph(
        [replace(t, duration_us=t.duration_us + 40.0) if t.id == kernel.id else t for t in graph.tasks],
        graph.dependencies, graph.starts_us, graph.latency_us, graph.gap_us,
    )  # fmt: skip
    before, after = simulate(graph), simulate(longer)
    assert after.makespan_us - before.makespan_us == pytest.approx(40.0)
    assert [b - a for a, b in zip(before.start_us, after.start_us, strict=True)] == pytest.approx([0, 0, 0, 0, 40])
    assert before.makespan_us == pytest.approx(8 + 100 + 1 + 50 + 3)


def _events(machine):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        return read_events(machine.profile(Path(folder) / "p.json"))


def test_another_streams_task_that_an_event_waits_for():
    machine = program(steps=2)
    machine.free.clear()
    end = machine.launch(200.0, stream=7)
    machine.call("cudaStreamWaitEvent", 1.0)
    machine.free[9] = end + 2.0 - GAP  # the event takes two microseconds
    machine.launch(10.0, stream=9)
    machine.synchronise()
    found = replay(build_graph(_events(machine)))
    assert found.unexplained_share == 0.0 and abs(found.error) < 1e-6
    assert [d.kind for d in found.graph.dependencies].count("event") == 1


def test_a_wait_that_nothing_explains_is_counted_and_said(cli, tmp_path):
    machine = program(steps=6)
    machine.free[7] = machine.now + 50_000.0
    machine.launch(10.0)
    machine.synchronise()
    path = machine.profile(tmp_path / "p.json")
    found = replay(from_kineto(path))
    assert 0.8 < found.unexplained_share < 1.0 and not found.is_explained
    assert "cannot be predicted" in cli("replay", str(path))[1]
    assert json.loads(cli("replay", str(path), "--json")[1])[0]["is_explained"] is False


def test_a_thread_that_another_one_wakes():
    machine = Machine()
    machine.launch(5.0)
    machine.think(100.0)
    machine.call("cudaLaunchKernel", 4.0)
    lane = {"pid": 1, "tid": 2}
    for number, at in ((900, machine.now + 20.0), (901, machine.now + 700.0)):
        machine.row("cuda_runtime", "cudaLaunchKernel", at, 4.0, lane, correlation=number)
        machine.row("kernel", "k", at + LATENCY, 3.0, {"pid": 0, "tid": 7}, device=0, stream=7, correlation=number)
    machine.now += 600.0
    machine.launch(5.0)
    found = replay(build_graph(_events(machine)))
    woken = [d for d in found.graph.dependencies if d.kind == "hand-over"]
    assert len(woken) >= 2 and abs(found.error) < 1e-6


SPELLINGS = {
    "old": {"cuda_runtime": "Runtime", "kernel": "Kernel"},
    "driver": {"cuda_runtime": "cuda_driver"},
    "rocm": {"cuda_runtime": "hip_runtime"},
    "nobody knows": {"cuda_runtime": "xyz_calls", "kernel": "xyz_tasks"},
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_categories_gives_one_graph(tmp_path, spelling):
    machine = program(3)
    plain = from_kineto(machine.profile(tmp_path / "a.json"))
    for row in machine.rows:
        row["cat"] = SPELLINGS[spelling].get(row["cat"], row["cat"])
    other = from_kineto(machine.profile(tmp_path / "a.json"))
    assert other == plain


def test_the_order_of_events_and_compression_change_nothing(tmp_path):
    machine = program(4)
    plain = from_kineto(machine.profile(tmp_path / "a.json"))
    random.Random(1).shuffle(machine.rows)
    assert from_kineto(machine.profile(tmp_path / "a.json")) == plain
    (tmp_path / "b.json.gz").write_bytes(gzip.compress((tmp_path / "a.json").read_bytes()))
    assert replace(from_kineto(tmp_path / "b.json.gz"), name="a.json") == plain
    (tmp_path / "c.json").write_text(json.dumps(machine.rows, indent=1))
    assert replace(from_kineto(tmp_path / "c.json"), name="a.json") == plain


def test_whole_microseconds_and_lost_launches_still_replay(tmp_path):
    machine = program(5, steps=20)
    for row in machine.rows:
        end = round(row["ts"] + row["dur"])
        row["ts"] = round(row["ts"])
        row["dur"] = end - row["ts"]
    assert abs(replay(from_kineto(machine.profile(tmp_path / "a.json"))).error) < 0.01
    lost = random.Random(2).sample([r for r in machine.rows if r["name"] == "cudaLaunchKernel"], 20)
    machine.rows = [r for r in machine.rows if r not in lost]
    found = replay(from_kineto(machine.profile(tmp_path / "a.json")))
    assert abs(found.error) < 0.01 and found.is_explained


@every(
    ("text", "match"),
    [
        ("", "no JSON object or list"), ("hello", "no JSON object or list"), ("{}", "no traceEvents"),
        ('{"traceEvents": []}', "no calls, kernels"), ('{"traceEvents": [{"ph": "X"', "cut off or broken"),
        ('{"traceEvents": [{"ph": "M", "name": "a"}]}', "no calls, kernels"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": "soon", "dur": 1}]}', "event 0"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": NaN, "dur": 1}]}', "event 0"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": -1}]}', "event 0"),
        ('{"traceEvents": [{"ph": "X", "cat": "cuda_runtime", "name": "k", "ts": 1, "dur": 1}]}', "event 0"),
        ('{"traceEvents": [1, 2, }', "cut off or broken"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1e400, "dur": 1}]}', "event 0"),
        ('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "k", "ts": 1, "dur": 1, "args": [1]}]}', "event 0"),
        ('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "k", "ts": 1' + "0" * 400 + ', "dur": 1}]}', "event 0"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 1, '
         '"args": {"correlation": Infinity}}]}', "event 0"),
        ('{"traceEvents": [' + "[" * 5000, "cut off or broken"),
    ],
)  # fmt: skip
def test_files_that_are_no_profiles_say_so(cli, tmp_path, text, match):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(ArtifactError, match=match):
        from_kineto(tmp_path / "p.json")
    code, _, err = cli("replay", str(tmp_path / "p.json"))
    assert code != 0 and match in err and "Traceback" not in err


def test_a_file_that_is_cut_off_anywhere_says_so(tmp_path):
    text = program(1, steps=1, kernels=3).profile(tmp_path / "p.json").read_text()
    last = text.rindex("]")
    for cut in range(1, last, 37):
        (tmp_path / "p.json").write_text(text[:cut])
        with pytest.raises(ArtifactError):
            read_events(tmp_path / "p.json")
    (tmp_path / "p.json.gz").write_bytes(gzip.compress(text.encode())[:-20])
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_events(tmp_path / "p.json.gz")
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_events(tmp_path / "none.json")


def test_a_profile_was_made_on_its_own_kind_of_device(tmp_path):
    path = program(1, steps=1, kernels=3).profile(tmp_path / "p.json")
    assert from_kineto(path, device="v100").device.name == "v100"
    with pytest.raises(RollerError, match="expected what the profile was made on, a GPU"):
        from_kineto(path, device="cpu-avx2")
    row = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.0, "dur": 9.0}
    path.write_text(json.dumps({"traceEvents": [row]}))
    with pytest.raises(RollerError, match="a processor: no task of it ran on a GPU"):
        from_kineto(path, device="v100")


def ranks(late_us, transfer_us=50.0):
    """Profiles of two ranks: the second comes later to a collective, which ends for both at once."""
    machines = [Machine(rank) for rank in range(2)]
    for machine, wait in zip(machines, (late_us, 0.0), strict=True):
        machine.think(late_us - wait)
        machine.launch(transfer_us + wait, stream=20, name="ncclKernel_AllReduce_RING_LL_Sum_float")
        machine.synchronise()
    return machines


def test_ranks_wait_for_the_last_of_them(tmp_path):
    paths = [m.profile(tmp_path / f"{n}.json") for n, m in enumerate(ranks(300.0))]
    graph = from_kineto(paths)
    found = replay(graph)
    assert abs(found.error) < 1e-6 and {t.lane.rank for t in graph.tasks} == {0, 1}
    reduced = [t for t in graph.tasks if t.kind == "collective"]
    assert [t.duration_us for t in reduced] == [50.0, 50.0]
    ends = [found.timeline.end_us[t.id] for t in reduced]
    assert ends[0] == pytest.approx(ends[1])
    with pytest.raises(RollerError, match="without collectives"):
        from_kineto([paths[0], program().profile(tmp_path / "other.json")])
    with pytest.raises(RollerError, match="at least one file"):
        from_kineto([])


def tasks_of(*durations, lanes=1):
    return [
        Task(n, f"t{n}", "kernel", Lane(0, "stream", str(n % lanes)), float(d), 0.0, 0.0)
        for n, d in enumerate(durations)
    ]


def test_a_circle_is_named():
    tasks = tasks_of(1, 2, 3, lanes=3)
    circle = [Dependency(0, True, 1, False, 0.0, "event"), Dependency(1, True, 0, False, 0.0, "event")]
    with pytest.raises(RollerError, match=r"circle: t\d \(task \d\) <- t\d"):
        simulate(StepGraph(tasks, circle, {2: 0.0}, 0.0, 0.0))


def test_a_policy_chooses_among_what_is_ready():
    tasks = tasks_of(5, 5, 5)
    graph = StepGraph(tasks, [], {}, 0.0, 0.0)
    assert simulate(graph).start_us == [0.0, 5.0, 10.0]
    assert simulate(graph, policy=lambda t: -t.id).start_us == [10.0, 5.0, 0.0]


def test_an_end_that_waits_keeps_its_lane():
    tasks = tasks_of(1, 1, 50, lanes=2)  # 0 and 2 on one lane, 1 on the other
    waits = [Dependency(1, True, 0, True, 10.0, "synchronisation")]
    found = simulate(StepGraph(tasks, waits, {}, 0.0, 0.0))
    assert found.end_us[0] == 12.0 and found.start_us[2] == 12.0


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 25))
    tasks = tasks_of(*draw(st.lists(st.integers(0, 50), min_size=count, max_size=count)), lanes=draw(st.integers(1, 4)))
    dependencies = []
    for _ in range(draw(st.integers(0, 40)) if count > 1 else 0):
        source = draw(st.integers(0, count - 2))
        target = draw(st.integers(source + 1, count - 1))
        flags = draw(st.tuples(st.booleans(), st.booleans()))
        dependencies.append(Dependency(source, flags[0], target, flags[1], float(draw(st.integers(0, 9))), "event"))
    for lane in {t.lane for t in tasks}:  # in order, as every profile's lanes are
        own = [t.id for t in tasks if t.lane == lane]
        dependencies += [Dependency(a, True, b, False, 0.0, "stream") for a, b in pairwise(own)]
    return StepGraph(tasks, dependencies, {}, 0.0, 0.0)


@settings(max_examples=60, deadline=None)
@given(graphs(), st.integers(0, 24), st.integers(1, 30))
def test_simulations_keep_every_dependency_and_grow_with_every_task(graph, at, more):
    found = simulate(graph)
    assert found == simulate(graph)
    for d in graph.dependencies:
        source = (found.end_us if d.of_end else found.start_us)[d.source]
        target = (found.end_us if d.to_end else found.start_us)[d.target]
        assert target >= source + d.lag_us
    for task in graph.tasks:
        assert found.end_us[task.id] >= found.start_us[task.id] + task.duration_us
    longer = [replace(t, duration_us=t.duration_us + (more if t.id == at else 0)) for t in graph.tasks]
    assert simulate(replace(graph, tasks=longer)).makespan_us >= found.makespan_us
    parts = replay(graph).overlap
    assert parts.total_us == pytest.approx(found.makespan_us)
