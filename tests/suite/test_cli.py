"""``roller suite``: the list needs no PyTorch; digests and predictions say what a model is and does."""

import dataclasses
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from roller.cli.main import app
from roller.suite.registry import MODELS


def run(*words):
    done = CliRunner().invoke(app, ["suite", *words], env={"COLUMNS": "250"})
    return done.exit_code, done.stdout


def test_the_list_has_all_models_with_units_and_parameters():
    code, text = run("list")
    assert code == 0
    assert [line.split()[0] for line in text.splitlines()[1:]] == list(MODELS)
    rows = json.loads(run("list", "--json")[1])
    assert {row["model"]: row["parameters"] for row in rows}["bert_large"] == 334_094_338
    assert {row["unit"] for row in rows if row["model"] == "deep_speech_2"} == {"seconds of audio"}


def test_the_list_needs_no_pytorch():
    code = (
        "import sys\nsys.modules['torch'] = None\n"
        "from roller.cli.main import main\ntry: main(['suite', 'list'])\nexcept SystemExit as end: assert not end.code"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "resnet50" in done.stdout, done.stderr


def test_several_devices_of_one_kind_are_refused():
    done = CliRunner().invoke(app, ["suite", "predict", "a3c", "--device", "2xv100"])
    assert done.exit_code != 0 and "expected one of each" in str(done.exception) + done.stderr


@pytest.mark.slow
def test_a_prediction_has_throughput_utilisation_and_memory_that_sums():
    pytest.importorskip("torch")
    code, text = run("predict", "a3c", "ncf", "--device", "v100,p4000", "--reduced", "--batch", "8,16", "--json")
    assert code == 0
    rows = json.loads(text)
    assert [(r["model"], r["batch"], r["device"]) for r in rows] == [
        (model, batch, device) for model in ("a3c", "ncf") for batch in (8, 16) for device in ("v100", "p4000")
    ]
    for row in rows:
        assert row["kind"] == "predicted" and row["throughput_per_s"] == pytest.approx(
            row["batch"] / row["iteration_s"]
        )
        assert row["throughput_lower_per_s"] <= row["throughput_per_s"] <= row["throughput_upper_per_s"]
        assert sum(row["memory_bytes"].values()) == row["total_bytes"]
        assert row["peak_share"] == pytest.approx(sum(row["peak_share_by_pipe"].values()))
        assert row["most_bytes"]["weights"] == row["memory_bytes"]["weights"]


def test_what_does_not_fit_has_no_throughput():
    pytest.importorskip("torch")
    words = ("predict", "ncf", "--reduced", "--device", "v100", "--set", "memory_layers.global.capacity_bytes=2e6")
    code, text = run(*words)
    assert code == 0 and "does not fit" in text
    (row,) = json.loads(run(*words, "--json")[1])
    assert row["fits"] is False and row["throughput_per_s"] is None and row["memory_bytes"] is None


def test_digests_are_equal_for_equal_models_and_name_what_differs():
    pytest.importorskip("torch")
    from roller.suite.model_structure_text import digest_model

    one, same = (digest_model(MODELS["a3c"], reduced=True) for _ in range(2))
    assert (one.modules_key, one.operators_key) == (same.modules_key, same.operators_key)
    assert one.difference(same) == () and one.parameters == 43_539
    assert "body.0: Conv2d(4, 4, kernel_size=(8, 8), stride=(4, 4))" in one.modules
    assert "1 x forward aten.relu.default [16, 4, 20, 20]" in one.operators
    full = digest_model(MODELS["a3c"])
    assert full.modules_key != one.modules_key
    assert "-heads.weight: [7, 64] float32" in one.difference(full)
    assert "+heads.weight: [7, 256] float32" in one.difference(full)
    other = dataclasses.replace(one, modules=(*one.modules, "extra: ReLU()"))
    assert one.difference(other) == ("+extra: ReLU()",)


def test_a_digest_is_printed():
    pytest.importorskip("torch")
    code, text = run("digest", "a3c", "--reduced")
    assert code == 0 and "43,539" in text
    (row,) = json.loads(run("digest", "a3c", "--reduced", "--json")[1])
    assert row["modules_key"] in text and row["operators_key"] in text


def test_digests_are_compared_with_a_file(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "digests.json"
    assert run("digest", "a3c", "--reduced", "--out", str(path))[0] == 0
    code, text = run("digest", "a3c", "--reduced", "--against", str(path))
    assert code == 0 and "a3c:" not in text
    rows = json.loads(path.read_text())
    rows[0]["modules"].remove("heads.bias: [7] float32")
    path.write_text(json.dumps(rows))
    code, text = run("digest", "a3c", "--reduced", "--against", str(path))
    assert code == 1 and "a3c: +heads.bias: [7] float32" in text
    path.write_text("[]")
    code, text = run("digest", "a3c", "--reduced", "--against", str(path))
    assert code == 1 and "a3c: it is not in the file" in text
    path.write_text('[{"model": 1}]')
    done = CliRunner().invoke(app, ["suite", "digest", "a3c", "--against", str(path)])
    assert done.exit_code != 0 and "expected the JSON of digests" in str(done.exception) + done.stderr
