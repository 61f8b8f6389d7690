"""Blocks of steps: when they are warm, when they agree, and what is said if they do not."""

from __future__ import annotations

import itertools
from math import comb

import pytest

from roller.insight.trace import time_steps_until_stable
from roller.insight.trace.time_steps_until_stable import BLOCK_STEPS, median_interval, time_steps
from roller_runtime.timing.clock import ClockSample


class Machine:
    """A clock on which a step takes the seconds it is given, and others take some of them."""

    trusting = False

    def __init__(self, seconds, lost=None):
        self._seconds, self._lost, self._now, self.steps, self.between = (
            iter(seconds),
            lost or itertools.repeat(0.0),
            0.0,
            0,
            [],
        )

    def step(self):
        self.steps += 1
        self._now += next(self._seconds)

    def begin(self):
        self._begun = self._now

    def end(self):
        lost = next(self._lost)
        return ClockSample(self._now - self._begun, lost, lost)

    def now(self):
        return self._now

    def attend(self):
        pass

    release = attend

    def timed(self, budget_s, **given):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time_steps_until_stable, "system_or_trusting_clock", lambda: self)
            return time_steps(self.step, budget_s=budget_s, between=lambda: self.between.append(self.steps), **given)


def test_steps_that_agree_are_stable_after_five_blocks():
    machine = Machine(itertools.chain([9.0, 5.0, 2.0, 1.0, 1.0], itertools.repeat(1.0)))
    found = machine.timed(1000.0)
    assert (found.median_s, found.lower_s, found.upper_s, found.is_stable, found.note) == (1.0, 1.0, 1.0, True, "")
    assert found.samples_s == (1.0,) * 5
    assert machine.between == [5 + n * (1 + BLOCK_STEPS) for n in range(5)]  # a step warms up what ran between


def test_a_budget_that_is_too_small_for_five_blocks_is_said():
    found = Machine(itertools.repeat(1.0)).timed(3.0)
    assert found.samples_s == (1.0, 1.0, 1.0) and not found.is_stable
    assert found.note.startswith(
        "time: expected at least 5 blocks of 3 steps without other work on the processors, got 3 of 3"
    )


def test_steps_that_do_not_agree_are_not_stable():
    # Each block has three steps, and one step before it that does not count.
    found = Machine(itertools.chain([1.0, 1.0], itertools.cycle([1.0] * 4 + [2.0] * 4))).timed(60.0)
    assert (found.lower_s, found.upper_s) == (1.0, 2.0) and not found.is_stable
    assert "expected steps that agree" in found.note


def test_disturbed_blocks_do_not_count_where_there_are_enough_others():
    lost = itertools.chain([0.0, 0.0], itertools.cycle([0.0, 3.0]))
    found = Machine(itertools.chain([1.0, 1.0], itertools.cycle([1.0] * 4 + [2.0] * 4)), lost).timed(1000.0)
    assert found.samples_s == (1.0,) * 5 and found.is_stable
    all_lost = Machine(itertools.repeat(1.0), itertools.repeat(1.5)).timed(30.0)
    assert (all_lost.lower_s, all_lost.median_s, all_lost.upper_s) == (0.5, 1.0, 1.0)
    assert not all_lost.is_stable and all_lost.samples_s == (1.0,) * 7 and "got 0 of 7" in all_lost.note


def test_a_call_of_several_steps_counts_them_all():
    machine = Machine(itertools.repeat(2.0))
    found = machine.timed(1000.0, steps_per_call=2)
    assert found.median_s == 1.0 and machine.steps == 2 + 5 * (1 + 2)


@pytest.mark.parametrize("count", range(1, 40))
def test_the_interval_contains_the_median_with_95_percent(count):
    values = [float(n) for n in range(count)]
    lower, upper = median_interval(values)
    k = int(lower)
    assert upper == count - 1 - k
    outside = 2 * sum(comb(count, n) for n in range(k + 1)) / 2**count
    assert outside <= 0.05 or k == 0
    if k + 1 < count / 2:
        assert 2 * sum(comb(count, n) for n in range(k + 2)) / 2**count > 0.05
