"""Traced steps as graphs, and profiles that roller records of real ones: needs PyTorch."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'roller[torch]'")

from torch import nn  # noqa: E402

import roller  # noqa: E402
from roller.cli.main import main  # noqa: E402
from roller.errors import RollerError  # noqa: E402
from roller.insight.step.from_trace import from_trace  # noqa: E402
from roller.insight.step.replay import replay  # noqa: E402
from roller.insight.step.simulate import simulate  # noqa: E402
from roller.insight.whatif.predict import what_if  # noqa: E402
from roller.insight.whatif.whatifs import AMP, DDP, Device, FusedOptimizer, Gist, Recompute, RemoveLayer  # noqa: E402


class Blocks(nn.Module):
    def __init__(self, width, count=3):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(count))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def traced(width, batch, reads=False):
    def loss(out):
        found = out.square().mean()
        return found * float(found.item() >= 0) if reads else found

    model = Blocks(width)
    optimizer = torch.optim.Adam(model.parameters())
    return roller.trace(model, torch.zeros(batch, width), optimizer=optimizer, loss=loss)


@pytest.mark.parametrize(("width", "batch", "reads"), [(64, 4, False), (2048, 4096, False), (512, 256, True)])
@pytest.mark.parametrize("device", ["v100", "h100"])
def test_the_graph_takes_what_the_forecast_says(width, batch, reads, device):
    step = traced(width, batch, reads)
    graph = step.graph(device)
    assert simulate(graph).makespan_us == pytest.approx(1e6 * step.forecast(device).iteration_s, rel=1e-9)
    assert replay(graph).iteration_us == pytest.approx(1e6 * step.forecast(device).iteration_s, rel=1e-9)
    wanted = sum(p.numel() for p in Blocks(width).parameters())
    assert sum(g.size_bytes for g in graph.gradients) == 4 * wanted
    assert {t.context.module for t in graph.tasks} >= {"blocks.0.0", "blocks.2.1", "head"}


def test_whatifs_of_a_traced_step_agree_with_the_step_traced_so():
    step = traced(2048, 4096)
    graph = step.graph("a100")
    other = what_if(graph, Device("h100"))
    assert other.iteration_us == pytest.approx(1e6 * step.forecast("h100").iteration_s, rel=0.02)
    half = what_if(graph, AMP())
    assert half.iteration_us == pytest.approx(1e6 * step.forecast("a100", amp="bf16").iteration_s, rel=0.15)
    two = what_if(graph, DDP(2))
    assert two.iteration_us == pytest.approx(1e6 * step.forecast("a100", devices=2).iteration_s, rel=0.02)
    again = what_if(graph, Recompute(("blocks.0", "blocks.1", "blocks.2")))
    assert again.iteration_us == pytest.approx(
        1e6 * step.forecast("a100", checkpoint=("blocks.0", "blocks.1", "blocks.2")).iteration_s, rel=0.06
    )


def test_buckets_are_those_that_pytorch_makes():
    from torch.distributed import _compute_bucket_assignment_by_size

    from roller.insight.step.graph import StepGraph
    from roller.insight.trace.gradient_buckets import Gradient
    from roller.insight.whatif.collective_communication_times import buckets_by_step

    sizes = [7 << 18, 3, 900_000, 26 << 18, 1, 1, 9 << 20, 100, 20 << 20, 6 << 20, 5]
    tensors = [torch.empty(n, device="meta") for n in sizes]
    found, _ = _compute_bucket_assignment_by_size(tensors, [1 << 20, 25 << 20])
    graph = StepGraph([], [], {}, 0.0, 0.0, gradients=[Gradient(4 * n, at) for at, n in enumerate(sizes)])
    assert [(sum(4 * sizes[n] for n in own), len(own), own[-1]) for own in found] == [
        (b.size_bytes, len(b.gradients), b.ready) for b in buckets_by_step(graph)[0]
    ]


def test_a_processor_computes_on_the_thread_that_issues():
    step = traced(64, 4)
    graph = step.graph("cpu-avx2")
    assert {t.lane.kind for t in graph.tasks} == {"thread"}
    assert simulate(graph).makespan_us == pytest.approx(1e6 * step.forecast("cpu-avx2").iteration_s, rel=1e-9)
    assert what_if(graph, RemoveLayer("blocks.1")).gain > 0.1
    for change in (AMP(), FusedOptimizer("adam"), Gist()):
        assert what_if(graph, change).iteration_us > 0
    with pytest.raises(RollerError, match="expected a CUDA device or a CPU"):
        step.graph("ipu_mk2")
    with pytest.raises(RollerError, match="expected a GPU or a CPU"):
        from_trace(step, "ipu_mk2")


def train(model, steps, optimizer=None):
    optimizer = optimizer or torch.optim.Adam(model.parameters(), foreach=False)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(32, 64)).square().mean().backward()
        optimizer.step()


def test_a_recorded_loop_has_steps_phases_layers_and_gradients(tmp_path):
    path, model = tmp_path / "profile.json.gz", Blocks(64)
    with roller.record(path, warmup=1, timed=2, steps=4) as recorder:
        train(model, 9)  # two more than are needed
    assert recorder.is_done and len(recorder.plain_s) == 2 and len(recorder.recorded_s) == 4
    graph = roller.from_kineto(path)
    found = replay(graph)
    assert abs(found.error) < 0.01 and graph.iterations == (0, 1, 2, 3)
    assert {t.context.phase for t in graph.tasks} >= {"forward", "backward", "optimizer"}
    for phase in ("forward", "backward"):
        layers = {t.context.module for t in graph.tasks if t.context.phase == phase}
        assert layers >= {"blocks.0.0", "blocks.1.1", "head"}
    assert sum(g.size_bytes for g in graph.gradients) == 4 * 4 * sum(p.numel() for p in model.parameters())
    assert not model._forward_hooks and not torch.nn.modules.module._global_forward_hooks
    fewer = what_if(graph, RemoveLayer("blocks.1"))
    assert fewer.iteration_us < fewer.baseline_us


def test_a_loop_without_an_optimizer_ends_its_steps_by_hand(tmp_path):
    path, model = tmp_path / "profile.json", Blocks(64)
    with roller.record(path, warmup=0, timed=0, steps=2) as recorder:
        for _ in range(2):
            model(torch.ones(8, 64))
            recorder.step()
    assert "roller_overhead_us" not in json.loads(path.read_text())
    assert not roller.from_kineto(path).overhead_us


def test_too_few_steps_and_wrong_paths_say_so(tmp_path):
    with pytest.raises(RollerError, match="got 1"), roller.record(tmp_path / "p.json"):
        train(Blocks(64), 1)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ZeroDivisionError), roller.record(tmp_path / "p.json"):
        train(Blocks(64), 6)
        1 / 0  # noqa: B018
    for wrong in ("p.txt", "none/p.json"):
        with pytest.raises(RollerError, match="expected a f"):
            roller.record(tmp_path / wrong)
    with pytest.raises(RollerError, match="steps"):
        roller.record(tmp_path / "p.json", steps=0)
    train(Blocks(64), 1)  # no hook is left


def test_the_verb_records_a_script_with_its_own_arguments(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\nmodel = torch.nn.Linear(8, 8)\noptimizer = torch.optim.SGD(model.parameters())\n"
        "for _ in range(int(sys.argv[1])):\n    optimizer.zero_grad(); model(torch.ones(4, 8)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    out = tmp_path / "p.json.gz"
    for steps, code in (("20", 0), ("3", 1)):
        with pytest.raises(SystemExit) as done:
            main(["record", str(script), steps, "--out", str(out)])
        assert done.value.code == code
    assert "expected 8 training steps, got 3" in capsys.readouterr().err
    assert roller.from_kineto(out).iterations == (0, 1, 2)
