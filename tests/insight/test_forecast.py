"""Forecasts of steps and models: lanes, shares, memory, and the verb."""

from __future__ import annotations

import json

import pytest

import roller
from roller.errors import RollerError
from roller.insight.cost.operator_price import Pricer
from roller.insight.forecast import forecast
from roller.insight.trace.trace import AllocEvent, Operator, Storage, TensorRecord, Trace


def product(index, n, dtype="float32", phase="forward"):
    x, w, y = (TensorRecord((n, n), (n, 1), dtype, 3 * index + k) for k in range(3))
    return Operator(index, "aten.mm.default", phase, (x, w), (y,), module=f"layers.{index}")


def step(*sizes):
    operators = tuple(product(k, n) for k, n in enumerate(sizes))
    events = tuple(AllocEvent(3 * k + 2, 4 * n * n, k) for k, n in enumerate(sizes))
    storages = {3 * k + 2: Storage("activation") for k in range(len(sizes))}
    return Trace(operators, events, storages, (0, len(sizes)), {"batch": 8})


def test_a_step_takes_what_its_operators_take_one_after_the_other():
    found = forecast(step(4096, 2048, 4096), "a100")
    alone = [
        Pricer(roller.load_spec("a100").sustained).price_operator(o).seconds for o in step(4096, 2048, 4096).operators
    ]
    assert found.device_s == pytest.approx(sum(alone)) and sum(alone) <= found.iteration_s < sum(alone) + 1e-4
    assert found.lower_s < found.iteration_s < found.upper_s and not found.bound_by_launches
    assert found.throughput == pytest.approx(8 / found.iteration_s)
    shares = found.by_module()
    assert [s.name for s in shares[-1:]] == ["layers.1"] and sum(s.share for s in shares) == pytest.approx(1.0)
    assert [(s.name, s.kernels) for s in found.by_module(1)] == [("layers", 3)] and found.by_phase()[
        0
    ].name == "forward"


def test_small_operators_are_bound_by_launches():
    found = forecast(step(*[64] * 50), "h100", host_op_s=2e-5)
    assert found.bound_by_launches and found.iteration_s >= 50 * 2e-5 and found.host_s == pytest.approx(1e-3)


def test_what_does_not_fit_has_no_throughput():
    found = forecast(step(4096, 2048), roller.load_spec("a100", {"memory_layers.global.capacity_bytes": 1.35e9}))
    assert not found.memory.fits and found.throughput == 0.0 and found.to_dict()["memory"]["oom"]["wanted_bytes"] > 0


@pytest.mark.parametrize("wrong", [{"policy": "magic"}, {"host_op_s": -1.0}, {"host_op_s": float("nan")}])
def test_wrong_arguments(wrong):
    with pytest.raises(RollerError, match="expected"):
        forecast(step(64), "a100", **wrong)
    with pytest.raises(RollerError, match="no-such-device"):
        forecast(step(64), "no-such-device")


def test_the_verb_for_a_model(cli, tmp_path):
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper, save

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 256]) for n in "xy")
    node = helper.make_node("Relu", ["x"], ["y"])
    save(helper.make_model(helper.make_graph([node], "g", [x], [y]), ir_version=8), tmp_path / "m.onnx")
    code, out, _ = cli("forecast", str(tmp_path / "m.onnx"), "-d", "v100,h100", "--batch", "8,4096", "--json")
    rows = json.loads(out)
    assert code == 0 and [(r["device"], r["batch"]) for r in rows] == [
        ("v100", 8), ("h100", 8), ("v100", 4096), ("h100", 4096)
    ]  # fmt: skip
    assert rows[2]["iteration_s"] > rows[3]["iteration_s"] > 0 and rows[0]["kind"] == "predicted"
    assert "samples/s" in cli("forecast", str(tmp_path / "m.onnx"), "--batch", "8", "--top", "1")[1]
    assert "whole numbers of at least 1" in cli("forecast", str(tmp_path / "m.onnx"), "--batch", "0")[2]


def test_a_notebook_shows_operators_below_the_step_with_its_interval():
    found = forecast(step(4096, 2048), "a100")
    shown = found._repr_html_()
    assert shown.startswith("<table><caption>predicted on a100: ") and " to " in shown
    assert "<td>aten.mm.default</td><td>2</td>" in shown and "<th>predicted</th>" in shown
