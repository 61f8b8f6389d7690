"""The audit of ONNX operators: cases of each version, what differs is found, and it goes on where it was stopped."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from benchmarks.onnx_audit import __main__ as audit
from benchmarks.onnx_audit.cases import Case, cases_of, last_set, variations, versions, written
from benchmarks.onnx_audit.exceptions import EXCEPTIONS, exception_of
from benchmarks.onnx_audit.judging import DIFFERS, EXCEPTED, OUTCOMES, REFUSED, SAME, differing, judged
from benchmarks.onnx_audit.report import document

X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)


def case(operator, *feeds, version=None, **attributes):
    node = helper.make_node(
        operator, [f"i{k}" if a is not None else "" for k, a in enumerate(feeds)], ["y"], **attributes
    )
    return Case(operator, version or versions()[operator][-1], "case", node, feeds)


def test_an_input_of_today_is_an_attribute_of_an_older_version():
    clip = written(case("Clip", X, np.float32(-1), np.float32(2)), 6)
    assert clip is not None and clip.attributes() == {"min": -1.0, "max": 2.0} and len(clip.feeds) == 1
    summed = written(case("ReduceSum", X, np.int64([1]), keepdims=0), 11)
    assert summed is not None and summed.attributes() == {"keepdims": 0, "axes": [1]}
    assert summed.model().opset_import[0].version == last_set("ReduceSum", 11) == 12


def test_inputs_stand_where_a_version_has_them():
    resize = case("Resize", X, None, np.float32([1, 2]), mode="nearest")
    older = written(resize, 10)
    assert older is not None and [a is None for a in older.feeds] == [False, False]
    assert written(case("Resize", X, None, None, np.int64([3, 8]), mode="nearest"), 10) is None
    assert written(case("Resize", X, None, np.float32([1, 2]), antialias=1), 11) is None
    assert written(case("Add", X.astype(np.int8), X.astype(np.int8)), 7) is None


def test_one_thing_varies_at_a_time():
    told = {v.about.split(", ", 1)[1] for v in variations(case("Softmax", X, axis=1))}
    assert {"axis=0", "axis=-1", "axis=-2", "float64", "float16", "empty axis=0"} <= told
    assert "broadcast=(3, 1)" in {v.about.split(", ", 1)[1] for v in variations(case("Add", X, X))}


def test_rounding_is_no_difference():
    odd = np.float32([np.inf, np.nan, 1])
    assert not differing((X,), (X + np.float32(1e-7),)) and not differing((odd,), (odd.copy(),))
    assert "expected [-6, -5, -4, -3], got [-4, -3, -2, -1]" in differing((X + 2,), (X,))
    assert "expected float32[3, 4], got float32[4, 3]" in differing(
        (X.T,), (X,)
    ) and "expected 1 results, got 2" in differing((X, X), (X,))
    assert "expected [1], got [0]" in differing((np.int64([0, 2]),), (np.int64([1, 2]),))


@pytest.mark.parametrize(
    ("of", "kind"),
    [
        (case("Relu", X), SAME),
        (case("Softmax", X[None], axis=1, version=11), EXCEPTED),
        (case("Einsum", X, equation="ij->ij,"), REFUSED),
    ],
)
def test_what_becomes_of_a_case(of, kind):
    assert judged(of).kind == kind


def test_a_fault_is_found(monkeypatch):
    monkeypatch.setattr("benchmarks.onnx_audit.judging._ours", lambda *_: (np.zeros_like(X),))
    found = judged(case("Neg", X))
    assert found.kind == DIFFERS and "ONNX Runtime sides with the reference" in found.reason
    rows = [{"operator": "Neg", "version": 13, "counts": dict.fromkeys(OUTCOMES, 0) | {DIFFERS: 1},
             "told": {DIFFERS: {found.reason: "case"}}}]  # fmt: skip
    rows.append({"operator": "Neg", "version": 13, "compiled": DIFFERS, "reason": "case, compiled: expected [2]"})
    page = document(rows)
    assert "| Neg-13 | expected" in page and "| Neg-13 | case, compiled: expected [2] |" in page
    assert "| Neg | 13 | 0 | 0 | 0 | 0 | 1 | differs |" in page


def test_exceptions_are_of_operators_that_there_are():
    assert all(set(e.operators) <= set(audit.operators()) for e in EXCEPTIONS)
    assert exception_of(case("Softmax", X, axis=1)) is None
    assert exception_of(case("ConvTranspose", X[None], X[None, :, :2], version=1)) is None


def test_every_operator_that_is_lowered_is_audited():
    assert {"Conv", "Attention", "Resize"} <= set(audit.operators())
    assert "NonZero" not in audit.operators()


# One test, since collecting the suite takes longer than judging a few operators.
def test_some_operators_do_what_their_specification_says(tmp_path, monkeypatch, capsys):
    arguments = ["--operators", "Squeeze,ReduceMax,Upsample", "--most", "6", "--state", str(tmp_path / "state")]
    assert audit.main(arguments) == 0
    first = capsys.readouterr().out
    assert "'differs': 0" in first and "'same': 0" not in first
    assert len(list(cases_of("Squeeze", 1, 6))) > 2
    monkeypatch.setattr(audit, "judged", lambda *_, **__: pytest.fail("judged again"))
    assert audit.main(arguments) == 0
    assert capsys.readouterr().out.split(" s\n")[0].rsplit(",", 1)[0] == first.split(" s\n")[0].rsplit(",", 1)[0]
