"""The audit of PyTorch's operators: what it finds of a handful, its state, and its page."""

import json

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'roller[torch]'")
pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript: pip install 'roller[torch]'")

from benchmarks.torch_audit import report  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def verdict(**parts):
    return {"samples": 9, "tried": 4, "taken": 4, "left": {}, "differs": {}, "compiled": "", "note": "", **parts}


UNLIKE = {"7": "result 0 differs in 1 of 2 elements"}
STATE = {
    "torch": "2.13.0", "operators": ["abs", "add", "fft.fft", "sort"], "most": 4,
    "verdicts": {
        "abs float32": verdict(compiled="agrees"), "abs int64": verdict(),
        "add float32": verdict(taken=3, left={"Add: [a_b] <c>": 1}, differs=UNLIKE),
        "fft.fft float32": verdict(taken=0, left={"operator 'fft_fft' has complex numbers": 4}),
        "fft.fft int64": {"note": "ended the process"},
    },
}  # fmt: skip


def test_the_page_counts_and_lists_what_was_found():
    text = report.page(STATE)
    assert "has 4 entries" in text and "3 of them were audited: 16 samples of 36, at most 4" in text
    assert "**1 samples differ.** Of 1 operators and dtypes one sample was compiled and called, too: 0 differ." in text
    assert "| float32 | 3 | 1 | 1 | 1 | 0 | 7 | 1 |" in text and "| int64 | 2 | 1 | 0 | 0 | 1 | 4 | 0 |" in text
    assert "| `abs` | float32 4/4, int64 4/4 |  |" in text
    assert r"| `add` | float32 3/4 | float32: **differs** (sample 7): result 0 differs" in text
    assert r"float32: Add: (a\_b) ‹c›" in text
    assert r"| `fft.fft` |  | float32: operator 'fft\_fft' has complex numbers; int64: ended the process |" in text
    assert "Not audited yet, 1: `sort`." in text


@pytest.mark.slow
def test_a_handful_of_operators_and_a_run_that_goes_on(tmp_path):
    from benchmarks.torch_audit.__main__ import main

    state, names = tmp_path / "state.json", "remainder,floor_divide,logaddexp,log1p,fft.fft,scatter_reduce.mean"
    given = {"resume": state, "minutes": 600.0, "most": 4, "page": None}
    main(ops=names, dtypes="float32", compiling=False, **given)
    found = json.loads(state.read_text())["verdicts"]
    assert set(found) == {f"{n} float32" for n in names.split(",")}
    for name, v in found.items():
        assert not v["differs"], name
        assert v["tried"] == v["taken"] + sum(v["left"].values()), name
        assert (v["taken"] == 0) == name.startswith("fft"), name
    assert "**0 samples differ.**" in state.with_suffix(".md").read_text()
    main(ops="log1p", dtypes="float32", compiling=True, **given)
    again = json.loads(state.read_text())["verdicts"]
    assert again.pop("log1p float32")["compiled"] == "agrees" and again == {
        k: v for k, v in found.items() if not k.startswith("log1p")
    }
    main(ops="", dtypes="float32", compiling=False, **{**given, "minutes": 0.0})
    assert json.loads(state.read_text())["verdicts"].keys() == found.keys()


@pytest.mark.slow
def test_an_error_of_ours_is_no_sample_left_to_pytorch(monkeypatch):
    from benchmarks.torch_audit import judge
    from benchmarks.torch_audit.samples import name_of, operators

    (info,) = [one for one in operators() if name_of(one) == "add"]
    right = judge.judged(info, "float32", most=4, compiling=False)
    assert right.taken == right.tried == 4 and not right.differs
    monkeypatch.setattr(judge, "evaluate_program", lambda program, feeds: {}[0])
    wrong = judge.judged(info, "float32", most=4, compiling=False)
    assert wrong.tried == wrong.taken == 4 and not wrong.left
    assert len(wrong.differs) == 4 and set(wrong.differs.values()) == {"fails: KeyError: 0"}
    monkeypatch.setattr(judge, "partition_graph", lambda graph: {}[0])
    assert list(judge.judged(info, "float32", most=4, compiling=False).left) == ["internal error: 0"]
