"""Questions and their answers: intervals, where times are from, refusals, scenarios, searches, timelines."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from roller.cli.main import main
from roller.errors import RollerError
from roller.hardware import load_spec
from roller.insight.step.simulate import simulate
from roller.insight.step.steady_step_time import steady_step_us
from roller.insight.whatif.median_task_durations import use_median_durations
from roller.insight.whatif.parse_what_if_scenarios import parse_what_if_option, read_scenarios
from roller.insight.whatif.predict import what_if
from roller.insight.whatif.primitives import scale, select, without_overhead
from roller.insight.whatif.search import search
from roller.insight.whatif.unroll_steps import unroll_steps
from roller.insight.whatif.whatifs import (
    AMP,
    DDP,
    Batch,
    BlueConnect,
    Gist,
    LoaderWorkers,
    ParameterServer,
    RemoveLayer,
    RestructuredNorm,
    Substitute,
    ZeroTime,
)
from tests.insight.step.graphs import STEP, THREAD, training
from tests.offenders import every


def test_an_answer_says_how_long_and_how_sure():
    found = what_if(training(), AMP(prices="factor"))
    assert found.baseline_us == 937.0 and found.iteration_us == pytest.approx(362.0)
    assert found.speedup == pytest.approx(937 / 362) and not found.is_hardly_anything
    # all that changed is assumed, with an error of 0.3 of its logarithm
    assert (found.lower_us, found.upper_us) == pytest.approx((37 + 325 * math.exp(-0.3), 37 + 325 * math.exp(0.3)))
    assert found.provenance["assumed"] == pytest.approx(325 / 362, abs=0.03)
    assert sum(found.provenance.values()) == pytest.approx(1.0)
    assert found.before.total_us == 937.0 and found.after.total_us == pytest.approx(362.0)
    assert any("accuracy" in sentence for sentence in found.assumptions)
    assert json.loads(json.dumps(found.to_dict()))["kind"] == "predicted"


def test_changes_compose_in_their_order_and_functions_are_changes():
    graph = training()

    def mine(one):
        return scale(one, select(one, lambda t: t.name == "relu relu1"), 0.0)

    both = what_if(graph, mine, AMP(prices="factor"))
    assert both.iteration_us == pytest.approx(362.0 - 10)
    assert "AMP(prices=factor)" in both.name


def test_what_changes_nothing_is_called_hardly_anything():
    found = what_if(training(), lambda graph: graph)
    assert found.is_hardly_anything and found.speedup == 1.0 and found.lower_us == found.upper_us == 937.0


def test_a_profile_that_is_not_explained_is_refused_unless_forced():
    graph = training()
    late = replace(graph, tasks=[*graph.tasks[:-1], replace(graph.tasks[-1], unexplained_us=200.0)])
    with pytest.raises(RollerError, match="--force"):
        what_if(late, AMP())
    with pytest.raises(RollerError, match="--force"):
        search(late)
    assert what_if(late, AMP(prices="factor"), force=True).iteration_us < 937
    with pytest.raises(RollerError, match="at least one change"):
        what_if(graph)


def test_a_step_is_unrolled_where_a_change_crosses_its_border():
    graph = training()
    found = what_if(graph, ParameterServer(2, bandwidth=1e12, latency_us=0.0))
    assert len(found.graphs[0].iterations) == len(found.graphs[1].iterations) == 3
    # without the update, whose work servers do
    assert found.iteration_us == pytest.approx(found.baseline_us - 22)
    three = unroll_steps(graph, 3)
    assert steady_step_us(three, simulate(three)) == pytest.approx(937 - 8 + 1)
    assert unroll_steps(three, 2) is three


def test_steps_that_differ_are_taken_at_their_median():
    graph = training(steps=5)
    disturbed = replace(
        graph,
        tasks=[replace(t, duration_us=t.duration_us * 3) if t.context.iteration == 2 else t for t in graph.tasks],
    )
    assert simulate(use_median_durations(disturbed)) == simulate(graph)
    two = training(steps=2)
    assert use_median_durations(two) is two


def test_what_recording_took_is_taken_out_before_anything_is_asked():
    graph = training(rows=[(p, layer, o, 0.5, s) for p, layer, o, _, s in training_rows()])
    calls = [t.id for t in graph.tasks if t.lane == THREAD]
    recorded = replace(graph, overhead_us=dict.fromkeys(calls, (1.0, 0.5)))
    # bound by launches: nine calls of 4 us and 2 us behind each, of which 1 and a half were for recording
    assert simulate(graph).makespan_us - simulate(without_overhead(recorded)).makespan_us == pytest.approx(9 * 1.5)
    found = what_if(recorded, ZeroTime(phase="optimizer"))
    assert not any("recording" in sentence for sentence in found.assumptions)
    assert any("recording" in sentence for sentence in what_if(graph, ZeroTime(phase="optimizer")).assumptions)
    assert all(t.duration_us >= 0 for t in without_overhead(replace(graph, overhead_us={0: (99.0, 99.0)})).tasks)


def training_rows():
    from tests.insight.step.graphs import STEP

    return STEP


def test_a_search_ranks_what_helps_and_says_what_it_could_not_ask():
    graph = replace(training(steps=4, data_us=9000.0), device=load_spec("v100"))
    found = search(graph)
    assert found[0].answer is not None and found[0].answer.gain > 0.5
    gains = [x.answer.gain for x in found if x.answer is not None]
    assert gains == sorted(gains, reverse=True)
    assert isinstance(next(x for x in found if not x.is_bound).changes[0], LoaderWorkers)
    nothing = search(training(rows=[("other", "", "aten::sort", 100.0, ())], gradients=()))
    assert all(x.is_bound or x.answer is None or x.answer.is_hardly_anything for x in nothing)


def test_what_only_removes_tasks_of_a_predicted_step_is_predicted():
    graph = training(data_us=900.0)
    changes = (ZeroTime(kind="data"), RestructuredNorm(), ZeroTime(phase="optimizer"))
    assert [what_if(graph, change).rests_on for change in changes] == ["measured", "assumed", "measured"]
    predicted = replace(graph, tasks=[replace(t, provenance="predicted") for t in graph.tasks])
    assert [what_if(predicted, change).rests_on for change in changes] == ["predicted", "assumed", "predicted"]
    without_norms = training(rows=[row for row in STEP if "norm" not in row[2]], gradients=())
    predicted = replace(without_norms, tasks=[replace(t, provenance="predicted") for t in without_norms.tasks])
    assert what_if(predicted, RestructuredNorm()).rests_on == "predicted"
    found = search(predicted)
    assert all(x.answer.rests_on != "measured" for x in found if x.answer is not None)


def test_a_pair_has_one_name_whichever_of_its_changes_gains_more():
    names = set()
    for data_us in (2300.0, 9000.0):
        graph = replace(training(steps=4, data_us=data_us), device=load_spec("v100"))
        found = search(graph, force=True)
        alone = [x.name for x in found if len(x.changes) == 1]
        names.add(tuple(name for name in alone if name in ("AMP()", "LoaderWorkers()")))
        (pair,) = (x.name for x in found if {str(c) for c in x.changes} == {"AMP()", "LoaderWorkers()"})
        assert pair == "LoaderWorkers() + AMP()"
    assert len(names) == 2  # each of them gains more in one of the steps


def test_scenarios_are_read_from_files_and_lines(tmp_path):
    path = tmp_path / "eight.yaml"
    path.write_text(
        "device: v100\nmeasured_us: {cast: 3}\nscenarios:\n  half: [amp]\n"
        "  eight: [amp: {dtype: fp16}, ddp: {devices: 8, bandwidth: 25e9}]\n"
    )
    read = read_scenarios(path)
    assert read.device == "v100" and read.measured_us == {"cast": 3.0}
    assert read.changes["half"] == (AMP(),)
    assert read.changes["eight"] == (AMP("fp16"), DDP(8, bandwidth=25e9))
    assert parse_what_if_option("batch:factor=4") == Batch(4.0)


@every(
    ("text", "meant"),
    [
        ("remove-layer:layers=0", RemoveLayer("0")), ("remove-layer:layers=*", RemoveLayer("*")),
        ("remove-layer:layers=*.relu", RemoveLayer("*.relu")), ("remove-layer:layers=[0,'1']", RemoveLayer(("0", "1"))),
        ("blueconnect:levels=[4,2],bandwidths=[3e11,12.5e9]", BlueConnect((4, 2), (3e11, 12.5e9))),
        ("substitute:add={conv1: 2}", Substitute(add={"conv1": 2})), ("batch:factor=2e0", Batch(2.0)),
    ],
)  # fmt: skip
def test_a_word_says_what_a_change_is(text, meant):
    assert parse_what_if_option(text) == meant


@every(
    "text",
    ["amp:compute=2026-13-45", "loader-workers:workers=2.0", "remove-layer:layers=", "ddp:devices=1e400",
     "parameter-server:bandwidth=1e9,slice_bytes=1e-300"],
)  # fmt: skip
def test_a_word_that_is_wrong_says_so(text):
    with pytest.raises(RollerError, match="expected"):
        parse_what_if_option(text)(training(steps=3))


def test_lists_of_tensors_are_no_feature_maps():
    graph = training()
    several = {"shapes": (((2, 3), (4,)),), "dtypes": ("TensorList",)}
    lists = [replace(t, context=t.context._replace(**several)) for t in graph.tasks]
    with pytest.raises(RollerError, match="expected layers with shapes"):
        Gist()(replace(graph, tasks=lists))


def test_a_step_of_no_time_and_one_of_endless_time_are_no_answers():
    graph = training()
    with pytest.raises(RollerError, match="something takes time"):
        nothing = [replace(t, duration_us=0.0) for t in graph.tasks]
        what_if(replace(graph, tasks=nothing, latency_us=0.0, dependencies=[]), Batch(2.0))
    with pytest.raises(RollerError, match="finite"):
        what_if(graph, AMP(compute=1e308, prices="factor"))


@every(
    ("text", "said"),
    [
        ("changes: [ampp]", "did you mean 'amp'"), ("changes: [amp: {dtyp: fp16}]", "parameters among dtype"),
        ("changes: [device]", "all its parameters"), ("changes: amp", "a list of what-ifs"), ("[1", "cannot be read"),
        ("change: [amp]", "expected device, measured_us"), ("changes: [{amp: {}, ddp: {}}]", "with its parameters"),
        ("measured_us: {x: fast}\nchanges: [amp]", "microseconds"),
        ("changes: [ddp: {devices: many}]", "expected a whole number"),
        ("changes: []", "a list of what-ifs"), ("5", "expected device"),
        ("scenarios: [amp]", "lists of what-ifs by name"),
        ("changes: [ddp: {devices: 2.0}]", "a whole number"),
        ("measured_us: {x: true}\nchanges: [amp]", "microseconds"),
        ("device: 5\nchanges: [amp]", "the name of a device"),
        ("changes: [zero-time: {name: (}]", "a regular expression"),
        ("changes: [ddp: {devices: 2, bandwidth: abc}]", "expected a number"),
        ("changes: [substitute: {scale: 3}]", "a number by a text"),
        ("changes: [remove-layer: {layers: true}]", "a text"),
    ],
)  # fmt: skip
def test_wrong_scenarios_say_so(tmp_path, text, said):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(RollerError, match=said):
        read_scenarios(path)


@pytest.fixture
def profile(tmp_path):
    """A profile as Kineto writes it: six steps that load for 5 ms on the thread that launches."""
    events = []
    for n in range(6):
        at = 10_000.0 * n
        events.append(_event("ProfilerStep#" + str(n), "user_annotation", at, 9_900.0))
        events.append(_event("enumerate(DataLoader)#_Iter.__next__", "user_annotation", at + 10, 5e3))
        events.append(_event("cudaLaunchKernel", "cuda_runtime", at + 5_100, 10.0, correlation=n + 1))
        events.append(_event("gemm", "kernel", at + 5_120, 4_000.0, stream=7, correlation=n + 1))
        events.append(_event("cudaDeviceSynchronize", "cuda_runtime", at + 5_200, 3_950.0, correlation=100 + n))
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def _event(name, category, at, took, **arguments):
    lane = {"pid": 0, "tid": 7} if "stream" in arguments else {"pid": 1, "tid": 1}
    return {"ph": "X", "cat": category, "name": name, "ts": at, "dur": took, "args": arguments, **lane}


def run(*words):
    with pytest.raises(SystemExit) as done:
        main([str(w) for w in words])
    return done.value.code


def test_the_verb_answers_for_people_scripts_and_perfetto(profile, tmp_path, capsys):
    timeline = tmp_path / "out.json"
    assert run("whatif", profile, "--do", "loader-workers:workers=2", "--perfetto", timeline) == 0
    assert "faster" in capsys.readouterr().out
    events = json.loads(timeline.read_text())["traceEvents"]
    assert {e["pid"] for e in events} == {1, 2} and any(e["name"] == "gemm" for e in events)
    assert run("whatif", profile, "--do", "zero-time:kind=data", "--json") == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["baseline_us"] == pytest.approx(10_000) and answer["iteration_us"] == pytest.approx(4_910)
    assert run("whatif", profile, "--all", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["changes"] for row in rows} >= {"LoaderWorkers()", "ZeroTime(kind=data)"}
    assert run("whatif", "--list") == 0
    assert "parameter-server" in capsys.readouterr().out


@every(
    "words",
    [
        (), ("--do", "amp"), ("PROFILE",), ("PROFILE", "--do", "amp:dtype"), ("PROFILE", "--do", "nothing"),
        ("PROFILE", "--all", "--perfetto", "out.json"), ("PROFILE", "-s", "none.yaml"), ("none.json", "--do", "amp"),
        ("PROFILE", "--do", "amp", "--device", "v1000"), ("train.py", "--do", "amp"),
        ("PROFILE", "--do", "ddp:devices=2"),
    ],
)  # fmt: skip
def test_the_verb_refuses_in_a_sentence(profile, tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    assert run("whatif", *(profile if w == "PROFILE" else w for w in words)) in (1, 2)
    said = capsys.readouterr()
    assert "expected" in said.err or "unknown" in said.err
    assert "Traceback" not in said.err
