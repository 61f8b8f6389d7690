"""Matrix programs for warp groups: right on the emulator in every order, and what their machine code is made of."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from benchmarks import ptx
from roller import ops
from roller.backends.cuda import toolchain
from roller.core.matrix_instruction_fragment import Fragment
from roller.emulator import prove
from roller.errors import BuildError, TileError
from roller.expr import Axis, Load, Stage, Tensor, TensorExpr, axis_index
from roller.templates.gpu.emit.cuda import lower
from roller.templates.gpu.warp_group import emit_wgmma_functions as group_functions
from roller.tile import RProgram
from roller.tile.warp_group_tiles import ALIGNMENT_BYTES, group_tile
from tests.emulator.test_warp_groups import layout

needs_nvrtc = pytest.mark.skipif(toolchain.available() is not None, reason="no NVRTC")
KINDS = {"float16": "f16", "bfloat16": "bf16"}


def fragment(n, dtype="float16"):
    name = f"wgmma.m64n{n}k16.{KINDS[dtype]}.f32"
    return Fragment(name, 64, n, 16, dtype, "float32", 128, "group_matrix", "sm_90a")


def program(expr, axes, group, groups, depth, n, **fields):
    """Return a program: tile of a warp group and warp groups of a block along m and n, and the depth of a step."""
    m, columns, k = axes
    dtype = expr.inputs[0].dtype
    register = {m: group[0], columns: group[1], k: 16}
    block = {m: group[0] * groups[0], columns: group[1] * groups[1], k: depth}
    tiles = tuple(
        (name, tuple(tile.get(a.name, 1) for a in expr.axes))
        for name, tile in (("register", register), ("shared", block))
    )
    staged = tuple(t.name for t in expr.inputs[:2])
    return RProgram(
        expr, "gpu", "matrix", tiles, staged=staged, fragment=fragment(n, dtype), matrix_axes=axes, **fields
    )


def lowered(*args, **fields):
    p = program(*args, **fields)
    return lower(p, p.expr, "sm_90", "test")


IJK = ("i", "j", "k")
CASES = {  # expression, axes, tile of a group, groups, depth, n of the instruction, other fields, 16-byte copies
    "plain": (ops.matmul(136, 200, 376, dtype="float16"), IJK, (64, 128), (2, 1), 64, 128, {"stages": 4}, True),
    "both transposed": (
        ops.matmul(136, 136, 264, transpose_a=True, transpose_b=True, dtype="bfloat16"),
        IJK, (64, 64), (1, 2), 64, 64, {"stages": 3}, True,
    ),
    "batched, steps of 32": (
        ops.matmul(72, 136, 88, batch=2, transpose_b=True, dtype="float16", out_dtype="float32"),
        IJK, (64, 64), (1, 1), 32, 64, {"stages": 5}, True,
    ),
    "odd extents": (ops.matmul(67, 75, 133, dtype="float16"), IJK, (64, 64), (1, 1), 64, 64, {"stages": 3}, False),
    "odd, steps of 16": (
        ops.matmul(67, 75, 133, transpose_b=True, dtype="float16"), IJK, (64, 64), (1, 1), 16, 64, {"stages": 2}, False,
    ),
    "several products a group": (
        ops.matmul(136, 264, 136, dtype="float16"), IJK, (128, 128), (1, 2), 32, 64, {"stages": 1}, True
    ),
    "n of 256, steps of 128": (
        ops.matmul(72, 264, 264, dtype="float16"), IJK, (64, 256), (2, 1), 128, 256, {"stages": 2}, True
    ),
    "epilogue in parts": (
        ops.matmul(72, 72, 520, dtype="float16", epilogue=("add", "relu")),
        IJK, (64, 64), (1, 1), 64, 64, {"stages": 3, "split_k": 4}, True,
    ),
    "raster": (ops.matmul(200, 200, 72, dtype="float16"), IJK, (64, 64), (1, 1), 64, 64, {"raster": 3}, True),
    "convolution": (
        ops.conv2d(2, 24, 9, 9, 40, 3, 3, 1, 1, layout="NHWC", dtype="float16"),
        ("wo", "f", "c"), (64, 64), (1, 1), 32, 64, {"stages": 3}, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_kernels_of_warp_groups_are_right(name):
    *args, fields, whole = CASES[name]
    artifact = lowered(*args, **fields)
    assert artifact.target["arch"] == "sm_90a"
    assert ("roller_copy_async_16" in artifact.source) == whole
    proof = prove(artifact)
    assert proof.ok, str(proof)


@needs_nvrtc
@pytest.mark.parametrize("transpose_b", [False, True])
def test_main_loop_has_the_instructions_meant_and_no_local_memory(transpose_b):
    expr = ops.matmul(1024, 1024, 1024, dtype="float16", transpose_b=transpose_b)
    artifact = lowered(expr, IJK, (64, 256), (2, 1), 64, 256, stages=4)
    (kernel,) = ptx.kernels(toolchain.compile_to_ptx(artifact.source, "sm_90a")).values()
    assert not [x for x in kernel.lines if "local" in x.split()[0]]
    counts = kernel.main_loop.counts
    assert counts["matrix"] == 4
    assert counts["async_copy_16"] == (128 + 256) * 64 * 2 // 16 // 256
    assert not kernel.main_loop.total("ldmatrix", "shared_", "global_")
    built = toolchain.build(artifact)
    assert built.build["spill_bytes"] == 0 and "0 bytes stack frame" in built.build["log"]
    assert "(C7" not in built.build["log"]  # what ptxas says where it makes products wait for each other
    assert built.launches[0].dynamic_shared_bytes == 4 * (128 + 256) * 128
    assert f"__align__({ALIGNMENT_BYTES})" in artifact.source


@needs_nvrtc
@pytest.mark.parametrize(
    ("out_dtype", "columns", "stored"),
    [("float16", 256, "st.global.v4"), ("float32", 256, "st.global.v2"), ("float16", 250, "st.global.v2")],
)
def test_results_leave_in_whole_sectors_where_the_output_allows(out_dtype, columns, stored):
    expr = ops.matmul(128, columns, 64, dtype="float16", out_dtype=out_dtype, transpose_b=True)
    text = toolchain.compile_to_ptx(lowered(expr, IJK, (64, 64), (1, 1), 64, 64).source, "sm_90a")
    found = {w for x in text.splitlines() for w in x.split() if w.startswith("st.global")}
    assert {w.rpartition(".")[0] for w in found} == {stored}


def positions(k_major, rows, depth, step):
    """Return the tile and the byte of every element ``[row, k]`` in it."""
    expr = ops.matmul(rows, 64, depth, dtype="float16", transpose_a=not k_major)
    load = expr.anchor.loads[0]
    t = group_tile(load, expr.tensors[load.tensor], ("i", "k"), {"i": rows, "k": depth}, step, k_major)
    row, k = np.mgrid[:rows, :depth]
    line, along = (row, k) if k_major else (k, row)
    return t, (t.position(line, along // 8) + along % 8) * 2


@pytest.mark.parametrize("k_major", [True, False])
@pytest.mark.parametrize(("rows", "depth", "step"), [(128, 64, 64), (64, 16, 64), (96, 32, 32), (256, 128, 128)])
def test_tiles_hold_every_element_once_and_the_unit_reads_them_by_their_descriptors(k_major, rows, depth, step):
    t, at = positions(k_major, rows, depth, step)
    assert sorted(at.ravel()) == list(range(0, 2 * rows * depth, 2)) and t.bytes >= 2 * rows * depth
    for row in range(0, rows, step):
        for k in range(0, depth, 16):
            mode = t.line_bytes
            for r in range(step):
                for x in range(16):
                    byte = layout(mode, not k_major, t.leading_bytes, t.stride_bytes, r, x, 2 * t.start(row, k))
                    assert byte == at[row + r, k + x]


@pytest.mark.parametrize("k_major", [True, False])
def test_neither_copies_nor_the_unit_meet_in_a_bank(k_major):
    _, at = positions(k_major, 128, 64, 64)
    lines = at if k_major else at.T
    copied = lines[:, ::8].reshape(-1, 8)  # 16 bytes each, as eight neighbouring threads copy them
    read = lines[:, ::8].reshape(-1, 8, lines.shape[1] // 8).swapaxes(1, 2).reshape(-1, 8)  # the same of eight lines
    for eight in (*copied, *read):
        assert len(set(eight % 128)) == 8


def test_what_does_not_fit_is_refused():
    expr = ops.matmul(64, 72, 64, dtype="float16")
    with pytest.raises(TileError, match="expected a tile in lines of at least 32 bytes, got 72 x 64"):
        lowered(expr, IJK, (64, 72), (1, 1), 64, 72)
    with pytest.raises(BuildError, match="axis 'i': expected tiles of 64, got 32"):
        lowered(expr, IJK, (32, 64), (1, 1), 64, 64)
    wrong = Fragment("wgmma.m64n64k32.s8.s32", 64, 64, 32, "int8", "int32", 128, "group_matrix", "sm_90a")
    with pytest.raises(BuildError, match="expected 64 x n x 16 of"):
        group_functions.define_wgmma_function(wrong, False, False)


def test_other_reductions_that_count_on_barriers_of_tvm_are_refused():
    product = ops.matmul(64, 64, 64, dtype="float16", out_dtype="float32")
    c, i, j = product.anchor, Axis("i", 64), Axis("j", 64, "reduction")
    rows = Stage(
        Tensor("M", (64,)), (i, j), (axis_index("i"),), Load(c.name, (axis_index("i"), axis_index("j"))), "max"
    )
    expr = TensorExpr("chain", product.inputs, (c, rows), ("M",))
    with pytest.raises(BuildError, match="chain: expected one reduction beside a kernel that places its own barriers"):
        lowered(expr, IJK, (64, 64), (1, 1), 64, 64, stages=3)
