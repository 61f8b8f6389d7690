"""Providers under the names of other tools are read, and all that is wrong with them is told at once."""

import pytest

torch = pytest.importorskip("torch")

from roller.errors import ModelError  # noqa: E402
from roller.insight.trace.entry_file_providers import ProviderErrors, ProviderProblem, is_script  # noqa: E402
from roller.insight.tracing import trace_entry  # noqa: E402

ENTRY = """
import torch
from torch import nn

def {0}model_provider():
    return nn.Linear(8, 2).cuda()

def {0}input_provider(batch_size=4):
    return (torch.zeros(batch_size, 8).cuda(),)

def {0}iteration_provider(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    def step(x):
        model(x).sum().backward()
        optimizer.step()
    return step
"""


@pytest.mark.parametrize("prefix", ["", "deepview_", "skyline_"])
def test_files_of_other_tools_load_unchanged(prefix, tmp_path):
    path = tmp_path / "entry.py"
    path.write_text(ENTRY.format(prefix))
    assert not is_script(path)
    step = trace_entry(path, batch=6)
    assert step.options["batch"] == 6
    assert [o.name for o in step.steady() if o.phase == "forward"][:2] == ["aten.t.default", "aten.addmm.default"]


def test_all_errors_are_told_at_once_with_their_lines(tmp_path):
    path = tmp_path / "entry.py"
    text = ENTRY.format("").replace("input_provider(batch_size=4)", "input_provider(batch_size)")
    text = text.replace("def iteration_provider(model)", "def iteration_provider()").replace("model_provider", "modl")
    path.write_text(text)
    with pytest.raises(ProviderErrors) as raised:
        trace_entry(path)
    problems = raised.value.problems
    assert [(one.file, one.line) for one in problems] == [("entry.py", 1), ("entry.py", 8), ("entry.py", 11)]
    assert problems[0].text.startswith("expected a function model_provider, got none")
    assert "expected a default of batch_size that is a number" in problems[1].text
    assert "expected def iteration_provider(model), got iteration_provider()" in problems[2].text
    assert "expected three providers, got 3 errors: (1) line 1: " in str(raised.value)
    again = ProviderErrors.from_json_rows(raised.value.rows())
    assert (again.problems, str(again)) == (problems, str(raised.value))


def test_a_missing_provider_is_no_misspelling_of_another_one(tmp_path):
    path = tmp_path / "entry.py"
    text, missing = ENTRY.format(""), "entry.py: expected a function iteration_provider, got none"
    for name, hint in (("train", "."), ("iterations_provider", "; did you mean 'iterations_provider'?")):
        path.write_text(text.replace("iteration_provider", name))
        with pytest.raises(ProviderErrors) as raised:
            trace_entry(path)
        assert str(raised.value) == f"{missing}{hint} Define model_provider, input_provider, iteration_provider."


def test_one_error_is_a_sentence():
    assert str(ProviderErrors([ProviderProblem("a.py", 3, "expected x, got y. Do z.")])) == (
        "a.py: expected x, got y. Do z."
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("print('trains')", True),
        ("from parts import *", False),
        ("from parts import deepview_model_provider", False),
        ("model_provider = None", False),
        ("def skyline_input_provider(): ...", False),
        ("def def", False),
    ],
)
def test_a_script_is_a_program_that_binds_no_provider(text, expected, tmp_path):
    path = tmp_path / "file.py"
    path.write_text(text)
    assert is_script(path) is expected


def test_a_script_is_no_entry_file_and_does_not_run(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("raise SystemExit('ran')")
    with pytest.raises(ModelError, match=r"profile it as a script: roller profile train\.py"):
        trace_entry(path)
