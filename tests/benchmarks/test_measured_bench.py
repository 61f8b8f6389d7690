"""The arithmetic of the benchmark of measured steps, on numbers made for the test."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("typer")

from benchmarks.insight import measured

OPERATORS = [
    SimpleNamespace(name="mm", phase="forward", module="a.b.c"),
    SimpleNamespace(name="mm", phase="backward", module="a.b.d"),
    SimpleNamespace(name="mm", phase="backward", module="a.x"),
    SimpleNamespace(name="add", phase="forward", module=""),
    SimpleNamespace(name="add", phase="optimizer", module="a.b"),
]


def test_shares_are_of_modules_and_the_update():
    assert measured.shares(OPERATORS, [1.0, 1.0, 2.0, 4.0, 8.0], 2) == {
        "a.b": 2 / 16, "a.x": 2 / 16, "(outside)": 4 / 16, "(update)": 8 / 16,
    }  # fmt: skip
    assert measured.shares(OPERATORS, [1.0, 1.0, 2.0, 4.0, 8.0], 1)["a"] == 4 / 16


def test_the_kind_of_operator_that_is_off_most_comes_first():
    lines = measured.off_most(OPERATORS, [0.001, 0.001, 0.002, 0.002, 0.002], [0.001, 0.003, 0.004, 0.002, 0.001])
    assert lines[:2] == [
        "mm (backward, 2): measured 3.0 ms, predicted 7.0 ms, +50.0 % of the operators",
        "add (optimizer, 1): measured 2.0 ms, predicted 1.0 ms, -12.5 % of the operators",
    ]


def found(seconds, loop_s, untracked_s):
    step = SimpleNamespace(
        iteration_s=seconds, lower_s=0.9 * seconds, upper_s=1.1 * seconds, is_stable=True, untracked_s=untracked_s
    )
    return measured.Round(loop_s, step)


def test_ratios_are_medians_of_paired_rounds():
    rounds = [found(1.0, 1.0, 0.1), found(4.0, 2.0, 0.8), found(2.0, 1.9, 0.5)]
    row = measured.Row("f.py", 3, rounds, 3.0, True, {"a": (0.5, 0.25), "b": (0.5, 0.75 - 0.125)}, ["mm"])
    assert row.measured_s == 2.0 and row.loop_ratio == 2.0 / 1.9
    assert row.predicted_ratio == 1.5 and row.untracked == 0.2
    assert row.worst_share == ("a", -0.25)
    told = measured.report([row])
    assert told[0] == "f.py, batch 3: measured 2000.0 ms (900.0 to 4400.0, 3 of 3 rounds stable), predicted 3000.0 ms"
    assert told[-2] == "measured beside the loop: worst 5.3 % (target 5)"
    assert told[-1].startswith("predicted beside measured: mean 50.0 % (target 15), worst 50.0 %")


def test_the_loop_by_hand_prints_the_seconds_of_a_step(tmp_path):
    entry = tmp_path / "entry.py"
    entry.write_text(
        "import time\ndef model_provider(): pass\ndef input_provider(batch_size=2): return (0.001 * batch_size,)\n"
        "def iteration_provider(model): return time.sleep\n"
    )
    assert measured.loop_seconds(entry, 5, 0.001) >= 0.005
    assert measured.loop_seconds(entry, None, 0.001) >= 0.002
