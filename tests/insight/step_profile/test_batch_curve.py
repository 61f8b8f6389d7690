"""Throughput and memory over the batch: the line through three batches, and what it says."""

from __future__ import annotations

import math

import pytest

from roller.cli.profile_tables import _curve_sentences
from roller.errors import NoCandidateError, RollerError
from roller.insight.step_profile.batch_curve import BatchPoint, batch_curve, fit_batch_line
from roller.insight.step_profile.profiling import _powers_of_two_up_to_largest

MIB = 1 << 20


def step_of(a=0.002, b=0.01, each=30 * MIB, fixed=500 * MIB, capacity=0, bound="device", phase="backward"):
    """Return a function that profiles a batch of a step that is linear in it."""

    def point(batch):
        took, held = a * batch + b, each * batch + fixed
        fits = not capacity or held <= capacity
        return BatchPoint(batch, took, batch / took if fits else 0.0, held, held, fits, bound, phase)

    return point


def test_the_line_is_that_of_a_linear_step_and_answers_exactly():
    curve = batch_curve(step_of(), 16, 0, fixed_bytes=500 * MIB)
    assert curve.line.batches == (16, 116, 216) and curve.line.holds and not curve.notes
    assert curve.most_throughput == pytest.approx(500.0)
    # T(2x)/T(x) = 2 (a x + b) / (2 a x + b) < 1.1 from x > 4.5 b / a = 22.5 on
    first = curve.diminishing_from()
    assert first == 23
    at = step_of()
    assert (
        at(2 * first).throughput / at(first).throughput < 1.1 <= at(2 * first - 2).throughput / at(first - 1).throughput
    )
    assert curve.batch_of_memory(1400 * MIB) == 30 and curve.batch_of_throughput(at(40).throughput * 0.999999) == 40


@pytest.mark.parametrize(("room", "apart"), [(45, 20), (22, 10), (11, 5), (2, 1)], ids=["twenty", "ten", "five", "one"])
def test_batches_are_as_far_apart_as_the_memory_allows(room, apart):
    each, fixed = 100 * MIB, 1000 * MIB
    capacity = fixed + (16 + room) * each
    curve = batch_curve(step_of(each=each, fixed=fixed, capacity=capacity), 16, capacity, fixed_bytes=fixed)
    assert curve.line.batches == (16, 16 + apart, 16 + 2 * apart)


def test_batches_are_halved_where_larger_ones_do_not_fit():
    each, fixed = 100 * MIB, 1000 * MIB
    capacity = fixed + 17 * each
    curve = batch_curve(step_of(each=each, fixed=fixed, capacity=capacity), 16, capacity, fixed_bytes=fixed)
    assert curve.line.batches == (4, 8, 16)
    curve = batch_curve(step_of(each=each, fixed=fixed, capacity=capacity), 32, capacity, fixed_bytes=fixed)
    assert curve.line.batches == (4, 8, 16) and not curve.at(32).fits


def test_without_three_batches_there_is_no_line():
    capacity = 1250 * MIB
    curve = batch_curve(step_of(each=100 * MIB, fixed=1000 * MIB, capacity=capacity), 8, capacity)
    assert curve.line is None and curve.most_throughput == 0.0
    assert curve.notes == ("Fewer than three batch sizes fit: 1, 2.",)
    for ask in (curve.diminishing_from, lambda: curve.batch_of_memory(1), lambda: curve.batch_of_throughput(1)):
        with pytest.raises(NoCandidateError, match="Fewer than three batch sizes fit"):
            ask()


def test_a_step_bound_by_launches_has_no_limit_and_says_so():
    curve = batch_curve(step_of(a=0.0, bound="launches"), 8, 0)
    assert not curve.line.holds and curve.most_throughput == 0.0
    assert curve.notes == (
        "The time does not grow over batches 8, 108, 208, which are bound by the launches: there is no limit to tell.",
    )
    with pytest.raises(NoCandidateError, match="no limit"):
        curve.diminishing_from()


def test_a_negative_constant_is_none():
    line = fit_batch_line([BatchPoint(x, 0.1 * x - 0.5, 1.0, x, x, True) for x in (8, 16, 24)])
    assert line.b == 0.0 and not line.holds and line.a > 0


def test_where_the_line_is_off_is_said_with_the_cause():
    linear = step_of()

    def bent(batch):
        point = linear(batch)
        if batch < 8:
            point = point._replace(iteration_s=2 * point.iteration_s, bound="launches")
        return point._replace(allocated_bytes=2000 * MIB, peak_phase="optimizer") if batch < 4 else point

    curve = batch_curve(bent, 16, 0, fixed_bytes=500 * MIB, others=lambda _: [1, 4, 64])
    assert [p.batch for p in curve.computed] == [1, 4, 16, 64, 116, 216]
    assert curve.notes == (
        "The line of the time is off at batch 1 (-50 %), 4 (-50 %): bound by the launches there, else device.",
        "The line of the memory is off at batch 1 (-74 %): the peak is in optimizer there, else backward.",
    )


def _saturating(batch):
    """Return a step that takes 1 s up to 64 samples, and grows from there faster than before."""
    took = 0.9 + batch / 640 if batch <= 64 else batch / 64
    return BatchPoint(batch, took, batch / took, batch * MIB, batch * MIB, True, "device", "forward")


def test_where_the_line_is_off_beyond_its_batches_the_computed_ones_tell_limit_and_knee():
    powers = [2**k for k in range(2, 11)]
    curve = batch_curve(_saturating, 4, 80 * MIB, largest=lambda: 1024, others=lambda _: powers)
    assert curve.line.batches == (4, 24, 44) and curve.line.holds and curve.line.throughput(1024) > 300
    assert (curve.limit_by, curve.most_throughput, curve.most_computed.throughput) == ("computed", 0.0, 64.0)
    assert curve.diminishing_from() == 64  # T(64) = T(128) = 64
    at = _saturating
    assert at(64).throughput / at(32).throughput > 1.1 > at(128).throughput / at(64).throughput
    with pytest.raises(NoCandidateError, match="up to which the line holds"):
        curve.batch_of_throughput(60.0)
    assert curve.batch_of_throughput(at(40).throughput * 0.999999) == 40
    told = list(_curve_sentences(curve))
    assert told[:3] == [
        "* The line goes through these.",
        "By the computed batches, at most 64.0 samples/s, with batch 64; 64.0 with the largest batch that fits, 1024.",
        "By the computed batches, twice the batch brings less than a tenth more throughput from batch 64 on.",
    ]


def test_where_neither_tells_a_limit_none_is_claimed():
    curve = batch_curve(_saturating, 4, 80 * MIB, others=lambda _: [100])
    assert (curve.limit_by, curve.most_throughput, curve.most_computed) == ("", 0.0, None)
    with pytest.raises(NoCandidateError, match="got neither"):
        curve.diminishing_from()
    assert list(_curve_sentences(curve)) == ["* The line goes through these.", *curve.notes]


@pytest.mark.parametrize(
    ("batch", "largest", "wanted"),
    [
        (16, 300, [1 << k for k in range(9)]), (16, 4096, [1 << k for k in range(1, 13)]),
        (16, 1 << 20, [16 << k for k in range(12)]), (12, 100, [1, 2, 4, 8, 16, 32, 64]), (8, 0, [1, 2, 4, 8, 16, 32]),
        (1, 1 << 14, [1 << k for k in range(12)]), (512, 600, [1 << k for k in range(10)]),
    ],
)  # fmt: skip
def test_powers_of_two_from_the_batch_on_are_beside_the_line(batch, largest, wanted):
    assert _powers_of_two_up_to_largest(batch, largest) == wanted


def test_the_largest_batch_is_computed_too():
    curve = batch_curve(step_of(), 16, 0, largest=lambda: 300)
    assert curve.throughput_at_largest == pytest.approx(300 / (0.002 * 300 + 0.01))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, True, "8"])
def test_no_batch_belongs_to_what_is_no_number(number):
    curve = batch_curve(step_of(), 16, 0)
    for ask in (curve.batch_of_memory, curve.batch_of_throughput):
        with pytest.raises(RollerError, match="expected a number of"):
            ask(number)


def test_a_step_of_no_time_and_no_memory_has_no_line_and_no_doubts_about_it():
    curve = batch_curve(lambda n: BatchPoint(n, 0.0, 0.0, 0, 0, True), 4, 0, others=lambda _: [1])
    assert not curve.line.holds and len(curve.notes) == 1 and "does not grow" in curve.notes[0]
