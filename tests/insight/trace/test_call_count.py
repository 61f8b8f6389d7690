"""How many calls of a step are traced, and what is said of calls that are not alike."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

import roller  # noqa: E402
from roller.hardware import load_spec  # noqa: E402
from roller.insight.trace.pytorch.decide_calls_to_trace import (  # noqa: E402
    MOST,
    Call,
    call_counts_at_step_ends,
    find_repeating_cycle,
    is_trace_complete,
    repeating_or_last_half_cycle,
)
from roller.insight.tracing import trace_entry  # noqa: E402
from tests.insight.trace.programs import traced_bytes  # noqa: E402
from tests.offenders import every  # noqa: E402

ENTRY = """
import torch
from torch import nn
def model_provider():
    return nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(4)])
def input_provider(batch_size=4):
    return torch.zeros(batch_size, 32, 256)
def iteration_provider(model):
    optimizer, calls = torch.optim.AdamW(model.parameters()), [0]
    {before}
    def step(x):
        calls[0] += 1
        {lengths}
        (model(x).square().mean() / {every}).backward()
        if calls[0] % {every} == 0:
            optimizer.step(); optimizer.zero_grad()
    return step
"""


def entry(folder, every=1, lengths="", before="", **options):
    path = folder / "entry.py"
    path.write_text(ENTRY.format(every=every, lengths=lengths, before=before))
    return trace_entry(path, **options)


def calls_of(text):
    """Return calls from one letter for each forward, a digit behind it for each optimizer that steps."""
    words = text.split()
    return [Call(n, ord(w[0]), frozenset(map(int, w[1:]))) for n, w in enumerate(words)]


@every(
    ("text", "cycle"),
    [
        ("a0 a0", (1, 1)), ("a0", None), ("a a", (1, 1)), ("a a0 a a0", (2, 1)), ("a a a0 a a a0", (3, 1)),
        ("a0 b0 a0 b0", (2, 2)), ("a0 b0", None), ("a0 a0 a0 a0 a01 a0 a0 a0 a0 a01", (5, 5)), ("a0 b0 b0", (1, 1)),
        ("a a a0 a a", None),
    ],
)  # fmt: skip
def test_the_cycle_at_the_end_of_a_trace(text, cycle):
    calls = calls_of(text)
    numbers = frozenset().union(*(call.stepped for call in calls))
    found = find_repeating_cycle(calls, numbers)
    assert (found and (found.calls, found.steps)) == cycle
    assert is_trace_complete(calls, numbers) == (found is not None and len(calls) > 1)


def test_what_does_not_repeat_is_the_mean_of_the_last_half():
    calls = calls_of("a0 b0 c0 d0 e0 f0")
    found = repeating_or_last_half_cycle(calls, frozenset([0]))
    assert (found.calls, found.steps, found.repeats) == (3, 3, False)
    assert call_counts_at_step_ends(calls_of("a a0 b b0 a")) == [2, 5]


def test_an_ordinary_step_is_traced_twice(tmp_path):
    assert entry(tmp_path).options["calls"] == 2
    assert roller.trace(torch.nn.Linear(8, 8), torch.zeros(2, 8), optimizer="adam").options["calls"] == 2
    assert roller.trace(torch.nn.Linear(8, 8), torch.zeros(2, 8)).options["calls"] == 2


def test_accumulation_is_traced_until_the_optimizer_has_stepped(tmp_path):
    plain, four = entry(tmp_path), entry(tmp_path, every=4)
    assert (four.options["calls"], four.options["accumulate"], four.samples) == (8, 4, 16)
    assert len(four.iterations) == 3 and any("every 4 calls" in w for w in four.warnings)
    weights = 4 * 256 * 256 * 4
    assert traced_bytes(four)["optimizer_state"] == traced_bytes(plain)["optimizer_state"] == 2 * weights
    assert abs(four.memory("a100").peak.reserved_bytes - plain.memory("a100").peak.reserved_bytes) <= 2 << 20
    passes = [sum(o.phase == "forward" for o in trace.steady()) for trace in (plain, four)]
    assert passes[1] == 4 * passes[0]
    one, all_four = plain.forecast("a100"), four.forecast("a100")
    assert all_four.throughput == pytest.approx(16 / all_four.iteration_s)
    assert one.iteration_s < all_four.iteration_s < 4 * one.iteration_s


def test_accumulation_by_option_counts_its_samples():
    found = roller.trace(torch.nn.Linear(8, 8), torch.zeros(2, 8), optimizer="adam", accumulate=3)
    assert found.samples == 6 and found.options["calls"] == 2
    done = found.forecast("a100")
    assert done.throughput == pytest.approx(6 / done.iteration_s) and done.to_dict()["samples"] == 6


def test_accumulation_does_not_fit_where_an_update_does_not(tmp_path):
    """1.2 billion weights, gradients, Adam's two states, and the roots that an update takes: 24.2 GB in any call."""
    small, found = load_spec("rtx3090", {"memory_layers.global.capacity_bytes": 23e9}), []
    for every_call in (4, 1):
        path = tmp_path / f"large_{every_call}.py"
        text = ENTRY.replace("256", "8192").replace("range(4)", "range(18)")
        path.write_text(text.format(every=every_call, lengths="", before=""))
        trace = trace_entry(path)
        found.append(trace.memory("a100").peak.requested_bytes)
        assert not trace.memory(small).fits
    weights = 18 * 8192 * 8192 * 4
    assert all(5 * weights <= most < 5.01 * weights for most in found)


def test_lengths_that_differ_are_averaged_and_said(tmp_path):
    trace = entry(tmp_path, lengths="x = x[:, : (32, 8, 16)[calls[0] % 3]]")
    assert (trace.options["calls"], trace.options["unlike_steps"]) == (6, 3)
    assert any("3 that differ repeat" in w and "mean" in w for w in trace.warnings)
    done = trace.forecast("a100")
    rows = [
        sorted({t.shape[1] for o in part.steady() for t in o.outputs if len(t.shape) == 3}) for part in trace.unlike()
    ]
    assert sorted(row[-1] for row in rows) == [8, 16, 32]
    assert done.throughput == pytest.approx(4 / done.iteration_s)
    longest = entry(tmp_path).memory("a100").peak
    assert trace.memory("a100").peak.requested_bytes >= longest.requested_bytes


def test_an_optimizer_that_never_steps_is_named(tmp_path):
    trace = entry(tmp_path, every=1000)
    assert trace.options["calls"] == MOST
    assert any("AdamW" in w and "does not step" in w and "--calls" in w for w in trace.warnings)


BY_HAND = """import torch
def model_provider(): return torch.nn.Linear(8, 8)
def input_provider(batch_size=4): return torch.zeros(batch_size, 8)
def iteration_provider(model):
    calls = [0]
    def step(x):
        calls[0] += 1
        model(x).sum().backward()
        if calls[0] % {every} == 0:
            with torch.no_grad():
                for p in model.parameters(): p.sub_(p.grad); p.grad = None
    return step
"""


@pytest.mark.parametrize(("every", "calls", "noted"), [(4, None, True), (4, 8, False), (1, None, False)])
def test_an_update_by_hand_that_is_not_reached_is_said(tmp_path, every, calls, noted):
    path = tmp_path / "entry.py"
    path.write_text(BY_HAND.format(every=every))
    warnings = trace_entry(path, calls=calls).warnings
    assert any("parameters get gradients" in w and "--calls" in w for w in warnings) == noted


def test_calls_may_be_asked_for(tmp_path, cli):
    assert entry(tmp_path, calls=3).options["calls"] == entry(tmp_path, iterations=3).options["calls"] == 3
    with pytest.raises(roller.RollerError, match="calls: expected a whole number of at least 1"):
        entry(tmp_path, calls=0)
    path = str(tmp_path / "entry.py")
    code, out, _ = cli("forecast", path, "--device", "a100", "--calls", "1", "--json")
    assert code == 0 and json.loads(out)[0]["samples"] == 4
    assert any("those of a first step" in note for note in json.loads(out)[0]["notes"])
    assert not any("those of a first step" in note for note in entry(tmp_path, calls=2).warnings)
    assert cli("memory", path, "--device", "a100", "--calls", "0")[0] != 0
