"""The commands of the workflow in the guide for CI, run in order in a repository with origin/main, do what it says."""

import json
import shlex

import pytest
import yaml

from tests.docs.pages import DOCS, blocks_of
from tests.docs.test_blocks import parse
from tests.git_repositories import commit_all, git
from tests.insight.step_profile.sarif_objects import problems_of

TRAIN = """
import torch
from torch import nn

def model_provider():
    return nn.Sequential(nn.Linear(512, 2000), nn.ReLU(), nn.Linear(2000, 8)).cuda()

def input_provider(batch_size=1024):
    return (torch.zeros(batch_size, 512).cuda(),)

def iteration_provider(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    return step
"""


def _steps():
    """Return the names and the `roller` commands of the workflow, without what their output goes to."""
    flows = [yaml.safe_load(b.text) for b in blocks_of(DOCS / "guides" / "ci.md") if b.language == "yaml"]
    (flow,) = [flow for flow in flows if "jobs" in flow]
    (job,) = flow["jobs"].values()
    words = {step.get("name"): shlex.split(step["run"].partition(" | ")[0]) for step in job["steps"] if "run" in step}
    return {name: command[1:] for name, command in words.items() if command[0] == "roller"}


def test_the_commands_of_the_workflow_have_verbs_and_options_that_there_are():
    assert list(_steps()) == ["Profile", "Report", "Difference to main", "Sizes that cost", "Budget"]
    for command in _steps().values():
        parse(command)


@pytest.mark.slow
def test_the_commands_of_the_workflow_run_in_their_order(cli, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    onnx = pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    assert cli("profile", "train.py", "-d", "h100", "--write-budget", "budget.yaml")[0] == 0
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[8, 16] x) => (float[8, 16] y) { y = Relu(x) }'
    )
    onnx.save(model, "model.onnx")
    commit_all(tmp_path)
    git(tmp_path, "update-ref", "refs/remotes/origin/main", "HEAD")
    for name, command in _steps().items():
        code, out, err = cli(*command)
        assert code == 0, f"{name}: {err}"
        assert name != "Difference to main" or "Difference: 0 us, 0 MiB." in out
    assert json.loads((tmp_path / "budget.sarif").read_text())["runs"][0]["results"] == []
    assert (tmp_path / "report.html").stat().st_size > 10_000

    (tmp_path / "train.py").write_text(TRAIN.replace("2000", "4000"))
    said = {name: cli(*command) for name, command in _steps().items()}
    assert {name: code for name, (code, _, _) in said.items() if code} == {"Budget": 1}
    difference = said["Difference to main"][1]
    first = difference[difference.index("weights made here") :].splitlines()[1]
    assert first.split()[0] == "train.py:6"
    assert "train.py:15: step: expected a time of at most" in said["Budget"][2]
    log = json.loads((tmp_path / "budget.sarif").read_text())
    assert problems_of(log) == []
    places = {r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in log["runs"][0]["results"]}
    assert places == {"train.py"}
