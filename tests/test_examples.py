"""Examples run, and say what they promise to show."""

from __future__ import annotations

import importlib
import itertools
from contextlib import nullcontext
from types import SimpleNamespace

import onnx
import pytest
import typer
from typer.testing import CliRunner

from benchmarks.cpu.race import Pace
from examples.racing import Raced, raced

pytest.importorskip("tvm")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cuda_without_gpu", ("1. predicted", 'extern "C" __global__')),
        ("custom_operator", ("tiles: cpu/", "bound by", "measured")),
        ("new_device", ("elementwise: v100: predicted", "dream: gpu/", "% of its time")),
    ],
)
def test_an_example_runs_and_says_what_it_shows(name, said, capsys):
    importlib.import_module(f"examples.{name}").main()
    out = capsys.readouterr().out
    assert [s for s in said if s not in out] == []


BUSY = "other programs kept 1.9 of 2 processors busy"


def _raced(doubt: str = "", wobble: float = 0.0) -> Raced:
    steady = [1 + wobble * (-1) ** n for n in range(11)]
    mine, pytorch, runtime = 77.607e-3, 0.1076, 0.2
    return Raced(
        {
            "roller": tuple(mine * x for x in steady), "PyTorch": tuple(pytorch for _ in steady),
            "ONNX Runtime": tuple(runtime for _ in steady),
        },
        doubt,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("raced", "kernel", "said", "ratio"),
    [
        (_raced(BUSY), "", f"doubtful: {BUSY}", None),
        (_raced(), BUSY, f"doubtful: {BUSY}", None),
        (_raced(wobble=0.3), "", "doubtful: half of the times of roller spread over", None),
        (_raced(), "", "77.607 ms (77.607 to 77.607 in half of 11 blocks)", "1.39x"),
    ],
)
def test_the_demo_tells_no_ratio_of_doubtful_times(raced, kernel, said, ratio, capsys, monkeypatch):
    demo = importlib.import_module("examples.demo")
    peers = [SimpleNamespace(name=name) for name in ("PyTorch", "ONNX Runtime")]
    row = demo.Result("M4", "matmul[...]", 12.34, 3.379e-3, raced, True, kernel)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(demo, "installed_peers", lambda threads: peers)
    monkeypatch.setattr(demo, "run", lambda *words: row)
    assert demo.main() == 0
    out = capsys.readouterr().out
    assert said in out and "the faster of PyTorch and ONNX Runtime" in out
    assert (out.count("1.39x") == len(demo.CHOSEN) + 1) if ratio else ("withheld" in out and "39x" not in out)
    assert (f"{raced.median_s('roller') * 1e3:.3f}*" in out) is (ratio is None)
    assert "roller ms:" not in out, "no cell stands below its row"
    assert max(map(len, out.splitlines()[1:])) <= 80


def test_the_mean_of_the_demo_is_that_of_the_steady_times():
    demo = importlib.import_module("examples.demo")
    rows = [demo.Result("M4", "matmul", 1.0, 1e-3, x, True) for x in (_raced(), _raced(BUSY))]
    assert demo.summary(rows, ["PyTorch", "ONNX Runtime"])[0].endswith("(of 1 of 2 operators): 1.39x")


def test_contenders_take_turns():
    order = []
    found = raced({n: lambda n=n: order.append(n) for n in "ab"}, Pace(rounds=3, turn_s=1e-4, settle_s=0.0))
    turns = [n for n, _ in itertools.groupby(order)]
    assert turns == ["a", "b"] * 4 and len(found.times["a"]) == len(found.times["b"]) == 3


def test_a_race_of_models_takes_a_batch_and_says_what_disturbed_it(tmp_path, capsys, monkeypatch):
    model = importlib.import_module("examples.model")
    path = tmp_path / "scaled.onnx"
    text = '<ir_version: 8, opset_import: ["": 17]> scaled (float[n, 8] x) => (float[n, 8] y) { y = Add(x, x) }'
    onnx.save(onnx.parser.parse_model(text), path)
    racing = importlib.import_module("examples.racing")
    monkeypatch.setattr(racing, "watched", lambda: nullcontext(SimpleNamespace(doubt=BUSY)))
    app = typer.Typer()
    app.command()(model.main)
    for how in (["--batch", "4"], ["--shape", "x=2,8"]):
        done = CliRunner().invoke(app, [str(path), *how])
        assert done.exit_code == 0 and "correct" in done.output
        assert f"scaled: no ratio, times are doubtful: {BUSY}" in done.output and "x  " not in done.output
    assert CliRunner().invoke(app, [str(path)]).exit_code == 1, "its shape is unknown"
