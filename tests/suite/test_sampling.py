"""The stop rule on a clock that tests bring: warm-up, interval of the mean, refusals, and how busy processors are."""

import itertools
import math
import random
import statistics

import pytest

from roller.errors import RollerError
from roller.suite import sampling
from roller.suite.mean_interval import batch_means, mean_interval, ratio_interval, student_quantile
from roller.suite.sampling import QUICK, SamplingRule, count_warm_up_iterations, sample_iterations
from roller_runtime.timing.clock import ClockSample, Load


class Machine:
    """A clock on which iterations take given seconds, and others take some of them; processors work half the time."""

    trusting = False

    def __init__(self, seconds, lost=None, processors=2):
        self.seconds, self.lost = iter(seconds), lost or itertools.repeat(0.0)
        self.time, self.steps, self.attended, self.processors = 0.0, 0, 0, processors

    def step(self):
        self.steps += 1
        self.time += next(self.seconds)

    def begin(self):
        self.begun = self.time

    def end(self):
        lost = next(self.lost)
        return ClockSample(self.time - self.begun, lost, lost)

    def now(self):
        return self.time

    def attend(self):
        self.attended += 1

    def release(self):
        pass

    def load(self):
        return Load(self.time, own_s=self.time, processors=self.processors)

    def sample(self, rule, budget_s=1e9, **given):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sampling, "system_or_trusting_clock", lambda: self)
            return sample_iterations(self.step, rule, budget_s=budget_s, **given)


def noisy(mean, share, seed):
    generator = random.Random(seed)
    return (mean * (1 + share * generator.gauss(0, 1)) for _ in itertools.count())


def test_warm_up_is_found_by_the_data():
    warming = [8.0, 6.0, 4.0, 3.0, 2.0]
    found = Machine(itertools.chain([9.0], warming, itertools.repeat(1.0))).sample(SamplingRule(window=4, least=5))
    # Four medians over four iterations agree from the window that has a single slow iteration on.
    assert found.warm_up == len(warming) - 1 + 2 * 4 - 1
    assert found.samples_s == (1.0,) * 5 and found.interval == (1.0, 1.0, 1.0) and found.is_stable
    steady = Machine(itertools.repeat(1.0)).sample(SamplingRule(window=4, least=5))
    assert steady.warm_up == 7  # no warm-up is the least that the rule can see


@pytest.mark.parametrize("window", [1, 3, 20])
def test_a_series_shorter_than_the_rule_is_not_warm(window):
    rule = SamplingRule(window=window)
    assert count_warm_up_iterations([1.0] * (2 * window - 2), rule) is None
    assert count_warm_up_iterations([1.0] * (2 * window - 1), rule) == 2 * window - 1


def test_a_drift_of_the_tolerance_is_not_warm():
    # Of three medians in a row the last is 1.02 ** 2 = 1.0404 of the first.
    drift = [1.02**n for n in range(100)]
    assert count_warm_up_iterations(drift, SamplingRule(window=3, tolerance=0.040)) is None
    assert count_warm_up_iterations(drift, SamplingRule(window=3, tolerance=0.041)) == 5


def test_the_interval_stops_sampling_between_least_and_most():
    rule = SamplingRule(window=3, tolerance=0.2, least=10, most=1000, precise=0.01)
    quiet, loud = (Machine(noisy(1.0, share, 1)).sample(rule) for share in (0.001, 0.05))
    assert len(quiet.samples_s) == 10 and 20 < len(loud.samples_s) < 1000
    assert loud.interval.half_width <= 0.01 and loud.interval.lower < loud.interval.mean < loud.interval.upper
    most = Machine(noisy(1.0, 0.05, 1)).sample(SamplingRule(3, 0.2, 10, 15, 0.001, 0.1))
    assert len(most.samples_s) == 15 and most.is_stable


def test_the_interval_contains_the_true_mean_about_as_often_as_it_says():
    hits = 0
    for seed in range(200):
        values = list(itertools.islice(noisy(1.0, 0.03, seed), 60))
        found = mean_interval(values)
        hits += found.lower <= 1.0 <= found.upper
    assert 180 <= hits <= 199


def test_neighbours_that_depend_on_each_other_widen_the_interval():
    generator, level, values = random.Random(3), 0.0, []
    for _ in range(400):
        level = 0.9 * level + generator.gauss(0, 0.01)
        values.append(1 + level)
    naive = 1.96 * statistics.stdev(values) / math.sqrt(len(values))
    found = mean_interval(values)
    assert (found.upper - found.lower) / 2 > 2 * naive


def test_what_is_not_warm_within_the_budget_is_refused():
    found = Machine(itertools.cycle([1.0, 2.0])).sample(SamplingRule(window=3, least=6), budget_s=60.0)
    assert found.samples_s == () and found.interval is None and found.cpu_utilisation is None
    assert found.note.startswith(
        "sampling: expected moving medians over 3 iterations that stay within 2 %, got none in"
    )
    assert not found.is_stable and found.timing().upper_s == math.inf


def test_iterations_that_others_disturb_do_not_count():
    found = Machine(itertools.repeat(1.0), itertools.cycle([0.0, 0.2])).sample(SamplingRule(3, least=6))
    assert (found.warm_up, len(found.samples_s), found.disturbed) == (5, 6, 10)
    assert found.is_stable
    never = Machine(itertools.repeat(1.0), itertools.repeat(0.2)).sample(SamplingRule(3, least=6), budget_s=20.0)
    assert "of which" in never.note and "were disturbed by other work" in never.note and never.samples_s == ()


def test_a_clock_that_trusts_the_machine_counts_every_iteration():
    machine = Machine(itertools.repeat(1.0), itertools.repeat(0.9))
    machine.trusting = True
    found = machine.sample(SamplingRule(3, least=6))
    assert (len(found.samples_s), found.disturbed, found.is_stable) == (6, 0, True)


def test_a_mean_that_is_not_known_well_enough_is_refused():
    found = Machine(noisy(1.0, 0.3, 5)).sample(SamplingRule(3, 5.0, 6, 8, 0.01, 0.05))
    assert found.note.startswith("sampling: expected a mean that is known to 5 %, got ")
    assert found.interval is not None and found.interval.half_width > 0.05


def test_the_budget_ends_sampling_but_not_the_least_iterations():
    found = Machine(noisy(1.0, 0.05, 1)).sample(SamplingRule(3, 0.3, 6, 1000, 0.0001, 0.2), budget_s=40.0)
    assert 30 < found.warm_up + len(found.samples_s) < 42
    least = Machine(itertools.repeat(1.0)).sample(SamplingRule(3, least=6), budget_s=0.5)
    assert (least.warm_up, len(least.samples_s), least.is_stable) == (5, 6, True)


def test_how_busy_the_processors_are():
    found = Machine(itertools.repeat(1.0), processors=4).sample(SamplingRule(3, least=6))
    assert found.cpu_utilisation == pytest.approx(0.25)


def test_a_call_of_several_iterations_counts_as_many():
    found = Machine(itertools.repeat(3.0)).sample(SamplingRule(3, least=6), steps_per_call=3)
    assert found.interval.mean == 1.0 and found.timing().median_s == 1.0


def test_quantiles_of_students_distribution():
    # Tables of the distribution, two-sided.
    for degrees, share, value in ((1, 0.99, 63.657), (2, 0.95, 4.303), (5, 0.99, 4.032), (120, 0.95, 1.980)):
        assert student_quantile(share, degrees) == pytest.approx(value, abs=6e-4)


def test_batches_use_all_values_of_a_whole_number_of_them():
    assert batch_means([float(n) for n in range(30)])[0] == 1.0 and len(batch_means([1.0] * 19)) == 19
    assert len(batch_means([1.0] * 57)) == 10


def test_the_interval_of_a_ratio_contains_the_true_one():
    hits = 0
    for seed in range(200):
        before, after = (list(itertools.islice(noisy(m, 0.02, seed + n), 40)) for m, n in ((2.0, 0), (2.1, 1000)))
        found = ratio_interval(before, after)
        hits += found.lower <= 1.05 <= found.upper
    assert 180 <= hits <= 199


def test_a_rule_that_contradicts_itself_is_refused():
    with pytest.raises(RollerError, match=r"sampling: expected a window of at least 1, 2 <= least <= most"):
        SamplingRule(least=5, most=4)
    assert QUICK.limit == SamplingRule().limit
