"""Published steps beside predictions: what does not trace is in no mean, and is named."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")

from benchmarks.insight import published, published_compiled
from roller.errors import ModelError
from roller.insight.trace.trace import Operator, TensorRecord, Trace


def case(model, size=224, precision="fp16"):
    return published.Case("timm", "rtx4090", model, "infer", "nchw", 8, size, 0.001, precision)


def step_of(case, folder):
    if case.model == "other":
        raise ModelError("no such model: other\nInstall it.")
    x, y = (TensorRecord((2**20,), (1,), "float32", n) for n in range(2))
    return Trace((Operator(0, "aten.exp.default", "forward", (x,), (y,)),), (), {}, (0, 1))


CASES = [case("known"), case("other"), case("other", 288)]
LINE = "- Not traced: other (no such model: other), 2 figures"


def test_a_model_that_does_not_trace_is_named_with_its_reason(monkeypatch):
    monkeypatch.setattr(published, "kept_step", step_of)
    found = dict(published.predicted(CASES, None))
    times = {c: x for c, x in found.items() if isinstance(x, float)}
    untraced = {c: x for c, x in found.items() if isinstance(x, str)}
    lines = published.page(times, untraced).splitlines()
    assert LINE in lines
    assert any(line.startswith("| timm | 1 of 3 |") for line in lines)
    assert published.summary(times, untraced)[-1] == LINE[2:]


def test_a_compiled_model_that_does_not_trace_is_named_with_its_reason(monkeypatch):
    monkeypatch.setattr(published_compiled, "kept_step", step_of)
    found = list(published_compiled.rows_of([(c, {"nchw": 0.002}) for c in CASES], None))
    rows = [x for x in found if isinstance(x, published_compiled.Row)]
    untraced = dict(x for x in found if isinstance(x, tuple))
    text = published_compiled.page(rows, untraced, "2026-11-29")
    assert LINE in text.splitlines()
    assert "1 of 3 steps" in text


def test_a_trace_is_made_once_and_kept_whole(tmp_path):
    made = []

    def make():
        made.append(step_of(case("known"), None))
        return made[-1]

    first, second = (published.kept_trace(tmp_path / "kept", "linear", make) for _ in range(2))
    assert len(made) == 1 and [o.name for o in first.operators] == [o.name for o in second.operators]
    assert [p.name for p in (tmp_path / "kept").iterdir()] == ["linear.json.gz"]
    with pytest.raises(ZeroDivisionError):
        published.kept_trace(tmp_path / "kept", "other", lambda: 1 // 0)
    assert len(list((tmp_path / "kept").iterdir())) == 1
