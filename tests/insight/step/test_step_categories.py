"""Eight categories of a step: each instant belongs to the first that is active."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise

import pytest

from roller.errors import RollerError
from roller.insight.step.kineto_reader import Event, read_profile
from roller.insight.step.step_categories import CATEGORIES, step_categories
from tests.insight.step.random_profiles import program
from tests.offenders import every

MAIN, STREAM = "process 1, thread 1", "device 0, stream 7"


def event(name, kind, start, end, correlation=None, lane=MAIN):
    return Event(name, kind, start, end - start, lane, correlation, {})


def categories(*events):
    found = step_categories(events)
    return [{name: took for name, took in step.category_us.items() if took} for step in found.steps]


#: One event of each category, the first in front, and one that is none.
EACH = (
    event("gemm", "kernel", 0, 10, lane=STREAM),
    event("Memcpy HtoD", "copy", 0, 20, lane=STREAM),
    event("Memset", "set", 0, 30, lane=STREAM),
    event("ncclKernel_AllReduce", "collective", 0, 40, lane=STREAM),
    event("cudaLaunchKernel", "call", 0, 50),
    event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "mark", 0, 60),
    event("aten::mm", "operator", 0, 70),
    event("nn.Module: Linear_0", "mark", 0, 80),
)


@every("seed", range(5))
def test_each_instant_belongs_to_the_first_category_that_is_active(seed):
    events = random.Random(seed).sample(EACH, len(EACH))
    assert categories(*events) == [dict.fromkeys(CATEGORIES, 10.0)]


@every("name", ("nccl:all_reduce", "gloo:broadcast"))
def test_what_a_library_marks_on_the_host_is_communication(name):
    for kind in ("mark", "operator"):
        assert categories(event(name, kind, 0, 5), event("aten::mm", "operator", 0, 7)) == [
            {"communication": 5.0, "CPU": 2.0}
        ]


def test_regions_and_optimizers_count_as_operators_and_steps_as_nothing():
    marks = event("Optimizer.step#SGD.step", "mark", 10, 14), event("my region", "mark", 20, 21)
    assert categories(event("ProfilerStep#3", "mark", 0, 30), *marks) == [{"CPU": 5.0, "other": 25.0}]


def step(number, start, end, kernels=()):
    """Return a step whose calls launch kernels that start and end so."""
    found = [event(f"ProfilerStep#{number}", "mark", start, end)]
    for n, (begin, until) in enumerate(kernels):
        found.append(event("cudaLaunchKernel", "call", start + n, start + n + 1, 100 * number + n))
        found.append(event("gemm", "kernel", begin, until, 100 * number + n, STREAM))
    return found


def test_a_step_ends_with_what_it_launched_and_the_next_begins_there():
    events = [*step(0, 0, 100, [(10, 50), (60, 120)]), *step(1, 101, 200, [(130, 140), (150, 190)])]
    found = step_categories(events)
    assert [(x.name, x.start_us, x.end_us) for x in found.steps] == [
        ("ProfilerStep#0", 0, 120), ("ProfilerStep#1", 120, 200)
    ]  # fmt: skip
    assert found.steps[0].category_us["kernel"] == 100 and found.steps[0].category_us["runtime"] == 2
    assert found.steps[1].category_us["kernel"] == 50 and found.steps[1].category_us["other"] == 30
    assert found.mean_us["kernel"] == found.median_us["kernel"] == 75 and found.notes == ()
    assert found.to_dict()["steps"][1]["category_us"]["kernel"] == 50


def test_the_first_step_begins_when_earlier_work_has_ended():
    earlier = event("gemm", "kernel", -10, 5, 7, STREAM)
    found = step_categories([earlier, *step(0, 0, 100, [(10, 50)])])
    assert (found.steps[0].start_us, found.steps[0].end_us) == (5, 100)
    assert found.steps[0].category_us["kernel"] == 40


def test_a_call_across_the_end_of_a_step_launches_for_none():
    across = event("cudaLaunchKernel", "call", 99, 105, 50), event("gemm", "kernel", 110, 300, 50, STREAM)
    found = step_categories([*step(0, 0, 100, [(10, 50)]), *across])
    assert found.steps[0].end_us == 100


@every("kernels", ([], [(210, 220)] * 3))
def test_a_last_step_that_lacks_device_tasks_is_left_out_and_said(kernels):
    full = [(10 + n, 11 + n) for n in range(4)]
    found = step_categories([*step(0, 0, 100, full), *step(1, 200, 300, kernels)])
    assert [x.name for x in found.steps] == ["ProfilerStep#0"]
    assert found.notes == (
        "ProfilerStep#1: left out, since the profile may lack device tasks that were launched there.",
    )


def test_steps_without_a_device_are_as_marked():
    events = [*step(0, 0, 100), event("aten::mm", "operator", 90, 130), *step(1, 100, 150)]
    assert categories(*events) == [{"CPU": 10.0, "other": 90.0}, {"CPU": 30.0, "other": 20.0}]


def test_marks_that_overlap_share_no_instant():
    events = [*step(0, 0, 100), event("aten::mm", "operator", 90, 130), *step(1, 80, 150)]
    found = step_categories(events)
    assert [(x.start_us, x.end_us) for x in found.steps] == [(0, 100), (100, 150)]
    assert categories(*events) == [{"CPU": 10.0, "other": 90.0}, {"CPU": 30.0, "other": 20.0}]


def brute(events, step):
    """Return the categories of a step by asking for each span between two bounds what is active in it."""
    bounds = sorted({step.start_us, step.end_us, *(x for e in events for x in (e.start_us, e.end_us))})
    kinds = ("kernel", "copy", "set", "collective", "call")
    found = dict.fromkeys(CATEGORIES, 0.0)
    for begin, end in pairwise(bounds):
        if step.start_us <= begin and end <= step.end_us:
            active = {e.kind for e in events if e.start_us <= begin and end <= e.end_us}
            place = next((n for n, kind in enumerate(kinds) if kind in active), 6 if "operator" in active else 7)
            found[CATEGORIES[place]] += end - begin
    return found


@every("seed", range(20))
def test_categories_of_random_events_sum_to_the_step_and_are_those_of_every_instant(seed):
    draw = random.Random(seed)
    begin = draw.choice((0.0, 1.7e15))
    events = []
    for n in range(60):
        kind = draw.choice(("kernel", "copy", "set", "collective", "call", "operator"))
        start = begin + draw.choice((draw.uniform(0, 1000), draw.randrange(1000)))
        took = draw.choice((0.0, draw.uniform(0, 60), draw.randrange(60)))
        events.append(Event("x", kind, start, took, MAIN, n, {}))
    step = step_categories(events).steps[0]
    assert step.category_us == pytest.approx(brute(events, step), abs=1e-6 if begin == 0.0 else 1.0)
    assert math.fsum(step.category_us.values()) == pytest.approx(step.duration_us, rel=1e-9)


def test_categories_of_random_programs_sum_to_each_step(tmp_path):
    for seed in range(3):
        (tmp_path / "p.json").write_text(json.dumps({"traceEvents": program(seed, steps=3).rows}))
        found = step_categories(read_profile(tmp_path / "p.json"))
        for step in found.steps:
            assert math.fsum(step.category_us.values()) == pytest.approx(step.duration_us, rel=1e-9)
        means = math.fsum(found.mean_us.values())
        assert means == pytest.approx(math.fsum(s.duration_us for s in found.steps) / len(found.steps), rel=1e-9)


def test_no_events_are_refused():
    with pytest.raises(RollerError, match="expected events of a profile, got none"):
        step_categories([])
