"""The benchmark of whole models: its arithmetic, its limits, and one tiny model measured for real."""

import dataclasses
import json

import numpy as np
import pytest
import typer

from benchmarks.cpu.race import Pace
from benchmarks.cpu.report import Journal
from benchmarks.onnx import measure, report
from benchmarks.onnx.__main__ import line, selected
from benchmarks.onnx.measure import PEER, ROLLER, ChildError, Record, Settings, difference

TINY = {"side": 16, "stem": 8, "stages": ((1, 8, 1, 1),), "head": 16, "classes": 10}


def record(model, speed, batch=1, **changes):
    known = Record(f"{model}-b{batch}", model, batch, 0.5, 1e-6, {ROLLER: 0.001, PEER: 0.001 * speed},
                   dict.fromkeys(("median", "low", "high"), speed), {ROLLER: 120, PEER: 100}, 10.0, 1.0)  # fmt: skip
    return dataclasses.replace(known, **changes)


def test_differences_are_relative_to_elements_or_to_their_size_on_the_whole():
    ones = np.ones(100, np.float32)
    assert difference(ones, ones) == 0
    assert difference(np.append(ones, 1e-9), np.append(ones, 0)) < 1e-8, "near zero: relative to the whole"
    assert difference(ones * 1.01, ones) == pytest.approx(0.01, rel=1e-4)
    assert difference(ones[:5], ones) == difference(ones * np.nan, ones) == float("inf")


def test_limits_are_judged_from_all_records():
    good = [record("light_resnet50", 2.0), record("lstm", 0.8, cold_s=31.0), record("bert_large", 1.0, batch=8)]
    words = {v.name: v.word for v in report.verdicts(good)}
    assert words["speed over all models, geometric mean"] == words["slowest model"] == "holds"
    assert words["cold compile of lstm (s)"] == "missed" and words["cold compile of light_resnet50 (s)"] == "holds"
    assert words["cold compile of bert_large (s)"] == "not measured", "the limit is that of batch 1"
    assert words["peak memory over ONNX Runtime's, worst"] == "holds"
    bad = [
        record("a", 0.6, error=2e-3, peak_bytes={ROLLER: 140, PEER: 100}, warm_s=4.0),
        Record("b", "b", 1, reason="x"),
    ]
    assert {v.word for v in report.verdicts(bad)} == {"missed", "not measured"}


def test_the_report_names_every_model_and_every_failure():
    records = [record("light_resnet50", 2.0), Record("lstm-b1", "lstm", 1, reason="ModelError: no")]
    text = report.to_markdown(records, {"processor": "x"})
    assert "| light_resnet50 | 1 |" in text and "- lstm-b1: ModelError: no" in text and "2.000 (1)" in text
    assert json.loads(json.dumps(report.to_json(records, {})))["models"][0]["ratio"] == 2.0
    assert "FAILED" in line(records[1]) and "2.000" in line(records[0])


def test_models_are_selected_by_pattern():
    assert selected("bert_*,lstm") == ["bert_base", "bert_large", "bert_base_decomposed", "lstm"]
    with pytest.raises(typer.BadParameter, match="nothing matches 'gpt'"):
        selected("gpt")


@pytest.mark.slow
def test_a_tiny_model_is_compiled_compared_weighed_and_raced(tmp_path):
    pace = Pace(rounds=3, turn_s=0.0005, settle_s=0.0)
    found = measure.measure("mobilenet_v2", 2, Settings(2, pace, tmp_path), TINY)
    assert not found.reason and found.error < 1e-3 and found.kernels > 3
    assert set(found.seconds) == set(found.peak_bytes) == {ROLLER, PEER}
    assert found.ratio > 0 and 0.1 < found.memory < 10 and found.warm_s < found.cold_s
    journal = Journal(tmp_path / "j.jsonl", {"threads": 2}, Record)
    journal.add(found)
    assert journal.read() == {"mobilenet_v2-b2": found}
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("mobilenet")] == [], "nothing is left behind"


def test_a_failed_process_says_why():
    with pytest.raises(ChildError, match=r"nothing\.onnx"):
        measure._child(["compile", "nothing.onnx"])
