"""Sweeps: prices as the user has them, the front, and the verbs about training."""

from __future__ import annotations

import csv
import io
import json
from datetime import date

import pytest

import roller
from roller.cli.sweep import price_text
from roller.errors import RollerError
from roller.insight.rate_card import HourlyRate, RateCard, read_rate_card
from roller.insight.sweep import SweepRow, mark_pareto_front, row_label, rows_to_csv, sweep
from tests.offenders import every

torch = pytest.importorskip("torch")

GOOD = "currency: USD\ndevices:\n  a100: {per_hour: 1.5, source: mine, date: 2026-01-31}\n"
ENTRY = """
import torch
from torch import nn

def model_provider():
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(2)]
    return nn.Sequential(nn.Sequential(*blocks), nn.Linear(64, 8))

def input_provider(batch_size=16):
    return torch.zeros(batch_size, 64), torch.zeros(batch_size, dtype=torch.long)

def iteration_provider(model):
    optimizer, loss = torch.optim.AdamW(model.parameters()), nn.CrossEntropyLoss()
    def step(x, y):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return step
"""


class Timed:
    """Stands for a forecast of a certain throughput."""

    def __init__(self, throughput):
        self.throughput = throughput


def choice(throughput, price):
    return SweepRow("a100", 1, 8, "fp32", False, Timed(throughput), price)


def test_the_front_holds_what_nothing_beats():
    rows = [choice(10, 1.0), choice(20, 2.0), choice(15, 2.5), choice(20, 3.0), choice(5, 0.5), choice(0, None)]
    assert [r.front for r in mark_pareto_front(rows)] == [True, True, False, False, True, False]
    assert [r.front for r in mark_pareto_front([choice(10, None), choice(20, None)])] == [False, True]
    assert [r.front for r in mark_pareto_front([choice(10, 1.0), choice(20, None)])] == [
        True,
        False,
    ]  # a price nobody knows
    assert [r.front for r in mark_pareto_front([choice(10, 1.0), choice(10, 1.0)])] == [True, True] and not list(
        mark_pareto_front([])
    )


def test_prices_are_read_with_their_source_and_date(tmp_path):
    (tmp_path / "p.yaml").write_text(GOOD)
    found = read_rate_card(tmp_path / "p.yaml")
    assert found == RateCard("USD", {"a100": HourlyRate(1.5, "mine", "2026-01-31")}) and found.per_hour("h100") is None


def test_of_a_date_with_a_time_the_date_counts(tmp_path):
    (tmp_path / "p.yaml").write_text(GOOD.replace("2026-01-31", "2026-01-31 10:00:00"))
    found = read_rate_card(tmp_path / "p.yaml").devices["a100"]
    assert found.date == "2026-01-31" and found.is_old(date(2026, 8, 1)) and not found.is_old(date(2026, 7, 30))


@every(
    ("text", "match"),
    [
        ("[1, 2]", "currency and devices"), ("currency: USD", "currency and devices"), ("a: [", "a YAML file"),
        (GOOD.replace("1.5", "-1"), "above 0"), (GOOD.replace("1.5", "free"), "above 0"),
        (GOOD.replace(", source: mine", ""), "source and date"), (GOOD.replace("2026-01-31", "soon"), "a date"),
        ("currency: 3\ndevices: {}", "a word"), (GOOD.replace("1.5", ".nan"), "above 0"),
    ],
)  # fmt: skip
def test_prices_that_cannot_be_trusted_are_refused(tmp_path, text, match):
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(RollerError, match=match):
        read_rate_card(tmp_path / "p.yaml")
    with pytest.raises(RollerError, match="a YAML file"):
        read_rate_card(tmp_path / "none.yaml")


@pytest.fixture(scope="module")
def step():
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    return roller.trace(model, torch.zeros(16, 64), optimizer="adamw")


def test_a_price_that_is_paid_never_reads_as_nothing():
    assert [price_text(x) for x in (6.8812, 0.1, 0.000123456)] == ["6.88", "0.10", "0.000123"]


def test_rows_cost_what_their_throughput_says(step):
    specs = [(roller.load_spec("a100"), 1), (roller.load_spec("a100"), 2), (roller.load_spec("h100"), 1)]
    rows = sweep(step, specs, batches=[16, 32], prices=RateCard("USD", {"a100": HourlyRate(2.0, "x", "2026-01-01")}))
    assert [(r.device, r.devices, r.batch) for r in rows][:4] == [
        ("a100", 1, 16), ("a100", 1, 32), ("a100", 2, 16), ("a100", 2, 32)
    ]  # fmt: skip
    assert rows[0].price_per_million == pytest.approx(1e6 / rows[0].throughput * 2.0 / 3600)
    assert rows[2].price_per_million == pytest.approx(1e6 / rows[2].throughput * 2 * 2.0 / 3600)
    assert rows[4].price_per_million is None and not rows[4].front and any(r.front for r in rows)
    assert rows[2].forecast.batch == 8 and row_label(rows[3]) == "2xa100, batch 32"
    read = list(csv.DictReader(io.StringIO(rows_to_csv(rows))))
    assert len(read) == 6 and float(read[0]["iteration_s"]) == rows[0].forecast.iteration_s
    with pytest.raises(RollerError, match="a multiple of 2"):
        sweep(step, specs, batches=[15])


def test_the_largest_batch_of_several_leaves_room_for_buckets(step):
    small = roller.load_spec("a100", {"memory_layers.global.capacity_bytes": 1.337e9})
    one, two = sweep(step, [(small, 1), (small, 2)], batches=["max"])
    assert one.forecast.memory.fits and two.forecast.memory.fits and two.batch <= 2 * one.batch
    assert not step.forecast(small, batch=two.batch // 2 + 1, devices=2).memory.fits


def test_a_way_that_does_not_run_leaves_the_others(step):
    specs = [(roller.load_spec(name), 1) for name in ("v100", "a100")]
    v100, a100 = sweep(step, specs, amps=["bf16"])
    assert v100.forecast is None and "bfloat16" in v100.said and a100.front
    with pytest.raises(RollerError, match="bfloat16"):
        sweep(step, specs[:1], amps=["bf16"])


def test_the_verbs(cli, tmp_path):
    (tmp_path / "train.py").write_text(ENTRY)
    (tmp_path / "p.yaml").write_text(GOOD)
    file = str(tmp_path / "train.py")
    code, out, _ = cli("memory", file, "-d", "t4,a100", "-b", "8,16", "--checkpoint", "no,yes", "--json")
    rows = json.loads(out)
    assert code == 0 and len(rows) == 8 and all(r["fits"] and r["kind"] == "predicted" for r in rows)
    assert (
        rows[0]["requested_bytes"] <= rows[0]["allocated_bytes"] <= rows[0]["reserved_bytes"] < rows[0]["total_bytes"]
    )
    code, out, _ = cli(
        "sweep", file, "-d", "a100,2xa100,h100", "-b", "16", "--prices", str(tmp_path / "p.yaml"),
        "--csv", str(tmp_path / "s.csv"), "--json",
    )  # fmt: skip
    rows = json.loads(out)
    assert code == 0 and [r["devices"] for r in rows] == [1, 2, 1] and rows[2]["price_per_million"] is None
    assert (tmp_path / "s.csv").read_text().count("\n") == 4
    out = cli("sweep", file, "-d", "a100,h100", "-b", "16", "--prices", str(tmp_path / "p.yaml"))[1]
    assert "USD a million samples" in out and "has no price for h100" in out
    out = cli("forecast", file, "-d", "a100,2xa100", "--amp", "fp32,bf16", "--top", "2")[1]
    assert out.count("2xa100") == 2 and "bf16" in out


def test_what_does_not_fit_says_what_would(cli, tmp_path):
    (tmp_path / "train.py").write_text(ENTRY)
    small = ("--set", "memory_layers.global.capacity_bytes=1.327e9")
    out = cli("memory", str(tmp_path / "train.py"), "-d", "a100", "-b", "20000", *small)[1]
    assert "does not fit" in out and "tried to allocate" in out and "train.py:" in out
    assert "--amp bf16:" in out and "the largest batch that fits as it is: " in out
    largest = json.loads(cli("memory", str(tmp_path / "train.py"), "-b", "max", *small, "--json")[1])[0]
    assert f"as it is: {largest['batch']}" in out and largest["fits"]
    snapshot = tmp_path / "s.pickle"
    assert cli("memory", str(tmp_path / "train.py"), "-b", "8", "--snapshot", str(snapshot))[0] == 0
    from roller.insight.memory.snapshot import read_snapshot

    assert read_snapshot(snapshot)["device_traces"][0]


@every(
    ("arguments", "match"),
    [
        (("memory", "-d", ","), "names of devices"), (("memory", "-d", "h10"), "h10"),
        (("memory", "-b", "0"), "at least 1"), (("memory", "-b", "²"), "at least 1"),
        (("memory", "--amp", "int8"), "fp32, fp16, bf16"),
        (("memory", "--checkpoint", "maybe"), "no, yes"), (("memory", "-d", "2xa100"), "roller sweep"),
        (("memory", "--allocator", "magic:1"), "magic"),
        (("memory", "-b", "8,16", "--snapshot", "s"), "one device, batch"),
        (("sweep", "--prices", "none.yaml"), "a YAML file"), (("sweep", "--policy", "magic"), "compiled, roller"),
        (("sweep", "--csv", "/nowhere/x.csv"), "does not exist"),
        (("sweep", "--picture", "/nowhere/x.png"), "does not exist"),
        (("memory", "-b", "8", "--snapshot", "/nowhere/x"), "does not exist"),
        (("forecast", "-b", "max"), "whole numbers"), (("sweep", "-d", "3xa100"), "a multiple of 3"),
    ],
)  # fmt: skip
def test_bad_arguments_are_one_clear_error(cli, tmp_path, arguments, match):
    (tmp_path / "train.py").write_text(ENTRY)
    code, _, err = cli(arguments[0], str(tmp_path / "train.py"), *arguments[1:])
    assert code != 0 and match in err and "Traceback" not in err


def test_a_picture_is_drawn_or_refused_before_any_work(tmp_path, step, monkeypatch):
    from roller.insight import sweep as sweeps

    monkeypatch.setattr(sweeps.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(RollerError, match=r"\.png, \.svg, \.pdf"):
        sweeps.check_picture_path(tmp_path / "x.docx")
    monkeypatch.setattr(sweeps.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RollerError, match="matplotlib"):
        sweeps.check_picture_path(tmp_path / "x.png")
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    sweeps.draw_sweep(sweep(step, [(roller.load_spec("a100"), 1)]), tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
