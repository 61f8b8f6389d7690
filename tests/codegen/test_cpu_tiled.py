"""Tiled reductions on the CPU: every way to stage an operand, awkward extents, every access pattern."""

import pytest

from roller import ops
from roller.errors import BuildError
from roller.expr.canonical import group_axes
from roller.templates.cpu.emit.axis_tiling_plans import reduction_plans, spatial_plans
from tests.codegen.cpu_programs import assert_right, canonical, program


@pytest.mark.parametrize("staged", [("A", "B"), ("B",), ()])
@pytest.mark.parametrize(
    ("register", "task"),
    [({"i": 4, "j": 16}, {"i": 8, "j": 32}), ({"i": 40, "j": 64}, {}), ({"i": 1, "j": 8}, {"i": 100, "j": 8})],
)
def test_matmul_of_prime_extents(staged, register, task):
    e = ops.matmul(37, 53, 29)
    assert_right(e, program(canonical(e), "tiled", register, task, "j", staged=staged))


@pytest.mark.parametrize("vector", ["i", "j", None])
def test_matmul_vectorised_along_either_axis_or_none(vector):
    e = ops.matmul(19, 21, 7, epilogue=("bias", "relu"))
    assert_right(e, program(canonical(e), "tiled", {"i": 8, "j": 8}, {"i": 16}, vector, 8, staged=("A", "B")))


@pytest.mark.parametrize("chunk", [1, 10, 29])
def test_reduction_in_chunks(chunk):
    e = ops.matmul(37, 50, 29, epilogue=("bias",))
    tiles = {"i": 4, "j": 16}, {"i": 16, "j": 48}
    assert_right(e, program(canonical(e), "tiled", *tiles, "j", chunk={"k": chunk}, staged=("A", "B")))


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 33, 5), (17, 1, 5), (3, 7, 1)])
def test_matmul_with_extent_one(shape):
    e = canonical(ops.matmul(*shape))
    names = [a.name for a in e.anchor.spatial_axes]
    structure = "tiled" if e.anchor.combiner else "streaming"
    register = dict.fromkeys(names, 16)
    assert_right(ops.matmul(*shape), program(e, structure, register, register, names[-1], staged=("A", "B")))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8"])
def test_matmul_of_other_dtypes(dtype):
    e = ops.matmul(21, 35, 19, dtype=dtype)
    assert_right(e, program(canonical(e), "tiled", {"i": 4, "j": 16}, {"i": 8, "j": 32}, "j", staged=("A", "B")))


def test_batched_transposed_matmul():
    e = ops.matmul(13, 18, 11, batch=3, transpose_a=True, transpose_b=True)
    assert_right(e, program(canonical(e), "tiled", {"i": 4, "j": 16}, {"i": 8}, "j", staged=("A", "B")))


@pytest.mark.parametrize(
    ("vector", "register", "staged"),
    [
        ("f", {"f": 16, "wo": 7}, ("X", "W")),
        ("wo", {"f": 3, "wo": 16}, ("X", "W")),
        ("wo", {"f": 3, "wo": 8}, ("X",)),
        ("wo", {"f": 3, "wo": 16}, ("W",)),
    ],
)
@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 1, 1), (2, 1, 1), (1, 2, 2)])
def test_direct_convolution(vector, register, staged, stride, padding, dilation):
    e = ops.conv2d(2, 5, 11, 13, 7, 3, 3, stride, padding, dilation, epilogue=("bias", "relu"))
    assert_right(e, program(canonical(e), "tiled", register, {"ho": 2, "wo": 8}, vector, staged=staged))


@pytest.mark.parametrize("vector", ["f", "n*ho*wo"])
def test_implicit_gemm(vector):
    e = ops.conv2d(2, 5, 11, 13, 7, 3, 3, 2, 1)
    grouped = group_axes(canonical(e))
    register = {"f": 8, "n*ho*wo": 8}
    assert_right(e, program(grouped, "tiled", register, {"n*ho*wo": 32}, vector, 8, staged=("X", "W")))


@pytest.mark.parametrize("groups", [2, 5])
def test_grouped_convolution(groups):
    e = canonical(ops.conv2d(2, 10, 7, 9, 20, 3, 3, 1, 1, groups=groups))
    original = ops.conv2d(2, 10, 7, 9, 20, 3, 3, 1, 1, groups=groups)
    assert_right(original, program(e, "tiled", {"f": 2, "wo": 8}, {"ho": 4}, "wo", 8, staged=("X",)))


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("staged", [("X",), ()])
def test_depthwise_convolution(stride, staged):
    e = ops.depthwise_conv2d(2, 6, 13, 17, 3, 3, stride, 1)
    assert_right(e, program(canonical(e), "tiled", {"ho": 2, "wo": 8}, {"ho": 4, "wo": 16}, "wo", 8, staged=staged))


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (3, 1, 1)])
def test_pooling(kind, kernel, stride, padding):
    e = ops.pool2d(kind, 2, 3, 13, 17, kernel, kernel, stride, padding)
    register, task = {"ho": 2, "wo": 8}, {"ho": 4, "wo": 16}
    assert_right(e, program(canonical(e), "tiled", register, task, "wo", 8, staged=("X",)))


def test_a_whole_sum_given_as_tiled_is_split_over_the_cores():
    e = ops.reduce("sum", (200_003,))
    assert_right(e, program(canonical(e), "tiled", {"one": 16}, {}, "one", staged=("X",)))


@pytest.mark.parametrize(("m", "n"), [(1, 300), (300, 1)])
def test_a_vector_times_a_matrix_reads_the_matrix_once(m, n):
    e = ops.matmul(m, n, 77)
    c = canonical(e)
    name = c.anchor.spatial_axes[-1].name
    assert_right(e, program(c, "tiled", {name: 32}, {name: 64}, name, staged=("A", "B")))


def test_a_tiled_program_without_reduction_is_refused():
    e = canonical(ops.elementwise(("relu",), (8,)))
    with pytest.raises(BuildError, match="Use structure 'streaming'"):
        assert_right(e, program(e, "tiled"))


def test_a_gpu_program_is_refused():
    from dataclasses import replace

    e = canonical(ops.matmul(4, 4, 4))
    with pytest.raises(BuildError, match="expected a program for a cpu, got one for a gpu"):
        assert_right(e, replace(program(e, "tiled"), kind="gpu"))


@pytest.mark.parametrize("vector", ["f", "wo"])
@pytest.mark.parametrize("channels", [33, 64, 70])
def test_channels_in_blocks_around_the_window(vector, channels):
    e = ops.conv2d(2, channels, 12, 13, 18, 3, 3, padding=1)
    register = {"f": 16, "wo": 4, "ho": 2} if vector == "f" else {"f": 3, "ho": 4, "wo": 8}
    prog = program(e, "tiled", register, {"f": 16, "ho": 4, "wo": 8}, vector, 8, staged=("X", "W"))
    block = reduction_plans(prog)[-1].block
    assert 0 < block < channels and (channels % block or channels == 64), "one of the sizes leaves a shorter block"
    assert_right(e, prog)


def test_a_block_serves_no_purpose_without_a_window():
    e = canonical(ops.conv2d(2, 64, 12, 12, 32, 1, 1))
    prog = program(e, "tiled", {"f": 16}, vector="f", staged=("W",))
    assert all(not r.block for r in reduction_plans(prog))


@pytest.mark.parametrize("width,stride", [(11, 1), (7, 1), (23, 2), (5, 1), (13, 3)])
@pytest.mark.parametrize("epilogue", [(), ("bias", "relu")])
def test_lanes_may_lie_beyond_short_rows_of_boxes(width, stride, epilogue):
    e = ops.depthwise_conv2d(3, 6, 9, width, 5, 5, stride=stride, padding=2, epilogue=epilogue)
    prog = program(canonical(e), "tiled", {"ho": 2, "wo": 16}, {"c": 2, "ho": 4}, "wo", 16, staged=("X",))
    wide = next(s for s in spatial_plans(prog) if s.name == "wo")
    assert wide.tiles == 1 and wide.extent <= wide.lanes < 2 * wide.extent
    assert_right(e, prog)


def test_max_pooling_ignores_what_lies_beyond_its_rows():
    e = ops.pool2d("max", 2, 5, 9, 11, 3, 3, stride=1, padding=1)
    prog = program(canonical(e), "tiled", {"ho": 3, "wo": 16}, {"ho": 6}, "wo", 16, staged=("X",))
    assert next(s for s in spatial_plans(prog) if s.name == "wo").tiles == 1
    assert_right(e, prog)


def test_operands_read_in_place_are_not_read_past_their_rows():
    e = ops.conv2d(2, 4, 9, 11, 6, 1, 1)
    prog = program(e, "tiled", {"f": 2, "wo": 16}, vector="wo", staged=())
    assert next(s for s in spatial_plans(prog) if s.name == "wo").tile <= 11
    assert_right(e, prog)
