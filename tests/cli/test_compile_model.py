"""``roller compile-model`` and ``roller run-model``: a model from a file to a folder to results."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from roller.cli import run_model
from roller.errors import ArtifactError, LaunchError, RollerWarning
from roller.models.session import bundle
from tests.models.onnx.networks import tower, unsupported


def documented(command, data):
    """Whether docs/command-line-json.md names every key of a command's JSON."""
    text = (Path(__file__).parents[2] / "docs" / "command-line-json.md").read_text()
    section = text.split(f"## `roller {command} ")[1].split("\n## ")[0]
    missing = [key for key in data if f"`{key}`" not in section]
    assert not missing
    return True


def test_a_node_of_several_kernels_says_which_each_is(cli, tmp_path):
    node = onnx.helper.make_node("GRU", ["x", "w", "r"], ["y"], hidden_size=4, name="memory")
    given = [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 1, 4])]
    made = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3, 1, 1, 4])]
    weights = [onnx.numpy_helper.from_array(np.ones((1, 12, 4), "float32"), n) for n in ("w", "r")]
    graph = onnx.helper.make_graph([node], "gru", given, made, weights)
    path = tmp_path / "gru.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    code, out, _ = cli("compile-model", path, "-k", "1", "-d", "v100", "--json")
    labels = [row["label"] for row in json.loads(out)["kernel_rows"]]
    assert code == 0 and len(labels) > 2 and len(set(labels)) == len(labels) and all("memory [" in x for x in labels)


def test_a_model_without_kernels_is_predicted_to_take_no_time(cli, tmp_path):
    ends = [onnx.helper.make_tensor_value_info(n, 1, shape) for n, shape in (("x", (2, 3, 4)), ("y", (2, 12)))]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Flatten", ["x"], ["y"])], "flat", ends[:1], ends[1:])
    path = tmp_path / "flat.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    code, out, _ = cli("compile-model", path)
    assert code == 0 and "0 kernels in 1 step. " in out and "predicted 0 us a call" in out and "from:" not in out


def test_results_are_written_whole_and_whatever_their_names(tmp_path, monkeypatch):
    path, results = tmp_path / "y", {"file": np.arange(3), "a/b": np.ones((), np.float16)}
    run_model._write_npz(path, results)
    with np.load(path) as found:
        assert set(found.files) == set(results) and all(np.array_equal(found[n], a) for n, a in results.items())
    before = path.read_bytes()

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(ArtifactError, match=r"cannot write .* \(No space left"):
        run_model._write_npz(path, {"x": np.zeros(1)})
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["y"]


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "tower.onnx"
    onnx.save(tower(), path)
    return path


def test_a_model_is_compiled_saved_and_run(cli, model, tmp_path):
    folder, feeds, results = tmp_path / "compiled", tmp_path / "x.npz", tmp_path / "y.npz"
    code, out, _ = cli("compile-model", model, "--batch", "2", "--top-k", "1", "--out", folder)
    assert code == 0 and "tower on " in out and f"{folder}: written" in out.replace("\n", "")
    x = np.random.default_rng(0).standard_normal((2, 8, 8, 8), dtype=np.float32)
    np.savez(feeds, x=x)
    code, out, _ = cli("run-model", folder, "--inputs", feeds, "--outputs", results, "--repeats", "3")
    assert code == 0 and "median" in out
    expected = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    np.testing.assert_allclose(np.load(results)["y"], expected, rtol=1e-4, atol=1e-5)
    code, out, _ = cli("run-model", folder, "--repeats", "1", "--profile", "--json")
    steps = json.loads(out)["profile"]["steps"]
    assert code == 0 and any("conv0" in s["label"] and s["predicted_s"] > 0 for s in steps)
    assert documented("run-model", json.loads(out)) and json.loads(out)["outputs"] == [
        {"name": "y", "dtype": "float32", "shape": [2, 5]}
    ]
    for arrays, message in (
        ({"X": x}, "'X' is not an input. Inputs are 'x'"), ({}, "got none for 'x'"), ({"x": x[:1]}, "expected shape"),
        ({"x": x.astype("d")}, "expected dtype float32, got float64"),
    ):  # fmt: skip
        np.savez(feeds, **arrays)
        code, _, err = cli("run-model", folder, "--inputs", feeds, "--outputs", tmp_path / "none.npz")
        assert code == 1 and message in err and not (tmp_path / "none.npz").exists()
    code, _, err = cli("run-model", folder, "-d", "cuda:0")
    assert code == 1 and "expected none for a model of this processor" in err
    code, _, err = cli("run-model", model)
    assert code == 1 and f"roller compile-model {model} --out DIR" in err
    feeds.write_bytes(b"nonsense")
    code, _, err = cli("run-model", folder, "--inputs", feeds)
    assert code == 1 and "--inputs: expected arrays by name" in err


def test_a_model_for_a_gpu_that_is_not_here_becomes_a_bundle(cli, model, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "b"
    code, out, _ = cli("compile-model", model, "--batch", "2", "-d", "v100", "-k", "1", "--out", folder)
    assert code == 0 and f"python -m roller.models.session.bundle run {folder} --json r.json" in out.replace("\n", "")
    assert bundle.main(["verify", str(folder)]) == 0
    assert "for v100, 1 tests, all as listed" in capsys.readouterr().out

    def refuse(*_):
        raise LaunchError("no runtime")

    monkeypatch.setattr("roller.models.onnxruntime_reference.make_random_expected_outputs", refuse)
    code, _, err = cli("compile-model", model, "--batch", "2", "-d", "v100", "-k", "1", "--out", tmp_path / "c")
    assert code == 0 and "nothing to check results against: no runtime" in err


def test_a_model_for_a_gpu_of_this_machine_is_run_by_the_same_command(cli, model, tmp_path):
    """The null device stands for one."""
    folder, device = tmp_path / "b", "null:v100"
    code, out, _ = cli("compile-model", model, "--batch", "2", "-d", device, "-k", "1", "--out", folder)
    assert code == 0 and f"Run it: roller run-model {folder}" in out.replace("\n", "")
    code, out, _ = cli("run-model", folder, "-d", device, "--repeats", "1", "--profile", "--json")
    rows = json.loads(out)["profile"]["steps"]
    assert code == 0 and all(r["measured_s"] == pytest.approx(r["predicted_s"]) for r in rows if r["kind"] == "kernel")
    code, _, err = cli("run-model", folder)
    assert code == 1 and "expected CuPy" in err and "install it" in err
    code, _, err = cli("run-model", folder, "-d", "v100")
    assert code == 1 and "device 'v100': expected 'cuda:N', 'rocm:N' or 'emulated'" in err


def test_shapes_and_rows_as_json(cli, model):
    code, out, _ = cli("compile-model", model, "--shape", "x=2x8x8x8", "--device", "v100", "-k", "1", "--json")
    data = json.loads(out)
    assert code == 0 and data["model"] == "tower" and data["device"] == "v100"
    assert sum(row["runs"] * row["predicted_s"] for row in data["kernel_rows"]) == pytest.approx(data["predicted_s"])
    assert data["origins"] == {"compiled": data["kernels"]}
    assert documented("compile-model", data) and documented("compile-model", data["kernel_rows"][0])


def test_what_cannot_be_compiled_is_a_table_and_exit_code_2(cli, tmp_path):
    path = tmp_path / "strange.onnx"
    onnx.save(unsupported(), path)
    for arguments in (["compile-model", path], ["compile-model", path, "--list-unsupported"]):
        code, out, _ = cli(*arguments)
        assert code == 2 and "2 of 3 nodes cannot be compiled" in out
        assert all(word in out for word in ("second", "Mystery", "third", "Riddle"))
    code, out, _ = cli("compile-model", path, "--list-unsupported", "--json")
    assert code == 2
    assert [(r["node"], r["operator"]) for r in json.loads(out)["unsupported"]] == [
        ("second", "Mystery"),
        ("third", "Riddle"),
    ]


def test_results_of_unknown_shape_are_listed_with_exit_code_2(cli, tmp_path):
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("NonZero", ["x"], ["y"], name="where")], "odd",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4, 8])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [2, "n"])],
    )  # fmt: skip
    path = tmp_path / "odd.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)
    for more in ([], ["--list-unsupported"]):
        code, _, err = cli("compile-model", path, *more)
        assert code == 2 and "NonZero 'where'" in err and "Make every shape known" in err
    code, out, _ = cli("compile-model", path, "--list-unsupported", "--json")
    (row,) = json.loads(out)["unsupported"]
    assert (
        code == 2
        and (row["node"], row["operator"]) == ("where", "NonZero")
        and "depends on the values" in row["reason"]
    )
    with pytest.warns(RollerWarning, match="NonZero|where"):
        code, out, _ = cli("compile-model", path, "--fallback", "onnxruntime", "--out", tmp_path / "m")
    assert code == 0 and "0 kernels in 1 step. " in out  # nothing runs of which a time could be predicted
    code, out, _ = cli("run-model", tmp_path / "m", "--repeats", "1", "--json")
    assert code == 0 and json.loads(out)["outputs"][0]["name"] == "y"


def test_a_model_without_unsupported_nodes_says_so(cli, model):
    code, out, _ = cli("compile-model", model, "--batch", "1", "--list-unsupported")
    assert code == 0 and "nodes, all can be compiled" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--shape", "x"], 2, "expected INPUT=1x3x224x224 or INPUT=1,3,224,224, got"),
        (["--shape", "x=1x2", "--shape", "x=1x3"], 2, "one shape of 'x', got two"),
        (["--shape", "x=2x-1"], 2, "expected INPUT=1x3x224x224"),
        (["--batch", "1", "--device", "h2000"], 1, "h2000"),
        (["--shape", "z=1x2"], 1, "has no input 'z'"),
        (["--out", "/nowhere/at/all"], 1, "its parent folder does not exist"),
    ],
)
def test_wrong_words_are_one_line(cli, model, arguments, code, message):
    got, _, err = cli("compile-model", model, *arguments)
    assert got == code and message in " ".join(err.split())


def test_numbers_of_the_device_can_be_changed(cli, model):
    arguments = ("compile-model", model, "--batch", "2", "-k", "1", "--no-cache", "--json", "-d")
    _, out, _ = cli(*arguments, "v100")
    code, slow, _ = cli(*arguments, "v100", "--set", "execution.launch_s=1e-3")
    assert code == 0 and json.loads(slow)["predicted_s"] > json.loads(out)["predicted_s"] + 1e-3
    code, _, err = cli(*arguments, "null:v100", "--set", "units=40")
    assert code == 2 and "--set: expected the name of a specification, got --device null:v100" in err


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_compiled(cli, model, tmp_path, monkeypatch):
    def read_only(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("roller_runtime.core.files.tempfile.mkdtemp", read_only)
    monkeypatch.setattr(
        "roller.cli.compile_model.compile_or_list_unsupported", lambda *_, **__: pytest.fail("compiled")
    )
    code, _, err = cli("compile-model", model, "--batch", "1", "--out", tmp_path / "out")
    assert code == 1 and "cannot write (Read-only file system). Choose a writable folder." in " ".join(err.split())
    monkeypatch.setattr("roller.compile", lambda *_, **__: pytest.fail("compiled"))
    code, _, err = cli("compile", "matmul(8, 8, 8)", "--out", tmp_path / "kernel.json")
    assert code == 1 and "cannot write (Read-only file system). Choose a writable folder." in " ".join(err.split())


def test_a_missing_file_is_one_line(cli, tmp_path):
    code, _, err = cli("compile-model", tmp_path / "none.onnx")
    assert code == 1 and err.startswith("roller: error:") and "none.onnx" in err


@pytest.mark.parametrize("stage", ["read_folded_graph", "partition_graph", "coschedule_program", "compile_kernels"])
def test_an_interrupt_says_what_is_kept(cli, model, monkeypatch, stage):
    """At whatever stage it comes."""

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"roller.models.compile.{stage}", interrupt)
    code, _, err = cli("compile-model", model, "--batch", "1")
    assert code == 130 and "the same command goes on from there" in err


def test_a_warm_compile_does_not_read_the_model_again(cli, model, monkeypatch):
    arguments = ["compile-model", model, "--shape", "x=1x8x8x8", "--device", "v100", "-k", "1", "--json"]
    first = json.loads(cli(*arguments)[1])
    monkeypatch.setattr("roller.models.compile.read_folded_graph", lambda *a, **k: pytest.fail("read again"))
    code, out, _ = cli(*arguments)
    again = json.loads(out)
    assert code == 0 and again["origins"] == {"cached": first["kernels"]}
    assert [row["label"] for row in again["kernel_rows"]] == [row["label"] for row in first["kernel_rows"]]
