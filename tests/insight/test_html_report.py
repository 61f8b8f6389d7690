"""``roller report``: what a path leads to, and one HTML file of it."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest

import roller
from roller.errors import ArtifactError, RollerError
from roller.insight.rate_card import HourlyRate, RateCard
from roller.insight.step_profile.difference import difference
from roller.insight.step_profile.hints_difference_json import hints_and_difference_data
from roller.insight.step_profile.profile_html_page import profile_html
from roller.insight.step_profile.profile_json import profile_to_json_data, save_profile
from roller.insight.step_profile.read_saved_profile_json import load_profile_with_hints
from roller.insight.step_profile.source_line_reader import source_line_reader
from roller.report.report_of_path import hints_page_data, html_report, kind_of_report
from tests.insight.step_profile.profiles import small_profile
from tests.insight.step_profile.test_hints import graph_with_lines
from tests.report.pages import data_of

SCRIPT = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=8)
width = parser.parse_args().width
net = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.zeros(64, 32), torch.zeros(64, 1)), batch_size=16):
    optimizer.zero_grad()
    (net(x) - y).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture
def profile_file(tmp_path):
    save_profile(small_profile(), tmp_path / "profile.json")
    return tmp_path / "profile.json"


def test_a_profile_becomes_a_page(cli, profile_file, tmp_path):
    out = tmp_path / "r.html"
    code, said, _ = cli("report", str(profile_file), "--out", str(out))
    assert code == 0 and "report of a profile" in said and "no network" in said
    data = data_of(out.read_text(encoding="utf-8"))
    assert data["iteration_s"] == json.loads(profile_file.read_text())["iteration_s"]


def test_kinds_are_told_by_content(tmp_path, profile_file):
    kernel = roller.compile(roller.ops.matmul(32, 32, 32), device="v100", top_k=1)
    kernel.artifact.save(tmp_path / "k.json")
    (tmp_path / "recording.json").write_text(json.dumps({"metadata": "x" * 9000, "traceEvents": []}))
    (tmp_path / "list.json").write_text('[{"ph": "X"}]')
    (tmp_path / "bench.json").write_text('{"run": {}, "rows": [{"a": 1}]}')
    providers = ("model_provider", "input_provider", "iteration_provider")
    (tmp_path / "entry.py").write_text("".join(f"def {name}(): ...\n" for name in providers))
    with gzip.open(tmp_path / "r.json.gz", "wb") as file:
        file.write(b"{}")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.json").write_text("{}")
    kinds = {
        "profile.json": "profile", "k.json": "kernel", "recording.json": "recording", "list.json": "recording",
        "bench.json": "benchmark", "entry.py": "entry", "r.json.gz": "recording", "model": "compiled model",
    }  # fmt: skip
    assert {name: kind_of_report(tmp_path / name) for name in kinds} == kinds


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(RollerError, match="expected a file, got none"):
        html_report(tmp_path / "nothing.json")


@pytest.mark.parametrize("name", ["a.txt", "b.json", "c.json", "d.png", "folder"])
def test_what_is_not_understood_is_refused_with_a_list_of_what_is(tmp_path, name):
    (tmp_path / "folder").mkdir()
    contents = {"a.txt": "hello", "b.json": '{"a": 1}', "c.json": "not json", "d.png": "\x89PNG"}
    if name in contents:
        (tmp_path / name).write_text(contents[name], encoding="utf-8")
    with pytest.raises(RollerError) as error:
        html_report(tmp_path / name)
    said = str(error.value)
    assert said.count("expected") == 1 and name in said
    for kind in ("entry file", "ONNX model", "recording", "saved profile", "kernel", "benchmark", "compiled model"):
        assert kind in said


@pytest.mark.parametrize("option", [("--device", "a100"), ("--batch", "4"), ("--curve",), ("--measure",)])
def test_options_that_do_not_apply_are_refused(cli, profile_file, option):
    code, _, said = cli("report", str(profile_file), *option)
    assert code == 2 and f"expected no {option[0]} for a profile" in said


def test_prices_without_hints_are_refused(cli, profile_file, tmp_path):
    code, _, said = cli("report", profile_file, "--prices", tmp_path / "p.yaml")
    assert code == 2 and "--prices: expected --hints beside it" in said


def test_a_page_holds_the_difference_to_another_profile(cli, profile_file, tmp_path):
    save_profile(replace(small_profile(), name="before.py"), tmp_path / "before.json")
    out = tmp_path / "r.html"
    code, _, err = cli("report", profile_file, "--against", tmp_path / "before.json", "--out", out)
    assert code == 0, err
    found = data_of(out.read_text(encoding="utf-8"))["difference"]
    assert (found["before"]["name"], found["after"]["name"], found["kind"]) == ("before.py", "train.py", "predicted")
    assert found["delta_s"] == 0 and found["lines"] == []
    assert "difference" not in data_of(html_report(profile_file))


def test_a_page_holds_hints_with_their_price(tmp_path):
    profile = replace(small_profile(), make_graph=graph_with_lines)
    card = RateCard("EUR", {"a100": HourlyRate(3.6, "mine", "2020-01-31")})
    parts = hints_page_data(profile, card)
    found = data_of(profile_html(profile, parts=parts))
    assert [x["change"] for x in found["hints"]] == [x.change for x in profile.hints()]
    amp = next(x for x in found["hints"] if x["change"] == "AMP()")
    assert amp["price_after"] == pytest.approx(amp["iteration_s"] / 8 * 1e6 * 0.001)
    assert amp["line"] == "train.py:10" and found["price"]["is_old"] is True and "price_note" not in found
    lacking = hints_page_data(profile, RateCard("EUR", {}))
    assert lacking["price"] is None and lacking["price_note"] == "No price for a100: its cost is not shown."
    assert all(x["price_after"] is None for x in lacking["hints"])
    private = data_of(profile_html(profile, parts=parts, anonymous=True))
    assert "train.py" not in json.dumps(private["hints"])


def test_the_text_of_lines_is_read_below_the_entry_file_alone(tmp_path):
    (tmp_path / "secret.py").write_text("password = 1\n")
    project = tmp_path / "project"
    project.mkdir()
    (project / "model.py").write_text("a\n  b = 2\n")
    (project / "notes.txt").write_text("not code\n")
    text_of = source_line_reader(project / "train.py")
    assert text_of("model.py:2") == "b = 2" and text_of("model.py:9") == ""
    assert text_of("../secret.py:1") == "" and text_of(f"{tmp_path}/secret.py:1") == "" and text_of("notes.txt:1") == ""


def test_a_program_without_providers_is_not_run(cli, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit('it ran')\n")
    code, _, err = cli("report", script, "--out", tmp_path / "r.html")
    assert code == 2 and "expected permission to run it, got no terminal to ask on. Pass --yes." in err
    assert not (tmp_path / "r.html").exists()


@pytest.mark.slow
def test_a_script_becomes_a_page_with_its_arguments(cli, tmp_path):
    pytest.importorskip("torch")
    script, out = tmp_path / "script.py", tmp_path / "r.html"
    script.write_text(SCRIPT)
    code, _, err = cli("report", script, "--yes", "--out", out, "--hints", "--", "--width", "262144")
    assert code == 0, err
    found = data_of(out.read_text(encoding="utf-8"))
    assert found["batch"] == 16 and found["source"] == "predicted" and found["hints"]
    notes = {x["change"]: x["memory_note"] for x in found["hints"]}
    assert notes["AMP()"] == "not modelled: a training script chooses its own precision."
    assert "nn.Linear(32, width)" in str(found["names"])  # the text of lines
    narrow = roller.profile(script, "a100", arguments=["--width", "8"])
    assert found["total_bytes"] > narrow.total_bytes


def test_arguments_are_for_scripts(cli, profile_file):
    code, _, err = cli("report", profile_file, "--", "--width", "48")
    assert code == 2 and "expected no arguments for a file of this kind" in err


def _printed(profile):
    other = replace(profile, name="before.py")
    hints = replace(profile, make_graph=graph_with_lines).hints(3.6)
    card = HourlyRate(3.6, "mine", "2020-01-31")
    return {
        "profile": profile_to_json_data(profile),
        **hints_and_difference_data(profile, hints, difference(other, profile), "EUR", card),
    }


def test_what_profile_prints_becomes_a_page_with_its_hints_price_and_difference(cli, tmp_path):
    data, out = _printed(small_profile()), tmp_path / "r.html"
    for whole in (data, [data]):
        (tmp_path / "p.json").write_text(json.dumps(whole, indent=1))
        for options in ((), ("--hints",)):
            code, said, err = cli("report", tmp_path / "p.json", "--out", out, *options)
            assert code == 0 and "report of a profile" in said, err
            found = data_of(out.read_text(encoding="utf-8"))
            assert {name: found[name] for name in ("hints", "price", "difference")} == {
                name: data[name] for name in ("hints", "price", "difference")
            }
    assert roller.load_profile(tmp_path / "p.json") == small_profile()


def test_a_saved_profile_without_hints_says_how_to_write_them(cli, profile_file, tmp_path):
    code, _, err = cli("report", profile_file, "--hints", "--out", tmp_path / "r.html")
    assert code == 2 and "a saved profile has no hints: write them with roller profile train.py --json --hints" in err
    code, _, err = cli("report", profile_file, "--hints", "--prices", tmp_path / "p.yaml")
    assert code == 2 and "--prices: expected none for a saved profile" in err


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda x: [x, x], "expected one profile, got 2"),
        (lambda x: x | {"hints": {}}, "hints: expected a list, got {}"),
        (lambda x: x | {"hints": [7]}, "hints: expected an object, got 7"),
        (lambda x: x | {"hints": [x["hints"][0] | {"delta_s": "1"}]}, "hints: delta_s: expected a number, got '1'"),
        (lambda x: x | {"hints": [x["hints"][0] | {"assumptions": [1]}]}, "assumptions: expected a list of texts"),
        (lambda x: x | {"price": {"currency": "EUR"}}, "price: source: expected a text, got None"),
        (lambda x: x | {"difference": x["difference"] | {"before": None}}, "difference: before: expected an object"),
        (lambda x: x | {"difference": x["difference"] | {"lines": [{}]}}, "lines: name: expected a text, got None"),
        (lambda x: x | {"profile": 7}, "expected a profile of roller, got JSON of another kind"),
    ],
)
def test_what_is_printed_beside_a_profile_is_checked(tmp_path, damage, said):
    path = tmp_path / "roller-profile.json"
    path.write_text(json.dumps(damage(_printed(small_profile()))))
    with pytest.raises(ArtifactError) as refused:
        load_profile_with_hints(path)
    assert said in str(refused.value)


def test_an_anonymous_benchmark_does_not_tell_its_name(tmp_path):
    path = tmp_path / "secret_results.json"
    path.write_text('{"run": {"cwd": "/home/jane/x"}, "rows": [{"a": 1}]}')
    page = html_report(path, anonymous=True)
    assert "secret" not in page and "secret" not in str(data_of(page)) and "jane" not in str(data_of(page))
