"""An ONNX model as a bundle for a GPU that is not here: built by NVRTC, run by the emulator, against ONNX Runtime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import roller
from roller.backends.cuda.toolchain import available
from roller.emulator.emulated_device import EmulatedDevice
from roller.errors import LaunchError
from roller.models.onnxruntime_reference import make_random_expected_outputs
from roller.models.session import gpu_device
from roller.models.session.check_and_time_bundle import run_bundle
from roller.models.session.gpu_bundle import ModelBundle
from roller_runtime.plan.program_steps import ParallelGroup, iterate_kernel_runs
from tests.models.onnx.networks import branches, tower

ROOT = Path(__file__).resolve().parents[3]
_WRITE = """
import sys, roller
from tests.models.onnx.networks import branches
roller.compile_model(branches(), "h200", batch=2, top_k=1, cache=False, progress=False, prove_s=0).save(sys.argv[1])
"""


def bundled(model, folder, **options):
    made = roller.compile_model(model, "h200", top_k=1, progress=False, prove_s=0, **options)
    made.save(folder, [make_random_expected_outputs(model, made.plan.program)])
    return made


@pytest.mark.slow
@pytest.mark.parametrize("model", [tower(blocks=2), branches()], ids=["tower", "branches"])
def test_a_bundle_of_a_model_computes_what_onnx_runtime_does(model, tmp_path):
    made = bundled(model, tmp_path / "b", batch=2)
    if available() is None:  # NVRTC is installed
        assert all(a.binary and a.binary.startswith(b"\x7fELF") for a in made.artifacts.values())
    for policy in ("last", "random"):
        device = EmulatedDevice(policy, check=False, arch="sm_90")
        results = run_bundle(tmp_path / "b", tmp_path / f"{policy}.json", device, samples=2)
        assert results["ok"], json.dumps(results["phases"]["check"], indent=1)
        assert {r["way"] for r in results["phases"]["check"]["outputs"]} == {"steps", "graph"}


def test_branches_of_a_model_are_streams_of_a_gpu(tmp_path):
    made = bundled(branches(), tmp_path / "b", batch=2)
    assert any(isinstance(s, ParallelGroup) for s in ModelBundle(tmp_path / "b").plan().program.steps)
    assert {s.units for s in made.plan.program.kernels.values()} - {None}
    assert made.launches.name == "streams"
    runs = iterate_kernel_runs(made.plan.program.steps)
    assert made.launches.launches == sum(len(made.artifacts[run.kernel].launches) for run in runs)
    # Lanes take as long as the longest of them.
    assert 0 < made.launches.predicted_s < sum(row["share_s"] for row in made.rows)


def test_a_bundle_does_not_depend_on_the_process_that_writes_it(tmp_path):
    made = []
    for seed in ("1", "77"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        made.append(subprocess.Popen([sys.executable, "-c", _WRITE, str(tmp_path / seed)], env=env))
    assert [process.wait(300) for process in made] == [0, 0]
    for name in ("plan.json", "arrays.bin"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "77" / name).read_bytes()
    one, other = (ModelBundle(tmp_path / seed).artifacts() for seed in ("1", "77"))
    # All but the images: NVRTC does not build one source alike each time.
    assert {k: replace(a, binary=None) for k, a in one.items()} == {
        k: replace(a, binary=None) for k, a in other.items()
    }
    assert list(one) == list(other)


def test_a_device_of_this_machine_gives_a_session(tmp_path):
    """With the null device, which computes with the reference; nothing is built for it."""
    model, x = branches(), np.random.default_rng(0).standard_normal((2, 32), dtype=np.float32)
    session = roller.compile_model(model, "null:h200", batch=2, top_k=1, progress=False)
    (wanted,) = expected(model, {"x": x})
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, rtol=1e-4, atol=1e-5)
    rows = [s for s in session.profile({"x": x}, repeats=1).steps if s.kind == "kernel"]
    assert rows and all(s.measured_s == pytest.approx(s.predicted_s) for s in rows)
    again = roller.load_model(session.save(tmp_path / "m"), device="null:h200")
    np.testing.assert_array_equal(again.run(x), session.run(x))


def test_a_session_of_compiled_kernels_computes_what_onnx_runtime_does(monkeypatch):
    """The kernels as they were emitted, by the emulator."""
    monkeypatch.setattr(gpu_device, "open_device", lambda name, arch: EmulatedDevice(check=False, arch=arch))
    model, x = tower(), np.random.default_rng(1).standard_normal((2, 8, 8, 8), dtype=np.float32)
    session = roller.compile_model(model, "null:h200", batch=2, top_k=1, progress=False)
    np.testing.assert_allclose(session.run(x), expected(model, {"x": x})[0], rtol=1e-4, atol=1e-5)


def expected(model, feeds):
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def test_expected_results_need_a_model_that_runs():
    made = roller.compile_model(tower(), "v100", batch=1, top_k=1, progress=False)
    found = make_random_expected_outputs(tower(), made.plan.program, seed=3)
    assert [a.shape for a in (*found.feeds, *found.outputs)] == [(1, 8, 8, 8), (1, 5)]
    assert np.isfinite(found.outputs[0]).all()
    with pytest.raises(LaunchError, match="onnxruntime refuses the model"):
        make_random_expected_outputs(b"nonsense", made.plan.program)
