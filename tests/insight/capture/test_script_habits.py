"""Habits of training scripts around the step: packages, checkpoints, programs, several GPUs; refusals say why."""

import os

import pytest

torch = pytest.importorskip("torch")

from roller.errors import ModelError  # noqa: E402
from roller.insight.capture.script_tracer import trace_script  # noqa: E402

pytestmark = pytest.mark.slow  # each runs a script in a process of its own

HEAD = """
import os, sys
import torch
from torch import nn
model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
"""
LOOP = """
for number in range(6):
    optimizer.zero_grad()
    model(torch.randn(4, 6, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that traces a script between the model and the loop, and checks that no file is made."""
    monkeypatch.chdir(tmp_path)

    def ran(text, loop=LOOP, name="train.py", **named):
        (tmp_path / name).write_text(HEAD + text + loop)
        before = sorted(tmp_path.rglob("*"))
        try:
            found = trace_script(name, device="a100", **named)
        finally:
            assert sorted(tmp_path.rglob("*")) == before
        assert found.options["changed_parameters"] == 0
        return found

    return ran


def test_a_script_of_a_package_runs_as_its_module(tmp_path, run):
    (tmp_path / "parts" / "inner").mkdir(parents=True)
    (tmp_path / "parts" / "net.py").write_text("WIDTH = 5\n")
    (tmp_path / "parts" / "inner" / "__init__.py").write_text("")
    (tmp_path / "parts" / "inner" / "data.py").write_text("from ..net import WIDTH\n")
    imports = "from .data import WIDTH\nfrom ..net import WIDTH as same\nassert __name__ == '__main__'"
    found = run(imports, name="parts/inner/train.py")
    assert found.options["networks"] == {"model": "Sequential"}


def test_checkpoints_of_any_device_are_loaded_and_written_nowhere(tmp_path, run):
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.zeros(1, 6)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "last.pt")
    plain = run("")
    found = run("""
for place in ("cuda", {"cpu": "cuda:0"}, lambda storage, _: storage.cuda()):
    saved = torch.load("last.pt", map_location=place, weights_only=False)
model.load_state_dict(saved["model"])
optimizer.load_state_dict(saved["optimizer"])
os.makedirs("runs/new", exist_ok=True)
torch.save(saved, "runs/new/first.pt")
""")
    assert [o.name for o in found.steady()] == [o.name for o in plain.steady()]
    assert {s.kind for s in found.storages.values()} >= {"optimizer_state", "parameter"}


def test_what_a_script_may_not_do_is_said_whether_it_goes_on_or_not(run):
    found = run("os.system('touch new.txt')\ntry: os.kill(os.getppid(), 0)\nexcept PermissionError: pass")
    (note,) = [sentence for sentence in found.warnings if sentence.startswith("script: ")]
    assert note == (
        f"script: blocked or redirected: os.system touch new.txt at train.py:7; os.kill {os.getpid()} at train.py:8."
    )
    with pytest.raises(ModelError, match=r"uses no network before it trains, got subprocess.Popen git at train.py:8. "
                                         r"Pass arguments that avoid it after --"):  # fmt: skip
        run("import subprocess\nsubprocess.check_output(['git', 'rev-parse', 'HEAD'])")
    with pytest.raises(ModelError, match=r"a process of multiprocessing at train.py:8"):
        run("import multiprocessing\nmultiprocessing.get_context('spawn').Process(target=print).start()")


def test_what_it_said_last_is_in_the_error_of_a_script_that_ends(run):
    with pytest.raises(ModelError, match=r"status 2, after 'train.py: error: .* arguments are required: --data'"):
        run("import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args()")


def test_a_step_over_several_gpus_is_said_to_be_that_of_one(run):
    apart = "model[2].to('cuda:1')\nmodel.forward = lambda x: model[2](model[1](model[0](x)).to('cuda:1'))\n"
    said = [sentence for sentence in run(apart).warnings if sentence.startswith("device: ")]
    assert said == [
        "device: the program uses several GPUs. It is profiled as if one GPU held and computed everything; copies "
        "between GPUs are left out."
    ]
    assert not run("x = torch.zeros(2, device='cuda:0').to(model[0].weight.device)\ny = x.cuda(0)\n").warnings


def test_averages_schedules_clipping_and_compiled_networks_are_part_of_the_step(run):
    loop = """
import copy
average = copy.deepcopy(model).eval().requires_grad_(False)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
network = torch.compile(model)
for number in range(8):
    optimizer.zero_grad()
    network(torch.randn(4, 6, device="cuda")).sum().backward()
    if not torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)): continue
    optimizer.step(), schedule.step()
    with torch.no_grad():
        for a, b in zip(average.parameters(), model.parameters()): a.mul_(0.99).add_(b, alpha=0.01)
"""
    found = run("", loop)
    names = [operator.name for operator in found.steady()]
    assert names.count("aten.add_.Tensor") >= 4 and any("norm" in name for name in names)
    assert found.options["networks"] == {"model": "Sequential"}
