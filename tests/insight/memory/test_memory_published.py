"""Published memory beside predictions: the interval is judged by models that its error does not come from."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.insight.memory_published import Result, left_out_coverage, summary


def row(model, value, **kwargs):
    kwargs = {"measured": "max memory allocated", "predicted_bytes": 100.0, "reserved_bytes": 100, **kwargs}
    return Result(model, "", release="2.0", is_of_today=True, value_bytes=value, **kwargs)


def test_the_error_of_a_figure_comes_from_other_models():
    # Off by 1/3 and 1/9: each model's own error would hold it, that of the other one does not hold the larger.
    assert left_out_coverage([row("a", 75.0), row("b", 90.0)]) == (1, 2)
    assert left_out_coverage([row("a", 75.0), row("a", 76.0)]) == (0, 0)  # nothing to take an error from
    assert left_out_coverage([row("a", 75.0), row("b", 90.0), row("b", 1.0, why="no such case: add one")]) == (1, 2)


def test_a_context_counts_beside_the_share_and_gives_no_error():
    smi = row("a", 75.0, measured="nvidia-smi", context_error_bytes=20)
    assert left_out_coverage([smi, row("b", 90.0)]) == (1, 1)
    assert summary([smi, row("b", 90.0)])[-1].startswith("1 of 1 lie in the interval")
