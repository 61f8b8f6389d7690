"""The template of matrix units: right on odd shapes in every order of threads, built without local memory."""

from dataclasses import replace

import pytest

pytest.importorskip("tvm")

from benchmarks import ptx
from roller import ops
from roller.backends.cuda import toolchain
from roller.errors import BuildError, TileError
from roller.expr.canonical import fuse_axes, group_axes
from roller.tile.matrix_operands import bank_conflict_degree, phase_row_addresses, program_operands, swizzle_of_operand
from tests.codegen.matrix_programs import FRAGMENTS, artifact, assert_right, program

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


@pytest.mark.parametrize("k", [32, 64, 128])
def test_rounds_of_a_copy_that_end_within_a_period_of_the_swizzle(k):
    expr = ops.matmul(70, 91, 133, dtype="float16")  # odd rows: element by element, a few rows of the tile in a round
    assert_right(program(expr, F16, (32, 32, 16), (64, 64, k), stages=2), orders=("reverse",))


def test_a_reduction_split_over_blocks_is_summed_by_a_second_kernel():
    expr = ops.matmul(40, 64, 200, dtype="float16")
    made = program(expr, F16, (16, 32, 16), (32, 64, 32), stages=2, split_k=3)
    assert_right(made)
    assert len(artifact(made).launches) == 2


def main_loop(made, arch="sm_80"):
    (kernel,) = ptx.kernels(toolchain.compile_to_ptx(artifact(made, arch=arch).source, arch)).values()
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
    assert built.build["static_shared_bytes"] == 3 * 2 * (128 * 32 + 32 * 128)


def test_tiles_that_are_no_multiples_of_the_fragment_are_refused():
    expr = ops.matmul(64, 64, 64, dtype="float16")
    with pytest.raises(BuildError, match=r"axis 'i': expected tiles of 16, got 24 and 48"):
        artifact(program(expr, F16, (24, 32, 16), (48, 32, 16)))


def test_a_sum_that_is_no_product_of_two_loads_is_refused():
    expr = ops.reduce("sum", (64, 64), axes=(1,), dtype="float16")
    with pytest.raises(TileError, match="expected a sum of products"):
        program(expr, F16, (16, 16, 16), (16, 16, 16), axes=(*(a.name for a in expr.axes), "none"))


@pytest.mark.parametrize("fragment", ["mma.m16n8k16.bf16.f32", "mma.m16n8k16.f16.f16"])
def test_other_types_of_operands_and_sums(fragment):
    dtype, acc = FRAGMENTS[fragment].operand, FRAGMENTS[fragment].accumulator
    expr = ops.matmul(70, 88, 72, dtype=dtype, acc_dtype=acc, epilogue=("bias", "relu"))
    assert_right(program(expr, fragment, (32, 32, 16), (64, 64, 32), stages=3), orders=("reverse", "random"))


@pytest.mark.parametrize("transposed", [(False, True), (False, False), (True, False)])
def test_bytes_are_turned_on_their_way_to_the_scratchpad_where_rows_run_across_k(transposed):
    expr = ops.matmul(70, 88, 80, None, *transposed, dtype="int8")
    made = program(expr, "mma.m16n8k32.s8.s32", (32, 32, 32), (64, 64, 64), stages=3)
    assert_right(made, orders=("reverse", "random"))


@pytest.mark.parametrize("fragment", ["wmma.m16n16k16.f16.f32", "wmma.m16n16k16.f16.f16"])
@pytest.mark.parametrize(("stages", "transposed"), [(1, (False, False)), (2, (True, True)), (2, (False, True))])
def test_wmma_with_the_next_tile_in_registers(fragment, stages, transposed):
    acc = FRAGMENTS[fragment].accumulator
    expr = ops.matmul(72, 88, 80, None, *transposed, dtype="float16", acc_dtype=acc, epilogue=("bias", "relu"))
    assert_right(program(expr, fragment, (32, 32, 16), (64, 64, 32), stages=stages), arch="sm_70")


@pytest.mark.parametrize("transposed", [(False, False), (True, True)])
def test_rows_of_wmma_tiles_are_multiples_of_sixteen_halves(transposed):
    expr = ops.matmul(72, 88, 80, None, *transposed, dtype="float16", acc_dtype="float32")
    made = program(expr, "wmma.m16n16k16.f16.f32", (32, 32, 16), (64, 64, 32))
    padding = dict(made.storage_padding)
    assert all(o.pitch(padding.get(o.tensor.name, 0)) % 16 == 0 for o in program_operands(made))
    odd = replace(made, storage_padding=tuple((t, 8) for t in padding))
    with pytest.raises(BuildError, match=r"rows of '\w' in the scratchpad: expected multiples of 32 bytes, got"):
        artifact(odd, expr, "sm_70")


def conv(layout, stride=1):
    return ops.conv2d(
        2, 24, 9, 11, 40, 3, 3, stride=stride, padding=1, dtype="float16", layout=layout, epilogue=("bias", "relu")
    )


def test_convolution_as_one_product_gathers_its_window_on_the_fly():
    expr = conv("NCHW")
    grouped = group_axes(fuse_axes(expr))
    axes = ("f", "n*ho*wo", "c*kh*kw")
    made = program(grouped, F16, (16, 32, 16), (32, 64, 32), axes, stages=3)
    assert_right(made, expr, orders=("reverse", "random"))


@pytest.mark.parametrize(("layout", "axes"), [("NCHW", ("f", "n*ho*wo", "c")), ("NHWC", ("n*ho*wo", "f", "c"))])
def test_convolution_over_all_images_steps_over_its_window(layout, axes):
    expr = conv(layout)
    grouped = group_axes(fuse_axes(expr), reductions=False)
    made = program(grouped, F16, (32, 16, 16), (32, 32, 32), axes, stages=3)
    assert_right(made, expr, orders=("reverse", "random"))


@needs_nvrtc
def test_gathered_columns_are_neighbours_whose_addresses_differ_by_constants():
    expr = ops.conv2d(16, 64, 14, 14, 64, 3, 3, padding=1, dtype="float16")
    grouped = group_axes(fuse_axes(expr), reductions=False)
    made = program(grouped, F16, (32, 64, 16), (64, 128, 32), ("f", "n*ho*wo", "c"), stages=2)
    assert program_operands(made)[1].row_axis == "n*ho*wo"  # long jumps from image to image are few
    counts = main_loop(made).counts
    assert counts["global_load_16"] == (64 + 128) * 32 // 128
    assert counts["integer"] < 3 * counts["global_load_16"]


@pytest.mark.parametrize(("layout", "axes"), [("NCHW", ("f", "wo", "c")), ("NHWC", ("wo", "f", "c"))])
def test_convolution_steps_over_its_window(layout, axes):
    expr = conv(layout, stride=2)
    made = program(fuse_axes(expr), F16, (16, 16, 16), (32, 32, 16), axes, stages=2)
    assert_right(made, expr, orders=("reverse", "random"))


@needs_nvrtc
def test_results_and_residuals_move_in_vectors():
    expr = ops.matmul(256, 256, 64, dtype="float16", epilogue=("bias", "add", "relu"))
    made = program(expr, F16, (32, 64, 16), (64, 128, 32), stages=2)
    (kernel,) = ptx.kernels(toolchain.compile_to_ptx(artifact(made).source, "sm_80")).values()
    assert kernel.counts["global_store_128"] == 32 * 64 // 8 // 32
    assert kernel.counts["global_load_128"] >= 32 * 64 // 8 // 32
    assert not kernel.counts["global_store_16"]
    assert not kernel.counts["global_load_16"]
    assert_right(made, orders=("random",))


@pytest.mark.parametrize("transposed", [(False, False), (True, True)])
@pytest.mark.parametrize("k", [16, 32, 64])
def test_no_bank_serves_two_rows_of_a_phase(transposed, k):
    expr = ops.matmul(256, 256, 256, None, *transposed, dtype="float16")
    made = program(expr, F16, (64, 64, 16), (128, 128, k))
    assert not any(n for _, n in made.storage_padding)
    for operand in program_operands(made):
        moved = swizzle_of_operand(operand, made.fragment, 0)
        every = [moved(x) for x in range(operand.elements(0))]
        assert sorted(every) == list(range(len(every)))  # a permutation
        assert all(y - every[n] == x - n for n in range(0, len(every), 8) for x, y in enumerate(every[n : n + 8], n))
        assert bank_conflict_degree(operand, made.fragment, 0, 32, 4) == 1
        for rows in phase_row_addresses(operand, made.fragment, 0):
            assert len({start // 16 % 8 for start in rows}) == 8


def test_rows_that_cannot_be_permuted_are_padded():
    expr = ops.matmul(256, 256, 256, dtype="float16")
    made = program(expr, F16, (48, 48, 16), (96, 96, 48))
    assert dict(made.storage_padding) == {"A": 8, "B": 8}
    for operand in program_operands(made):
        assert bank_conflict_degree(operand, made.fragment, 0, 32, 4) > 1
        assert bank_conflict_degree(operand, made.fragment, 8, 32, 4) == 1
    wmma = program(expr, "wmma.m16n16k16.f16.f32", (32, 32, 16), (64, 64, 32))
    assert all(n for _, n in wmma.storage_padding)  # takes a pitch, no permutation
