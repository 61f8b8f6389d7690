"""NVRTC builds what the code generator emits, and says what is missing where it cannot."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import ptx
from roller import ops
from roller.artifact import KernelArtifact, Launch
from roller.backends.cuda import cache_flush, find_nvrtc, toolchain
from roller.backends.cuda.launcher import CudaKernel
from roller.errors import BuildError, LaunchError
from roller.expr.canonical import fuse_axes, group_axes
from roller.tile import RProgram

MISSING = toolchain.available()
needs_nvrtc = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


def program(expr, structure, register, block, **kw):
    return RProgram(expr, "gpu", structure, (("register", register), ("shared", block)), **kw)


def handmade(source, entry="k"):
    e = ops.matmul(4, 4, 4)
    p = program(fuse_axes(e), "tiled", (1, 1, 1), (4, 4, 4))
    return KernelArtifact("cuda", {"arch": "sm_70"}, "test", e, p, (Launch(source, entry, ()),), ())


def built(expr, structure, register, block, canon=fuse_axes, arch="sm_70", **kw):
    pytest.importorskip("tvm")
    from roller.templates.gpu.emit.cuda import lower

    return toolchain.build(lower(program(canon(expr), structure, register, block, **kw), expr, arch, "test"))


@needs_nvrtc
def test_build_returns_a_cubin_and_what_the_compiler_reports():
    source = (
        'extern "C" __global__ void k(float* x) { __shared__ float s[64]; s[threadIdx.x] = x[0];'
        " __syncthreads(); x[threadIdx.x] = s[63 - threadIdx.x]; }"
    )
    a = toolchain.build(handmade(source))
    assert a.binary is not None and a.binary[:4] == b"\x7fELF"
    assert 1 < a.build["registers"] < 64
    assert (a.build["static_shared_bytes"], a.build["spill_bytes"]) == (256, 0)
    assert a.build["seconds"] > 0 and "ptxas" in a.build["log"]


@needs_nvrtc
def test_compiler_errors_are_quoted():
    with pytest.raises(BuildError, match=r'(?s)sm_70.*identifier "nonsense" is undefined'):
        toolchain.build(handmade('extern "C" __global__ void k() { nonsense; }'))


@needs_nvrtc
def test_an_architecture_older_than_the_compiler_is_named_with_what_it_knows():
    with pytest.raises(BuildError, match=r"builds for \(sm_50, .*sm_90.*\), got 'sm_37'\. .*a CUDA release that knows"):
        toolchain.compile_source('extern "C" __global__ void k() {}', "sm_37")
    with pytest.raises(BuildError, match=r"(?s)CUDA build for sm_90a: .*nonsense"):
        toolchain.compile_source("nonsense", "sm_90a")


@needs_nvrtc
def test_spills_are_reported():
    source = (
        'extern "C" __global__ void __launch_bounds__(1024) k(float* x) { float a[64];\n'
        "for (int r = 0; r < 9; ++r) {\n#pragma unroll\n"
        "for (int i = 0; i < 64; ++i) a[i] = x[i * 1024 + threadIdx.x] + r;\n"
        "__syncthreads();\n#pragma unroll\nfor (int i = 0; i < 64; ++i) x[(63 - i) * 1024 + threadIdx.x] = a[i]; } }"
    )
    assert toolchain.build(handmade(source)).build["spill_bytes"] > 0


@needs_nvrtc
@pytest.mark.parametrize(
    ("register", "block", "kw"),
    [
        ((8, 4, 1), (128, 64, 32), {}),
        ((8, 4, 1), (128, 64, 32), {"interleaved": True, "storage_padding": (("A", 4),)}),
        ((8, 8, 1), (128, 64, 32), {"interleaved": True}),
    ],
)
def test_register_tiles_stay_in_registers(register, block, kw):
    for e in (ops.matmul(512, 512, 512), ops.matmul(1000, 999, 1001)):
        a = built(e, "tiled", register, block, staged=("A", "B"), vector_axis="j", vector_elements=4, **kw)
        assert a.build["spill_bytes"] == 0, a.build["log"]
        assert register[0] * register[1] < a.build["registers"] <= 160


@needs_nvrtc
def test_implicit_gemm_does_not_spill():
    e = ops.conv2d(8, 64, 57, 57, 64, 3, 3, padding=1, epilogue=("bias", "relu"))
    a = built(e, "tiled", (8, 4, 1), (64, 64, 18), canon=lambda x: group_axes(fuse_axes(x)), staged=("X", "W"))
    assert a.build["spill_bytes"] == 0, a.build["log"]


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_50", "sm_80", "sm_90"])
def test_other_architectures(arch):
    a = built(ops.softmax((64, 1000)), "rows", (1, 4), (1, 512), arch=arch, vector_axis="k", vector_elements=4)
    assert a.build["registers"] > 0


@needs_nvrtc
@pytest.mark.parametrize("vector", [4, 8])
def test_half_precision_vectors_build(vector):
    e = ops.elementwise(("gelu",), (64, 64), dtype="float16")
    a = built(e, "streaming", (8,), (1024,), vector_axis="d0*d1", vector_elements=vector)
    assert a.binary is not None


@needs_nvrtc
def test_split_kernels_share_one_binary():
    a = built(ops.matmul(64, 64, 512), "tiled", (4, 4, 1), (32, 32, 16), staged=("A", "B"), split_k=4)
    assert all(launch.entry.encode() in a.binary for launch in a.launches) and len(a.launches) == 2


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A machine with nothing of CUDA on it; the paths given are made as empty files."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setattr(find_nvrtc, "find_cuda_toolkits", lambda: [tmp_path / "toolkit"])

    def make(*paths):
        for path in paths:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).touch()
        return tmp_path

    return make


WHEELS_12 = ("site/nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "site/nvidia/cuda_runtime/include/cuda_fp16.h")
WHEELS_13 = ("site/nvidia/cu13/lib/libnvrtc.so.13", "site/nvidia/cu13/include/cuda_fp16.h")
TOOLKIT_13 = ("toolkit/lib64/libnvrtc.so.13", "toolkit/include/cuda_fp16.h", "toolkit/include/crt/mma.h")


def test_nvrtc_of_cuda_12_or_13_is_found_in_wheels_or_a_toolkit(places):
    with pytest.raises(BuildError, match=r"libnvrtc\.so\.12 or libnvrtc\.so\.13 .* found none.*roller\[cuda12\]"):
        find_nvrtc.find_all_nvrtc()[0]
    root = places(*TOOLKIT_13)
    found = find_nvrtc.find_all_nvrtc()[0]
    assert (found.major, found.library) == (13, root / TOOLKIT_13[0])
    places(*WHEELS_13)
    found = find_nvrtc.find_all_nvrtc()[0]
    assert (found.major, found.library) == (13, root / WHEELS_13[0])
    # Those wheels bring no headers of the matrix units: the toolkit's of the same release stand behind theirs.
    assert found.includes == (root / "site/nvidia/cu13/include", root / "toolkit/include")
    places(*WHEELS_12, "site/nvidia/cuda_nvcc/include/crt/mma.h")
    *newer, oldest = find_nvrtc.find_all_nvrtc()
    assert [(x.major, x.library) for x in newer] == [(13, root / WHEELS_13[0]), (13, root / TOOLKIT_13[0])]
    assert (oldest.major, oldest.library) == (12, root / WHEELS_12[0])
    assert root / "toolkit/include" not in oldest.includes


class FakeNvrtc:
    """A release that knows some architectures, and writes its own name as the image."""

    def __init__(self, name, numbers):
        self.name, self.numbers = name, numbers

    def nvrtcGetNumSupportedArchs(self, out):
        out._obj.value = len(self.numbers)
        return 0

    def nvrtcGetSupportedArchs(self, out):
        out[:] = self.numbers
        return 0


@pytest.mark.parametrize(("driver", "chosen"), [(None, "13 13 12 13"), (13000, "13 13 12 13"), (12080, "12 12 12 13")])
def test_the_newest_release_that_knows_an_architecture_builds_for_it(places, monkeypatch, driver, chosen):
    places(*WHEELS_12, *WHEELS_13)

    class Driver:
        def cuDriverGetVersion(self, out):
            out._obj.value = driver
            return 0

    def loaded(path):
        if path.name == "libcuda.so.1":
            if driver is None:
                raise OSError("none")
            return Driver()
        return FakeNvrtc("13", [75, 80, 90, 103]) if path.name.endswith("13") else FakeNvrtc("12", [50, 70, 75, 80, 90])

    monkeypatch.setattr(toolchain, "_load_nvrtc_library", loaded)
    for kept in (toolchain._load_all_nvrtc, toolchain._driver_cuda_release):
        monkeypatch.setattr(toolchain, kept.__name__, kept.__wrapped__)
    wanted = ("sm_80", "sm_90a", "compute_70", "sm_103f")
    assert " ".join(toolchain._nvrtc_for_architecture(arch).lib.name for arch in wanted) == chosen
    assert not toolchain._nvrtc_for_architecture("sm_37").supports_architecture("sm_37")


def test_a_library_without_headers_takes_the_toolkits_of_its_own_release_or_is_refused(places):
    root = places("site/nvidia/cu13/lib/libnvrtc.so.13")
    with pytest.raises(BuildError, match=r"expected the header cuda_fp16\.h for .*libnvrtc\.so\.13, found none"):
        find_nvrtc.find_all_nvrtc()[0]
    places("toolkit/include/cuda_fp16.h")  # of an unknown release
    with pytest.raises(BuildError, match="expected the header"):
        find_nvrtc.find_all_nvrtc()[0]
    places("toolkit/lib64/libnvrtc.so.13")
    assert find_nvrtc.find_all_nvrtc()[0].library == root / "site/nvidia/cu13/lib/libnvrtc.so.13"


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_50", "sm_90"])
def test_the_reading_kernel_is_taken_by_the_assembler_and_reads_what_its_source_says(arch, tmp_path):
    ptxas = [p for f in sys.path for p in Path(f).glob("nvidia/cuda_nvcc/bin/ptxas")]
    if not ptxas:
        pytest.skip("no ptxas")
    (tmp_path / "flush.ptx").write_bytes(cache_flush.PTX.rstrip(b"\0"))
    subprocess.run([ptxas[0], f"-arch={arch}", tmp_path / "flush.ptx", "-o", tmp_path / "out"], check=True)
    (loop,) = ptx.kernels(cache_flush.PTX.decode())[cache_flush.ENTRY].loops
    meant = ptx.kernels(toolchain.compile_to_ptx(cache_flush.SOURCE, arch))[cache_flush.ENTRY].loops
    assert loop.counts["global_load_128"] == 1 and all(x.counts["global_load_128"] for x in meant)
    assert not loop.total("global_store")


def test_other_languages_are_refused():
    a = handmade("")
    with pytest.raises(BuildError, match="expected an artifact of language 'cuda', got 'llvm'"):
        toolchain.build(KernelArtifact("llvm", {}, "test", a.expression, a.program, a.launches, ()))


def test_unbuilt_artifacts_do_not_launch():
    with pytest.raises(LaunchError, match="expected a built 'cuda' artifact"):
        CudaKernel(handmade(""))


def test_launch_without_cupy_says_what_still_works(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(LaunchError, match=r"(?s)pip install cupy-cuda12x.*reading the source work without"):
        CudaKernel(handmade("").with_binary(b"\x7fELF"))


@needs_nvrtc
def test_spilling_for_occupancy_is_undone_and_the_built_source_kept():
    # ptxas (12.9) spills 4 bytes of this kernel to reach three blocks a unit.
    e = ops.matmul(512, 512, 512)
    kw = {"interleaved": True, "storage_padding": (("A", 4),), "vector_axis": "j", "vector_elements": 4}
    a = built(e, "tiled", (8, 4, 1), (128, 64, 32), staged=("A", "B"), **kw)
    again, log = toolchain.compile_source(a.source, "sm_70")
    assert toolchain.resources(log)["registers"] == a.build["registers"]
    assert toolchain.resources(log)["spill_bytes"] == a.build["spill_bytes"] == 0
    assert again[:4] == b"\x7fELF"
