"""A compilation that others disturbed: shown as doubtful, ranked by prediction, and measured again by the next one."""

from __future__ import annotations

import json
import time

import pytest
from typer.testing import CliRunner

import roller
from roller.cli.main import app
from roller.compiler.autotune import Selection, choose_kernel
from roller.compiler.autotune.build_and_measure_candidates import TuningContext
from roller.construction.constructor import construct_candidates
from roller.runtime import check_and_time_cpu_kernels
from roller.runtime.cache import KernelCache
from roller.runtime.candidate_records import Record
from roller_runtime.timing.clock import ClockSample, SystemClock

RELU = "elementwise('relu', (4096,))"
WHY = "other programs kept 1.9 of 2 processors busy while it was timed: 0 of 9 windows were quiet"


class Busy(SystemClock):
    """A machine on which every window loses half of its time."""

    def end(self) -> ClockSample:
        found = super().end()
        return ClockSample(found.wall_s, found.wall_s / 2)


@pytest.fixture
def busy(monkeypatch):
    """Return a switch: the machine is busy while it is on."""
    monkeypatch.setattr(check_and_time_cpu_kernels, "PATIENCE_S", 0.02)
    on = [True]
    quiet = check_and_time_cpu_kernels.system_or_trusting_clock
    monkeypatch.setattr(check_and_time_cpu_kernels, "system_or_trusting_clock", lambda: Busy() if on[0] else quiet())
    return on


def run(*words):
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_doubtful_kernel_says_so_and_is_measured_again(busy):
    text = run("compile", RELU, "--top-k", "2")
    # The one that loses by far even without what others took from it may be dropped for good.
    assert " doubtful (best)" in text
    assert "doubtful: " in text and "ranked by prediction" in text
    assert "It is not kept as final: the next compile measures again" in text
    (held,) = json.loads(run("cache", "list", "--json"))
    assert (held["status"], held["device"]) == ("doubtful", "cpu")
    assert "measured again when it is asked for" in run("cache", "list")

    busy[0] = False
    again = json.loads(run("compile", RELU, "--top-k", "2", "--json"))
    assert again["cached_at"] is None and again["doubt"] is None
    assert {c["status"] for c in again["candidates"]} <= {"measured", "slower"}
    third = json.loads(run("compile", RELU, "--top-k", "2", "--json"))
    assert time.time() - 60 < third["cached_at"] <= time.time()
    assert "from the cache, measured on 20" in run("compile", RELU, "--top-k", "2")

    busy[0] = True
    kernel = roller.compile(roller.ops.parse(RELU), "cpu", top_k=2, remeasure=True)
    assert kernel.doubt and "(doubtful)" in repr(kernel) and kernel.cached_at is None
    assert kernel.doubt == kernel.ranking_refused == kernel.artifact.doubt
    kept = roller.compile(roller.ops.parse(RELU), "cpu", top_k=2)
    assert (kept.doubt, kept.cached_at) == ("", third["cached_at"]), "what was sure is not replaced by what is not"

    key = json.loads(run("cache", "list", "--json"))[0]["key"]
    assert "removed elementwise(4096 float32) for cpu" in run("cache", "drop", key[:12])
    assert run("cache", "list").startswith("no kernels in ")


def test_remeasure_replaces_what_the_cache_has():
    expr = roller.ops.parse(RELU)
    first = roller.compile(expr, "cpu", top_k=1)
    assert roller.compile(expr, "cpu", top_k=1).cached_at is not None
    again = roller.compile(expr, "cpu", top_k=1, remeasure=True)
    assert again.cached_at is None
    found = roller.compile(expr, "cpu", top_k=1)
    assert found.measured_s == again.measured_s
    assert len(KernelCache().rows()) == 1
    assert first.program == again.program
    with pytest.raises(roller.RollerError, match="remeasure: expected True or False, got 'yes'"):
        roller.compile(expr, "cpu", remeasure="yes")


def chosen(*records):
    """Return the kernel that is chosen by made-up records, one per candidate."""
    expr, spec = roller.ops.matmul(64, 64, 64), roller.load_spec("v100")
    options = roller.ConstructOptions(top_k=len(records))
    candidates = construct_candidates(expr, spec, options)

    def record(name, status, seconds, why):
        doubtful = status == "doubtful"
        return Record(name, status, why if doubtful else "", seconds, tied="" if doubtful else why)

    outcome = {
        c.id: record(c.id, status, seconds, why) for c, (status, seconds, why) in zip(candidates, records, strict=True)
    }
    made = roller.compile(expr, spec, top_k=1, cache=False).artifact
    shop = TuningContext(
        expr, spec, options, lambda c: made, lambda artifacts, timed: {i: outcome[i] for i in artifacts}
    )
    kernel = choose_kernel(shop, candidates, Selection())
    return candidates.index(next(c for c in candidates if c.id == chosen_id(kernel))), kernel


def chosen_id(kernel):
    (found,) = [c.id for c in kernel.candidates if c.measured_s == kernel.measured_s]
    return found


def test_times_of_different_disturbances_are_not_compared():
    place, kernel = chosen(("doubtful", 3e-3, WHY), ("doubtful", 1e-3, WHY), ("slower", 9e-3, ""))
    assert place == 0, "the best prediction, whatever the clock says"
    assert kernel.doubt == f"2 of 3 times are doubtful, ranked by prediction: {WHY}"


def test_one_doubtful_rival_makes_the_choice_doubtful():
    place, kernel = chosen(("doubtful", 3e-3, WHY), ("measured", 2e-3, ""), ("measured", 1.5e-3, ""))
    assert place == 2
    assert kernel.doubt == f"1 of 3 times are doubtful, ranked by the times of the others: {WHY}"


def test_sure_times_decide_as_ever_and_ties_are_told():
    place, kernel = chosen(("measured", 3e-3, ""), ("measured", 2e-3, ""), ("slower", 9e-3, ""))
    assert (place, kernel.doubt, kernel.ranking_refused) == (1, "", "")
    place, kernel = chosen(("measured", 3e-3, "too close"), ("measured", 2e-3, "too close"))
    assert (place, kernel.doubt, kernel.ranking_refused) == (1, "", "too close")
    _, kernel = chosen(("doubtful", 3e-3, WHY))
    assert kernel.doubt == f"its time is doubtful, ranked by prediction: {WHY}"
