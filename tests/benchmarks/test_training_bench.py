"""The training benchmark's results, and the page of what is published beside ours: every figure is that of a file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks import reproduction, training  # noqa: E402
from benchmarks.__main__ import SUITES  # noqa: E402
from benchmarks.reproduced.changes import errors_of_what_ifs  # noqa: E402

DATA = json.loads(training.RESULTS.read_text(encoding="utf-8"))


def run(*words):
    done = subprocess.run([sys.executable, "-m", "benchmarks", *words], cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_the_committed_page_is_that_of_the_committed_results():
    assert reproduction.PAGE.read_text(encoding="utf-8") == reproduction.page()
    assert training.RESULTS.with_suffix(".md").read_text(encoding="utf-8") == training.report(DATA)


def test_all_cases_of_both_devices_are_there_and_labelled():
    asked = {(model, device) for model in training.CASES for device in ("p4000", "titanxp")}
    assert {(row["model"], row["device"]) for row in DATA["rows"]} == asked
    assert {row["kind"] for row in (*DATA["rows"], *DATA["clusters"], *DATA["observations"])} == {"predicted"}
    assert "Nothing here is measured" in training.report(DATA) and DATA["run"]["device"] == "p4000,titanxp"


def test_only_models_of_the_first_edition_speak_against_an_observation():
    cases = [
        {"model": "ncf", "name": "ncf, v100", "agrees": False, "figures": "x"},
        {"model": "a3c", "name": "a3c, v100", "agrees": False, "figures": "y"},
        {"model": "seq2seq", "name": "seq2seq, v100", "agrees": True, "figures": "z"},
    ]
    (one,) = training.observed({"observations": [{"number": 1, "cases": cases}]})
    assert one == {"number": 1, "against": ["a3c, v100: y"]}


def test_the_errors_of_what_ifs_are_read_from_their_table():
    errors = errors_of_what_ifs()
    assert len(errors) >= 10 and errors["fused Adam"] == 2.0


@pytest.mark.slow
def test_suites_are_named_and_run_by_their_names(tmp_path):
    code, text = run("list")
    assert code == 0 and all(name in text for name in SUITES)
    for words in ((), ("run",), ("run", "nothing"), ("list", "more")):
        assert run(*words)[0] != 0
    assert "expected a suite, got 'nothing'" in run("run", "nothing")[1]
    out = tmp_path / "page.md"
    assert run("report", "--out", str(out))[0] == 0 and out.read_text() == reproduction.page()
    out.write_text("old")
    code, text = run("report", "--check", "--out", str(out))
    assert code == 1 and "not up to date" in text
