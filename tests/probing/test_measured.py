"""Robust values: disturbances change neither value nor spread until nothing else is left."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller.probing import MeasuredValue, accept_or_reject_by_spread, median_of_fastest_windows


@given(st.integers(0, 1000))
def test_bursts_of_disturbance_do_not_move_the_value(seed):
    draw = random.Random(seed)
    quiet = [1e-3 * (1 + 0.01 * draw.random()) for _ in range(40)]
    loud = [t * (2 + 8 * draw.random()) if draw.random() < 0.4 else t for t in quiet]
    one, two = median_of_fastest_windows(quiet), median_of_fastest_windows(loud)
    assert two.value == pytest.approx(one.value, rel=0.011)
    assert two.spread < 0.05


def test_a_machine_that_is_never_quiet_is_noticed():
    draw = random.Random(1)
    m = median_of_fastest_windows([1e-3 * (1 + 3 * draw.random()) for _ in range(40)])
    assert m.spread > 0.15
    fine, refused = accept_or_reject_by_spread({"clock_hz": m.rate(1e6), "units": MeasuredValue(2, 0.0, 1)})
    assert list(fine) == ["units"]
    assert refused["clock_hz"].startswith(f"spread {100 * m.spread:.0f} % of 40 windows")


def test_a_difference_carries_the_uncertainty_of_both():
    small = MeasuredValue(1.00, 0.01, 9).difference_from(MeasuredValue(0.95, 0.01, 5))
    assert small.value == pytest.approx(0.05)
    assert small.spread == pytest.approx(0.39)
    assert small.samples == 5
    none = MeasuredValue(1.0, 0.01, 9).difference_from(MeasuredValue(1.1, 0.01, 9))
    assert "lost in the noise" in accept_or_reject_by_spread({"a": none})[1]["a"]


def test_windows_must_take_time():
    with pytest.raises(ValueError, match="expected windows longer than 0 s"):
        median_of_fastest_windows([0.0, 1.0])
    with pytest.raises(ValueError, match="expected windows longer than 0 s"):
        median_of_fastest_windows([])


def test_units():
    m = MeasuredValue(0.5, 0.1, 7)
    assert m.rate(2.0) == MeasuredValue(4.0, 0.1, 7)
    assert m.times(2.0) == MeasuredValue(1.0, 0.1, 7)
    assert MeasuredValue(**m.to_dict()) == m
