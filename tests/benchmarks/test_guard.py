"""What construction costs, counted: not more than before."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks import guard

KNOWN = json.loads(guard.RESULTS.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("spec", guard.SPECS)
def test_construction_costs_and_predicts_no_more_than_before(spec):
    assert list(guard.excesses({spec: guard.cost_of(spec)}, KNOWN)) == []


def test_counts_are_the_same_in_every_run():
    first, second = (guard.cost_of("v100", "R0") for _ in range(2))
    assert first[:2] == second[:2] and first.priced > 0 and first.predicted_s > 0 and second.calls > 1000


def test_what_grew_is_told_and_what_shrank_is_not():
    known = {"python": guard.PYTHON, "costs": {"v100": {"priced": 100, "predicted_s": 1.0, "calls": 1000}}}
    for cost, names in (
        (guard.Cost(105, 1.001, 1100), []), (guard.Cost(50, 0.5, 1), []), (guard.Cost(106, 1.0, 1000), ["priced"]),
        (guard.Cost(100, 1.01, 1000), ["predicted_s"]), (guard.Cost(100, 1.0, 1101), ["calls"]),
    ):  # fmt: skip
        assert [text.split(": ")[1] for text in guard.excesses({"v100": cost}, known)] == names
    other = {**known, "python": "2.7"}
    assert list(guard.excesses({"v100": guard.Cost(100, 1.0, 9999)}, other)) == []


def test_the_golden_is_of_all_operators_on_three_devices():
    assert KNOWN["operators"] == 119 and tuple(KNOWN["costs"]) == guard.SPECS
