"""The benchmark of random CPU programs: what it samples, and what it says of known predictions."""

from __future__ import annotations

import numpy as np
import pytest

import roller
from benchmarks.cpu_model.measure import Timed, append, recorded
from benchmarks.cpu_model.programs import TOO_SLOW, random_programs
from benchmarks.cpu_model.report import accuracy, outcomes, spearman, verdicts
from roller import ops
from roller.templates import price_with_templates


@pytest.fixture
def spec():
    return roller.load_spec("cpu-avx512")


def _timed(spec, factor):
    samples = random_programs(ops.matmul(48, 96, 80), spec, 20, seed=3)
    predicted = np.array([s.estimate.seconds for s in samples])
    return [Timed("M", s.program, s.aligned, float(t)) for s, t in zip(samples, factor(predicted), strict=True)]


@pytest.mark.parametrize(
    "expr", [ops.matmul(48, 96, 80), ops.elementwise("relu", (1 << 18,)), ops.reduce("sum", (64, 90), (1,))]
)
def test_programs_are_distinct_half_aligned_and_the_same_for_a_seed(spec, expr):
    first, again = (random_programs(expr, spec, 12, seed=5) for _ in range(2))
    assert [str(s.program) for s in first] == [str(s.program) for s in again]
    assert len({str(s.program) for s in first}) == len(first) == 12
    assert sum(s.aligned for s in first) == 6
    seconds = [s.estimate.seconds for s in first]
    assert max(seconds) <= TOO_SLOW * min(seconds)


def test_a_journal_comes_back_as_it_was(spec, tmp_path):
    timed = _timed(spec, lambda p: p)
    append(tmp_path / "j.jsonl", timed)
    back = recorded(tmp_path / "j.jsonl")
    assert [(str(t.program), t.measured_s, t.aligned) for t in back] == [
        (str(t.program), t.measured_s, t.aligned) for t in timed
    ]


def test_predictions_that_are_right_hold_every_limit(spec):
    found = outcomes(_timed(spec, lambda p: p * 1.1), spec)
    assert found[0].rank == 1.0 and found[0].regret == 0.0
    assert found[0].all_error == pytest.approx(1 - 1 / 1.1)
    assert all(v.holds for v in verdicts(found))
    assert accuracy(found)["ranking_error"] == pytest.approx(0.0, abs=1e-6)


def test_predictions_that_are_wrong_miss_them(spec):
    found = outcomes(_timed(spec, lambda p: 1.0 / p), spec)
    assert found[0].rank == -1.0 and found[0].regret > 0.1
    assert not any(v.holds for v in verdicts(found) if "error" not in v.name)


def test_a_constant_sample_has_no_rank():
    assert spearman(np.ones(4), np.arange(4.0)) == 0.0


def test_the_journal_is_priced_by_the_model_of_now(spec):
    timed = _timed(spec, lambda p: p)
    slow = spec.with_overrides({"clock_hz": spec.clock_hz / 2}, "given")
    assert outcomes(timed, slow)[0].all_error > 0.1
    assert price_with_templates.estimate_program(timed[0].program, spec).seconds == pytest.approx(timed[0].measured_s)
