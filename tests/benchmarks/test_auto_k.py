"""The arithmetic of the adaptive-K benchmark, on times that are written down."""

from __future__ import annotations

import math

import pytest

from benchmarks.auto_k import Operator, Timed, error_of_ratios, grid, in_turn, outcome, summary
from roller.runtime.time_candidate_kernels import Contender


def operator(*rows):
    """Rows are predicted, family, choosing and judging seconds."""
    return Operator("X", "x", tuple(Timed(*row) for row in rows))


#: Three kernels predicted alike; the third is the fastest, and so is another program of the first.
CASE = operator((1.0, 0, 2.0, 2.0), (1.0, 1, 1.9, 1.9), (1.01, 0, 1.5, 1.5), (1.02, 3, 1.6, 1.6))


def test_auto_chooses_from_what_it_times_and_pays_for_what_it_does_not():
    sure, near, wide = (outcome(CASE, error) for error in (0.001, 0.1, 0.15))
    assert (sure.timed, sure.ratio) == (0, pytest.approx(2.0 / 1.5))
    assert (near.timed, near.ratio) == (2, pytest.approx(1.9 / 1.5))
    assert (wide.timed, wide.ratio, wide.families) == (3, pytest.approx(1.6 / 1.5), 3)


def test_rounds_that_choose_do_not_judge():
    lucky = operator((1.0, 0, 1.0, 1.3), (1.0, 1, 1.1, 1.1))
    assert outcome(lucky, 0.2).ratio == 1.0, "both ways choose the first, whatever the other rounds say"
    assert outcome(operator((1.0, 0, None, None)), 0.1) is None


def test_summary_is_a_median_and_a_geometric_mean():
    found = [outcome(CASE, e) for e in (0.001, 0.1, 0.15)]
    median, mean, worst = summary(found)
    assert median == 2
    assert mean + 1 == pytest.approx(math.prod(o.ratio for o in found) ** (1 / 3))
    assert worst == pytest.approx(2.0 / 1.5 - 1)
    assert [row[0] for row in grid([CASE], (0.05, 0.1))] == ["0.05", "0.1"]


def test_errors_of_ratios_are_told_apart_by_kernel():
    other, own = error_of_ratios([operator((1.0, 0, 1, 1.0), (1.0, 0, 1, 1.1), (2.0, 2, 1, 1.5), (2.0, 2, 1, 1.5))])
    assert own == pytest.approx(math.sqrt((2 * math.log(1.1) ** 2 + 0) / 3), rel=0.01)
    assert other == pytest.approx(abs(math.log(1.5 / 2)))


def test_candidates_run_in_turn_and_hopeless_ones_are_left_out(monkeypatch):
    times, calls = {"a": 1.0, "b": 1.5, "c": 9.0}, []

    def once(run):
        calls.append(run())
        return times[calls[-1]]

    monkeypatch.setattr("benchmarks.auto_k.run_once", once)
    found = in_turn([Contender(n, lambda n=n: n, 0.0) for n in times], rounds=2)
    assert found == {"a": (1.0, 1.0), "b": (1.5, 1.5)}
    assert calls[-8:] == ["a", "b", "a", "b", "b", "a", "b", "a"]
