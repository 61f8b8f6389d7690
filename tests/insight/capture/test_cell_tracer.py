"""Code that uses objects of this process is traced in a fork: like a script, and without changing the process."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

from roller.errors import ModelError  # noqa: E402
from roller.insight.capture.cell_tracer import CellTracer  # noqa: E402
from roller.insight.capture.script_tracer import trace_script  # noqa: E402

#: What earlier cells make, in a process whose pool of threads has computed and gone backward.
BEFORE = """
import threading, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 3))
data = TensorDataset(torch.randn(400, 64), torch.randint(3, (400,)))
loader = DataLoader(data, batch_size=16, num_workers=2, persistent_workers=True, shuffle=True)
critic = torch.optim.SGD(model[2].parameters(), lr=0.1)
optimizer = torch.optim.Adam(model[0].parameters())
"""
LOOP = """
for number, (x, y) in enumerate(loader):
    optimizer.zero_grad(), critic.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    critic.step()
    if number % 2:
        optimizer.step()
torch.save(model, "model.pt")
open("log.txt", "w").write("x")
"""
SESSION = """
import json, os
from roller.insight.capture.cell_tracer import trace_cell
from roller.insight.step_profile.profiling import profile

names = {"__name__": "__main__"}
exec(compile(BEFORE, "<cell-1>", "exec"), names)
torch, model = names["torch"], names["model"]
threading = names["threading"]
threading.Thread(target=names["time"].sleep, args=(1000,), daemon=True).start()
(torch.randn(500, 500) @ torch.randn(500, 500)).sum()
model(torch.randn(256, 64)).sum().backward()
model.zero_grad()
weights = [p.clone() for p in model.parameters()]
code = compile(LOOP, "<cell-2>", "exec")
cells = {"<cell-1>": "In[1]", "<cell-2>": "In[2]"}
step = trace_cell(code, names, "In[2]", lambda file: cells.get(file, ""), device="a100")
other = step.at(batch=32)
found = profile(step, "a100")
print(json.dumps({
    "batch": step.options["batch"], "optimizer": step.options["optimizer"], "other": other.options["batch"],
    "accumulate": step.options["accumulate"], "networks": step.options["networks"], "loss": step.options["loss"],
    "changed": step.options["changed_parameters"], "seconds": found.iteration_s, "bytes": found.total_bytes,
    "lines": [node.name for node in found.root.walk() if node.kind == "line"],
    "same": all(torch.equal(a, b) for a, b in zip(weights, model.parameters())), "number": "number" in names,
    "state": len(names["optimizer"].state), "files": os.listdir("."), "workers": names["loader"].num_workers,
}))
"""


@pytest.mark.slow
def test_a_cell_gives_the_profile_of_its_script_and_changes_nothing(tmp_path):
    from roller.insight.step_profile.profiling import profile

    (tmp_path / "own").mkdir()
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", f"BEFORE, LOOP = {BEFORE!r}, {LOOP!r}\n" + SESSION], cwd=tmp_path / "own", text=True,
        capture_output=True, env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    script = tmp_path / "train.py"
    script.write_text(BEFORE + LOOP)
    step = trace_script(script, device="a100")
    expected = profile(step, "a100")
    assert (said["batch"], said["other"], said["accumulate"]) == (16, 32, step.options["accumulate"])
    assert (said["optimizer"], said["networks"]) == ("SGD, Adam", {"model": "Sequential"})
    assert (said["seconds"], said["bytes"]) == (expected.iteration_s, expected.total_bytes)
    assert (said["loss"], said["changed"]) == ("In[2]:4", 0)
    assert {line for line in said["lines"] if line.startswith("In[2]")} == {"In[2]:4", "In[2]:5", "In[2]:7"}
    assert all(line.startswith("In[") for line in said["lines"])
    assert (said["same"], said["number"], said["state"], said["files"], said["workers"]) == (True, False, 0, [], 2)


ERRORS = """
import json, os
from roller.errors import RollerError
from roller.insight.capture.cell_tracer import trace_cell
import torch

def said(text, **named):
    code = compile(text, "<cell-5>", "exec")
    try: trace_cell(code, {}, "In[5]", lambda file: "In[5]" if file == "<cell-5>" else "", **named)
    except RollerError as error: return str(error)

print(json.dumps([
    said("1\\nraise ValueError('odd')"), said("import sys\\nsys.exit(3)"), said("while True: pass", patience_s=1),
    said("import subprocess\\nsubprocess.run(['true'])"), said("import os\\nos._exit(4)"),
]))
try: os.waitpid(-1, os.WNOHANG)
except ChildProcessError: print("no child is left")
"""


@pytest.mark.slow
def test_what_is_wrong_in_a_cell_is_said_with_its_line(tmp_path):
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ERRORS)], cwd=tmp_path, text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": paths}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    errors, left = done.stdout.splitlines()
    failed, left_off, waited, refused, ended = json.loads(errors)
    assert "got ValueError at In[5]:2: odd" in failed
    assert "In[5]: expected a script that trains, got its end with status 3" in left_off
    assert "got 1 seconds, the last at In[5]:1, without a step" in waited
    assert "got subprocess.Popen true at In[5]:2. Pass" in refused
    assert "got its end with status 4" in ended
    assert left == "no child is left"


def test_where_no_fork_can_trace_it_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(ModelError, match=r"In\[1\]: expected a kernel that has not used a GPU"):
        CellTracer(compile("", "<cell>", "exec"), {}, "In[1]")
    monkeypatch.delattr(os, "fork")
    with pytest.raises(ModelError, match=r"In\[1\]: expected a system that forks processes"):
        CellTracer(compile("", "<cell>", "exec"), {}, "In[1]")
