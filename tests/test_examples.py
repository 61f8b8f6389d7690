"""Examples run, and say what they promise to show."""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from types import SimpleNamespace

import onnx
import pytest
import typer
from typer.testing import CliRunner

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


def test_the_table_of_the_demo_fits_a_terminal_and_names_what_disturbed_it(capsys, monkeypatch):
    demo = importlib.import_module("examples.demo")
    peers = [SimpleNamespace(name=name) for name in ("PyTorch", "ONNX Runtime")]
    row = demo.Result("M4", "matmul[...]", 12.34, 3.379e-3, 77.607e-3, {p.name: 0.1076 for p in peers}, True, BUSY)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(demo, "installed_peers", lambda threads: peers)
    monkeypatch.setattr(demo, "run", lambda *words: row)
    assert demo.main() == 0
    out = capsys.readouterr().out
    assert f"doubtful: {BUSY}" in out and "77.607*" in out and "the faster of PyTorch and ONNX Runtime" in out
    assert "roller ms:" not in out, "no cell stands below its row"
    assert max(map(len, out.splitlines()[1:])) <= 80


def test_a_race_of_models_takes_a_batch_and_says_what_disturbed_it(tmp_path, capsys, monkeypatch):
    model = importlib.import_module("examples.model")
    path = tmp_path / "scaled.onnx"
    text = '<ir_version: 8, opset_import: ["": 17]> scaled (float[n, 8] x) => (float[n, 8] y) { y = Add(x, x) }'
    onnx.save(onnx.parser.parse_model(text), path)
    monkeypatch.setattr(model, "watched", lambda: nullcontext(SimpleNamespace(doubt=BUSY)))
    app = typer.Typer()
    app.command()(model.main)
    for how in (["--batch", "4"], ["--shape", "x=2,8"]):
        done = CliRunner().invoke(app, [str(path), *how])
        assert done.exit_code == 0 and "correct" in done.output
        assert f"scaled: times are doubtful: {BUSY}" in done.output
    assert CliRunner().invoke(app, [str(path)]).exit_code == 1, "its shape is unknown"
