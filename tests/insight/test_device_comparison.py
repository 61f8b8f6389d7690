"""Operators x devices x prices: cells, marks, CSV, the picture; and what decides the time of a whole model."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from roller import ops
from roller.errors import RollerError
from roller.hardware import load_spec
from roller.insight import sensitivity
from roller.insight.compare_operators_across_devices import (
    ALL,
    THEMES,
    Cell,
    _mark_best_devices,
    compare,
    draw_comparison,
)
from roller.insight.rate_card import HourlyRate, RateCard
from roller.insight.trace.trace import Operator, TensorRecord, Trace

OPERATORS = {"half": ops.matmul(512, 512, 512, dtype="float16"), "relu": ops.elementwise(("relu",), (1 << 20,))}
PRICES = RateCard("USD", {n: HourlyRate(hour, "mine", "2026-01-31") for n, hour in (("a100", 1.5), ("h100", 3.0))})
FILE = """operators:
  - {id: half, op: matmul, M: 512, N: 512, K: 512, dtype: float16}
  - {id: single, op: matmul, M: 512, N: 512, K: 512, dtype: float32}
"""
MONEY = "currency: EUR\ndevices:\n  a100: {per_hour: 3.6, source: mine, date: 2026-01-31}\n"


@pytest.fixture(scope="module")
def found():
    return compare(OPERATORS, [load_spec(n) for n in ("a100", "h100", "p100")], prices=PRICES)


def test_a_million_calls_cost_their_hours(found):
    for cell in found.cells:
        hour = PRICES.per_hour(cell.device)
        assert cell.price_per_million == (None if hour is None else pytest.approx(cell.seconds * hour * 1e6 / 3600))
        assert cell.lower_s < cell.seconds < cell.upper_s


def test_the_last_row_is_one_call_of_each(found):
    assert found.operators == ("half", "relu", ALL)
    for device in found.devices:
        parts = [found.cell_of(name, device).seconds for name in OPERATORS]
        assert found.cell_of(ALL, device).seconds == pytest.approx(sum(parts))
    assert compare({"relu": OPERATORS["relu"]}, [load_spec("a100")]).operators == ("relu",)


def test_the_fastest_and_the_cheapest_of_each_row_are_marked(found):
    for name in found.operators:
        row = [found.cell_of(name, device) for device in found.devices]
        assert [c for c in row if c.fastest] == [min(row, key=lambda c: c.seconds)]
        (cheapest,) = [c for c in row if c.cheapest]
        assert cheapest.price_per_million == min(c.price_per_million for c in row if c.price_per_million is not None)


def test_what_the_comparison_leaves_out_is_said(found):
    assert any("float16 has no matrix unit on p100" in note for note in found.notes)
    assert "No price for p100: the cost is not shown." in found.notes


def test_csv_and_json_have_every_cell(found):
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    data = json.loads(json.dumps(found.to_dict()))
    assert len(rows) == len(data["cells"]) == 9
    for row, cell in zip(rows, data["cells"], strict=True):
        assert row["kind"] == "predicted" and row["currency"] == "USD"
        assert (row["operator"], row["device"], float(row["seconds"])) == (
            cell["operator"], cell["device"], cell["seconds"])  # fmt: skip


def test_a_processor_is_compared_by_constructed_programs():
    (cell,) = compare({"relu": ops.elementwise(("relu",), (4096,))}, [load_spec("cpu-avx2")]).cells
    assert cell.by == "construct" and cell.seconds > 0


def test_an_unknown_policy_is_refused():
    with pytest.raises(RollerError, match="policy: expected one of"):
        compare(OPERATORS, [load_spec("a100")], policy="magic")


@pytest.mark.parametrize("theme", list(THEMES))
def test_the_picture_has_every_row_device_and_the_word_predicted(found, theme, tmp_path):
    pytest.importorskip("matplotlib")
    for width in (6.0, 12.0):
        draw_comparison(found, tmp_path / "out.svg", theme=theme, width=width)
        text = (tmp_path / "out.svg").read_text()
        wanted = ("half", "relu", "a100", "h100", "p100", "USD per million calls", "Predicted, kernels of libraries")
        assert [x for x in wanted if x not in text] == []
        assert THEMES[theme].back in text and THEMES[theme].text in text


def test_the_picture_without_prices_has_no_cost(tmp_path):
    pytest.importorskip("matplotlib")
    draw_comparison(compare(OPERATORS, [load_spec("a100")]), tmp_path / "out.svg")
    assert "per million" not in (tmp_path / "out.svg").read_text()


def test_the_verb_prints_a_table_and_writes_all(cli, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "ops.yaml").write_text(FILE)
    (tmp_path / "p.yaml").write_text(MONEY)
    out, slide = tmp_path / "out.csv", tmp_path / "out.png"
    code, text, err = cli(
        "compare", str(tmp_path / "ops.yaml"), "-d", "a100,p100", "--prices", str(tmp_path / "p.yaml"),
        "--csv", str(out), "--picture", str(slide), "--theme", "dark",
    )  # fmt: skip
    words = " ".join(text.split())
    assert code == 0, err
    assert "predicted, kernels of libraries" in words and "float16 has no matrix unit on p100" in words
    assert "No price for p100" in words and "EUR" in words
    assert len(out.read_text().splitlines()) == 7 and slide.stat().st_size > 10_000
    data = json.loads(cli("compare", "matmul(64, 64, 64)", "-d", "a100", "--json")[1])
    assert [c["operator"] for c in data["cells"]] == data["operators"] == ["matmul"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("compare", "matmul(64, 64, 64)", "-d", "2xa100"), "expected one of each, got several"),
        (("compare", "matmul(64, 64, 64)", "--batch", "8"), "--batch: expected a file of operators"),
        (("compare", "matmul(64, 64, 64)", "--filter", "M*"), "--filter: expected a file of operators"),
        (("compare", "matmul(64, 64, 64)", "--theme", "blue"), "--theme: expected 'light' or 'dark'"),
        (("compare", "matmul(64, 64, 64)", "--policy", "magic"), "--policy: expected 'library' or 'roller'"),
        (("compare", "matmul(64, 64, 64)", "--picture", "x.bmp"), "ends in .png, .svg, .pdf"),
        (("sensitivity", "model.onnx", "-d", "a100", "--reconstruct"), "expected operators, got a model"),
        (("sensitivity", "model.onnx", "-d", "a100", "--amp", "bf16"), "expected no --amp for a model"),
        (("sensitivity", "entry.py", "-d", "a100", "--shape", "x=1"), "expected no --shape beside an entry file"),
        (("sensitivity", "matmul(8, 8, 8)", "--policy", "library"), "expected beside a model or an entry file"),
    ],
)
def test_what_cannot_be_compared_is_refused(cli, words, said):
    code, _, err = cli(*words)
    assert code == 2 or (code == 1 and "picture" in said + err)
    assert said in " ".join(err.split())


def _step(rows):
    x, w, y = (TensorRecord((rows, 512), (512, 1), "float32", n) for n in range(3))
    w = TensorRecord((512, 512), (512, 1), "float32", 1)
    return Trace((Operator(0, "aten.mm.default", "forward", (x, w), (y,)),), (), {}, (0, 1), {"batch": rows})


def test_a_step_follows_the_number_that_bounds_it():
    found = sensitivity.sensitivity_of_step(_step(8192), load_spec("a100")).sensitivity
    effects = {e.field: e for e in found.effects}
    assert effects["compute.ops_per_cycle_per_unit.fma"].percent < -0.2
    assert "compute.ops_per_cycle_per_unit.matrix.float16" not in effects and "link_bytes_per_s" not in effects
    assert found.operators == ("step",) and not found.reconstructed


def test_the_time_of_a_step_is_that_of_its_forecast():
    from roller.insight.forecast import forecast

    found = sensitivity.sensitivity_of_step(_step(512), load_spec("h100")).sensitivity
    assert found.seconds[0] == pytest.approx(forecast(_step(512), "h100").device_s, rel=1e-9)


def test_a_model_follows_the_number_that_bounds_it(tmp_path):
    onnx = pytest.importorskip("onnx")
    text = (
        '<ir_version: 8, opset_import: ["": 17]> scaled (float[1048576, 8] x) => (float[1048576, 8] y) { y = Relu(x) }'
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "scaled.onnx")
    found = sensitivity.sensitivity_of_model(tmp_path / "scaled.onnx", load_spec("a100"), policy="library").sensitivity
    assert found.enlarge is not None and found.enlarge.field == "memory_layers.global.bandwidth_bytes_per_s"


def test_a_lower_bound_is_not_marked_beside_a_time():
    """A device that no program of an operator fits takes at least its bytes: that shows it to be no faster."""
    time = Cell("one", "one", "a100", 2e-6, 1e-6, 3e-6, "dram", "library", 2.0)
    bound = replace(time, device="p100", seconds=1e-6, by="bytes", price_per_million=1.0)
    marked = [(c.device, c.fastest, c.cheapest) for c in _mark_best_devices([bound, time])]
    assert marked == [("p100", False, False), ("a100", True, True)]
    assert [c.fastest for c in _mark_best_devices([bound, replace(bound, device="k80", seconds=3e-6)])] == [True, False]
