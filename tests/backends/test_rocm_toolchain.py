"""hipcc builds what the code generator emits, and says what is missing where it cannot."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

import roller
from benchmarks.tables import read_table
from roller import ops
from roller.artifact import KernelArtifact, Launch
from roller.backends.cuda.cupy_runtime import import_cupy
from roller.backends.rocm import toolchain
from roller.backends.rocm.launcher import RocmKernel
from roller.errors import BuildError, LaunchError
from roller.expr.canonical import fuse_axes
from roller.hardware import load_spec
from roller.tile import RProgram

MISSING = toolchain.available()
needs_hipcc = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

HEAD = "#include <hip/hip_runtime.h>\n"


def handmade(source, arch="gfx906"):
    e = ops.matmul(4, 4, 4)
    p = RProgram(fuse_axes(e), "gpu", "tiled", (("register", (1, 1, 1)), ("shared", (4, 4, 4))))
    return KernelArtifact("hip", {"arch": arch}, "test", e, p, (Launch(HEAD + source, "k", ()),), ())


def best(expr, device):
    pytest.importorskip("tvm")
    from roller.compiler.pipeline import lower

    spec = load_spec(device).emitted
    return toolchain.build(lower(roller.construct(expr, spec, top_k=1)[0].program, expr, spec))


@needs_hipcc
def test_build_returns_a_code_object_and_what_the_compiler_reports():
    source = (
        'extern "C" __global__ void __launch_bounds__(64) k(float* x) { __shared__ float s[64]; s[threadIdx.x] = x[0];'
        " __syncthreads(); x[threadIdx.x] = s[63 - threadIdx.x]; }"
    )
    a = toolchain.build(handmade(source))
    assert a.binary is not None and b"gfx906" in a.binary
    assert 1 < a.build["vgprs"] < 32 and a.build["sgprs"] > 1
    assert (a.build["static_shared_bytes"], a.build["spill_bytes"], a.build["waves_per_simd"]) == (256, 0, 10)
    assert a.build["seconds"] > 0 and "Function Name: k" in a.build["log"]


@needs_hipcc
def test_spills_are_reported():
    source = (
        'extern "C" __global__ void __launch_bounds__(1024) k(float* x) { float a[96];\n'
        "for (int r = 0; r < 9; ++r) {\n#pragma unroll\n"
        "for (int i = 0; i < 96; ++i) a[i] = x[i * 1024 + threadIdx.x] + r;\n"
        "__syncthreads();\n#pragma unroll\nfor (int i = 0; i < 96; ++i) x[(95 - i) * 1024 + threadIdx.x] = a[i]; } }"
    )
    build = toolchain.build(handmade(source)).build
    assert build["spill_bytes"] > 0 and build["vgprs_spilled"] > 0 and build["vgprs"] == 64


@needs_hipcc
def test_compiler_errors_are_quoted():
    with pytest.raises(BuildError, match=r"(?s)gfx906.*use of undeclared identifier 'nonsense'"):
        toolchain.build(handmade('extern "C" __global__ void k() { nonsense; }'))


@needs_hipcc
def test_unknown_architecture_asks_for_a_later_release():
    with pytest.raises(BuildError, match=r"does not know 'gfx9999'. Install a later release of ROCm"):
        toolchain.build(handmade('extern "C" __global__ void k() { }', "gfx9999"))


@needs_hipcc
@pytest.mark.parametrize("arch", ["mi50", "mi250x"])
def test_operators_of_the_benchmark_build_without_spills(arch):
    table = read_table("operators.yaml")
    rows = {r["id"]: r for r in table["operators"]}
    for name in ("M0", "C0", "R0"):
        a = best(ops.from_spec(rows[name]), arch)
        assert a.build["spill_bytes"] == 0 and a.build["vgprs"] > 0, (name, a.build)
        assert a.build["static_shared_bytes"] <= load_spec(arch).limits.shared_bytes_per_block


@needs_hipcc
@pytest.mark.parametrize(
    "expr",
    [
        ops.matmul(64, 64, 64, dtype="float16"),
        ops.matmul(16, 20, 32, dtype="int8"),
        ops.matmul(64, 64, 64, dtype="bfloat16"),
        ops.softmax((4, 64), dtype="float16"),
        ops.elementwise(("gelu",), (64, 64), dtype="float16"),
        ops.elementwise(("add", "sigmoid"), (33, 5), dtype="bfloat16"),
        ops.reduce("argmax", (9, 13), 1),
        ops.pool2d("max", 1, 4, 8, 8, 3, 3, stride=2, padding=1),
        ops.layer_norm((7, 96), eps=1e-5),
    ],
    ids=lambda e: f"{e.name}-{e.inputs[0].dtype}",
)
def test_other_structures_and_dtypes_build(expr):
    assert best(expr, "mi250x").build["spill_bytes"] == 0


@needs_hipcc
def test_split_kernels_share_one_code_object():
    pytest.importorskip("tvm")
    from roller.templates.gpu.emit.hip import lower

    e = ops.matmul(64, 64, 512)
    tiles = (("register", (4, 4, 1)), ("shared", (32, 32, 16)))
    p = RProgram(fuse_axes(e), "gpu", "tiled", tiles, staged=("A", "B"), split_k=4)
    a = toolchain.build(lower(p, e, "gfx906", "test"))
    assert set(toolchain.kernel_resources(a.build["log"])) == {x.entry for x in a.launches}
    assert len(a.launches) == 2


def test_missing_compiler_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("ROCM_PATH", raising=False)
    with pytest.raises(BuildError, match=r"expected the compiler hipcc, found none. Install the package 'hipcc'"):
        toolchain.build(handmade(""))
    assert "hipcc" in str(toolchain.available())


def test_a_log_without_remarks_is_an_error():
    with pytest.raises(BuildError, match="expected remarks on kernel resources, found none"):
        toolchain.resources("warning: argument unused")


def test_remarks_of_later_releases():
    lines = ("Function Name: k", "    TotalSGPRs: 30", "    VGPRs: 9", "    AGPRs: 4", "    Dynamic Stack: False",
             "    ScratchSize [bytes/lane]: 16")  # fmt: skip
    log = "".join(f"kernel.hip.cpp:5:1: remark: {line} [-Rpass-analysis=kernel-resource-usage]\n" for line in lines)
    found = toolchain.resources(log)
    assert [found[k] for k in ("registers", "vgprs", "agprs", "sgprs", "spill_bytes")] == [13, 9, 4, 30, 16]


def test_other_languages_are_refused():
    with pytest.raises(BuildError, match="expected an artifact of language 'hip', got 'cuda'"):
        toolchain.build(replace(handmade(""), language="cuda"))


def test_unbuilt_artifacts_do_not_launch():
    with pytest.raises(LaunchError, match="HIP launch: expected a built 'hip' artifact"):
        RocmKernel(handmade(""))


def test_launch_without_cupy_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(LaunchError, match=r"(?s)HIP launch: expected CuPy.*cupy-rocm.*reading the source work without"):
        RocmKernel(handmade("").with_binary(b"\x7fELF"))


def test_cupy_for_cuda_is_refused(monkeypatch):
    runtime = SimpleNamespace(is_hip=False)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    with pytest.raises(LaunchError, match="expected CuPy for ROCm, found one for CUDA"):
        import_cupy(rocm=True)
