"""Models with dynamic sizes that are saved: loaded without a compiler, right at every size, and verified."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import onnx
import pytest

import roller
from roller.errors import ArtifactError, LaunchError, ModelError
from roller_runtime.session.describe_saved import verify_saved_model
from roller_runtime.session.range_session import RangeSession
from roller_runtime.storage.verified_container import checksum

TEXT = """<ir_version: 8, opset_import: ["": 17]>
layers (float[batch, length, 24] x) => (float[batch, length, 10] y, float[batch, 24] sum) {
    hidden = MatMul(x, w1)
    active = Relu(hidden)
    y = MatMul(active, w2)
    axes = Constant<value = int64[1] {1}> ()
    sum = ReduceSum<keepdims = 0>(x, axes)
}"""


def _model():
    model = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    for name, shape in (("w1", (24, 33)), ("w2", (33, 10))):
        weights = rng.integers(-4, 5, shape).astype("float32")
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    return model


@pytest.fixture(scope="module")
def session():
    shapes = {"x": (("batch", 1, 3), ("length", 1, 9), 24)}
    return roller.compile_model(_model(), shapes=shapes, deterministic=True)


@pytest.fixture(scope="module")
def folder(session, tmp_path_factory):
    return session.save(tmp_path_factory.mktemp("saved") / "layers")


def array(batch, length):
    return np.random.default_rng(batch * length).integers(-4, 5, (batch, length, 24)).astype("float32")


def test_loaded_sessions_give_the_same_results_at_every_size(session, folder):
    loaded = roller.load_model(folder)
    assert isinstance(loaded, RangeSession)
    for name in ("name", "inputs", "outputs", "ranges", "arena_bytes", "cores", "doubt"):
        assert getattr(loaded, name) == getattr(session, name), name
    for batch in range(1, 4):
        for length in range(1, 10):
            x = array(batch, length)
            for found, meant in zip(loaded.run(x), session.run(x), strict=True):
                np.testing.assert_array_equal(found, meant)
    with pytest.raises(LaunchError, match="'length' from 1 to 9, got 10"):
        loaded.run(array(1, 10))
    assert all(s.predicted_s > 0 for s in loaded.profile({"x": array(2, 9)}, repeats=2).steps)


def test_loading_needs_no_compiler(folder, tmp_path):
    """The packages that compile are hidden from a new process."""
    code = f"""
    import sys
    for name in ("onnx", "torch", "yaml", "typer", "rich"):
        sys.modules[name] = None
    import numpy as np
    import roller
    session = roller.load_model({str(folder)!r}, threads=1)
    y, total = session.run(np.ones((2, 7, 24), "float32"))
    assert y.shape == (2, 7, 10) and (total == 7).all()
    assert "tvm" not in sys.modules
    assert not any(n.startswith(("roller.compiler", "roller.templates", "roller.hardware")) for n in sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=tmp_path)


def test_loaded_sessions_can_be_saved(folder, tmp_path):
    again = roller.load_model(roller.load_model(folder).save(tmp_path / "again"))
    x = array(3, 5)
    np.testing.assert_array_equal(again.run(x)[0], roller.load_model(folder).run(x)[0])
    kinds = [{p.name for p in f.rglob("*")} for f in (folder, tmp_path / "again")]
    assert kinds[0] == kinds[1]
    kernel = next(iter(again.parts.artifacts.values()))
    assert kernel.program is not None and kernel.launches[0].source


def test_manifests_name_the_release_and_the_ranges(folder):
    manifest = json.loads((folder / "model.json").read_text())
    assert manifest["roller"] == roller.__version__
    assert manifest["ranges"] == {"batch": [1, 3, 1], "length": [1, 9, 1]} and manifest["format_version"] == 3


@pytest.mark.parametrize("name", ["model.json", "ranges.json", "runner.so", "kernels/0000.so"])
def test_altered_code_is_always_refused(folder, tmp_path, name):
    copy = _copied(folder, tmp_path)
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(ArtifactError, match=r"checksum|not valid JSON"):
        roller.load_model(copy, verify=False)


def test_folders_are_verified_without_their_code(folder, tmp_path):
    found = verify_saved_model(folder)
    assert found.name == "layers" and found.ranges == {"batch": (1, 3, 1), "length": (1, 9, 1)}
    assert (found.format_version, found.roller) == (3, roller.__version__)
    assert found.model_sha256 == hashlib.sha256(_model().SerializeToString(deterministic=True)).hexdigest()
    assert found.file_count == sum(p.is_file() for p in folder.rglob("*"))
    copy = _copied(folder, tmp_path)
    for path in sorted(p for p in copy.rglob("*") if p.is_file()):
        data = path.read_bytes()
        path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
        with pytest.raises(ArtifactError, match=r"checksum|not valid JSON"):
            verify_saved_model(copy)
        path.write_bytes(data)
    assert verify_saved_model(copy) == replace(found, folder=copy)


HOSTILE = {
    "formulas": lambda b: b["general"].update(formulas=[]),
    "a formula of another kind": lambda b: b["general"]["formulas"].__setitem__(0, ["exec", []]),
    "ends": lambda b: b.pop("ends"),
    "kernel numbers": lambda b: b["proven"]["k0"]["kernels"].__setitem__(0, [99, 1]),
    "tables": lambda b: b["proven"].pop("k0"),
    "kernels": lambda b: b["shapes"].update(k9=[{"formulas": [], "data": []}]),
    "dtypes": lambda b: b.update(dtypes=7),
}


def _write_with_checksums(folder, body):
    text = json.dumps(body)
    (folder / "ranges.json").write_text(text)
    manifest = json.loads((folder / "model.json").read_text())
    manifest["plan"]["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "model.json").write_text(json.dumps({**manifest, "checksum": checksum(manifest)}))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_ranges_are_refused(folder, tmp_path, name):
    """The digests fit, as if somebody hostile had written the folder."""
    copy = _copied(folder, tmp_path)
    body = json.loads((copy / "ranges.json").read_text())
    HOSTILE[name](body)
    _write_with_checksums(copy, body)
    with pytest.raises(ArtifactError, match="the manifest is damaged"):
        roller.load_model(copy)


def test_altered_weights_are_refused_on_request(folder, tmp_path):
    copy = _copied(folder, tmp_path)
    data = bytearray((copy / "arrays.bin").read_bytes())
    data[3] ^= 1
    (copy / "arrays.bin").write_bytes(data)
    with pytest.raises(ArtifactError, match="checksum of the array at byte 0"):
        roller.load_model(copy, verify=True)


def _copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def test_the_command_line_runs_models_at_given_sizes(folder, tmp_path, cli):
    code, out, err = cli("run-model", folder, "--size", "batch=2", "--repeats", 1)
    assert code == 0, err
    assert "y: float32 [2, 9, 10]" in out, "the largest length by default"
    np.savez(tmp_path / "x.npz", x=array(3, 4))
    code, out, err = cli("run-model", folder, "--inputs", tmp_path / "x.npz", "--repeats", 1)
    assert code == 0 and "y: float32 [3, 4, 10]" in out, err
    for arguments, text in (
        (("--size", "batch"), "expected NAME=N"),
        (("--size", "batches=2"), "did you mean 'batch'"),
        (("--size", "batch=4"), "'batch' from 1 to 3, got 4"),
        (("--inputs", tmp_path / "x.npz", "--size", "batch=3"), "expected none beside --inputs"),
    ):
        code, _, err = cli("run-model", folder, *arguments)
        assert code != 0 and text in " ".join(err.split()), err


def test_the_command_line_verifies_folders(folder, tmp_path, cli):
    code, out, err = cli("check", folder)
    assert code == 0 and "all files are intact" in out and "length from 1 to 9" in " ".join(out.split()), err
    code, out, _ = cli("check", folder, "--json")
    assert code == 0 and json.loads(out)["ranges"] == {"batch": [1, 3, 1], "length": [1, 9, 1]}
    copy = _copied(folder, tmp_path)
    (copy / "arrays.bin").write_bytes(bytes((copy / "arrays.bin").stat().st_size))
    code, _, err = cli("check", copy)
    assert code == 1 and "checksum of the array at byte" in " ".join(err.split())
    code, _, err = cli("check", copy, "--batch", 2)
    assert code == 1 and "no option but --json beside a folder" in " ".join(err.split())


@pytest.mark.parametrize("number", range(6))
def test_sizes_that_kernels_take_are_those_of_the_call(folder, tmp_path, number):
    """A kernel reads as far as its sizes say, so wrong ones would end the process."""
    copy = _copied(folder, tmp_path)
    body = json.loads((copy / "ranges.json").read_text())
    several = [v for kernels in body["shapes"].values() for v in kernels]
    shapes = several[number % len(several)]
    shapes["formulas"] = [[kind, [constant + 5, terms]] for kind, (constant, terms) in shapes["formulas"]]
    _write_with_checksums(copy, body)
    loaded = roller.load_model(copy)
    try:
        found = loaded.run(array(2, 7))
    except (ArtifactError, ModelError):
        return
    meant = roller.load_model(folder).run(array(2, 7))  # another kernel was chosen
    for x, y in zip(found, meant, strict=True):
        np.testing.assert_array_equal(x, y)


def test_plans_that_cannot_be_evaluated_are_refused_in_words(folder, tmp_path):
    copy = _copied(folder, tmp_path)
    body = json.loads((copy / "ranges.json").read_text())
    for row in body["general"]["formulas"]:
        row[1][1].append([1, [[["nobody"], "*", 1, 1, 1, 0]]])
    _write_with_checksums(copy, body)
    with pytest.raises(ArtifactError, match="the plan is damaged at"):
        roller.load_model(copy).run(array(2, 7))
