"""Profiles of steps that are traced: sums, lines, memory at the total's peak, and what they answer."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from roller.errors import NoCandidateError, RollerError
from roller.insight.step_profile.profiling import profile
from roller.insight.tracing import trace, trace_entry

torch = pytest.importorskip("torch")
nn = torch.nn
DEVICES = ("a100", "t4", "h100")
ENTRY = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = self.fc(x)
        y = y * self.scale
        return x + torch.relu(y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(256) for _ in range(3)])
        self.unused = nn.Linear(8, 8)
        self.head = nn.Linear(256, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        x = self.blocks[0](x)
        return self.head(x)


def model_provider():
    return Net()


def input_provider(batch_size=32):
    return torch.zeros(batch_size, 256), torch.zeros(batch_size, dtype=torch.long)


def iteration_provider(model):
    optimizer = torch.optim.Adam(model.parameters())

    def step(x, wanted):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), wanted)
        loss.backward()
        optimizer.step()

    return step
"""


def line_with(text):
    """Return the name of the only line of the entry file that contains a text."""
    (number,) = (n for n, line in enumerate(ENTRY.splitlines(), 1) if text in line)
    return f"train.py:{number}"


@pytest.fixture(scope="module")
def entry(tmp_path_factory):
    path = tmp_path_factory.mktemp("project") / "train.py"
    path.write_text(ENTRY)
    return path


@pytest.fixture(scope="module")
def step(entry):
    return trace_entry(entry)


def test_it_is_the_forecast(step):
    for name in DEVICES:
        found, forecast = profile(step, name), step.forecast(name)
        assert (found.source, found.device, found.bound) == ("predicted", forecast.device, forecast.bound)
        for name in ("iteration_s", "lower_s", "upper_s", "throughput"):
            assert getattr(found, name) == pytest.approx(getattr(forecast, name), rel=1e-9)
        for name in ("device_s", "host_s"):
            assert getattr(found.root, name) == pytest.approx(getattr(forecast, name), rel=1e-9)
        assert found.total_bytes == forecast.memory.total_bytes
        assert found.root.calls == len(step.steady())
        assert set(found.versions) == {"roller", "device", "torch"}


def test_children_sum_to_their_parents(step):
    for name in DEVICES:
        for node in profile(step, name).root.walk():
            if node.children:
                assert node.wall_s == pytest.approx(math.fsum(c.wall_s for c in node.children), abs=1e-12)
                assert node.total_held_bytes == sum(c.total_held_bytes for c in node.children)


def test_every_line_with_an_operator_a_call_or_a_parameter_is_there(step):
    found = profile(step, "a100")
    known = {line.name for line in found.lines}
    assert known == {f"{f.file}:{f.line}" for o in step.steady() for f in o.stack} | {
        f"{f.file}:{f.line}" for stack in step.registered.values() for f in stack
    }
    for text in (
        "self.fc(x)", "y * self.scale", "x + torch.relu(y)", "x = block(x)", "x = self.blocks[0](x)", "self.head(x)",
        "loss = nn", "optimizer.step()", "self.fc = nn", "nn.Parameter", "self.unused = nn", "return Net()",
    ):  # fmt: skip
        assert line_with(text) in known


def test_a_line_has_an_instance_for_every_module_that_runs_it(step):
    line = profile(step, "a100").line(line_with("self.fc(x)"))
    assert sorted({x.module for x in line.instances}) == ["blocks.0", "blocks.1", "blocks.2"]
    assert len(line.instances) == 4  # one block is called from two lines
    assert line.wall_s == pytest.approx(math.fsum(x.node.wall_s for x in line.instances))
    assert {"forward", "backward"} <= set(line.seconds)


def test_weights_are_at_their_module_and_at_the_line_that_made_them(step):
    found = profile(step, "a100")
    weights = {n.name: n for n in found.root.walk() if n.kind == "tensors" and "parameter" in n.held_bytes}
    assert found.line(line_with("nn.Parameter")).registered_bytes == 3 * 256 * 4
    assert found.line(line_with("self.unused = nn")).registered_bytes == (64 + 8) * 4
    assert weights["scale"].registered[-1] == line_with("nn.Parameter")
    assert found.root.held_bytes["parameter"] == sum(
        held.size_bytes for held in step.storages.values() if held.kind == "parameter"
    )
    assert found.root.held_bytes["optimizer_state"] >= 2 * (found.root.held_bytes["parameter"] - 4 * 72)


def test_memory_at_the_peak_sums_to_the_total(step):
    for name in DEVICES:
        found, memory = profile(step, name), step.memory(name)
        parts = memory.parts_at_peak()
        assert parts.total_bytes == memory.total_bytes == sum(found.memory_parts.values()) == found.total_bytes
        assert sum(parts.requested_bytes.values()) == memory.at_peak.requested_bytes
        assert memory.at_peak.reserved_bytes == memory.peak.reserved_bytes
        assert min(parts.rounding_bytes, parts.cached_bytes, parts.context_bytes, parts.page_rounding_bytes) >= 0


def test_memory_over_the_step_is_that_of_the_allocator(step):
    found, memory = profile(step, "a100"), step.memory("a100")
    assert len(found.memory_curve) <= 400
    assert max(p.allocated_bytes for p in found.memory_curve) <= memory.peak.allocated_bytes
    for point in found.memory_curve:
        assert sum(point.kinds.values()) <= point.allocated_bytes <= point.reserved_bytes <= memory.peak.reserved_bytes
        assert min(point.kinds.values()) >= 0


def test_five_questions_have_one_call_each(step):
    found = profile(step, "t4", batch=4096)
    for metric, weight in (("time", lambda n: n.wall_s), ("memory", lambda n: n.total_held_bytes)):
        way = found.heaviest(metric)
        assert way[0] is found.root
        for outer, inner in pairwise(way):
            assert weight(inner) == max(map(weight, outer.children))
    assert found.heaviest()[-1].kind == "operator"
    split = found.split()
    assert split.more == ("weights" if split.weights_bytes >= split.activations_bytes else "activations")
    activations = max(point.kinds["activation"] for point in found.memory_curve)
    assert found.balanced_batch() == pytest.approx(split.weights_bytes * 4096 / activations)


@pytest.mark.slow
def test_the_curve_beside_its_line(step):
    found = profile(step, "t4", batch=4096, curve=True)
    curve = found.curve
    assert found.diminishing_from() == curve.diminishing_from() >= 1
    assert len(curve.line.batches) == 3 and set(curve.line.batches) <= {p.batch for p in curve.computed}
    for point in curve.computed:
        forecast = step.forecast("t4", batch=point.batch)
        assert (point.iteration_s, point.total_bytes) == (forecast.iteration_s, forecast.memory.total_bytes)
    assert curve.at(curve.largest).fits and not step.memory("t4", batch=curve.largest + 1).fits


def test_a_step_that_does_not_fit_says_at_which_line(step):
    from roller.hardware import load_spec

    spec = load_spec("t4", {"memory_layers.global.capacity_bytes": 1.4e9})
    found = profile(step, spec, batch=20_000)
    assert not found.fits and found.throughput == 0.0
    assert found.out_of_memory_at.startswith("train.py:") and f" at {found.out_of_memory_at}: " in found.out_of_memory
    assert "train.py:" in found.out_of_memory and "out of memory: tried to allocate" in found.out_of_memory
    failed = step.memory(spec, batch=20_000).oom_operator
    assert len(found.memory_curve) <= failed + 1 < len(step.operators), "memory after the failure is nobody's"
    found.check()


def test_devices_that_run_the_same_kernels_share_a_trace_with_attention():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(64, 192)

        def forward(self, x):
            q, k, v = (part.reshape(2, 16, 4, 16).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
            return nn.functional.scaled_dot_product_attention(q, k, v)

    step = trace(Attention(), torch.zeros(2, 16, 64), loss=torch.sum, amp="fp16")
    assert step.at(device="rtx3090") is step.at(device="h100") is step.at(device="a100")
    older = step.at(device="v100")  # no flash attention below sm_80
    assert older is not step.at(device="a100") and older is step.at(device="t4")


def test_several_devices_have_their_links_in_the_tree(step):
    found = profile(step, "a100", devices=2)
    assert found.devices == 2 and found.throughput == pytest.approx(step.forecast("a100", devices=2).throughput)
    (links,) = (node for node in found.root.children if node.name == "communication")
    assert links.kind == "overhead" and links.children and links.wall_s > 0


def test_a_trace_without_frames_has_modules_alone():
    step = trace(
        nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)), torch.zeros(4, 32), optimizer="momentum"
    )
    found = profile(step)
    assert {"0", "1", "2"} <= {n.name for n in found.root.children if n.kind == "module"}
    found.check()


def test_a_profile_in_a_sentence(step):
    assert str(profile(step, "a100")).startswith("train.py: predicted on a100, batch 32, ")
    assert " a step (" in str(profile(step, "a100"))
    assert " an inference (" in str(profile(trace(nn.Linear(4, 4), torch.zeros(2, 4)), "a100"))
    with pytest.raises(RollerError, match="measure: expected no device"):
        profile("train.py", "a100", measure=True)


def test_what_cannot_be_answered_is_said(step):
    found = profile(step, "a100")
    with pytest.raises(RollerError, match="expected 'time' or 'memory', got 'speed'"):
        found.heaviest("speed")
    with pytest.raises(RollerError, match=r"expected a line with an operator or a parameter, got 'x.py:1'. .*train.py"):
        found.line("x.py:1")
    inference = profile(trace(nn.Linear(4, 4), torch.zeros(2, 4)), "a100")
    with pytest.raises(NoCandidateError, match="expected a batch and activations, got"):
        inference.balanced_batch()


def test_a_processor_has_a_profile_too(step):
    found = profile(step, "cpu")
    found.check()
    assert found.root.device_s > 0 and found.total_bytes == sum(found.memory_parts.values())
    assert any(node.name == "host code between calls" for node in found.root.children)


def test_weights_and_activations_are_balanced_at_one_batch_wherever_the_peak_is():
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(256, 256, bias=False), nn.ReLU())))
    step = trace(model, torch.zeros(4, 256), optimizer="sgd")
    # three outputs of ReLU for backward; beside them the input, which is of another kind
    assert profile(step, "a100").balanced_batch() == pytest.approx(256, rel=0.02)
    assert profile(step, "a100", batch=512).balanced_batch() == pytest.approx(256, rel=0.02)


def test_buckets_of_several_devices_are_in_the_memory_over_the_step(step):
    alone, together = (max(p.kinds["gradient"] for p in profile(step, "a100", devices=n).memory_curve) for n in (1, 4))
    assert together == 2 * alone
