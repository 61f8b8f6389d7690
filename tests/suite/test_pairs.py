"""Two processes that train in turns: which rounds count, what their ratio is, and what ends a process that waits."""

import dataclasses
import random
import threading

import pytest
from typer.testing import CliRunner

from roller.cli.main import app
from roller.cli.usage import UsageError
from roller.errors import ModelError, RollerError
from roller.runtime.clock import Load, Spell
from roller.suite.difference import difference
from roller.suite.mean_interval import LEAST_ROUNDS, PROCESS_NOISE, paired_ratio
from roller.suite.pairs import PAUSE_S, WARM_UP, Pair, measure_pairs, take_rounds
from roller.suite.registry import MODELS, models_of
from roller.suite.run_file import SuiteRun, read_run, write_run
from roller.suite.turns import Block, TurnGiver, take_turns
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

        return take_rounds([self.side(0), self.side(1)], budget_s=budget_s, now=lambda: self.time, pause=pause)


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


def run_pair(seed, slower=1.0, groups=6, rounds=20):
    """Return both runs of all models: rounds are off by 2 %, and processes of the same code by 1 %."""
    generator, rows = random.Random(seed), ([], [])
    for model in MODELS:
        times = ([], [])
        for _ in range(groups):
            apart = 1 + PROCESS_NOISE * generator.gauss(0, 1)
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


def test_models_share_a_budget_and_pairs_of_processes_join():
    time, given, failures = [0.0], [], []

    def one(model, *, budget_s, pythons, **options):
        given.append((model.name, budget_s, pythons[1]))
        time[0] += 10.0
        if model.name == "ncf":
            raise ModelError("suite: expected a step, got none.")
        return Pair(measurement(), measurement(), ((((0.1, 0.1),) * 12),), 1)

    found = list(measure_pairs(
        models_of(["a3c", "ncf"]), python="other", budget_s=80.0, repeat=2, now=lambda: time[0], one=one,
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

    def begin(self):
        self.begun = self.time

    def end(self):
        lost = 1.0 if self.calls == 3 else 0.0
        return Spell(self.time - self.begun, lost, lost)

    def load(self):
        return Load(self.time, own_s=self.time, processors=1)


def test_blocks_are_run_as_they_are_asked_for_and_become_a_sample(tmp_path):
    clock, found = StepClock(), []
    giver = TurnGiver(tmp_path, lambda: True)
    other = threading.Thread(
        target=lambda: found.append(take_turns(clock.step, tmp_path, steps_per_call=2, clock=clock))
    )
    other.start()
    giver.wait()
    assert [giver.run(calls) for calls in (1, 2, 4)] == [Block(0.25, True), Block(0.25, False), Block(0.25, True)]
    giver.end()
    other.join(30)
    giver.close()
    assert clock.calls == 7 and found[0].samples_s == (0.25, 0.25) and found[0].disturbed == 1


def test_a_process_that_ended_is_an_error_and_no_wait_for_ever(tmp_path):
    lives = iter((True, False))
    giver = TurnGiver(tmp_path, lambda: next(lives))
    with pytest.raises(ModelError, match="got its end"):
        giver.wait()
    giver.close()


def test_an_interpreter_that_is_none_is_refused(tmp_path):
    done = CliRunner().invoke(app, ["suite", "compare", "a3c", "--with", str(tmp_path / "python")])
    assert isinstance(done.exception, UsageError) and "expected an interpreter" in str(done.exception)
    done = CliRunner().invoke(app, ["suite", "compare", "no_model"])
    assert isinstance(done.exception, RollerError) and "no_model" in str(done.exception)


def test_a_pair_is_plain_data():
    pair = Pair(measurement(), measurement(), ((((0.1, 0.1),) * 12),), 0)
    assert dataclasses.asdict(pair)["disturbed"] == 0 and pair.ratio.mean == pytest.approx(1.0)


@pytest.mark.slow
def test_two_processes_train_in_turns():
    pytest.importorskip("torch")
    (pair,) = measure_pairs(models_of(["a3c"]), budget_s=1.0, failed=lambda name, error: pytest.fail(str(error)))
    first, second = pair.rows()
    rounds = len(first["pair"]["rounds_s"][0]) + pair.disturbed
    assert rounds >= LEAST_ROUNDS and first["pair"]["id"] == second["pair"]["id"]
    assert first["memory_bytes"]["weights"] == second["memory_bytes"]["weights"] > 0
