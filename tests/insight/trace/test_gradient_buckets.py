"""Which gradients devices reduce: those of all parameters that learn, wherever made and however updated."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from roller.errors import RollerError
from roller.insight.trace.gradient_buckets import buckets
from roller.insight.tracing import trace_entry
from roller.insight.whatif.parse_what_if_scenarios import parse_what_if_option
from roller.insight.whatif.predict import what_if

HEAD = """import torch
from torch import nn
def model_provider(): return nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 8, bias=False))
def input_provider(batch_size=4): return torch.zeros(batch_size, 8)
def iteration_provider(model):
"""
#: Two models take turns; one of them is made beside the model.
TURNS = """
    judge = nn.Linear(8, 1, bias=False).cuda()
    ours, its = torch.optim.Adam(model.parameters()), torch.optim.SGD(judge.parameters(), lr=.1)
    def step(x):
        made = model(torch.randn_like(x))
        (judge(x) - judge(made.detach())).mean().backward(); its.step(); its.zero_grad()
        judge(made).mean().backward(); ours.step(); ours.zero_grad(); its.zero_grad()
    return step
"""
#: Small layers that learn are added to a model that does not.
ADAPTED = """
    model.requires_grad_(False)
    model.down, model.up = nn.Linear(8, 2, bias=False, device="cuda"), nn.Linear(2, 8, bias=False, device="cuda")
    optimizer = torch.optim.AdamW([*model.down.parameters(), *model.up.parameters()])
    def step(x):
        (model[2](model[1](model[0](x))) + model.up(model.down(x))).mean().backward()
        optimizer.step(); optimizer.zero_grad()
    return step
"""
#: Updates by hand leave no gradient at a parameter, so nothing could reduce one.
BY_HAND = """
    def step(x):
        gradients = torch.autograd.grad(model(x).mean(), list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients): parameter.sub_(gradient)
    return step
"""
#: Each parameter is updated as soon as its gradient is there: backward goes on after an optimizer has stepped.
WITHIN = """
    optimizers = {p: torch.optim.AdamW([p]) for p in model.parameters()}
    def update(p): optimizers[p].step(); optimizers[p].zero_grad()
    for p in model.parameters(): p.register_post_accumulate_grad_hook(update)
    def step(x): model(x).mean().backward()
    return step
"""
#: The step sets one gradient itself, the other one is accumulated.
SET = """
    first, last = model.parameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=.1)
    def step(x):
        made = model(x)
        gradient, = torch.autograd.grad(made.mean(), [first], retain_graph=True)
        made.mean().backward(inputs=[last])
        first.grad = gradient
        optimizer.step(); optimizer.zero_grad()
    return step
"""


def traced(folder, body):
    path = folder / "entry.py"
    path.write_text(HEAD + body)
    return trace_entry(path)


def test_two_models_that_take_turns_each_reduce_their_gradients(tmp_path):
    found = buckets(traced(tmp_path, TURNS))
    # The judge's gradient, then both models' (backward through the judge leaves it one, too, which is dropped).
    assert [b.size_bytes for b in found] == [32, 2 * 256 + 32]
    assert found[0].ready < found[0].update < found[1].ready < found[1].update
    assert found[0].names[0] in found[1].names


def test_adapters_that_are_added_to_a_frozen_model_are_all_that_is_reduced(tmp_path):
    (one,) = buckets(traced(tmp_path, ADAPTED))
    assert one.size_bytes == 2 * 64 and len(one.names) == 2


def test_a_step_that_updates_by_hand_is_refused_on_several_devices(tmp_path):
    step = traced(tmp_path, BY_HAND)
    assert step.forecast("a100").iteration_s > 0
    with pytest.raises(RollerError, match=r"leaves none\. Ask for one device"):
        step.forecast("a100", devices=2)


@pytest.mark.parametrize("body", [WITHIN, SET], ids=["within backward", "set by the step"])
def test_every_gradient_that_an_optimizer_reads_is_reduced(tmp_path, body):
    found = buckets(traced(tmp_path, body))
    assert sorted(name for b in found for name in b.names) == ["0.weight", "2.weight"]
    assert sum(b.size_bytes for b in found) == 2 * 256


def test_what_follows_an_update_within_backward_is_backward(tmp_path):
    steady = traced(tmp_path, WITHIN).steady()
    forward, products = (
        sum(o.name == "aten.mm.default" and o.phase == p for o in steady) for p in ("forward", "backward")
    )
    assert (forward, products) == (2, 3)
    assert [o.phase for o in steady if o.name == "aten.threshold_backward.default"] == ["backward"]


def test_an_update_ahead_of_the_backward_pass_waits_for_nothing_of_this_step(tmp_path):
    first = """
    optimizer = torch.optim.Adam(model.parameters())
    def step(x): optimizer.step(); optimizer.zero_grad(); model(x).mean().backward()
    return step
"""
    step = traced(tmp_path, first)
    one, eight = step.forecast("a100"), step.forecast("a100", devices=8)
    assert eight.iteration_s > one.iteration_s and eight.links_s > 0


def test_a_what_if_of_a_step_without_gradients_speaks_of_the_step(tmp_path):
    graph = traced(tmp_path, BY_HAND).graph("a100")
    with pytest.raises(RollerError, match="got one whose backward pass leaves none") as told:
        what_if(graph, parse_what_if_option("ddp:devices=8"))
    assert "record" not in str(told.value).lower()


def test_an_optimizer_that_updates_on_the_host_is_said_to_be_left_out_of_the_time(tmp_path):
    offloaded = """
    host = [p.detach().cpu().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.Adam(host)
    def step(x):
        model(x).mean().backward()
        for ours, theirs in zip(host, model.parameters()): ours.grad, theirs.grad = theirs.grad.cpu(), None
        optimizer.step()
    return step
"""
    assert any("Adam updates parameters on the host" in w for w in traced(tmp_path, offloaded).warnings)
    assert not any("on the host" in w for w in traced(tmp_path, TURNS).warnings)
