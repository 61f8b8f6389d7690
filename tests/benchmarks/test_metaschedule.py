"""The comparison with MetaSchedule: its choice, its journal, its limits, and a race of programs made for the test."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

pytest.importorskip("typer")

import roller
from benchmarks.cpu import race
from benchmarks.cpu.cases import suite
from benchmarks.cpu.measure import ROLLER
from benchmarks.cpu.metaschedule import __main__ as command
from benchmarks.cpu.metaschedule import duel, journal, report, subjects
from benchmarks.cpu.metaschedule.duel import Record
from roller.expr.evaluate import evaluate
from roller.hardware import load_spec
from roller.runtime.random_inputs import random_inputs

SUITE = suite()
PACE = race.Pace(rounds=3, turn_s=0.0005, settle_s=0.0)
TASK = subjects.Task("P10", 2, "xgb", "znver4", "0.27.0")


def record(name, ratio, tuning_s=400.0, trials=200, processor_s=600.0):
    tuning = asdict(journal.Totals(trials, 0, tuning_s, processor_s, 0.002))
    found = {"median": ratio, "low": ratio, "high": ratio}
    return Record(name, "matmul", 1, name, tuning, top_k_s=2.0, top_k_processor_s=3.0, top_1_s=0.2, ratio=found,
                  seconds={ROLLER: 0.001, "metaschedule 1": 0.001 * ratio}, best="metaschedule 1")  # fmt: skip


def test_one_operator_of_median_work_per_kind():
    found = subjects.representatives(SUITE)
    assert [subjects.kind_of(c) for c in found] == list(subjects.KINDS)
    assert all(c.set == "roller119" and c.batches == (1,) for c in found)
    for case in found:
        work = [c.row["flops"] for c in SUITE if c.set == "roller119" and subjects.kind_of(c) == subjects.kind_of(case)]
        below = sum(w < case.row["flops"] for w in work)
        above = sum(w > case.row["flops"] for w in work)
        assert max(below, above) <= len(work) / 2
    assert [subjects.kind_of(c) for c in command.chosen("conv*, R0")] == ["conv 3x3", "conv 1x1", "reduction"]
    with pytest.raises(Exception, match="nothing matches 'Z9'"):
        command.chosen("Z9")


@pytest.mark.parametrize("case", subjects.representatives(SUITE), ids=lambda c: c.id)
def test_padding_as_a_stage_of_its_own_computes_the_same(case):
    small = {"C": 3, "F": 4, "H": 7, "W": 6, "M": 8, "K": 5}
    row = {k: min(v, small.get(k, v)) if isinstance(v, int) else v for k, v in case.row.items()}
    expr = roller.ops.from_spec(row, batch=1)
    padded = subjects.with_padding(expr)
    reads_beyond = any(load.guard for s in expr.stages for load in s.loads)
    assert len(padded.stages) == len(expr.stages) + reads_beyond
    assert not any(load.guard for load in padded.anchor.loads)
    arrays = random_inputs(expr, 1)
    np.testing.assert_array_equal(evaluate(expr, arrays), evaluate(padded, arrays))


def test_a_database_belongs_to_everything_it_depends_on(tmp_path):
    same = replace(TASK)
    others = [replace(TASK, threads=1), replace(TASK, cost_model="random"), replace(TASK, mcpu="haswell"),
              replace(TASK, tvm="0.28"), replace(TASK, id="R0")]  # fmt: skip
    folders = {t.folder(tmp_path) for t in (TASK, *others)}
    assert len(folders) == 6 and same.folder(tmp_path) in folders


def test_journal_goes_on_after_a_cut_line_and_adds_up(tmp_path):
    assert journal.totals(journal.read(tmp_path)) == journal.Totals()
    journal.add(tmp_path, journal.Batch(64, 1, 30.0, 50.0, 0.002, 40.0, 1.5))
    with (tmp_path / journal.NAME).open("a") as file:
        file.write('{"trials": 64, "fai')
    journal.add(tmp_path, journal.Batch(63, 63, 25.0, 40.0, None, 38.0, 2.5))
    assert journal.totals(journal.read(tmp_path)) == journal.Totals(127, 64, 55.0, 90.0, 0.002, 40.0, 2.5)


def test_only_what_lacks_trials_is_tuned(tmp_path):
    for trials in (32, 31):
        TASK.folder(tmp_path).mkdir(exist_ok=True)
        journal.add(TASK.folder(tmp_path), journal.Batch(trials, 0, 1.0, 2.0, 0.001))
    other = replace(TASK, id="R0")
    assert command.lacking([TASK, other], tmp_path, 63) == [other]
    assert command.lacking([TASK, other], tmp_path, 64) == [TASK, other]
    assert command.tune([TASK], tmp_path, 63) == ""  # nothing lacks: no process is started


def test_a_tuner_that_dies_is_started_again_and_then_given_up(tmp_path, monkeypatch):
    starts = []

    def die(command_line, **options):
        starts.append(json.loads(command_line[-1]))
        assert "TVM_BIND_THREADS" not in options["env"]
        return type("Done", (), {"returncode": -11})

    monkeypatch.setenv("TVM_BIND_THREADS", "0")
    monkeypatch.setattr(command.subprocess, "run", die)
    assert "died" in command.tune([TASK], tmp_path, 8)
    assert len(starts) == 3 and starts[0]["tasks"] == [asdict(TASK)]


def test_limits_take_the_least_operator_and_both_quotients():
    held = {v.name: v for v in report.verdicts([record("M4", 1.0), record("C2", 2.0)], 200)}
    assert {v.word for v in held.values()} == {"holds"}
    slow = {v.name: v for v in report.verdicts([record("M4", 0.9), record("C2", 2.0)], 200)}
    assert slow["speed, slowest operator"].word == "missed" and "M4" in slow["speed, slowest operator"].value
    assert slow["speed, geometric mean"].word == "holds"
    busy = record("M4", 1.0, tuning_s=9000.0, processor_s=150.0)  # other programs made the clock run, not the tuner
    words = {v.name: v.word for v in report.verdicts([busy], 200)}
    assert words["seconds of tuning over seconds of top-k, least"] == "holds"
    assert words["the same in processor seconds, least"] == "missed"


def test_too_few_trials_and_failed_races_decide_nothing():
    failed = Record("R0", "reduction", 1, tuning=asdict(journal.Totals()), reason="no program")
    found = report.verdicts([record("M4", 3.0, trials=199), failed], 200)
    assert {v.word for v in found} == {"not measured"}
    assert found[0].value == "0 of 2 (not M4, R0)"


def test_report_names_what_was_left_out():
    failed = Record("R0", "reduction", 1, tuning=asdict(journal.Totals()), reason="no program")
    records = [replace(record("M4", 1.25), skipped={"metaschedule 2": "computes something else"}), failed]
    text = report.to_markdown(records, {"trials": 200})
    assert "| M4 | matmul | 1 | 1.25 | 1.250 |" in text
    assert "M4: metaschedule 2 left out" in text and "R0: not raced: no program" in text
    rows = [line for line in text.splitlines() if line.startswith(("| M4", "| R0", "| id"))]
    assert len(rows) == 3 and len({line.count("|") for line in rows}) == 1
    data = json.loads(json.dumps(report.to_json(records, {"trials": 200})))
    assert [o["quotient"] for o in data["operators"]] == [200.0, None]


def test_different_results_are_found_also_where_they_are_no_numbers():
    good = np.array([1.0, -100.0], np.float32)
    outputs = {ROLLER: good, "close": good + 0.05, "wrong": good + 0.5, "nan": good * np.nan}
    assert set(duel.different(outputs)) == {"wrong", "nan"}


def test_programs_of_a_database_race_through_the_same_launcher(monkeypatch, tmp_path):
    pytest.importorskip("tvm")
    from benchmarks.cpu.metaschedule import tuner

    module = tuner.module_of(TASK)  # unscheduled, but it computes the operator
    monkeypatch.setattr(tuner, "best_of", lambda *_: [tuner.Found(module, 0.5), tuner.Found(module, 0.6)])
    monkeypatch.setattr(duel, "_HEATS", PACE)
    monkeypatch.setattr(duel, "_COMPILATIONS", 1)
    task = replace(TASK, mcpu=str(load_spec("cpu").target["mcpu"]), threads=1)
    task.folder(tmp_path).mkdir()
    journal.add(task.folder(tmp_path), journal.Batch(2, 0, 100.0, 90.0, 0.5))
    found = duel.duel(task, tmp_path, PACE, top_k=1)
    assert found.reason == "" and found.skipped == {}
    assert found.considered == {"metaschedule 1": 0.5, "metaschedule 2": 0.6}
    assert found.best in found.considered and found.ratio["median"] > 0
    assert found.quotient == pytest.approx(100.0 / found.top_k_s)
