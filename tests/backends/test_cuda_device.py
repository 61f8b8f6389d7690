"""The GPU backends' own logic (buffers, guards, checks, timing, arguments, streams), on a stand-in for CuPy."""

from __future__ import annotations

import dataclasses
import sys
import types

import numpy as np
import pytest

from roller import ops
from roller.artifact import Constant, KernelArtifact, Launch
from roller.backends.cuda.launcher import CudaKernel
from roller.backends.cuda.loaded_gpu_module import LoadedImage
from roller.backends.cuda.profiling_device import CudaDevice, OutOfBoundsError
from roller.compiler.pipeline import construct
from roller.errors import LaunchError
from roller.runtime.check_and_time_candidates import CheckedExpression
from roller_runtime.core.kernel_argument import Argument
from tests.backends import fake_cupy

M, N, K = 24, 32, 16


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    monkeypatch.setattr("roller.backends.cuda.profiling_device._WAKE_S", 0.001)
    monkeypatch.setattr(fake_cupy, "KERNELS", {"matmul": matmul})
    fake_cupy.LAUNCHES.clear()
    fake_cupy.ATTRIBUTES.clear()
    return fake_cupy


def matmul(a, b, c, work=None):
    fake_cupy.view(c, (M, N), "f")[...] = fake_cupy.view(a, (M, K), "f") @ fake_cupy.view(b, (K, N), "f")


@pytest.fixture(scope="module")
def artifact():
    expr = ops.matmul(M, N, K)
    program = construct(expr, "h200", top_k=1)[0].program
    arguments = (
        Argument("A", "input", (M, K), "float32"), Argument("B", "input", (K, N), "float32"),
        Argument("C", "output", (M, N), "float32"), Argument("W", "workspace", (8,), "float32"),
    )  # fmt: skip
    launch = Launch("", "matmul", ("A", "B", "C", "W"), (2, 1, 1), (32, 1, 1), 64 * 1024)
    return KernelArtifact("cuda", {"arch": "sm_90"}, "h200", expr, program, (launch,), arguments, binary=b"image")


def checked(artifact, device=None):
    subject = CheckedExpression(artifact.expression)
    device = device or CudaDevice(0, {})
    device.prepare(artifact.expression, 0, subject.oracle.points)
    return device, subject.oracle.check_compared_elements(device.check(0, artifact))


def test_a_correct_kernel_passes_and_its_scratchpad_is_asked_for(artifact):
    _, outcome = checked(artifact)
    assert outcome.ok, outcome.message
    assert outcome.points == M * N
    assert fake_cupy.ATTRIBUTES == [(7, 8, 64 * 1024)]
    assert fake_cupy.LAUNCHES[0][1:4] == ((2, 1, 1), (32, 1, 1), 64 * 1024)


STATIC = """extern "C" __global__ void matmul(float* A) { __shared__ float A_shared[4]; }
extern "C" __global__ void after(float* A) { A[0] = 0; }"""


def carved(artifact, blocks, source="", dynamic=0, static=0, entry="matmul"):
    """Percentages asked for with so many resident blocks, scratchpad in bytes."""
    launch = dataclasses.replace(artifact.launches[0], source=source, dynamic_shared_bytes=dynamic, entry=entry)
    estimate = {"terms": {"blocks_per_unit": float(blocks)}} if blocks else {}
    build = {"static_shared_bytes": static}
    LoadedImage(fake_cupy, dataclasses.replace(artifact, launches=(launch,), estimate=estimate, build=build))
    return [percent for _, attribute, percent in fake_cupy.ATTRIBUTES if attribute == 9]


@pytest.mark.parametrize(
    ("blocks", "kw", "percent"),
    [(3, {"dynamic": 64 * 1024}, [86]), (1, {"dynamic": 64 * 1024}, [29]), (4, {"dynamic": 64 * 1024}, [100]),
     (8, {"source": STATIC, "static": 16 * 1024}, [60]), (8, {"source": STATIC, "static": 8, "dynamic": 1016}, [8]),
     (8, {"source": STATIC, "static": 16 * 1024, "entry": "after"}, []), (8, {}, []), (0, {"dynamic": 65536}, [])],
)  # fmt: skip
def test_scratchpad_is_carved_out_for_the_blocks_the_estimate_counts_on(artifact, blocks, kw, percent):
    assert carved(artifact, blocks, **kw) == percent


def test_a_carve_out_is_a_preference_and_of_cuda_alone(artifact, monkeypatch):
    monkeypatch.setattr(fake_cupy.runtime, "is_hip", True)
    assert carved(artifact, 3, dynamic=40 * 1024) == []
    monkeypatch.setattr(fake_cupy.runtime, "is_hip", False)
    asked = []

    def refuse(*args):
        asked.append(args)
        raise RuntimeError("CUDA_ERROR_INVALID_VALUE")

    monkeypatch.setattr(fake_cupy.cuda.driver, "funcSetAttribute", refuse)
    carved(artifact, 3, dynamic=40 * 1024)
    assert asked == [(7, 9, 54)]

    def unknown(number, device):
        raise RuntimeError("cudaErrorInvalidValue")

    monkeypatch.setattr(fake_cupy.runtime, "deviceGetAttribute", unknown)
    carved(artifact, 3, dynamic=40 * 1024)
    assert len(asked) == 1


def test_an_element_nobody_writes_is_wrong(artifact, cupy):
    def lazy(a, b, c, work):
        kept = fake_cupy.view(c, (M, N), "f")[3, 5].copy()
        matmul(a, b, c)
        fake_cupy.view(c, (M, N), "f")[3, 5] = kept

    cupy.KERNELS["matmul"] = lazy
    _, outcome = checked(artifact)
    assert not outcome.ok
    assert "'C'[3, 5]" in outcome.message
    assert "nan" in outcome.message


@pytest.mark.parametrize(
    ("where", "offset", "text"),
    [(2, M * N, "4 bytes past its end of output 'C'"), (2, -1, "4 bytes before its start of output 'C'"),
     (3, 8, "4 bytes past its end of workspace 'W'"), (0, M * K + 1000, "past its end of input 'A'")],
)  # fmt: skip
def test_a_write_beside_a_buffer_is_caught(artifact, cupy, where, offset, text):
    def stray(*pointers):
        matmul(*pointers)
        fake_cupy.view(int(pointers[where]) + 4 * offset, (1,), "f")[0] = 1.0

    cupy.KERNELS["matmul"] = stray
    with pytest.raises(OutOfBoundsError, match=text):
        checked(artifact)


def test_an_image_for_another_device_is_a_reason_not_a_fault(artifact):
    with pytest.raises(LaunchError, match=r"refuses the image for \{'arch': 'sm_90'\}"):
        checked(dataclasses.replace(artifact, binary=b"other"))


def test_short_kernels_are_timed_as_graphs_over_rotating_buffers(artifact, cupy):
    device, _ = checked(artifact)
    fake_cupy.LAUNCHES.clear()
    seen = set()
    cupy.KERNELS["matmul"] = lambda a, b, c, work: seen.add(int(a))
    timing = device.time("x", 0.01, None)
    assert timing["method"] == "graph"
    assert timing["complete"]
    assert timing["median_s"] == pytest.approx(20e-6)
    assert timing["spread_s"] == pytest.approx(0, abs=1e-9)
    # 1 MiB of cache over 6.5 KB of data: as many sets as allowed.
    assert len(seen) == 64


def test_without_graphs_launches_follow_each_other(artifact, monkeypatch):
    device, _ = checked(artifact)
    monkeypatch.setattr(fake_cupy.runtime, "is_hip", True)
    monkeypatch.delattr(fake_cupy.Stream, "begin_capture")
    timing = device.time("x", 0.01, None)
    assert timing["method"] == "loop"
    assert timing["median_s"] == pytest.approx(20e-6)


def test_the_cache_is_emptied_by_reading_more_than_it_holds(artifact, monkeypatch):
    monkeypatch.setattr(fake_cupy.Stream, "cost", 2e-3)
    device, _ = checked(artifact)
    fake_cupy.READS.clear()
    writes = []
    monkeypatch.setattr(fake_cupy.MemoryPointer, "memset_async", lambda *a: writes.append(a))
    device.time("x", 0.05, None)
    assert set(fake_cupy.READS) == {1 << 25} and len(fake_cupy.READS) > 25  # 32 MiB for a cache of 1 MiB
    assert not writes


def test_a_driver_that_refuses_the_reading_kernel_is_named_in_the_method(artifact, monkeypatch):
    monkeypatch.setattr(fake_cupy.Stream, "cost", 2e-3)
    monkeypatch.setattr(fake_cupy, "PTX", b"nothing")
    device, _ = checked(artifact)
    assert device.time("x", 0.05, None)["method"] == "events, the cache overwritten before"


def test_long_kernels_are_timed_by_events_and_losers_dropped(artifact, monkeypatch):
    monkeypatch.setattr(fake_cupy.Stream, "cost", 2e-3)
    device, _ = checked(artifact)
    assert device.time("x", 0.05, None) == pytest.approx(
        {"median_s": 2e-3, "spread_s": 0.0, "samples": 25, "complete": True, "method": "events"}
    )
    dropped = device.time("x", 0.05, 1e-3)
    assert (dropped["complete"], dropped["samples"]) == (False, 1)
    assert dropped["median_s"] == pytest.approx(2e-3)


def test_all_buffer_sets_hold_the_inputs_the_reference_knows(artifact):
    device, _ = checked(artifact)
    expected = [np.asarray(x) for x in (p for p in _inputs(artifact))]
    for inputs, _ in device._sets:
        for buffer, x in zip(inputs, expected, strict=True):
            np.testing.assert_array_equal(buffer.read(0, buffer.nbytes).view("f"), x.ravel())


def _inputs(artifact):
    from roller.backends.periodic_inputs import periodic_inputs

    return periodic_inputs(artifact.expression, 0)


def test_too_little_memory_is_a_reason_wherever_it_is_asked_for(monkeypatch, cupy):
    """A kernel's own memory as well: a fault would end the device's process, and put the blame on the device."""
    from roller.backends.cuda.cache_flush import CacheFlush
    from roller.backends.cuda.guarded_buffer import GuardedBuffer

    def full(nbytes):
        raise MemoryError(f"out of memory allocating {nbytes} bytes")

    monkeypatch.setattr(fake_cupy.cuda, "alloc", full)
    for ask in (lambda: GuardedBuffer(fake_cupy, 10), lambda: CacheFlush(fake_cupy, None, 1, 1, None)):
        with pytest.raises(LaunchError, match=r"expected .* MB of free memory, got less \(out of memory"):
            ask()


def test_long_inputs_are_tiled_from_one_period(monkeypatch):
    from roller.backends.cuda.guarded_buffer import GuardedBuffer
    from roller.backends.periodic_inputs import PERIOD, PeriodicInput
    from roller.expr import Tensor

    x = PeriodicInput(Tensor("A", (3, PERIOD + 17), "int8"), 1, 5)
    buffer = GuardedBuffer(fake_cupy, x.tensor.elements)
    buffer.fill(x)
    points = np.array([[0, 0], [0, PERIOD], [1, 9], [2, PERIOD + 16]])
    np.testing.assert_array_equal(buffer.elements(points, x.shape, np.dtype("int8")), x[tuple(points.T)])
    np.testing.assert_array_equal(buffer.read(0, buffer.nbytes).view("int8"), np.asarray(x).ravel())
    assert buffer.describe_overrun() is None


def test_properties_name_the_architecture():
    properties = CudaDevice(0, {}).properties()
    stated = properties["stated"]
    assert stated["memory_layers.shared.usable_bytes"] < stated["memory_layers.shared.capacity_bytes"] == 233472
    assert (properties["name"], properties["arch"], properties["units"]) == ("Fake GPU", "sm_90", 130)
    with pytest.raises(LaunchError, match="one of the 1 found"):
        CudaDevice(3, {})


def test_kernel_takes_host_and_device_arrays_and_runs_on_the_current_stream(artifact):
    kernel = CudaKernel(artifact)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K), dtype="f"), rng.standard_normal((K, N), dtype="f")
    np.testing.assert_allclose(kernel(a, b).host, a @ b, rtol=1e-5)
    out = fake_cupy.empty((M, N), "f")
    device_a = fake_cupy.asarray(a)
    assert kernel(device_a, fake_cupy.asarray(b), out=out) is out
    np.testing.assert_allclose(out.host, a @ b, rtol=1e-5)
    own = fake_cupy.Stream(ptr=98)
    for stream in (own, types.SimpleNamespace(ptr=99), types.SimpleNamespace(cuda_stream=0)):
        kernel(a, b, stream=stream)
    assert [x[4] for x in fake_cupy.LAUNCHES] == [11, 11, 98, 99, 0]


def test_constants_go_to_the_device_once(artifact, monkeypatch):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K), dtype="f"), rng.standard_normal((K, N), dtype="f")
    copied, asarray = [], fake_cupy.asarray
    monkeypatch.setattr(fake_cupy, "asarray", lambda x: copied.append(np.shape(x)) or asarray(x))
    kernel = CudaKernel(dataclasses.replace(artifact, constants=(Constant(1, b.tobytes()),)))
    for _ in range(3):
        np.testing.assert_allclose(kernel(a).host, a @ b, rtol=1e-5)
    assert copied.count((K, N)) == 1 and copied.count((M, K)) == 3
    with pytest.raises(LaunchError, match=r"expected 1 array \(A\), got 2"):
        kernel(a, b)
    with pytest.raises(LaunchError, match="constant 'B': expected its values"):
        CudaKernel(dataclasses.replace(artifact, constants=(Constant(1),)))


def test_panels_are_filled_once_and_not_by_calls(artifact, cupy):
    def scaled(factor):
        def fill(b, panel):
            fake_cupy.view(panel, (K, N), "f")[...] = factor * fake_cupy.view(b, (K, N), "f")

        return fill

    cupy.KERNELS.update(fill=scaled(2.0))
    panel = Argument("P", "panel", (K, N), "float32")
    launch = dataclasses.replace(artifact.launches[0], arguments=("A", "P", "C", "W"))
    prepared = dataclasses.replace(
        artifact, launches=(launch,), arguments=(*artifact.arguments, panel), prepare=Launch("", "fill", ("B", "P"))
    )
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K), dtype="f"), rng.standard_normal((K, N), dtype="f")
    kernel = CudaKernel(dataclasses.replace(prepared, constants=(Constant(1, b.tobytes()),)))
    for _ in range(3):
        np.testing.assert_allclose(kernel(a).host, 2 * (a @ b), rtol=1e-5)
    assert [x[0] for x in fake_cupy.LAUNCHES] == ["fill", "matmul", "matmul", "matmul"]
    cupy.KERNELS.update(fill=scaled(1.0))
    _, outcome = checked(prepared)
    assert outcome.ok, outcome.message


class _Tensor:
    """What the launcher sees of a torch tensor on the GPU."""

    is_cuda = True
    device = types.SimpleNamespace(index=0)
    dtype = "torch.float32"

    def __init__(self, array):
        self.array = array
        self.shape = array.shape
        self.recorded = []

    def record_stream(self, stream):
        self.recorded.append(stream)

    def detach(self):
        return self

    def as_cupy(self):
        return self.array


_Tensor.__module__ = "torch"


class _TorchStream:
    def __init__(self, cuda_stream, device=None):
        self.cuda_stream = cuda_stream


_TorchStream.__module__ = "torch.cuda.streams"


@pytest.fixture
def torch(monkeypatch):
    cuda = types.SimpleNamespace(
        current_stream=lambda device: _TorchStream(42), ExternalStream=_TorchStream,
        default_stream=lambda device: _TorchStream(0),
    )  # fmt: skip
    module = types.SimpleNamespace(
        float32="f32", empty=lambda shape, dtype, device: _Tensor(fake_cupy.empty(shape, "f")), cuda=cuda
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.mark.parametrize("made", [True, False])
def test_torch_hears_of_a_stream_that_is_not_its_own(artifact, torch, made):
    kernel, host = CudaKernel(artifact), fake_cupy.asarray(np.ones((K, N), "f"))
    own = _TorchStream(7)
    for stream, expected in (
        (None, []), (_TorchStream(42), []), (fake_cupy.Stream(ptr=42), []), (own, [7]), (fake_cupy.Stream(ptr=9), [9]),
        (fake_cupy.Stream.null, [0]),
    ):  # fmt: skip
        a = _Tensor(fake_cupy.asarray(np.ones((M, K), "f")))
        out = None if made else _Tensor(fake_cupy.empty((M, N), "f"))
        result = kernel(a, host, stream=stream, out=out)
        for tensor in (a, result):
            assert [s.cuda_stream for s in tensor.recorded] == expected
            assert stream is not own or tensor.recorded == [own]
        assert fake_cupy.LAUNCHES[-1][4] == (expected or [42])[0]


def test_torch_tensors_run_on_torchs_stream_and_give_torch_tensors(artifact, torch):
    a, b = np.ones((M, K), "f"), np.ones((K, N), "f")
    out = CudaKernel(artifact)(_Tensor(fake_cupy.asarray(a)), _Tensor(fake_cupy.asarray(b)))
    assert isinstance(out, _Tensor)
    np.testing.assert_array_equal(out.array.host, a @ b)
    assert fake_cupy.LAUNCHES[-1][4] == 42


def test_an_unknown_option_is_refused_with_the_one_meant(artifact):
    a, b = fake_cupy.empty((M, K), "f"), fake_cupy.empty((K, N), "f")
    with pytest.raises(LaunchError, match=r"\('out', 'stream'\), got 'steam'; did you mean 'stream'\?"):
        CudaKernel(artifact)(a, b, steam=None)


def test_refusals_name_the_argument(artifact):
    kernel = CudaKernel(artifact)
    a, b = fake_cupy.empty((M, K), "f"), fake_cupy.empty((K, N), "f")
    with pytest.raises(LaunchError, match=r"expected 2 arrays \(A, B\), got 1"):
        kernel(a)
    with pytest.raises(LaunchError, match=r"'B': expected float32 of shape \(16, 32\), got float32 of \(24, 16\)"):
        kernel(a, a)
    with pytest.raises(LaunchError, match=r"argument 'A': expected float32 of shape .* got float64"):
        kernel(np.zeros((M, K)), b)
    with pytest.raises(LaunchError, match="'C': expected an array on the device"):
        kernel(a, b, out=np.empty((M, N), "f"))
    inside = fake_cupy.ndarray((M, N), "f", fake_cupy.MemoryPointer(fake_cupy._Memory(1 << 16), 0))
    shared = fake_cupy.ndarray((M, K), "f", inside.data)
    with pytest.raises(LaunchError, match="overlaps another argument"):
        kernel(shared, b, out=inside)
    with pytest.raises(LaunchError, match="expected a built 'cuda' artifact"):
        CudaKernel(dataclasses.replace(artifact, binary=None))
