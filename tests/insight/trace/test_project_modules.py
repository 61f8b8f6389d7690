"""Two projects in one process whose modules have the same names."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

import roller  # noqa: E402
from roller.insight.tracing import trace_entry  # noqa: E402

ENTRY = """
import torch
from widths_of_projects import WIDTH
from parts_of_projects.layers import layer

def model_provider(): return layer(WIDTH)
def input_provider(batch_size=4): return (torch.zeros(batch_size, 8),)
def iteration_provider(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    return step
"""


def _project(folder, width, bias):
    (folder / "parts_of_projects").mkdir(parents=True)
    (folder / "widths_of_projects.py").write_text(f"WIDTH = {width}\n")
    (folder / "parts_of_projects" / "__init__.py").write_text("")
    (folder / "parts_of_projects" / "layers.py").write_text(
        f"import torch\ndef layer(width): return torch.nn.Linear(8, width, bias={bias})\n"
    )
    (folder / "train.py").write_text(ENTRY)
    return folder / "train.py"


def _weights(entry):
    return roller.profile(entry, "a100").memory_parts["parameter"]


@pytest.fixture
def projects(tmp_path, monkeypatch):
    yield _project(tmp_path / "one", 3, True), _project(tmp_path / "two", 1000, False)
    for name in list(sys.modules):
        if name.partition(".")[0] in ("widths_of_projects", "parts_of_projects"):
            del sys.modules[name]


def test_each_project_gets_its_own_modules(projects):
    one, two = projects
    assert [_weights(entry) for entry in (one, two, one)] == [4 * 27, 4 * 8000, 4 * 27]


def test_modules_of_the_project_itself_and_of_libraries_stay(projects, monkeypatch):
    one, _ = projects
    trace_entry(one)
    kept = sys.modules["widths_of_projects"], sys.modules["roller"], sys.modules["torch"]
    for name in ("torch", "roller"):
        (one.parent / f"{name}.py").write_text("raise RuntimeError('not that of this process')\n")
    trace_entry(one)
    assert kept == (sys.modules["widths_of_projects"], sys.modules["roller"], sys.modules["torch"])


def test_a_step_that_was_traced_before_can_be_traced_again(projects):
    one, two = projects
    step = trace_entry(one)
    trace_entry(two)
    sizes = {x.name: x.size_bytes for x in step.at(batch=8).storages.values() if x.kind == "parameter"}
    assert sum(sizes.values()) == 4 * 27
