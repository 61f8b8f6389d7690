"""Bundles of whole models: written without a GPU, run by the same command everywhere, refused where altered."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from roller.errors import ArtifactError, LaunchError
from roller.models.graph.memory_plan import plan_memory
from roller.models.session import bundle, check_and_time_bundle
from roller.models.session.gpu_bundle import Expected, ModelBundle, write_bundle
from roller.runtime.container_kinds import MODEL_BUNDLE
from roller_runtime.storage.verified_container import MANIFEST
from tests.models.session import gpu, programs
from tests.models.session.reference import evaluate_program

TARGET = {"language": "cuda", "arch": "sm_90"}


def written(folder, program=None, wrong=False):
    program = program or programs.lanes()
    feeds = programs.feeds(program, 5)
    outputs = evaluate_program(program, feeds)
    tests = Expected(tuple(feeds.values()), tuple(outputs[n] + wrong for n in program.outputs), "float64")
    made = plan_memory(program, predicted_s=dict.fromkeys(program.kernels, 2e-6), value_align_bytes=16)
    write_bundle(folder, made, gpu.kernels(program), device="h200", target=TARGET, expected=[tests])
    return folder


def test_a_bundle_needs_numpy_and_nothing_else_but_the_device(tmp_path):
    """What stands in for CuPy here is the emulator, which builds kernels with g++."""
    folder = written(tmp_path / "b", programs.mixed())
    code = (
        "import sys\n"
        "for name in ('tvm', 'tvm_ffi', 'onnx', 'onnxruntime', 'yaml', 'typer', 'rich', 'ml_dtypes', 'platformdirs'):\n"
        "    sys.modules[name] = None  # any import of it raises\n"
        "from roller.models.session import bundle\n"
        f"sys.exit(bundle.main(['run', {str(folder)!r}, '--json', {str(tmp_path / 'r.json')!r}, '--device', 'emulated',"
        " '--samples', '2']))\n"
    )
    root = Path(bundle.__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=120)
    assert done.returncode == 0, done.stderr
    assert results_of(tmp_path / "r.json")["ok"]


def results_of(path):
    return json.loads(path.read_text())


def test_a_bundle_is_checked_timed_and_profiled(tmp_path, capsys):
    folder, out = written(tmp_path / "b"), tmp_path / "r.json"
    assert MODEL_BUNDLE.is_kind_of_folder(folder)
    assert bundle.main(["verify", str(folder)]) == 0
    assert bundle.main(["run", str(folder), "--json", str(out), "--device", "emulated", "--samples", "3"]) == 0
    said = capsys.readouterr().out
    assert "test, 3 steps, 3 kernels (0 built) for h200, 1 tests, all as listed" in said
    assert "mean nothing" in said
    results = results_of(out)
    assert results["ok"]
    assert results["complete"]
    phases = results["phases"]
    assert {(r["way"], r["ok"]) for r in phases["check"]["outputs"]} == {("steps", True), ("graph", True)}
    assert phases["steps"]["samples"] == phases["graph"]["samples"] == 3
    rows = phases["profile"]["steps"]
    assert [r["predicted_s"] for r in rows] == [2e-6, pytest.approx(6e-6), 2e-6]
    assert rows[1]["step"] == "relu -> a0 > tanh -> a1 | tanh -> b0 > relu -> b1 > tanh -> b2"
    assert not out.with_name("r.json.journal").exists()


def test_a_killed_run_continues(tmp_path, monkeypatch, capsys):
    folder, out = written(tmp_path / "b"), tmp_path / "r.json"
    arguments = ["run", str(folder), "--json", str(out), "--device", "emulated", "--samples", "2"]
    monkeypatch.setattr(
        check_and_time_bundle._PhaseRunner, "graph", lambda self: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    assert bundle.main(arguments) == 1
    assert "run the same command again" in capsys.readouterr().err
    assert set(results_of(out)["phases"]) == {"check", "steps"}
    monkeypatch.undo()
    monkeypatch.setattr(check_and_time_bundle._PhaseRunner, "check", lambda self: pytest.fail("checked again"))
    assert bundle.main(arguments) == 0
    assert results_of(out)["complete"]
    monkeypatch.setattr(check_and_time_bundle, "load_bundle", lambda *_: pytest.fail("loaded, with nothing to do"))
    assert bundle.main(arguments) == 0


def test_a_wrong_model_has_no_time(tmp_path, capsys):
    folder, out = written(tmp_path / "b", wrong=True), tmp_path / "r.json"
    assert bundle.main(["run", str(folder), "--json", str(out), "--device", "emulated"]) == 1
    assert "check: WRONG: y; 1 tests" in capsys.readouterr().out
    results = results_of(out)
    assert set(results["phases"]) == {"check"}
    assert not results["ok"]


def test_functions_of_arrays_run_beside_kernels(tmp_path, capsys):
    folder = written(tmp_path / "b", programs.mixed())
    assert bundle.main(["run", str(folder), "--json", str(tmp_path / "r.json"), "--device", "emulated"]) == 0
    assert "graph: none, 1 steps are functions of arrays" in capsys.readouterr().out


def altered(name, change):
    def alter(folder):
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return alter


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (altered("manifest.json", lambda d: d.replace(b"h200", b"h100")), "checksum does not match"),
        (altered("plan.json", lambda d: d + b" "), r"plan\.json: checksum does not match the manifest"),
        (altered("kernels.xz", lambda d: d[:-9]), r"kernels\.xz: checksum does not match the manifest"),
        (altered("arrays.bin", lambda d: d[:-4]), r"arrays\.bin: expected \d+ bytes"),
        (altered("arrays.bin", lambda d: d[:-1] + b"\x01"), "checksum of the array at byte"),
        (lambda folder: (folder / "plan.json").unlink(), r"plan\.json: cannot read"),
        (lambda folder: (folder / "manifest.json").unlink(), r"manifest\.json: cannot read"),
    ],
)
def test_an_altered_bundle_is_refused(tmp_path, alter, message, capsys):
    folder = written(tmp_path / "b")
    alter(folder)
    assert bundle.main(["verify", str(folder)]) == 1
    with pytest.raises(ArtifactError, match=message):
        opened = ModelBundle(folder)
        opened.plan(), opened.artifacts(), opened.expected()
    assert capsys.readouterr().err.startswith("bundle: error: ")


def test_a_bundle_for_another_device_is_refused(tmp_path, capsys):
    folder = written(tmp_path / "b")
    manifest = json.loads((folder / MANIFEST).read_text())
    body = {k: v for k, v in manifest.items() if k != "checksum"}
    sealed = MODEL_BUNDLE.with_checksum({**body, "target": {"language": "cuda", "arch": "sm_70"}})
    (folder / MANIFEST).write_text(json.dumps(sealed))
    from roller.emulator.emulated_device import EmulatedDevice

    with pytest.raises(LaunchError, match=r"built for h200 \(sm_70\), the device is emulated device \(sm_90\)"):
        check_and_time_bundle.run_bundle(folder, tmp_path / "r.json", EmulatedDevice(arch="sm_90"))
    assert bundle.main(["run", str(folder), "--json", str(tmp_path / "r.json"), "--device", "metal:0"]) == 1
    assert "device 'metal:0': expected 'cuda:N'" in capsys.readouterr().err


def test_kernels_must_be_complete_and_the_folder_free(tmp_path):
    made = plan_memory(programs.mlp(), value_align_bytes=16)
    with pytest.raises(ArtifactError, match="expected a kernel for every key"):
        write_bundle(tmp_path / "b", made, {}, device="h200", target=TARGET)
    assert not (tmp_path / "b").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ArtifactError, match="not empty"):
        write_bundle(tmp_path / "full", made, gpu.kernels(programs.mlp()), device="h200", target=TARGET)


def test_errors_are_relative_to_the_largest_magnitude():
    one = np.float32([1, -4, 2])
    assert check_and_time_bundle.relative_error(one, one) == 0
    assert check_and_time_bundle.relative_error(np.float32([1, -3, 2]), one) == 0.25
    assert check_and_time_bundle.relative_error(np.float32([1, np.nan]), np.float32([1, np.nan])) == 0
    assert check_and_time_bundle.relative_error(np.float32([1, np.inf]), np.float32([1, 2])) == float("inf")
    assert check_and_time_bundle.relative_error(np.zeros(0, np.float32), np.zeros(0, np.float32)) == 0
