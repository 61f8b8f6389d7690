"""The template of matrix units: right on odd shapes in every order of threads, built without local memory."""

import pytest

pytest.importorskip("tvm")

from roller import ops
from roller.backends.cuda import ptx, toolchain
from roller.errors import BuildError, TileError
from tests.codegen.matrix_programs import artifact, assert_right, program

F16 = "mma.m16n8k16.f16.f32"
needs_nvrtc = pytest.mark.skipif(toolchain.available() is not None, reason="no NVRTC")


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_pipelined_matmul_with_padding_on_every_axis(stages):
    expr = ops.matmul(70, 88, 72, dtype="float16", epilogue=("bias", "relu"))
    assert_right(program(expr, F16, (32, 32, 16), (64, 64, 32), stages=stages, raster=stages))


@pytest.mark.parametrize("transposed", [(False, True), (True, False), (True, True)])
def test_transposed_and_batched_operands_whose_rows_are_not_aligned(transposed):
    expr = ops.matmul(51, 43, 37, 2, *transposed, dtype="float16", out_dtype="float32")
    assert_right(program(expr, F16, (16, 24, 16), (32, 48, 32), stages=3), orders=("reverse", "random"))


def test_a_reduction_split_over_blocks_is_summed_by_a_second_kernel():
    expr = ops.matmul(40, 64, 200, dtype="float16")
    made = program(expr, F16, (16, 32, 16), (32, 64, 32), stages=2, split_k=3)
    assert_right(made)
    assert len(artifact(made).launches) == 2


def main_loop(made, arch="sm_80"):
    (kernel,) = ptx.kernels(toolchain.to_ptx(artifact(made, arch=arch).source, arch)).values()
    assert not [x for x in kernel.lines if "local" in x.split()[0]]
    return kernel.main_loop


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_main_loop_has_the_instructions_meant_and_no_local_memory(arch):
    expr = ops.matmul(512, 512, 512, dtype="float16")
    made = program(expr, F16, (64, 64, 16), (128, 128, 32), stages=3)
    counts = main_loop(made, arch).counts
    assert counts["matrix"] == 2 * 4 * 8
    assert counts["ldmatrix"] == 2 * (4 + 4)
    assert counts["async_copy_16"] == 2 * 128 * 32 * 2 // 16 // 128
    assert not any(counts[c] for c in ("shared_load_16", "shared_store_16", "global_load_16", "shared_load_32"))
    built = toolchain.build(artifact(made, arch=arch))
    assert built.build["spill_bytes"] == 0
    assert "0 bytes stack frame" in built.build["log"]
    assert built.launches[0].dynamic_shared_bytes == 3 * 2 * (128 * 40 + 32 * 136)


def test_tiles_that_are_no_multiples_of_the_fragment_are_refused():
    expr = ops.matmul(64, 64, 64, dtype="float16")
    with pytest.raises(BuildError, match=r"axis 'i': expected tiles of 16, got 24 and 48"):
        artifact(program(expr, F16, (24, 32, 16), (48, 32, 16)))


def test_a_sum_that_is_no_product_of_two_loads_is_refused():
    expr = ops.reduce("sum", (64, 64), axes=(1,), dtype="float16")
    with pytest.raises(TileError, match="expected a sum of products"):
        program(expr, F16, (16, 16, 16), (16, 16, 16), axes=(*(a.name for a in expr.axes), "none"))
