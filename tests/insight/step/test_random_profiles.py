"""Random programs on a device that keeps CUDA's rules: what is explained is replayed, what is hidden is found."""

from __future__ import annotations

import json
import random

import pytest

from roller.errors import RollerError
from roller.insight.step.replay import from_kineto, replay
from roller.insight.whatif.parse_what_if_scenarios import parse_what_if_option
from roller.insight.whatif.predict import what_if
from tests.insight.step.random_profiles import LATENCY_US, program, rounded
from tests.offenders import every

CHANGES = (
    "amp:prices=factor", "fused-optimizer:prices=factor", "ddp:devices=4,bandwidth=1e10,latency_us=1", "batch",
    "loader-workers:workers=2", "foreach-optimizer", "fuse-pointwise", "cuda-graph", "zero-time:kind=copy",
    "other-optimizer:to=adam,of=sgd", "restructured-norm",
)  # fmt: skip
#: What times in whole microseconds may add up to.
ROUNDED_US = 30.0
#: What stands in the place of a value in a damaged file.
WRONG = (None, -1, 0, 1e308, float("nan"), float("inf"), "x", [], {}, [[1]], True, 2**70, -5.5, "", "gpu")


def written(rows, path):
    path.write_text(json.dumps({"traceEvents": rows}))
    return path


def replayed(seed, path):
    made = program(seed, marked=seed % 4 != 0)
    rows = rounded(made.rows) if seed % 3 == 0 and made.start < 1e15 else made.rows
    found = replay(from_kineto(written(rows, path)))
    assert found.is_explained, (seed, found.unexplained_share)
    most = 0.015 + ROUNDED_US / found.measured_us
    assert -found.unexplained_share - most < found.error < most, (seed, found.error, found.unexplained_share)
    assert found.graph.latency_us == pytest.approx(LATENCY_US, abs=1.0), (seed, found.graph.latency_us)


@every("seed", range(4))
def test_a_random_program_is_replayed(tmp_path, seed):
    replayed(seed, tmp_path / "p.json")


@pytest.mark.parametrize("first", [1000, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (1100, 1200, 1300))])
def test_hundreds_of_random_programs_are_replayed(tmp_path, first):
    for seed in range(first, first + 100):
        replayed(seed, tmp_path / "p.json")


def held(seed, path, since):
    """A program whose streams are held for as long again as it takes, from one of its steps on."""
    length = max(r["ts"] + r["dur"] for r in program(seed, steps=5).rows) - program(seed).start
    made = program(seed, steps=since)
    for stream in made.streams:
        made.hold(stream, length)
    made.slow_first = False
    for number in range(since, 5):
        made.step(number)
    made.synchronise(made.main)
    return written(made.rows, path), length


@every("seed", range(2))
def test_what_holds_the_device_from_before_is_left_off(tmp_path, seed):
    path, _ = held(seed, tmp_path / "p.json", 0)
    graph = from_kineto(path)
    found = replay(graph)
    assert found.is_explained and abs(found.error) < 0.02 and "left off" in graph.notes[0]
    assert what_if(graph, parse_what_if_option("batch")).notes == graph.notes


@every("seed", range(2))
def test_what_holds_the_device_meanwhile_is_refused_with_span_and_stream(tmp_path, seed):
    path, length = held(seed, tmp_path / "p.json", 3)
    graph = from_kineto(path)
    with pytest.raises(RollerError, match=r"stream \d+ from [\d.]+ to [\d.]+ ms \(before ") as error:
        what_if(graph, parse_what_if_option("batch"))
    assert not replay(graph).is_explained and graph.unexplained_share > 0.3, (seed, str(error.value), length)


def damaged(seed, path):
    """A program's rows, a few of which are not what they should be."""
    choose, rows = random.Random(seed), program(seed, steps=2).rows
    for _ in range(choose.randint(1, 8)):
        row, kind = choose.choice(rows), choose.random()
        if kind < 0.3:
            row.pop(choose.choice(list(row)), None)
        elif kind < 0.6:
            row[choose.choice(("ts", "dur", "pid", "tid", "cat", "name", "args", "ph"))] = choose.choice(WRONG)
        elif kind < 0.9 and isinstance(row.get("args"), dict):
            names = ("correlation", "stream", "device", "bytes", "Input Dims", "wait_on_stream", "Concrete Inputs")
            row["args"][choose.choice(names)] = choose.choice(WRONG)
        else:
            rows.remove(row)
    return written(rows, path)


def asked(seed, path):
    try:
        graph = from_kineto(damaged(seed, path))
    except RollerError:
        return
    assert replay(graph).to_dict()["measured_us"] >= 0.0
    for change in random.Random(seed).sample(CHANGES, 3):
        try:
            assert what_if(graph, parse_what_if_option(change), force=True).iteration_us >= 0.0
        except RollerError:
            continue


@every("seed", range(2000, 2002))
def test_a_damaged_profile_is_answered_or_refused_in_words(tmp_path, seed):
    asked(seed, tmp_path / "p.json")


@pytest.mark.parametrize("first", [3000, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (3100, 3200))])
def test_hundreds_of_damaged_profiles_are_answered_or_refused(tmp_path, first):
    for seed in range(first, first + 100):
        asked(seed, tmp_path / "p.json")
