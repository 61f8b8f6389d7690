"""``benchmarks.busy``: what it holds against the quiet times, from made-up kernels. Nothing is timed here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import roller
from benchmarks.busy import OPERATORS, case_of, cells, correlation, judged

QUIET = {"a": 1e-3, "b": 2e-3, "c": 3e-3}
AGAIN = {"a": 1.1e-3, "b": 2e-3, "c": 2.9e-3}


def kernel(times, chosen="a", status="measured", doubt="", refused=""):
    statuses = {"c": "slower"}
    candidates = tuple(
        SimpleNamespace(id=i, program=i, measured_s=s, status=statuses.get(i, status)) for i, s in times.items()
    )
    return SimpleNamespace(candidates=candidates, program=chosen, doubt=doubt, ranking_refused=doubt or refused)


def test_a_final_time_is_held_against_its_own_quiet_one():
    case = case_of("op", "spinning", kernel({"a": 1.1e-3, "b": 2.6e-3, "c": 9e-3}), True, QUIET, AGAIN)
    assert case.off == pytest.approx(0.1)
    assert case.worst == pytest.approx(0.3), "what was dropped after a run counts as ranked, not as measured"
    assert (case.rank, case.again) == (1.0, 1.0)
    time, rank, doubtful = judged([case])
    assert (time.holds, time.value, rank.holds, doubtful.value) == (False, "30.0%", True, "0 of 1")
    assert cells(case)[2:6] == ["final", "10.0%", "30.0%", "1.00"]


def test_what_is_doubtful_or_refused_is_not_judged():
    times = {"a": 9e-3, "b": 2e-3, "c": 1e-3}
    doubtful = case_of("op", "spinning", kernel(times, status="doubtful", doubt="others"), False, QUIET, AGAIN)
    close = kernel({**QUIET, "a": 2.5e-3}, chosen="b", refused="too close")
    refused = case_of("op", "bursts", close, True, QUIET, AGAIN)
    assert doubtful.rank is None and doubtful.worst is None and refused.rank is None
    assert refused.lost == pytest.approx(1.0), "twice as slow as the best of them"
    assert [v.holds for v in judged([doubtful])] == [None, None, None]
    assert [v.holds for v in judged([doubtful, refused])] == [False, None, None]
    wrong = case_of("op", "bursts", kernel(times), True, QUIET, AGAIN)
    assert judged([wrong])[1].holds is False


def test_rank_correlation():
    assert correlation([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 4.0, 3.0]) == pytest.approx(0.8)


@pytest.mark.parametrize("text", OPERATORS)
def test_its_operators_are_known(text):
    assert len(roller.construct(roller.ops.parse(text), "cpu-avx512", top_k=2)) == 2
