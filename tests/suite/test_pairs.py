"""Two processes that train in turns: which rounds count, what their ratio is, and what ends a process that waits."""

import os
import random
import threading

import pytest
from typer.testing import CliRunner

from roller.cli.main import app
from roller.cli.usage_error import UsageError
from roller.errors import ModelError, RollerError
from roller.suite import pairs, turn_coordinator, worker
from roller.suite.difference import difference
from roller.suite.mean_interval import LEAST_ROUNDS, PROCESS_NOISE, paired_ratio
from roller.suite.measuring import SuiteProcess
from roller.suite.pairs import PAUSE_S, WARM_UP, Pair, measure_pairs, run_alternating_rounds, sample_from_rounds
from roller.suite.registry import MODELS, models_of
from roller.suite.run_file import SuiteRun, read_run, write_run
from roller.suite.turn_coordinator import Block, TurnCoordinator, run_requested_blocks
from roller_runtime.timing.clock import ClockSample, Load
from tests.suite.test_measuring import measurement


class Machine:
    """Two sides that take given seconds per call, on a clock that they move; the machine slows down as time passes."""

    def __init__(self, seconds, disturbed=()):
        self.seconds, self.disturbed, self.time, self.order = seconds, set(disturbed), 0.0, []

    def side(self, n):
        def run(calls):
            self.order.append(n)
            self.time += calls * self.seconds[n] * (1 + self.time / 100)
            return Block(self.seconds[n] * (1 + self.time / 100), len(self.order) - 1 not in self.disturbed)

        return run

    def rounds(self, budget_s=1e9):
        def pause(seconds):
            self.time += seconds

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pairs, "monotonic", lambda: self.time)
            patch.setattr(pairs, "sleep", pause)
            return run_alternating_rounds([self.side(0), self.side(1)], budget_s=budget_s)


def test_sides_begin_in_turn_and_the_ratio_is_right_on_a_machine_that_slows_down():
    machine = Machine((0.010, 0.0105))
    rounds, disturbed = machine.rounds()
    assert machine.order[:8] == [0, 1, 1, 0, 0, 1, 1, 0] and disturbed == 0
    assert len(machine.order) == 2 * (WARM_UP + len(rounds)) and len(rounds) >= LEAST_ROUNDS
    assert paired_ratio([rounds]).mean == pytest.approx(1.05, abs=1e-3)
    assert rounds[-1][0] > 1.02 * rounds[0][0]


def test_a_round_in_which_either_was_disturbed_does_not_count():
    first = 2 * WARM_UP
    machine = Machine((0.01, 0.01), disturbed=(first, first + 3, 0))
    rounds, disturbed = machine.rounds()
    assert disturbed == 2 and len(machine.order) == 2 * (WARM_UP + len(rounds) + 2)


def test_a_budget_ends_the_rounds_but_for_those_that_a_ratio_needs():
    machine = Machine((5.0, 5.0))
    rounds, _ = machine.rounds(budget_s=1.0)
    assert len(rounds) == LEAST_ROUNDS and len(machine.order) == 2 * (WARM_UP + LEAST_ROUNDS)
    assert machine.time > 2 * (WARM_UP + LEAST_ROUNDS) * PAUSE_S


def test_more_pairs_of_processes_tell_smaller_changes_and_more_rounds_alone_do_not():
    def group(count):
        return [(1.0, 1.0 + 1e-6 * (n % 2)) for n in range(count)]

    few, many, pairs = (paired_ratio(groups).half_width for groups in ([group(20)], [group(2000)], [group(20)] * 4))
    assert few == pytest.approx(many, rel=0.02) and many > 1.96 * PROCESS_NOISE
    assert pairs < 0.47 * few
    assert paired_ratio([group(20), group(LEAST_ROUNDS - 1)]) is None and paired_ratio([]) is None


def run_pair(seed, slower=1.0, groups=3, noise=0.01, rounds=20):
    """Return both runs of all models: rounds are off by 2 %, and processes of the same code by 1 %."""
    generator, rows = random.Random(seed), ([], [])
    for model in MODELS:
        times = ([], [])
        for _ in range(groups):
            apart = 1 + noise * generator.gauss(0, 1)
            factor = apart * (slower if model == "bert_base" else 1.0)
            drift = [1 + 0.2 * generator.random() for _ in range(rounds)]
            times[0].append([0.01 * d * (1 + 0.02 * generator.gauss(0, 1)) for d in drift])
            times[1].append([0.01 * d * factor * (1 + 0.02 * generator.gauss(0, 1)) for d in drift])
        for own, side in zip(rows, times, strict=True):
            own.append({
                "model": model, "device": "a processor", "batch": 1, "kind": "measured", "throughput_per_s": None,
                "is_stable": False, "samples_s": [[]], "pair": {"id": model, "rounds_s": side, "disturbed": 0},
            })  # fmt: skip
    return tuple(SuiteRun({}, own) for own in rows)


def test_a_planted_slow_down_of_five_percent_is_found_ten_times_of_ten_and_nothing_without_one():
    for seed in range(10):
        assert [row.model for row in difference(*run_pair(seed, slower=1.05)).regressions] == ["bert_base"]
        assert {row.verdict for row in difference(*run_pair(100 + seed)).rows} == {"same"}


def test_rows_of_different_pairs_are_not_compared_in_turns():
    first, second = run_pair(1), run_pair(2)
    other = SuiteRun({}, [{**row, "pair": {**row["pair"], "id": "another"}} for row in second[1].rows])
    assert {row.reason for row in difference(first[0], other).rows} == {"it was unstable"}
    few = [SuiteRun({}, [dict(run.rows[0])]) for run in run_pair(3, groups=1, rounds=4)]
    (row,) = difference(*few).rows
    assert row.verdict == "not compared" and row.reason == f"it has 4 undisturbed rounds, and needs {LEAST_ROUNDS}"


def test_rows_of_a_pair_survive_their_file(tmp_path):
    rounds = tuple((0.1, 0.12 + 1e-4 * n) for n in range(12))
    rows = Pair(measurement(), measurement(), (rounds,), 3).rows()
    for name, row in zip("ab", rows, strict=True):
        write_run(tmp_path / name, SuiteRun({}, [row]))
    (row,) = difference(*(read_run(tmp_path / name) for name in "ab")).rows
    assert row.verdict == "slower" and row.ratio.mean == pytest.approx(1.2, rel=0.01)
    done = CliRunner().invoke(app, ["suite", "diff", str(tmp_path / "a"), str(tmp_path / "b")])
    assert done.exit_code == 1 and "slower" in done.output


def test_models_share_a_budget_and_pairs_of_processes_join(monkeypatch):
    time, given, failures = [0.0], [], []

    def one(model, *, budget_s, pythons, **options):
        given.append((model.name, budget_s, pythons[1]))
        time[0] += 10.0
        if model.name == "ncf":
            raise ModelError("suite: expected a step, got none.")
        return Pair(measurement(), measurement(), ((((0.1, 0.1),) * 12),), 1)

    monkeypatch.setattr(pairs, "monotonic", lambda: time[0])
    monkeypatch.setattr(pairs, "measure_pair", one)
    found = list(measure_pairs(
        models_of(["a3c", "ncf"]), python="other", budget_s=80.0, repeat=2,
        failed=lambda name, error: failures.append(name),
    ))  # fmt: skip
    assert given == [("a3c", 20.0, "other")] * 2 + [("ncf", 30.0, "other")] and failures == ["ncf"]
    assert [len(pair.rounds_s) for pair in found] == [2] and found[0].disturbed == 2


class StepClock:
    """A clock that a step moves; one call of it was disturbed."""

    trusting = False

    def __init__(self):
        self.time, self.calls = 0.0, 0

    def step(self):
        self.time += 0.5
        self.calls += 1

    def attend(self):
        pass

    release = attend

    def begin(self):
        self.begun = self.time

    def end(self):
        lost = 1.0 if self.calls == 3 else 0.0
        return ClockSample(self.time - self.begun, lost, lost)

    def load(self):
        return Load(self.time, own_s=self.time, processors=1)


def test_blocks_are_run_as_they_are_asked_for_and_become_a_sample(tmp_path, monkeypatch):
    clock = StepClock()
    monkeypatch.setattr(turn_coordinator, "system_or_trusting_clock", lambda: clock)
    coordinator = TurnCoordinator(tmp_path, lambda: other.is_alive())
    other = threading.Thread(
        target=run_requested_blocks, args=(clock.step, tmp_path), kwargs={"steps_per_call": 2}, daemon=True
    )
    other.start()
    coordinator.wait()
    assert [coordinator.run(calls) for calls in (1, 2, 4)] == [Block(0.25, True), Block(0.25, False), Block(0.25, True)]
    coordinator.end()
    other.join(30)
    coordinator.close()
    assert clock.calls == 7


def test_a_process_that_ended_is_an_error_and_no_wait_for_ever(tmp_path):
    lives = iter((True, False))
    coordinator = TurnCoordinator(tmp_path, lambda: next(lives))
    with pytest.raises(ModelError, match="got its end"):
        coordinator.wait()
    coordinator.close()


def test_an_interpreter_that_is_none_is_refused(tmp_path):
    done = CliRunner().invoke(app, ["suite", "compare", "a3c", "--with", str(tmp_path / "python")])
    assert isinstance(done.exception, UsageError) and "expected an interpreter" in str(done.exception)
    done = CliRunner().invoke(app, ["suite", "compare", "no_model"])
    assert isinstance(done.exception, RollerError) and "no_model" in str(done.exception)


def test_rounds_are_a_sample_that_says_when_its_mean_is_not_known():
    known, few, wide = (sample_from_rounds(times, 2) for times in ([0.1, 0.101] * 8, [0.1] * 9, [0.1, 0.2] * 5 + [0.9]))
    assert known.is_stable and known.interval.mean == pytest.approx(0.1005) and known.disturbed == 2
    assert (
        not few.is_stable and not wide.is_stable and "got 9 and" in few.note and not sample_from_rounds([], 0).is_stable
    )


def test_pairs_that_scatter_more_than_expected_widen_the_interval():
    groups = [[(1.0, ratio + 1e-4 * (n % 2)) for n in range(12)] for ratio in (0.9, 1.3, 1.0)]
    found = paired_ratio(groups)
    assert found.lower < 1 < found.upper


def test_false_alarms_are_as_rare_as_they_are_said_to_be_also_where_the_noise_is_another():
    for noise, most in ((0.005, 0), (0.01, 1), (0.015, 3)):
        alarms = sum(bool(difference(*run_pair(1000 + seed, noise=noise)).regressions) for seed in range(40))
        assert alarms <= most, noise


def test_variables_of_the_user_win(monkeypatch):
    monkeypatch.setenv("OMP_PROC_BIND", "false")
    monkeypatch.delenv("MALLOC_MMAP_MAX_", raising=False)
    found = SuiteProcess("a3c", reduced=True, seed=0, python="python")._environment()
    assert found["MALLOC_MMAP_MAX_"] == "0" and "OMP_PROC_BIND" not in found


def test_a_process_starts_again_once_for_fixed_addresses(monkeypatch):
    state, starts = [0], []

    def personality(wanted):
        if wanted != 0xFFFFFFFF:
            state[0] = wanted
        return state[0]

    monkeypatch.setattr(worker, "_personality_function", lambda: personality)
    monkeypatch.setattr(os, "execv", lambda path, words: starts.append(words))
    worker.disable_address_randomization()
    worker.disable_address_randomization()
    assert len(starts) == 1 and worker.has_fixed_addresses()
    monkeypatch.setattr(worker, "_personality_function", lambda: None)
    worker.disable_address_randomization()
    assert len(starts) == 1 and not worker.has_fixed_addresses()


@pytest.mark.slow
def test_two_processes_train_in_turns():
    pytest.importorskip("torch")
    (pair,) = measure_pairs(
        models_of(["a3c"]), repeat=1, budget_s=1.0, failed=lambda name, error: pytest.fail(str(error))
    )
    first, second = pair.rows()
    rounds = len(first["pair"]["rounds_s"][0]) + pair.disturbed
    assert rounds >= LEAST_ROUNDS and first["pair"]["id"] == second["pair"]["id"]
    assert first["memory_bytes"]["weights"] == second["memory_bytes"]["weights"] > 0
