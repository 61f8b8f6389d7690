"""A session on a GPU is called as one on a processor: on the emulated device, the null device, and CuPy's stand-in."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import roller
from roller.artifact import KernelArtifact
from roller.backends.null.gpu import NullGpu
from roller.emulator.emulated_device import EmulatedDevice
from roller.errors import ArtifactError, LaunchError
from roller.models.graph.memory_plan import plan_memory
from roller.models.session.gpu_device import CupyDevice
from roller.models.session.gpu_session import GpuSession
from roller_runtime.plan.program_steps import Call, Copy, ParallelGroup, Run
from roller_runtime.session.cpu_session import Session
from tests.backends import fake_cupy
from tests.models.session import gpu, programs
from tests.models.session.reference import evaluate_program

ROOT = Path(__file__).parents[3]


@pytest.fixture
def device():
    return EmulatedDevice("last", check=False)


@pytest.fixture
def session(device):
    return gpu.session(programs.lanes(), device)


def one_input(program):
    (name,) = program.inputs
    return name, programs.feeds(program)[name]


def wanted(program, feeds):
    found = evaluate_program(program, feeds)
    return [found[n] for n in program.outputs]


def test_it_is_called_in_the_three_manners_of_a_session(session):
    program = session.plan.program
    name, x = one_input(program)
    (y,), (out,) = wanted(program, {name: x}), program.outputs
    for got in (session.run({name: x})[out], session.run(x), session(x), *session.run([out], {name: x}),
                *session.run(None, {name: x})):  # fmt: skip
        assert type(got) is np.ndarray
        np.testing.assert_allclose(got, y, rtol=2e-5, atol=2e-5)
    assert [d.name for d in session.get_inputs()] == [name] and session.outputs[0].shape == y.shape
    own = np.empty_like(y)
    assert session.run(x, out=own) is own
    np.testing.assert_allclose(own, y, rtol=2e-5, atol=2e-5)
    assert "GpuSession test" in repr(session) and "emulated device" in repr(session)


def test_every_public_name_of_a_session_is_there(session):
    """Whoever wrote against one can use the other."""
    of_processors = {
        "from_parts",
        "run_checked",
        "run_timed",
        "run_on_addresses",
    }  # which take or give what a processor alone has
    public = {n for n in vars(Session) if not n.startswith("_")} - of_processors
    assert public <= set(dir(session)) | {"save", "profile"}


def test_calls_are_counted(session):
    found = session.metrics()
    session.run(*programs.feeds(programs.lanes()).values())
    with pytest.raises(LaunchError):
        session.run()
    after = session.metrics()
    assert (after.calls - found.calls, after.failures - found.failures, after.arenas) == (2, 1, None)
    assert 'roller_session_calls_total{model="test"}' in after.prometheus()


@pytest.mark.parametrize("policy", ["first", "last", "random"])
def test_arrays_on_the_device_stay_there(policy):
    """What the caller's stream has yet to write is waited for, and what it does next waits for the model."""
    device = EmulatedDevice(policy, check=False)
    session = gpu.session(programs.lanes(), device)
    program = session.plan.program
    name, x = one_input(program)
    fed = device.made(x.shape, "float32")
    device.upload(device.address(fed), x, device.current)  # queued, not done
    for _ in range(2):
        got = session.run(fed, on_device=True)
        later = device.made(got.shape, "float32")
        device.copy(device.address(later), got.nbytes, device.address(got), got.nbytes, got.nbytes, 1, device.current)
        assert np.isnan(np.asarray(got)).all()  # the call has waited for nothing
        device.synchronize(device.current)
        np.testing.assert_allclose(np.asarray(later), wanted(program, {name: x})[0], rtol=2e-5, atol=2e-5)


def test_a_strided_array_on_the_device_is_packed_there(session, device):
    program = session.plan.program
    name, x = one_input(program)
    both = device.made((2 * x.shape[0], *x.shape[1:]), "float32")
    device.upload(device.address(both), np.repeat(x, 2, axis=0), device.current)
    got = session.run(both[::2])
    np.testing.assert_allclose(got, wanted(program, {name: x})[0], rtol=2e-5, atol=2e-5)


def test_results_go_into_arrays_of_either_side(device):
    program = programs.mlp()
    session = gpu.session(program, device)
    name, x = one_input(program)
    (y,) = wanted(program, {name: x})
    out = device.made(y.shape, "float32")
    assert session.run(x, out=out) is out
    device.synchronize(device.current)
    np.testing.assert_allclose(np.asarray(out), y, rtol=2e-5, atol=2e-5)
    with pytest.raises(LaunchError, match=r"'out': .* expected a C-contiguous array"):
        session.run(x, out=device.made((*y.shape[:-1], 2 * y.shape[-1]), "float32")[..., ::2])
    for wrong in (device.made((3,), "float32"), device.made(y.shape, "int32")):
        with pytest.raises(LaunchError, match=r"expected float32 of shape .* Convert it\."):
            session.run(x, out=wrong)
        with pytest.raises(LaunchError, match=r"argument 'x': expected float32 of shape"):
            session.run(wrong)


def kinds(steps):
    return {Run: "kernel", Copy: "copy", Call: "function", ParallelGroup: "together"}[type(steps)]


@pytest.mark.parametrize("make", [programs.lanes, programs.mixed])
def test_a_profile_has_a_row_per_step_and_lane(make, device):
    program = make()
    session = gpu.session(program, device)
    found = session.profile(repeats=2)
    steps = session.plan.program.steps
    assert [s.kind for s in found.steps if s.lane is None] == [kinds(s) for s in steps]
    together = next((s for s in steps if isinstance(s, ParallelGroup)), None)
    assert sum(s.lane is not None for s in found.steps) == (sum(map(len, together.lanes)) if together else 0)
    assert sum(s.share for s in found.steps if s.lane is None) == pytest.approx(1)
    assert all(s.measured_s > 0 and s.predicted_s > 0 and s.bottleneck for s in found.steps if s.kind == "kernel")
    assert found.measured_s > 0 and found.predicted_s > 0 and json.dumps(found.to_dict())
    with pytest.raises(LaunchError, match="'repeats': expected at least 1, got 0"):
        session.profile(repeats=0)


def test_a_null_device_computes_with_the_reference_and_takes_what_is_predicted():
    program = programs.mlp()
    session = gpu.session(program, NullGpu())
    name, x = one_input(program)
    np.testing.assert_allclose(session.run(x), wanted(program, {name: x})[0], rtol=1e-6, atol=1e-6)
    rows = [s for s in session.profile(repeats=1).steps if s.kind == "kernel"]
    assert [s.measured_s for s in rows] == pytest.approx([s.predicted_s for s in rows])


def test_a_saved_model_runs_again_and_needs_no_compiler(session, tmp_path):
    """What stands in for CuPy here is the emulator, which builds kernels with g++."""
    folder = session.save(tmp_path / "m")
    _, x = one_input(session.plan.program)
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, numpy\n"
        "for name in ('tvm', 'tvm_ffi', 'onnx', 'onnxruntime', 'yaml', 'typer', 'rich', 'ml_dtypes', 'platformdirs'):\n"
        "    sys.modules[name] = None  # any import of it raises\n"
        "import roller\n"
        f"session = roller.load_model({str(folder)!r}, device='emulated')\n"
        f"numpy.save({str(tmp_path / 'y.npy')!r}, session.run(numpy.load({str(tmp_path / 'x.npy')!r})))\n"
        f"session.save({str(tmp_path / 'again')!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), session.run(x))
    assert (tmp_path / "again" / "plan.json").read_bytes() == (folder / "plan.json").read_bytes()
    with pytest.raises(LaunchError, match=r"expected CuPy, got .* install it"):
        roller.load_model(folder)
    with pytest.raises(LaunchError, match=r"built for .* \(sm_90\), the device is emulated device \(sm_70\)"):
        roller.load_model(folder, device=EmulatedDevice(arch="sm_70"))
    with pytest.raises(ArtifactError, match="is not empty"):
        session.save(folder)


class Torch:
    """A tensor as torch has it on a GPU, as far as roller looks."""

    def __init__(self, array):
        self.array, self.is_cuda = array, True
        self.dtype, self.shape, self.device = f"torch.{array.dtype}", array.shape, "cuda:0"

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **_):
        raise AssertionError("CuPy's own exchange is asked")

    def detach(self):
        return self

    def as_cupy(self):
        return self.array


Torch.__module__ = "torch"


@pytest.fixture
def on_cupy(monkeypatch):
    """A session of ``lanes`` on CuPy's stand-in, whose kernels are Python functions."""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    shape = (3, 40)

    def unary(function):
        return lambda x, y: np.copyto(fake_cupy.view(y, shape, "f"), function(fake_cupy.view(x, shape, "f")))

    def add(a, b, y):
        np.copyto(fake_cupy.view(y, shape, "f"), fake_cupy.view(a, shape, "f") + fake_cupy.view(b, shape, "f"))

    kernels = {"relu": unary(lambda x: np.maximum(x, 0)), "tanh": unary(np.tanh), "add": add}
    monkeypatch.setattr(fake_cupy, "KERNELS", kernels)
    program, artifacts = programs.lanes(), dict[str, KernelArtifact]()
    for key, found in gpu.kernels(program).items():
        names = tuple(a.name for a in (*found.inputs, *found.outputs))
        launch = replace(found.launches[0], entry=key, arguments=names)
        artifacts[key] = replace(found, launches=(launch,), binary=b"image")
    return GpuSession(plan_memory(program, value_align_bytes=16), artifacts, CupyDevice(0))


def test_cupy_and_torch_arrays_are_taken_and_given(on_cupy, monkeypatch):
    program = on_cupy.plan.program
    name, x = one_input(program)
    (y,) = wanted(program, {name: x})
    fed = fake_cupy.asarray(x)
    got = on_cupy.run(fed, on_device=True)
    assert isinstance(got, fake_cupy.ndarray)
    np.testing.assert_allclose(got.host, y, rtol=2e-5, atol=2e-5)
    asked = []

    class FakeTorch:
        float32 = "torch.float32"

        class cuda:
            current_stream = staticmethod(lambda device: asked.append(device) or fake_cupy._current)

        @staticmethod
        def empty(shape, dtype, device):
            assert (dtype, device) == ("torch.float32", "cuda:0")
            return Torch(fake_cupy.empty(shape, "f"))

    monkeypatch.setitem(sys.modules, "torch", FakeTorch)
    got = on_cupy.run({name: Torch(fed)}, on_device=True)[program.outputs[0]]
    assert isinstance(got, Torch) and asked == ["cuda:0"]
    np.testing.assert_allclose(got.array.host, y, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(on_cupy.run(Torch(fed)), y, rtol=2e-5, atol=2e-5)
    elsewhere = fake_cupy.asarray(x)
    elsewhere.device = type("Device", (), {"id": 1})
    with pytest.raises(LaunchError, match="expected an array on device 0, got one on device 1"):
        on_cupy.run(elsewhere)
