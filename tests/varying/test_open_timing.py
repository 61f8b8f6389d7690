"""What times of a few sizes say of others, and which sizes those are."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from roller.varying import open_timing
from roller.varying.open_call import Judged
from roller.varying.open_timing import Costs, places, timed

ONE, TWO = SimpleNamespace(name="one"), SimpleNamespace(name="two")


@pytest.fixture
def predictions(monkeypatch):
    """A second each, whatever the sizes."""
    monkeypatch.setattr(open_timing, "predicted", lambda programs, sizes, spec: np.ones(len(programs)))


def costs(*found):
    return Costs(("s",), None, tuple({(math.log(s),): math.log(r) for s, r in f.items()} for f in found))


@pytest.mark.usefixtures("predictions")
def test_a_time_counts_where_it_was_taken_and_near_by():
    made = costs({8: 2.0, 512: 0.5}, {8: 1.0, 512: 1.0})
    assert made.at([ONE, TWO], {"s": 8}) == pytest.approx([2.0, 1.0], rel=1e-3)
    assert made.at([ONE, TWO], {"s": 512}) == pytest.approx([0.5, 1.0], rel=1e-3)
    near, between = made.at([ONE], {"s": 12})[0], made.at([ONE], {"s": 64})[0]
    assert between == pytest.approx(1.0) and 1.8 < near < 2.0


@pytest.mark.usefixtures("predictions")
def test_a_kernel_without_times_is_off_as_the_others_and_a_little_more():
    assert costs({8: 2.0}, {}).at([ONE, TWO], {"s": 8}) == pytest.approx([2.0, 2.2], rel=1e-3)
    assert costs().at([ONE, TWO], {"s": 8}) == pytest.approx([1.0, 1.0])


@pytest.mark.usefixtures("predictions")
def test_times_that_others_disturbed_decide_nothing(monkeypatch):
    """Of two sizes the second is timed beside other programs: its times count for neither kernel."""
    kernels = [SimpleNamespace(takes=lambda s: True, at=lambda s, e: None, program=p) for p in (ONE, TWO)]
    grid = [{"s": 8}, {"s": 512}]
    own = SimpleNamespace(box=SimpleNamespace(ends={"s": (8, 512)}), expression=SimpleNamespace(at=lambda s: s["s"]))

    class Bench:
        def __init__(self, expression, *_args, **_options):
            self.size = expression

        def profile(self, here, **_options):
            status = {"0": "measured", "1": "doubtful" if self.size == 512 else "measured"}
            return {n: SimpleNamespace(status=status[n], measured_s=3.0, reason="") for n in here}

    monkeypatch.setattr("roller.runtime.cpu_profile.Bench", Bench)
    made, wrong = timed(kernels, own, grid, np.full(2, 1e-3), None, 0, 0)
    assert not wrong and [dict(f) for f in made.found] == [{(math.log(8),): pytest.approx(math.log(3))}] * 2


def test_sizes_that_are_timed_lie_far_from_each_other():
    grid = [{"s": s, "b": 1} for s in range(1, 513)]
    found = [p["s"] for p in places(("s", "b"), grid)]
    assert found == sorted(set(found)) and len(found) == 6 and {1, 512} <= set(found)
    assert min(b / a for a, b in itertools.pairwise(found)) > 2
    assert places(("s",), []) == [] and places(("s",), [{"s": 4}] * 9) == [{"s": 4}]


def test_what_was_not_measured_is_predicted_as_far_off_as_near_by():
    several = ({"h": 8, "w": 8}, {"h": 9, "w": 8}, {"h": 64, "w": 64})
    judged = Judged(None, several, np.array([1.0, 1.0, 4.0]), {0: 2.0, 2: 4.0})
    assert judged.everywhere == pytest.approx([2.0, 1.98, 4.0], rel=0.02)
    untimed = Judged(None, several, np.array([1.0, np.inf, 4.0]), {})
    assert untimed.everywhere == pytest.approx([1.1, np.inf, 4.4])
