"""Planted faults: each is caught, and the report says what, where and by whom."""

import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pytest

from roller import ops
from roller.artifact import Launch
from roller.emulator import ORDERS, EmulatedArtifact, emulate, prove
from roller.errors import EmulationError
from roller.expr.canonical import fuse_axes
from roller.tile import RProgram
from tests.emulator.snippets import artifact, kernel, run_float
from tests.offenders import every

REVERSED = """
    __shared__ float tile_ptr[64];
    for (int round = 0; round < 2; ++round) {
      __syncthreads();
      tile_ptr[threadIdx.x] = X_ptr[round * 64 + threadIdx.x];
      __syncthreads();
      Y_ptr[round * 64 + threadIdx.x] = tile_ptr[63 - threadIdx.x];
    }"""


def caught(body, match, n=32, **kw):
    with pytest.raises(EmulationError, match=match):
        run_float(body, n, **kw)


def without(source, number):
    """Return the source less its ``number``-th barrier."""
    at = [m.start() for m in re.finditer(r"__syncthreads\(\);", source)][number]
    return source[:at] + source[at:].replace("__syncthreads();", ";", 1)


@pytest.mark.parametrize("number", [0, 1])
def test_a_missing_barrier_shows_in_some_order(built, number):
    x = np.arange(128, dtype=np.float32)
    expected = x.reshape(2, 64)[:, ::-1].ravel()
    got = [run_float(REVERSED, 128, x=x, block=64, order=o, built=built) for o in ORDERS]
    assert all((g == expected).all() for g in got)
    broken = [run_float(without(REVERSED, number), 128, x=x, block=64, order=o, built=built) for o in ORDERS]
    assert not all((g == expected).all() for g in broken)


def generated(expression, structure="tiled", register=(4, 2, 1), block=(32, 32, 8), **kw):
    pytest.importorskip("tvm")
    from roller.templates.gpu.emit.cuda import lower

    staged = tuple(t.name for t in expression.inputs)
    program = RProgram(
        fuse_axes(expression), "gpu", structure, (("register", register), ("shared", block)), staged=staged, **kw
    )
    return lower(program, expression, "sm_70", "test")


def changed(made, change):
    return replace(made, launches=tuple(replace(x, source=change(x.source)) for x in made.launches))


def test_every_barrier_of_a_generated_kernel_is_needed(built):
    made = generated(ops.matmul(64, 64, 32))
    count = made.source.count("__syncthreads();")
    assert count == 2
    assert prove(made, cache_dir=built).ok
    for number in range(count):
        proof = prove(changed(made, lambda s, n=number: without(s, n)), cache_dir=built)
        assert not proof.ok, f"the loss of barrier {number} goes unseen"
        assert "expected" in str(proof)


def test_a_wrong_index_in_a_generated_kernel_is_caught(built):
    made = generated(ops.matmul(64, 64, 32))
    broken = changed(made, lambda s: re.sub(r"k_v \* 32\)", "k_v * 31)", s, count=1))
    assert broken.source != made.source
    assert not prove(broken, cache_dir=built).ok


def test_divergent_barriers_are_reported(built):
    caught(
        "if (threadIdx.x < 20) __syncthreads(); else X_ptr[0];\nif (threadIdx.x < 31) return;\nY_ptr[0] = 1.0f;",
        r"f: divergence: block \(0, 0, 0\), thread \(20, 0, 0\): has returned while other threads",
        built=built,
    )
    caught(
        "if (threadIdx.x % 2) {\n __syncthreads();\n Y_ptr[threadIdx.x] = 1.0f;\n} else {\n __syncthreads();\n }",
        r"divergence: .*thread \(1, 0, 0\): waits at __syncthreads\(\) of line \d+ while others wait at that of line",
        built=built,
    )


def test_lanes_that_never_meet_are_reported(built):
    caught(
        "if (threadIdx.x != 3) Y_ptr[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 0);\n__syncthreads();",
        r"divergence: .*thread \(0, 0, 0\): waits for lanes 0xffffffff of its warp, which never arrive",
        built=built,
    )
    caught(
        "Y_ptr[threadIdx.x] = __shfl_sync(0x0000ffffu, 1.0f, 0);",
        r"thread \(16, 0, 0\): executes a warp instruction whose mask 0x0000ffff lacks its own lane",
        built=built,
    )
    caught(
        "if (threadIdx.x < 16) __ballot_sync(0xffffffffu, 1); else __syncwarp();",
        "lanes of one warp meet in different warp instructions",
        built=built,
    )


#: Body, end of the report, thread that is the first to do it in forward order.
OUT_OF_BOUNDS = {
    "read beyond": (
        "Y_ptr[threadIdx.x] = X_ptr[threadIdx.x + 1];",
        "4-byte access at byte 128 of global buffer 'X', which has 128 bytes", 31,
    ),
    "read before": (
        "Y_ptr[threadIdx.x] = X_ptr[(int)threadIdx.x - 1];", "4-byte access at byte -4 of global buffer 'X'", 0
    ),
    "far away": ("Y_ptr[threadIdx.x] = X_ptr[threadIdx.x * 100000000];", "of global buffer 'X'", 1),
    "write": ("Y_ptr[threadIdx.x * 2] = 1.0f;", "byte 128 of global buffer 'Y'", 16),
    "vector over the end": (
        "*(float4*)(Y_ptr + threadIdx.x / 29 * 32) = make_float4(0, 0, 0, 0);",
        "16-byte access at byte 128 of global buffer 'Y'", 29,
    ),
    "pointer": (
        "float* p = X_ptr + threadIdx.x; Y_ptr[threadIdx.x] = p[30];", "byte 128 of global buffer 'X'", 2
    ),
    "address": ("Y_ptr[threadIdx.x] = *(float*)(&(X_ptr[threadIdx.x + 5]));", "byte 128 of global buffer 'X'", 27),
    "shared": (
        "__shared__ float t_ptr[32]; t_ptr[threadIdx.x * 2] = 0.0f;",
        "byte 128 of shared array 't_ptr', which has 128 bytes", 16,
    ),
    "one shared array into the next": (
        "__shared__ float t_ptr[32]; __shared__ float u_ptr[32]; u_ptr[threadIdx.x] = 0; "
        "Y_ptr[threadIdx.x] = t_ptr[threadIdx.x + 8];",
        "byte 128 of shared array 't_ptr'", 24,
    ),
    "dynamic shared": (
        "extern __shared__ uchar d_ptr[]; ((float*)d_ptr)[threadIdx.x] = 0.0f;",
        "byte 96 of shared array 'd_ptr', which has 96 bytes", 24,
    ),
    "registers": (
        "float r_ptr[4]; r_ptr[threadIdx.x / 8 + 1] = 0.0f; Y_ptr[threadIdx.x] = r_ptr[1];",
        "element 4 of local array 'r_ptr', which has 4", 24,
    ),
    "atomic": ("atomicAdd(&Y_ptr[threadIdx.x + 1], 1.0f);", "byte 128 of global buffer 'Y'", 31),
}  # fmt: skip


@every("name", OUT_OF_BOUNDS)
def test_out_of_bounds_is_reported_with_buffer_offset_block_and_thread(built, name):
    body, text, thread = OUT_OF_BOUNDS[name]
    match = rf"^f: out of bounds: block \(0, 0, 0\), thread \({thread}, 0, 0\): .*{re.escape(text)}"
    caught(body, match, dynamic=96, built=built)


MISALIGNED = {
    "global": (
        "*(float4*)(Y_ptr + 2) = make_float4(0, 0, 0, 0);",
        "16-byte access at byte 8 of global buffer 'Y' needs a multiple of 16 bytes",
    ),
    "global read": ("Y_ptr[0] = (*(float2*)(X_ptr + 1)).x;", "8-byte access at byte 4 of global buffer 'X'"),
    "shared": (
        "__shared__ alignas(64) float t_ptr[132]; *(float4*)(t_ptr + 33) = make_float4(0, 0, 0, 0);",
        "16-byte access at byte 132 of shared array 't_ptr'",
    ),
    "dynamic": (
        "extern __shared__ uchar d_ptr[]; *(int*)(d_ptr + 3) = 0;", "4-byte access at byte 3 of shared array 'd_ptr'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISALIGNED)
def test_misaligned_access_is_reported(built, name):
    body, text = MISALIGNED[name]
    caught(body, rf"^f: misaligned: block .*{re.escape(text)}", dynamic=96, built=built)


def test_the_report_names_the_block_and_the_kernel_line_survives_workers(built):
    body = "Y_ptr[blockIdx.x * 32 + threadIdx.x + (blockIdx.x == 3 ? 1 : 0)] = 1.0f;"
    for order in ORDERS:
        caught(
            body,
            r"f: out of bounds: block \(3, 0, 0\), thread \(31, 0, 0\)",
            128,
            block=32,
            grid=4,
            order=order,
            built=built,
        )


def test_arguments_of_different_sizes_in_the_wrong_order_are_caught(built):
    made = generated(ops.matmul(64, 32, 96))
    assert made.launches[0].arguments == ("A", "B", "C")
    assert prove(made, cache_dir=built).ok
    swapped = replace(made, launches=(replace(made.launches[0], arguments=("B", "A", "C")),))
    proof = prove(swapped, cache_dir=built)
    assert [o for o, _ in proof.failures] == list(ORDERS)
    assert "out of bounds" in str(proof) and "global buffer 'B (parameter A_ptr)'" in str(proof)


def test_arguments_of_one_size_in_the_wrong_order_are_caught(built):
    made = generated(ops.matmul(64, 64, 64))
    swapped = replace(made, launches=(replace(made.launches[0], arguments=("B", "A", "C")),))
    proof = prove(swapped, cache_dir=built)
    assert [o for o, _ in proof.failures] == list(ORDERS) and "expected" in str(proof)
    with pytest.raises(EmulationError, match="wrote to input 'A' at byte"):
        emulate(replace(made, launches=(replace(made.launches[0], arguments=("C", "B", "A")),)),
                [np.ones((64, 64), "f")] * 2, cache_dir=built)  # fmt: skip


def test_arguments_of_different_types_in_the_wrong_order_are_caught(built):
    source = kernel("int* X_ptr, float* Y_ptr", "Y_ptr[threadIdx.x] = X_ptr[threadIdx.x];")
    made = artifact(source, [("X", 32, "int32")], [("Y", 32, "float32")], block=32, arguments=("Y", "X"))
    with pytest.raises(EmulationError, match="parameter X_ptr: expected int, got argument 'Y' of float32"):
        EmulatedArtifact(made, cache_dir=built)


def test_writing_to_an_input_and_beyond_a_buffer_show_without_checks(built):
    made = artifact(
        kernel("float* X_ptr, float* Y_ptr", "Y_ptr[threadIdx.x + 8] = 1.0f;"),
        [("X", 32, "float32")], [("Y", 32, "float32")], block=32,
    )  # fmt: skip
    with pytest.raises(EmulationError, match="f: out of bounds: wrote beyond the end of global buffer 'Y'"):
        emulate(made, [np.zeros(32, "f")], check=False, cache_dir=built)


def test_what_is_not_written_and_a_workspace_taken_for_zero_are_nan(built):
    body = "if (threadIdx.x < 31) Y_ptr[threadIdx.x] = 1.0f + (threadIdx.x ? 0.0f : W_ptr[0]);"
    made = artifact(
        kernel("float* W_ptr, float* Y_ptr", body), [], [("Y", 32, "float32")], workspaces=[("W", 4, "float32")],
        block=32, arguments=("W", "Y"),
    )  # fmt: skip
    (got,) = emulate(made, [], cache_dir=built)
    assert np.isnan(got[[0, 31]]).all() and (got[1:31] == 1).all()
    body = "float r_ptr[2]; r_ptr[threadIdx.x % 2] = 1.0f; Y_ptr[threadIdx.x] = r_ptr[0];"
    assert np.isnan(run_float(body, built=built)).tolist() == [False, True] * 16


def test_results_that_depend_on_the_order_fail_a_proof(built):
    made = artifact(kernel("float* Y_ptr", "Y_ptr[0] = threadIdx.x;"), [], [("Y", 1, "float32")], block=32)
    proof = prove(made, [], compare=lambda *_: "", cache_dir=built)
    assert dict(proof.failures)["reverse"].startswith("the result differs from that in forward order")


def test_mistakes_of_the_caller_are_named(built, monkeypatch):
    made = artifact(kernel("float* X_ptr", "X_ptr[0] = 1.0f;"), [], [("X", 4, "float32")], block=32)
    with pytest.raises(EmulationError, match="order: expected one of forward, reverse, random, got 'sideways'"):
        emulate(made, [], order="sideways", cache_dir=built)
    with pytest.raises(EmulationError, match="expected 0 arrays, got 1"):
        emulate(made, [np.zeros(4, "f")], cache_dir=built)
    with pytest.raises(EmulationError, match="expected an artifact of language 'cuda' or 'hip', got 'llvm'"):
        emulate(replace(made, language="llvm"), [], cache_dir=built)
    big = replace(made, launches=(replace(made.launches[0], block=(2048, 1, 1)),))
    with pytest.raises(EmulationError, match="f: expected 1 to 1024 threads in a block, got 2048"):
        emulate(big, [], cache_dir=built)
    bound = changed(made, lambda s: s.replace("void f", "void __launch_bounds__(16) f"))
    with pytest.raises(EmulationError, match="f: expected 1 to 16 threads in a block, got 32"):
        emulate(bound, [], cache_dir=built)
    fewer = replace(made, launches=(replace(made.launches[0], arguments=()),))
    with pytest.raises(EmulationError, match=r"f: expected 1 arguments \(X_ptr\), got 0"):
        emulate(fewer, [], cache_dir=built)
    with pytest.raises(EmulationError, match="expected kernel 'g' in the source, found f"):
        emulate(replace(made, launches=(Launch(made.source, "g", ("X",)),)), [], cache_dir=built)
    with pytest.raises(EmulationError, match=r"(?s)g\+\+ refused the kernel.*kernel.cu:3:.*nonsense"):
        emulate(changed(made, lambda s: s.replace("X_ptr[0]", "nonsense")), [], cache_dir=built)
    with pytest.raises(EmulationError, match="argument 'X': expected 4 elements of float32, got 3 of float64"):
        emulate(artifact(made.source, [("X", 4, "float32")], [("Y", 4, "float32")], block=32, arguments=("X",)),
                [np.zeros(3)], cache_dir=built)  # fmt: skip
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EmulationError, match=r"expected the C\+\+ compiler 'no-such-compiler', found none on PATH"):
        emulate(made, [], cache_dir=built)


def _build_and_run(folder):
    made = artifact(kernel("float* Y_ptr", "Y_ptr[threadIdx.x] = 3.0f;"), [], [("Y", 32, "float32")], block=32)
    return float(emulate(made, [], cache_dir=folder)[0].sum())


def test_processes_that_build_the_same_kernel_at_once_agree(built, tmp_path):
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        assert list(pool.map(_build_and_run, [str(tmp_path / "cache")] * 3)) == [96.0] * 3
    kept = sorted(p.suffix for p in (tmp_path / "cache").iterdir())
    assert kept == [".o", ".so"]
