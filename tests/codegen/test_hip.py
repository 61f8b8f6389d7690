"""HIP text of programs: what the rewrites leave, what they refuse, and that 64-lane wavefronts reduce rightly."""

import re

import numpy as np
import pytest

pytest.importorskip("tvm")

from roller import ops
from roller.errors import BuildError
from roller.expr.canonical import fuse_axes
from roller.templates.gpu.emit.hip import cuda_text_to_hip, lower
from roller.tile import RProgram
from tests.codegen import wavefront_cpu

needs_compiler = pytest.mark.skipif(wavefront_cpu.COMPILER is None, reason="g++ not found")

KERNEL = 'extern "C" __global__ void k(float* x) {{\n  {}\n}}\n'


def rows(expr, register, block, **kw):
    program = RProgram(fuse_axes(expr), "gpu", "rows", (("register", register), ("shared", block)), **kw)
    return lower(program, expr, "gfx906", "test")


def tiled(expr, register, block, **kw):
    program = RProgram(fuse_axes(expr), "gpu", "tiled", (("register", register), ("shared", block)), **kw)
    return lower(program, expr, "gfx906", "test")


SOFTMAX = ops.softmax((24, 200))
#: Programs whose lanes of one row are a part of a group of 32, one group, two groups, and many; the first two have
#: blocks that are no whole number of groups, whose lanes meet in the scratchpad.
LANES = {2: (12, 2), 8: (9, 8), 4: (8, 4), 16: (4, 16), 32: (8, 32), 64: (2, 64), 128: (1, 128)}


@pytest.mark.parametrize("lanes", LANES)
def test_shuffles_stay_within_32_lanes(lanes):
    artifact = rows(SOFTMAX, (1, 1), LANES[lanes])
    text = artifact.source
    shuffles = re.findall(r"__shfl\w*\(.*;", text)
    assert bool(shuffles) == (np.prod(artifact.launches[0].block) % 32 == 0)
    assert all(re.search(r", 32\)+;$", s) for s in shuffles)
    assert all(int(d) < 32 for d in re.findall(r"__shfl_xor\(.*, (\d+), 32\)+;", text))
    assert "_sync(" not in text and "activemask" not in text


@needs_compiler
@pytest.mark.parametrize("lanes", LANES)
def test_reductions_are_right_on_wavefronts_of_64(lanes, tmp_path):
    artifact = rows(SOFTMAX, (1, 1), LANES[lanes])
    assert np.prod(artifact.launches[0].block) > 16
    x = np.random.default_rng(0).standard_normal((24, 200), np.float32)
    (y,) = wavefront_cpu.run(artifact, [x], tmp_path)
    np.testing.assert_allclose(y, SOFTMAX.evaluate([x])[0], rtol=2e-6, atol=1e-8)


@needs_compiler
def test_tiled_text_runs(tmp_path):
    e = ops.matmul(37, 45, 50, epilogue=("bias", "relu"))
    artifact = tiled(e, (2, 2, 1), (16, 16, 8), staged=("A", "B"))
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(t.shape, np.float32) for t in e.inputs]
    (y,) = wavefront_cpu.run(artifact, arrays, tmp_path)
    np.testing.assert_allclose(y, e.evaluate(arrays)[0], rtol=1e-5, atol=1e-5)


@needs_compiler
def test_eight_bfloat16_in_one_vector(tmp_path):
    # TVM takes them apart into a ulonglong4 and calls a constructor that neither CUDA nor HIP has.
    e = ops.elementwise(("relu",), (64, 64), dtype="bfloat16")
    kw = {"vector_axis": "d0*d1", "vector_elements": 8}
    p = RProgram(fuse_axes(e), "gpu", "streaming", (("register", (8,)), ("shared", (1024,))), **kw)
    a = lower(p, e, "gfx906", "test")
    assert re.search(r"make_ulonglong4\((\(uint\)\d+, ){7}", a.source)
    x = np.random.default_rng(2).standard_normal((64, 64), np.float32)
    bits = (x.view(np.uint32) >> 16).astype(np.uint16)
    (y,) = wavefront_cpu.run(a, [bits], tmp_path)
    np.testing.assert_array_equal(y, np.where(bits >> 15, 0, bits))


def test_artifact_says_what_it_is():
    a = rows(SOFTMAX, (1, 1), LANES[64])
    assert (a.language, a.target, a.device) == ("hip", {"arch": "gfx906"}, "test")
    assert a.source.startswith("#include <hip/hip_runtime.h>") and "alignas" not in a.source
    assert a.source.count('extern "C" __global__') == 1 and "CUDA" not in a.source


def test_split_kernels_share_their_text():
    a = tiled(ops.matmul(64, 64, 512), (4, 4, 1), (32, 32, 16), staged=("A", "B"), split_k=4)
    assert len(a.launches) == 2 and len({x.source for x in a.launches}) == 1


def test_half_precision_brings_its_header():
    a = tiled(ops.matmul(64, 64, 32, dtype="float16"), (4, 4, 1), (32, 32, 16), staged=("A", "B"))
    assert "#include <hip/hip_fp16.h>" in a.source and "cuda_fp16" not in a.source
    assert "hip_fp16" not in tiled(ops.matmul(64, 64, 32), (4, 4, 1), (32, 32, 16), staged=("A", "B")).source


def test_padding_of_a_maximum_is_minus_infinity():
    e = ops.pool2d("max", 2, 8, 15, 13, 3, 3, stride=2, padding=1)
    text = tiled(e, (1, 1, 2, 1, 1), (2, 4, 8, 2, 3), staged=("X",)).source
    assert "-__builtin_huge_valf()" in text and "CUDART" not in text


@pytest.mark.parametrize(
    "line", ['asm volatile("mma.sync");', "nvcuda::wmma::fill_fragment(f, 0);", "__syncwarp();", "x[0] = CUDART_PI_F;"]
)
def test_what_only_nvidia_has_is_refused(line):
    with pytest.raises(BuildError, match=r"hip: .*got '(asm|nvcuda|__syncwarp|CUDART_PI_F)'"):
        cuda_text_to_hip(KERNEL.format(line))


def test_other_widths_are_refused():
    with pytest.raises(BuildError, match=r"shuffles over 32 lanes, got \['16'\]"):
        cuda_text_to_hip(KERNEL.format("x[0] = __shfl_xor_sync((uint)4294967295, x[0], 8, 16);"))


def test_errors_name_this_backend():
    p = RProgram(fuse_axes(ops.matmul(8, 8, 8)), "cpu", "tiled", (("register", (4, 4, 1)), ("l1", (8, 8, 8))))
    with pytest.raises(BuildError, match=r"^hip: expected a program for a gpu, got one for a cpu"):
        lower(p, ops.matmul(8, 8, 8), "gfx906", "test")
