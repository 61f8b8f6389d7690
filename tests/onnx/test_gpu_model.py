"""An ONNX model as a bundle for a GPU that is not here: built by NVRTC, run by the emulator, against ONNX Runtime."""

from __future__ import annotations

import json

import numpy as np
import pytest

import roller
from roller.backends.cuda.toolchain import available
from roller.emulator.device import EmulatedDevice
from roller.errors import LaunchError
from roller.model.bundle_run import run_bundle
from roller.model.gpu_bundle import ModelBundle
from roller.model.steps import Together
from roller.onnx.expected import expected_of
from tests.onnx.networks import branches, tower


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path / "cache"))


def bundled(model, folder, **options):
    made = roller.compile_model(model, "h200", top_k=1, progress=False, **options)
    made.save(folder, [expected_of(model, made.plan.program)])
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
    steps = ModelBundle(tmp_path / "b").plan().program.steps
    assert any(isinstance(s, Together) for s in steps)
    assert {s.units for s in made.plan.program.kernels.values()} - {None}


def test_expected_results_need_a_model_that_runs():
    made = roller.compile_model(tower(), "v100", batch=1, top_k=1, progress=False)
    found = expected_of(tower(), made.plan.program, seed=3)
    assert [a.shape for a in (*found.feeds, *found.outputs)] == [(1, 8, 8, 8), (1, 5)]
    assert np.isfinite(found.outputs[0]).all()
    with pytest.raises(LaunchError, match="onnxruntime refuses the model"):
        expected_of(b"nonsense", made.plan.program)
