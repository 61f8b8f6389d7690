"""The CPU benchmark's own arithmetic, and one operator measured against peers made for the test."""

import itertools
import json
import math
import sys
import time

import numpy as np
import pytest

pytest.importorskip("typer")

from benchmarks.cpu import environment, limits, measure, race, report
from benchmarks.cpu.cases import BATCHES, Case, beside, largest_batch, select, suite, weights
from benchmarks.cpu.measure import ROLLER, Record, Settings
from benchmarks.cpu.peers import NumpyPeer, Prepared, Skipped, available, onnx_operator
from roller.runtime.check import check
from roller.runtime.random_inputs import random_inputs

PACE = race.Pace(rounds=3, turn_s=0.0005, settle_s=0.0)
SUITE = suite()
MATMUL = {"id": "T0", "op": "matmul", "dtype": "float32", "M": 8, "N": 16, "K": 4, "flops": 1024}


def record(name, kind, ratio, **changes):
    found = {"median": ratio, "low": ratio, "high": ratio}
    seconds = {ROLLER: 0.001, "torch": 0.001 * ratio}
    return Record(name, "roller119", kind, 1, name, seconds=seconds, ratios={"torch": found}, best_peer="torch",
                  predicted_s=0.001, **changes)  # fmt: skip


def test_suite_is_the_119_sokobans_18_and_squares():
    cases = SUITE
    ids = [c.id for c in cases]
    assert len(ids) == len(set(ids))
    sets = {n: [c for c in cases if c.set == n] for n in ("roller119", "sokoban", "square")}
    assert len(sets["roller119"]) == 119 and len(sets["sokoban"]) == 18
    assert {c.batches for c in sets["sokoban"]} == {(8,)} and {c.batches for c in sets["roller119"]} == {BATCHES}
    sizes = [c.row["M"] for c in sets["square"]]
    assert (min(sizes), max(sizes)) == (64, 2048) and any(n % 2 for n in sizes)
    assert {c.kind for c in cases} == set(limits.PER_CLASS)


def test_filter_takes_ids_patterns_and_sets():
    assert [c.id for c in select(SUITE, "M0, R*", quick=False)] == ["M0", "R0", "R1", "R2", "R3"]
    assert len(select(SUITE, "sokoban", quick=False)) == 18
    assert sorted(c.kind for c in select(SUITE, "*", quick=True)) == sorted(limits.PER_CLASS)
    with pytest.raises(Exception, match="nothing matches 'Z9'"):
        select(SUITE, "Z9", quick=False)


def test_sets_beside_the_suite_are_measured_where_they_are_named():
    cases = [*SUITE, *beside()]
    assert select(cases, "*", quick=False) == SUITE
    found = select(cases, "skinny", quick=False)
    assert {c.set for c in found} == {"skinny"} and len({c.id for c in found}) == len(found) > 40
    one = select(cases, "skinny-12x1x64x1024t", quick=False)[0]
    assert [t.shape for t in one.expression(None).inputs] == [(12, 1, 1024), (12, 64, 1024)]
    assert all(c.row["flops"] == c.expression(None).flops for c in found)


@pytest.mark.parametrize("name", ["skinny-16x16x65536t", "skinny-12x1x64x1024", "skinny-12x1x64x1024t"])
def test_peers_multiply_what_roller_multiplies(name):
    case = select(beside(), name, quick=False)[0]
    arrays = random_inputs(case.expression(None), 0)
    out = NumpyPeer().prepare(case.row, arrays, case.expression(None).output_tensors[0].shape)
    out.call()
    assert check(case.expression(None), arrays, (out.result(),)).ok


def test_every_row_of_the_suite_has_an_onnx_operator():
    kinds = {onnx_operator(c.row)[0] for c in SUITE}
    assert kinds >= {"MatMul", "Conv", "AveragePool", "Relu", "ReduceSum", "Sigmoid"}
    [d15] = [c.row for c in SUITE if c.id == "D15"]  # pads 1, 2, 1, 2 from top to right
    assert onnx_operator(d15)[1]["pads"] == [1, 1, 2, 2] and onnx_operator(d15)[1]["group"] == d15["C"]


@pytest.mark.parametrize("seconds_per_batch, expected", [(0.01, 8), (0.024, 8), (0.03, 4), (0.15, 1), (0.9, 1)])
def test_largest_batch_that_keeps_the_best_peer_under_the_limit(seconds_per_batch, expected):
    assert largest_batch(BATCHES, lambda b: seconds_per_batch * b) == expected


def test_largest_batch_follows_times_that_are_not_linear():
    assert largest_batch(BATCHES, lambda b: 0.12 + 0.005 * b) == 8  # mostly fixed cost: linear says 1
    assert largest_batch(BATCHES, lambda b: 0.04 if b == 1 else 0.15 * b) == 1  # linear says 4
    assert largest_batch((8,), lambda b: math.nan) == 8


def test_contenders_take_turns_and_ratios_are_of_the_same_round():
    order = []

    def contender(name, seconds):
        def call():
            if not order or order[-1] != name:
                order.append(name)
            time.sleep(seconds)

        return call

    waits = []
    found = race.race({"a": contender("a", 0.002), "b": contender("b", 0.004)}, PACE, lambda s: bool(waits.append(s)))
    assert order == ["a", "b"] * (1 + PACE.rounds)
    assert found.restless == 2 * PACE.rounds and len(waits) == 2 * (1 + PACE.rounds)
    assert {n: len(t) for n, t in found.times.items()} == {"a": 3, "b": 3}
    pairs = race.Race({"a": (1.0, 10.0, 1.0), "b": (2.0, 20.0, 4.0)})  # the second round was slow for both
    assert (
        pairs.best(["b", "a"]) == "a" and pairs.ratio("b", "a").median == 2.0
    )  # the slow second round was slow for both


def test_interval_holds_the_median_and_narrows_with_agreement():
    wide, narrow = race.paired([0.5, 1.0, 1.5] * 5), race.paired([0.99, 1.0, 1.01] * 5)
    assert wide.low <= wide.median <= wide.high and wide.median == narrow.median == 1.0
    assert narrow.high - narrow.low < wide.high - wide.low


def test_settling_waits_for_spinning_threads_and_gives_up_at_the_limit():
    used = itertools.chain([0.0, 0.01, 0.01, 0.02], itertools.repeat(0.02))  # two busy looks, then quiet
    sleeps = []
    assert race.settle(1.0, clock=lambda: next(used), sleep=sleeps.append)
    assert len(sleeps) == 3
    busy = itertools.count()
    assert not race.settle(0.0, clock=lambda: float(next(busy)), sleep=lambda _: None)


def test_environment_names_every_pool_and_what_is_missing():
    full = environment.wanted(3)
    assert {full[v] for v in environment.THREAD_VARIABLES} == {"3"}
    assert environment.missing(3, full) == {}
    assert environment.missing(3, {**full, "OMP_NUM_THREADS": "2"}) == {"OMP_NUM_THREADS": "3"}


def test_processor_time_of_others_leaves_out_idle_and_oneself(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  1000 0 500 99999 88888 0 0 250 0 0\ncpu0 1 1 1 1 1 1 1 1\n")
    mine = time.process_time()
    assert environment.foreign_s(stat) == pytest.approx(1750 / environment.os.sysconf("SC_CLK_TCK") - mine, abs=1.0)
    assert environment.foreign_s(tmp_path / "none") == 0.0


def test_limits_hold_or_are_missed_or_not_measured():
    records = [record("M0", "matmul", 1.0), record("C0", "conv", 0.9), record("P0", "pooling", 1.6)]
    words = {v.name: v.word for v in limits.verdicts(records)}
    assert words["matmul, geometric mean"] == "holds" and words["conv, geometric mean"] == "missed"
    assert words["depthwise, geometric mean"] == "not measured"
    assert words["all operators, geometric mean"] == "holds"  # 1.13
    assert words["slowest operator"] == "holds" and words["compiled and correct"] == "holds"
    slow = {v.name: v for v in limits.verdicts([*records, record("E0", "element-wise", 0.6)])}["slowest operator"]
    assert slow.word == "missed" and "E0" in slow.value


def test_regret_counts_only_with_more_than_the_raced_candidates():
    ten = record("M0", "matmul", 1.0, regret=1.5, regret_of=10)
    fifty = record("M1", "matmul", 1.0, regret=1.05, regret_of=43)
    found = {v.name: v for v in limits.verdicts([ten, fifty])}["top 1 over best of top 50, geometric mean"]
    assert found.value == "1.050" and found.holds
    timed = [type("Candidate", (), {"measured_s": s}) for s in (0.3, None, 0.2)]
    assert measure.regret(timed) == (pytest.approx(1.5), 2)
    assert measure.regret(timed[1:]) == (None, 1)


def test_ten_programs_are_judged_beside_the_kernels_own_time():
    quick, slow = record("M0", "matmul", 1.0, top_k_s=2.9), record("M1", "matmul", 1.0, top_k_s=3.5)
    found = limits.verdicts([quick, slow])
    [verdict] = [v for v in found if v.name.startswith("ten programs")]
    assert verdict.holds is False and "(M1); 1 of 2 over" in verdict.value
    assert limits.top_k_share(quick) == pytest.approx(2.9 / 3.015)


def test_journal_resumes_after_a_cut_line_and_keeps_settings_apart(tmp_path):
    journal = report.Journal(tmp_path / "j.jsonl", {"threads": 2})
    assert journal.read() == {}
    journal.add(record("M0", "matmul", 1.0))
    with journal.path.open("a") as file:
        file.write('{"settings": {"thr')
    journal.add(record("M1", "matmul", 1.25))
    assert {n: r.ratio for n, r in journal.read().items()} == {"M0": 1.0, "M1": 1.25}
    assert report.Journal(journal.path, {"threads": 1}).read() == {}


def test_report_says_everything_without_a_best_peer_or_a_kernel(tmp_path):
    alone = Record("C9", "roller119", "conv", 1, "conv", seconds={ROLLER: 0.002}, predicted_s=0.001)
    failed = Record("D0", "roller119", "depthwise", 1, "depthwise", reason="BuildError: no")
    records = [record("M0", "matmul", 1.25), alone, failed]
    text = report.to_markdown(records, {"threads": 2}, {"torch": "not installed"})
    assert "| M0 | matmul | 1 | 1 | torch | 1.25 | 1.250 |" in text
    assert "Without torch: not installed." in text and "- D0 (depthwise): BuildError: no" in text
    tables = [line for line in text.splitlines() if line.startswith(("| C9", "| D0", "| M0"))]
    assert len({line.count("|") for line in tables}) == 1
    data = json.loads(json.dumps(report.to_json(records, {})))
    assert [o["ratio"] for o in data["operators"]] == [1.25, None, None]


def test_missing_libraries_are_left_out_with_the_reason(monkeypatch, tmp_path):
    for name in ("torch", "onnx", "onnxruntime", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, None)
    peers, absent = available(2)
    assert [p.name for p in peers] == ["numpy"] and set(absent) == {"torch", "onnxruntime"}
    assert all("roller[bench]" in reason for reason in absent.values())
    assert "matplotlib is not installed" in report.plot([], tmp_path / "p.png")


class Fake:
    """NumPy under another name, wrong where asked."""

    def __init__(self, name, wrong=0.0, lacks=False):
        self.name, self.wrong, self.lacks = name, wrong, lacks

    def prepare(self, row, arrays, out_shape):
        if self.lacks:
            raise Skipped("has no matmul")
        own = NumpyPeer().prepare(row, arrays, out_shape)
        return Prepared(own.call, lambda: own.result() + np.float32(self.wrong))


def test_an_operator_is_raced_with_the_peers_that_compute_the_same():
    pytest.importorskip("tvm")
    peers = [Fake("good"), Fake("wrong", wrong=1.0), Fake("poor", lacks=True)]
    found = measure.measure(Case("test", MATMUL, (None,)), peers, Settings(2, top_k=1, pace=PACE))
    assert found.reason == "" and set(found.seconds) == {ROLLER, "good"}
    assert found.best_peer == "good" and found.ratio > 0
    assert set(found.skipped) == {"wrong", "poor"} and "something else" in found.skipped["wrong"]
    assert found.compile_s > 0 and found.top_k_s > 0 and found.predicted_s > 0 and found.regret == 1.0


def test_constant_weights_are_given_to_roller_ahead():
    pytest.importorskip("tvm")
    settings = Settings(2, top_k=1, pace=PACE, constant_weights=True)
    found = measure.measure(Case("test", MATMUL, (None,)), [Fake("good")], settings)
    assert found.reason == "" and "constants=B" in found.program and found.best_peer == "good"
    pooling = next(c for c in SUITE if c.kind == "pooling")
    assert list(weights(pooling.row, 1)) == [] and list(weights(MATMUL, 2)) == [1]


def test_a_kernel_that_cannot_be_made_is_a_record(monkeypatch):
    def refuse(*_, **__):
        raise measure.roller.RollerError("no candidate")

    monkeypatch.setattr(measure.roller, "construct", refuse)
    found = measure.measure(Case("test", MATMUL, (None,)), [Fake("good")], Settings(2, top_k=1, pace=PACE))
    assert found.reason == "RollerError: no candidate" and found.ratio is None
