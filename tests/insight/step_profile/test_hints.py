"""Hints: the answers of the search for what helps, each at its line, with memory and a price."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date

import pytest

from roller.errors import RollerError
from roller.insight.rate_card import HourlyRate, RateCard
from roller.insight.step.graph import StepGraph
from roller.insight.step_profile.hints_difference_json import hints_data
from roller.insight.step_profile.what_if_hints import hints
from roller.insight.trace.trace import Frame
from roller.insight.whatif.search import search
from tests.insight.step.graphs import training
from tests.insight.step_profile.test_profile_json import sample
from tests.insight.whatif.test_memory_change import memory

LINES = {"forward": 10, "backward": 10, "optimizer": 20}


def graph_with_lines() -> StepGraph:
    graph = training()
    tasks = [
        replace(t, context=t.context._replace(stack=(Frame("train.py", LINES.get(t.context.phase, 1)),)))
        for t in graph.tasks
    ]
    return replace(graph, tasks=tasks)


def test_hints_are_what_the_search_finds_in_its_order_and_with_its_numbers():
    graph = graph_with_lines()
    found, wanted = hints(graph, force=True), search(graph, force=True)
    assert [x.change for x in found] == [x.name for x in wanted]
    for mine, theirs in zip(found, wanted, strict=True):
        if theirs.answer is None:
            assert mine.not_asked == theirs.reason
            continue
        answer = theirs.answer
        assert mine.iteration_s == pytest.approx(answer.iteration_us / 1e6, rel=1e-12)
        assert mine.delta_s == pytest.approx((answer.iteration_us - answer.baseline_us) / 1e6, rel=1e-12)
        assert (mine.is_hardly_anything, mine.is_bound) == (answer.is_hardly_anything, theirs.is_bound)
    assert any(x.is_hardly_anything for x in found)


def test_a_hint_is_at_the_line_that_it_changes_most():
    found = {x.change: x for x in hints(graph_with_lines(), force=True)}
    optimizer, amp = found["ZeroTime(phase=optimizer)"], found["AMP()"]
    assert optimizer.line == "train.py:20" and optimizer.line_delta_s < 0 and optimizer.is_bound
    assert amp.line == "train.py:10" and amp.delta_s < 0


def test_the_memory_of_a_hint_is_that_of_the_step_traced_with_it():
    asked = []

    def memory_of(change):
        asked.append(change)
        return memory(1000 if change.keeps_tensors else 700)

    found = {x.change: x for x in hints(graph_with_lines(), memory_of=memory_of, force=True)}
    assert found["AMP()"].memory.delta_bytes == -300 and found["ZeroTime(phase=optimizer)"].memory.delta_bytes == 0
    assert found["CudaGraph()"].memory == (None, "not modelled")
    assert len(asked) == len(set(asked)) == 2  # each step is traced once
    unknown = {x.change: x.to_dict() for x in hints(graph_with_lines(), force=True)}
    assert unknown["AMP()"]["memory_delta_bytes"] is None and "cannot be traced" in unknown["AMP()"]["memory_note"]


def test_the_price_of_a_million_samples_by_hand():
    amp = next(x for x in hints(graph_with_lines(), force=True) if x.change == "AMP()")
    assert amp.price_before is None and amp.price_after is None
    priced = amp.with_price(3.6, 8)  # 0.001 a second; 125,000 steps are a million samples
    assert priced.price_before == pytest.approx(937e-6 * 125_000 * 0.001)
    assert priced.price_after == pytest.approx(amp.iteration_s * 125_000 * 0.001)
    of_steps = amp.with_price(3.6, 0)
    assert of_steps.price_after == pytest.approx(amp.iteration_s * 1000)
    refused = replace(amp, not_asked="why")
    assert refused.with_price(3.6, 8).price_after is None


def test_hints_of_a_calibrated_profile_are_calibrated_and_prices_compare_with_one_number():
    made = replace(sample(), devices=1, make_graph=graph_with_lines)
    for profile, kind in ((made, "predicted"), (replace(made, is_calibrated=True), "calibrated")):
        found = profile.hints(3.6)
        assert {x.kind for x in found} == {x["kind"] for x in hints_data(profile, found)} == {kind}
        asked = [x for x in found if not x.not_asked]
        assert {x.rests_on for x in asked} <= {kind, "assumed", "measured"}
        assert len({x.price_before for x in asked}) == 1
    ends = [replace(asked[0], rests_on=x).label_calibrated().rests_on for x in ("predicted", "assumed")]
    assert ends == ["calibrated", "assumed"]
    own_s = asked[0].iteration_s - asked[0].delta_s
    assert asked[0].price_before == pytest.approx(own_s * 125_000 * 0.001)  # the profile is another step: 0.35 s
    near = replace(made, iteration_s=own_s * (1 + 1e-12))
    assert {x.price_before for x in near.hints(3.6)} - {None} == {near.iteration_s * (3.6 / 3600 * 1e6 / 8.0)}


def test_a_price_is_old_after_180_days():
    card = RateCard("EUR", {"a100": HourlyRate(1.5, "mine", "2026-01-01"), "t4": HourlyRate(0.5, "mine", "2026-01-02")})
    day = date(2026, 7, 1)  # 181 days after the first of January
    assert [rate.is_old(day) for rate in card.devices.values()] == [True, False]
    (note,) = card.old_rate_notes(["a100", "t4", "h100", "a100"], day)
    assert note.startswith("The price of a100 is from 2026-01-01 (mine), more than 180 days old")
    assert card.missing_rate_note("t4") == ""
    assert card.missing_rate_note("h100") == "No price for h100 (only for a100, t4): its cost is not shown."


ENTRY = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def model_provider():
    return Net()


def input_provider(batch_size=4096):
    return torch.zeros(batch_size, 256)


def iteration_provider(model):
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step
"""


@pytest.fixture
def entry(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(ENTRY)
    return tmp_path / "train.py"


def test_hints_equal_the_search_of_whatif_in_order_and_numbers(cli, entry, tmp_path):
    (tmp_path / "p.yaml").write_text(
        "{currency: EUR, devices: {a100: {per_hour: 1.5, source: mine, date: 2020-01-31}}}"
    )
    code, out, err = cli("profile", entry, "--hints", "--json", "--prices", tmp_path / "p.yaml")
    assert code == 0, err
    (found,) = json.loads(out)
    wanted = json.loads(cli("whatif", entry, "--all", "--device", "a100", "--json")[1])
    mine = [x for x in found["hints"] if x["origin"] == "what-if"]
    assert [x["change"] for x in mine] == [x["changes"] for x in wanted]
    for hint, row in zip(mine, wanted, strict=True):
        for name in ("iteration", "lower", "upper"):
            assert hint[f"{name}_s"] == pytest.approx(row[f"{name}_us"] / 1e6, rel=1e-12)
        assert hint["delta_s"] == pytest.approx((row["iteration_us"] - row["baseline_us"]) / 1e6, rel=1e-9)
        for name in ("hardly_anything", "upper_bound", "rests_on", "memory_delta_bytes", "memory_note"):
            assert hint[name] == row[name]
        assert hint["price_after"] == pytest.approx(hint["iteration_s"] / 4096 * 1e6 * 1.5 / 3600)
    assert any(x["hardly_anything"] for x in mine)
    assert found["price"] == {
        "currency": "EUR", "per_hour": 1.5, "source": "mine", "date": "2020-01-31", "is_old": True
    }  # fmt: skip
    (alone,) = json.loads(cli("profile", entry, "--json")[1])
    assert alone == found["profile"] and "hints" not in alone


def test_memory_and_time_of_hints_are_those_of_a_forecast_with_the_change(entry):
    from roller.insight.step_profile.profiling import profile
    from roller.insight.tracing import trace_entry

    found = {x.change: x for x in profile(entry, "a100").hints()}
    step = trace_entry(entry, device="a100")
    before, amp, again = (
        step.forecast("a100", **asked) for asked in ({}, {"amp": "bf16"}, {"checkpoint": True})
    )  # fmt: skip
    assert again.checkpoint == ("blocks.0", "blocks.1", "blocks.2")
    recompute = found[f"Recompute(blocks={again.checkpoint})"]
    assert found["AMP()"].memory.delta_bytes == amp.memory.total_bytes - before.memory.total_bytes
    assert recompute.memory.delta_bytes == again.memory.total_bytes - before.memory.total_bytes < 0
    # a block ends with an activation whose result backward does not read: PyTorch leaves it out, the what-if does not
    last_s = sum(price.seconds for operator, price in before.operators if operator.name == "aten.gelu.default")
    assert recompute.iteration_s - again.iteration_s == pytest.approx(last_s, rel=0.02) and recompute.delta_s > 0


def test_the_verb_prints_time_memory_and_money(cli, entry, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "p.yaml").write_text(
        "{currency: EUR, devices: {a100: {per_hour: 1.5, source: mine, date: 2020-01-31}}}"
    )
    out = cli("profile", entry, "--hints", "--prices", tmp_path / "p.yaml")[1]
    rows = {row.split()[0]: row for row in out[out.index("What would change it") :].splitlines() if row.strip()}
    assert "hardly anything" in rows["CudaGraph()"] and "not modelled" in rows["CudaGraph()"]
    assert " MiB" in rows["AMP()"] and "train.py:" in rows["AMP()"] and " EUR " in rows["hint"]
    assert " EUR a million samples; all figures" in out and "more than 180 days old" in out
    other = cli("profile", entry, "--device", "t4", "--hints", "--prices", tmp_path / "p.yaml")[1]
    assert "No price for t4 (only for a100): its cost is not shown." in other and "EUR" not in other


def test_a_changed_step_keeps_the_other_options_of_a_trace(entry):
    from roller.insight.forecast import forecast
    from roller.insight.tracing import trace_entry
    from roller.insight.whatif.memory_change_trace_options import MemoryChange

    first = trace_entry(entry, device="a100")
    step = first.at(batch=512, amp="bf16", checkpoint=True)
    told = step.memory_with(MemoryChange(batch_factor=2.0), "a100")
    assert told.total_bytes == first.memory("a100", batch=1024, amp="bf16", checkpoint=True).total_bytes
    assert step.memory_with(MemoryChange(), "a100") == forecast(step, "a100").memory
    two = step.memory_with(MemoryChange(devices=2), "a100")
    assert two == forecast(step, "a100", devices=2).memory != forecast(step, "a100").memory
    with pytest.raises(RollerError, match=r"a whole number of samples, got 0\.3 times 512"):
        step.memory_with(MemoryChange(batch_factor=0.3), "a100")


def test_memory_without_a_change_is_that_of_the_device_and_not_of_the_trace():
    torch = pytest.importorskip("torch")
    from roller.insight.tracing import trace
    from roller.insight.whatif.memory_change_trace_options import MemoryChange

    step = trace(torch.nn.BatchNorm2d(3), torch.zeros(4, 3, 8, 8), optimizer="adam")  # as on a GPU
    told = step.memory_with(MemoryChange(), "cpu-avx2")
    assert told == step.memory("cpu-avx2") != step.memory("a100")
