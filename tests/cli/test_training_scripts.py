"""Verbs for training steps take an unmodified script, and list all errors in the providers of an entry file."""

import io
import json

import pytest

from tests.git_repositories import commit_all

torch = pytest.importorskip("torch")

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from parts import WIDTH

model = nn.Sequential(nn.Linear(6, WIDTH), nn.ReLU(), nn.Linear(WIDTH, int(sys.argv[1])))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.randn(40, 6)), batch_size=4):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
"""
BROKEN = """
def modl_provider(): ...

def input_provider(batch_size): ...

def iteration_provider(): ...
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Return a script in a repository, whose module is changed since HEAD."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "parts.py").write_text("WIDTH = 100\n")
    commit_all(tmp_path)
    (tmp_path / "train.py").write_text("# moved\n" + SCRIPT)
    (tmp_path / "parts.py").write_text("WIDTH = 200\n")
    monkeypatch.chdir(tmp_path)
    return "train.py"


@pytest.mark.slow
def test_forecast_memory_and_sweep_take_a_script_with_its_arguments(cli, script):
    code, out, err = cli("forecast", script, "--yes", "--json", "-d", "a100,h100", "--", "3")
    assert code == 0, err
    assert [(row["device"], row["batch"]) for row in json.loads(out)] == [("a100", 4), ("h100", 4)]
    code, out, err = cli("memory", script, "--yes", "--json", "--batch", "8", "--", "3")
    assert code == 0, err
    (row,) = json.loads(out)
    weights = 4 * (6 * 200 + 200 + 200 * 3 + 3)
    assert (row["batch"], row["by_kind"]["parameter"] >= weights) == (8, True)
    code, out, err = cli("sweep", script, "--yes", "--json", "-d", "a100", "--batch", "4,16", "--", "3")
    assert code == 0, err
    assert [row["batch"] for row in json.loads(out)] == [4, 16]


@pytest.mark.parametrize("verb", ["profile", "forecast", "memory", "sweep"])
def test_no_verb_runs_a_script_unasked(cli, script, verb, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code, out, err = cli(verb, script)
    assert (code, out) == (2, "")
    assert "train.py has no providers" in err and "got no terminal to ask on. Pass --yes." in err


@pytest.mark.parametrize("verb", ["profile", "forecast", "memory", "sweep"])
def test_an_entry_file_takes_no_arguments(cli, tmp_path, verb):
    (tmp_path / "entry.py").write_text(BROKEN)
    code, _, err = cli(verb, tmp_path / "entry.py", "--yes", "--", "--width", "3")
    assert code == 2 and "entry.py: expected no arguments for a file of this kind" in err


@pytest.mark.parametrize("verb", ["profile", "forecast", "memory", "sweep"])
def test_errors_of_providers_are_listed_with_their_lines(cli, tmp_path, verb):
    project = tmp_path / "project"
    (project / "inner").mkdir(parents=True)
    (project / "setup.cfg").write_text("")
    (project / "inner" / "entry.py").write_text(BROKEN)
    code, out, err = cli(verb, project / "inner" / "entry.py")
    lines = err.strip().splitlines()
    assert (code, out) == (1, "")
    assert [line.split(": expected")[0] for line in lines] == [
        "roller: error: inner/entry.py:1", "roller: error: inner/entry.py:4: input_provider",
        "roller: error: inner/entry.py:6: iteration_provider",
    ]  # fmt: skip
    code, out, _ = cli(verb, project / "inner" / "entry.py", "--json")
    errors = json.loads(out)["errors"]
    assert code == 1
    assert [(one["file"], one["line"]) for one in errors] == [("inner/entry.py", n) for n in (1, 4, 6)]
    assert [f"roller: error: {one['file']}:{one['line']}: {one['text']}" for one in errors] == lines


@pytest.mark.slow
def test_a_script_against_a_revision_runs_with_the_modules_of_that_revision(cli, script):
    code, out, err = cli("profile", script, "--yes", "--against", "git:HEAD", "--", "3")
    assert code == 0, err
    rows = [row.split() for row in out[out.index("weights made here") :].splitlines()[1:]]
    wider = 4 * 100 * (6 + 1 + 3)
    assert (rows[0][0], rows[0][-2:]) == ("train.py:9", [f"{wider / (1 << 20):+.3f}", "MiB"])
    assert not any(row[0] == "train.py:8" for row in rows)  # where it was


@pytest.mark.slow
def test_the_script_of_a_revision_is_asked_for_by_its_revision(cli, script, monkeypatch):
    asked = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda text, **_: asked.append(text) or len(asked) == 1)
    code, _, err = cli("profile", script, "--against", "git:HEAD", "3")
    assert [text.split(" has no")[0] for text in asked] == ["train.py", "train.py at HEAD"]
    assert (code, "train.py at HEAD: expected yes, got no. Nothing ran." in err) == (2, True)
