"""``%load_ext roller`` adds a magic that profiles a cell; ``import roller`` loads neither it nor IPython."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from roller.cli.notebook import SCRIPT_TO_CELL_WORDS
from roller.insight.capture import script_worker

pytest.importorskip("torch")

from roller.insight.trace.pytorch import recognize_script_steps, script_runner

SESSION = """
import contextlib, io, json, os, sys
import roller
assert hasattr(roller, "load_ipython_extension") and "IPython" not in sys.modules
from traitlets.config import Config
from IPython.core.interactiveshell import InteractiveShell

config = Config()
config.HistoryManager.enabled = False
shell = InteractiveShell(config=config)
errors = []

def run(cell):
    done = shell.run_cell(cell, store_history=True)
    error = done.error_before_exec or done.error_in_exec
    if error: errors.append((type(error).__name__, str(error)))
    return done.result

run("%load_ext roller")
run('''import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Linear(64, 3)
loader = DataLoader(TensorDataset(torch.randn(400, 64)), batch_size=16)
optimizer = torch.optim.Adam(model.parameters())
''')
found = run('''%%roller_profile --device 2xh100 --batch 8

for (x,) in loader:
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
''')
for cell in ("--device none\\n1", "--bad\\n1", "-d a100,h100\\n1", "\\nx = (", "\\nawait x", "\\nprint(1)",
             "\\nmodle(1)", "-d cpu\\n1"):
    run("%%roller_profile " + cell)
run("%roller_profile")
with contextlib.redirect_stdout(io.StringIO()) as helped:
    run("%roller_profile --help")
lines = [node.name for node in found.root.walk() if node.kind == "line"]
with open(sys.argv[1], "w") as file:
    json.dump([found.name, found.device, found.devices, found.batch, lines, found._repr_html_()[:9], errors,
               repr(found), helped.getvalue(), found.notes], file)
"""


@pytest.mark.slow
def test_a_cell_is_profiled_with_what_earlier_cells_made(tmp_path):
    pytest.importorskip("IPython")
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(tmp_path / "found.json")], cwd=tmp_path, text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": paths, "IPYTHONDIR": str(tmp_path / "ipython")}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    name, device, devices, batch, lines, page, errors, shown, helped, notes = found
    assert (name, device, devices, batch) == ("In[3]", "h100", 2, 8)
    assert set(lines) == {"In[3]:5", "In[3]:6"}
    assert page.startswith("<")
    assert shown.startswith("In[3]: predicted on 2xh100, batch 8 per device, ") and shown.endswith(".")
    assert all(option in helped for option in ("--device NAME", "--batch N", "--calls N", "--patience SECONDS"))
    assert any("device: the cell trains on the CPU" in note for note in notes)
    assert not any("script" in text for text in [*notes, *(error for _, error in errors)])
    assert {kind for kind, _ in errors} == {"UsageError"}
    for (_, error), said in zip(
        errors,
        [
            "device 'none': unknown", "unrecognized arguments: --bad", "--device: expected one device, got 2",
            "In[7]:2: expected valid Python without await, got '(' was never closed",
            "In[8]:2: expected valid Python without await, got 'await' outside function",
            "In[9]: expected a cell that trains, got its end without a step of an optimizer. Let the cell itself train",
            "trace: expected defined names, got NameError at In[10]:2: name 'modle' is not defined (In[10] failed)",
            "In[11]: expected a GPU for a cell that trains, got the CPU. Name a GPU, e.g. --device h100.",
            "expected a cell that trains, got a line",
        ],
        strict=True,
    ):  # fmt: skip
        assert said in error


def test_what_a_cell_says_is_said_somewhere_of_a_script():
    said = [
        "".join(str(getattr(part, "value", "")) if isinstance(part, ast.Constant) else "{}" for part in parts)
        for module in (script_runner, recognize_script_steps, script_worker)
        for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8")))
        if (
            parts := node.values
            if isinstance(node, ast.JoinedStr)
            else [node]
            if isinstance(node, ast.Constant)
            else []
        )
    ]
    assert [words for words in SCRIPT_TO_CELL_WORDS if not any(words in text for text in said)] == []
    for of_cell in SCRIPT_TO_CELL_WORDS.values():
        assert "script" not in of_cell and "after --" not in of_cell


def test_importing_roller_loads_no_ipython_and_no_notebook():
    code = (
        "import sys, roller, roller.cli.main; "
        "print([m for m in sys.modules if m in ('IPython', 'roller.cli.notebook')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
