"""What times of a few sizes say of others, and which sizes those are."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from roller.compiler.dynamic import symbolic_search
from roller.compiler.dynamic.compile_kernels_for_all_sizes import EFFORT
from roller.compiler.dynamic.kernel_choice import PricedKernel, mean_measured_to_predicted_ratio
from roller.compiler.dynamic.symbolic_search import (
    SearchRequest,
    SearchState,
    choose_kernels,
    find_shares,
    positions_far_apart,
)

SPEC = SimpleNamespace(units=1)


@pytest.fixture(autouse=True)
def faults(monkeypatch):
    """Why kernels are wrong, by number and size; empty."""
    known = {}
    monkeypatch.setattr(symbolic_search, "fault", lambda kernel, size, *_rest: known.get((kernel.number, size), ""))
    return known


class Kernel:
    """Takes all sizes; its artifact is its number."""

    def __init__(self, number):
        self.number = number

    def takes(self, _sizes):
        return True

    def at(self, _sizes, _expression):
        return self.number


def searched(places, costs):
    """Two built kernels, and what is predicted of them."""
    box = SimpleNamespace(ends={"s": (8, 512)})
    own = SimpleNamespace(box=box, expression=SimpleNamespace(at=lambda s: s["s"]))
    best = costs.min(axis=0)
    return SearchState(SearchRequest(own), [None, None], places, costs, best, {n: Kernel(n) for n in range(2)})


def bench_of(monkeypatch, seconds, disturbed=()):
    """Have kernels take some seconds by size and number; sizes in ``disturbed`` are timed beside other programs."""
    asked = []

    class Bench:
        def __init__(self, expression, _seed, rotating_bytes, patience_s, fenced):
            assert fenced  # kernels are asked beforehand, all in one child
            self.size, self.expression = expression, expression
            asked.append((expression, rotating_bytes, patience_s))

        def profile(self, here, budget_s):
            assert budget_s == EFFORT.budget_s
            status = "doubtful" if self.size in disturbed else "measured"
            return {
                n: SimpleNamespace(status=status, measured_s=seconds[self.size][k], reason="others ran")
                for n, k in here.items()
            }

    monkeypatch.setattr("roller.runtime.check_and_time_cpu_kernels.CpuBench", Bench)
    monkeypatch.setattr("roller.runtime.check_and_time_cpu_kernels.has_guarded_loads", lambda _: False)
    return asked


def test_times_choose_where_predictions_are_near(monkeypatch):
    """Of 8 the second kernel is the fastest, of 512 the first, whatever predictions say; both are kept."""
    asked = bench_of(monkeypatch, {8: [3e-3, 1e-3], 512: [1e-3, 2e-3]})
    s = searched([{"s": 8}, {"s": 512}], np.array([[1e-3, 1.2e-3], [1.2e-3, 1e-3]]))
    judged, doubt = choose_kernels(s, SPEC, EFFORT, 0, timed=True)
    assert not doubt and [size for size, *_ in asked] == [8, 512]
    assert {j.kernel.number: dict(j.measured) for j in judged} == {0: {0: 3e-3, 1: 1e-3}, 1: {0: 1e-3, 1: 2e-3}}
    (alone, *_), _ = choose_kernels(s, SPEC, EFFORT, 0, timed=False)
    assert not alone.measured


def test_kernels_that_are_predicted_far_behind_are_not_timed(monkeypatch):
    asked = bench_of(monkeypatch, {512: [1e-3, 2e-3]})
    s = searched([{"s": 8}, {"s": 512}], np.array([[1e-3, 1e-3], [1.6e-3, 1e-3]]))
    choose_kernels(s, SPEC, EFFORT, 0, timed=True)
    assert [size for size, *_ in asked] == [512]
    choose_kernels(s, SPEC, replace(EFFORT, longest_s=1e-4), 0, timed=True)
    assert len(asked) == 1


def test_a_kernel_that_is_wrong_at_a_place_does_not_run_there(monkeypatch, faults):
    bench_of(monkeypatch, {8: [1e-3, 2e-3], 512: [1e-3, 2e-3]})
    faults[0, 512] = "it writes beyond an array"
    s = searched([{"s": 8}, {"s": 512}], np.full((2, 2), 1e-3))
    judged, _ = choose_kernels(s, SPEC, EFFORT, 0, timed=True)
    assert {j.kernel.number: dict(j.measured) for j in judged} == {0: {0: 1e-3}, 1: {0: 2e-3, 1: 2e-3}}


def test_times_that_others_disturbed_decide_nothing(monkeypatch):
    """Of two sizes the second is timed beside other programs: its times count for neither kernel."""
    bench_of(monkeypatch, {8: [3e-3, 3e-3], 512: [1e-9, 1.0]}, disturbed=(512,))
    s = searched([{"s": 8}, {"s": 512}], np.full((2, 2), 1e-3))
    judged, doubt = choose_kernels(s, SPEC, EFFORT, 0, timed=True)
    assert doubt == "others ran" and [dict(j.measured) for j in judged] == [{0: 3e-3}]
    assert judged[0].seconds_at_samples == pytest.approx([3e-3, 3e-3])


def test_constants_come_from_behind_a_cache_as_in_the_model(monkeypatch):
    asked = bench_of(monkeypatch, {8: [1e-3, 2e-3]})
    s = searched([{"s": 8}], np.full((2, 1), 1e-3))
    s.question = replace(s.question, passing_bytes=1 << 20)
    choose_kernels(s, SPEC, EFFORT, 0, timed=True)
    assert asked == [(8, 1 << 20, EFFORT.patience_s)]


def test_a_kernel_without_times_is_off_as_the_others_and_a_little_more():
    costs = {0: np.array([1.0, 2.0]), 1: np.array([1.0, 1.0])}
    usual = mean_measured_to_predicted_ratio(costs, {0: {0: 2.0, 1: 4.0}})
    assert usual == pytest.approx(2.0) and mean_measured_to_predicted_ratio(costs, {}) == 1.0
    untimed = PricedKernel(None, ({"s": 8}, {"s": 9}), costs[1], {}, usual)
    assert untimed.seconds_at_samples == pytest.approx([2.2, 2.2])


def test_sizes_that_are_timed_lie_far_from_each_other():
    grid = [{"s": s, "b": 1} for s in range(1, 513)]
    found = [grid[n]["s"] for n in positions_far_apart(grid, ("s", "b"), 6)]
    assert found == sorted(set(found)) and len(found) == 6 and {1, 512} <= set(found)
    assert min(b / a for a, b in itertools.pairwise(found)) > 2
    assert positions_far_apart([], ("s",), 6) == [] and positions_far_apart([{"s": 4}] * 9, ("s",), 6) == [0]


def test_what_was_not_measured_is_predicted_as_far_off_as_near_by():
    several = ({"h": 8, "w": 8}, {"h": 9, "w": 8}, {"h": 64, "w": 64})
    judged = PricedKernel(None, several, np.array([1.0, 1.0, 4.0]), {0: 2.0, 2: 4.0})
    assert judged.seconds_at_samples == pytest.approx([2.0, 1.98, 4.0], rel=0.02)
    assert judged.off({"h": 8, "w": 8, "derived": 3}) == pytest.approx(2.0, rel=0.02)
    untimed = PricedKernel(None, several, np.array([1.0, math.inf, 4.0]), {})
    assert untimed.seconds_at_samples == pytest.approx([1.1, math.inf, 4.4])


def test_what_takes_much_of_a_models_time_gets_kernels_that_fit_few_sizes():
    """Ten programs are each the best at one size; five are built, and more where a model gains by them."""
    places = [{"s": n} for n in range(8, 18)]
    costs = np.full((10, 10), 2e-3) - np.eye(10) * 1e-3
    many, few = (searched(places, scale * costs) for scale in (1.0, 1e-4))
    for s in (many, few):
        s.families = [SimpleNamespace(kind=0)] * 10
        assert len(s.wanted(EFFORT)) == EFFORT.built  # shares are not known
    find_shares({"many": many, "few": few}, {"few": 2})
    assert many.share == pytest.approx(1 / 1.0002) and few.share == pytest.approx(2e-4 / 1.0002)
    assert sorted(many.wanted(EFFORT)) == list(range(10)) and len(few.wanted(EFFORT)) == EFFORT.built
    equal = searched(places, np.full((10, 10), 1e-3))
    equal.families = few.families
    find_shares({"": equal}, {})
    assert equal.share == 1.0 and len(equal.wanted(EFFORT)) <= EFFORT.built  # more would gain nothing
