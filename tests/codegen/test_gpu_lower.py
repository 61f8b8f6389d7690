"""The CUDA source of programs: launch description, loop structure, fusion and errors."""

import re

import pytest

pytest.importorskip("tvm")

from roller import ops
from roller.emulator import prove
from roller.errors import BuildError
from roller.expr import REDUCTION, Axis, Call, Const, Index, Load, Stage, Tensor, TensorExpr, Term, axis_index
from roller.expr.canonical import fuse_axes, group_axes
from roller.templates.gpu.emit.cuda import lower
from roller.tile import RProgram


def program(expr, structure, register, block, **kw):
    if structure == "tiled":
        kw.setdefault("staged", tuple(t.name for t in expr.inputs if t.name in {x.tensor for x in expr.anchor.loads}))
    return RProgram(expr, "gpu", structure, (("register", register), ("shared", block)), **kw)


def lowered(expr, structure, register, block, canon=fuse_axes, **kw):
    return lower(program(canon(expr), structure, register, block, **kw), expr, "sm_70", "test")


def body(artifact, launch=0):
    """One kernel's text, from its signature on."""
    entry = artifact.launches[launch].entry
    text = artifact.launches[launch].source
    start = text.index(f" {entry}(")
    end = text.find('extern "C"', start)
    return text[start : end if end > 0 else None]


def main_loop(text):
    """The arithmetic between the second barrier and the write-back."""
    return text.split("__syncthreads();")[2].split("for (int r_i_3")[0]


MATMUL = ops.matmul(256, 128, 64)


def test_launch_describes_grid_block_and_arguments():
    a = lowered(ops.matmul(250, 130, 64), "tiled", (8, 4, 1), (128, 64, 32))
    (launch,) = a.launches
    assert launch.grid == (2 * 3, 1, 1)
    assert launch.block == (256, 1, 1)
    assert launch.dynamic_shared_bytes == 0
    assert [(x.name, x.role, x.shape) for x in a.arguments] == [
        ("A", "input", (250, 64)),
        ("B", "input", (64, 130)),
        ("C", "output", (250, 130)),
    ]
    assert (a.language, a.target, a.estimate, a.binary) == ("cuda", {"arch": "sm_70"}, {}, None)


@pytest.mark.parametrize("value", [1e-20, 1 / 77, -(2.0**-60), 1e300])
def test_a_double_is_printed_without_loss(value):
    i, (x, y) = axis_index("i"), (Tensor(n, (64,), "float64") for n in "XY")
    scale = Stage(y, (Axis("i", 64),), (i,), Call("mul", (Load("X", (i,)), Const(value, "float64"))))
    e = TensorExpr("scale", (x,), (scale,), ("Y",))
    text = body(lowered(e, "streaming", (1,), (64,)))
    literals = [
        float.fromhex(x) if "x" in x else float(x) for x in re.findall(r"\* (-?(?:0x)?[\d.][0-9a-fp.+-]*)", text)
    ]
    assert value in literals


def test_arguments_are_in_kernel_order():
    # TVM sorts parameters by name: the launch must say so, whatever the order of the call.
    e = ops.conv2d(1, 16, 8, 8, 32, 3, 3, padding=1, epilogue=("bias",))
    a = lowered(
        e, "tiled", (1, 4, 2, 2, 1, 1, 1)[-len(fuse_axes(e).axes) :], (1, 16, 4, 8, 4, 3, 3)[-len(fuse_axes(e).axes) :]
    )
    signature = re.search(r"\((.*?)\) \{", body(a))[1]
    assert [n.removesuffix("_ptr") for n in re.findall(r"(\w+_ptr)", signature)] == list(a.launches[0].arguments)
    assert sorted(a.launches[0].arguments) == list(a.launches[0].arguments)
    assert [x.name for x in a.inputs] == [t.name for t in e.inputs] != sorted(t.name for t in e.inputs)


def test_main_loop_has_no_predicate_even_where_tiles_do_not_divide():
    for e in (MATMUL, ops.matmul(127, 131, 61)):
        loop = main_loop(body(lowered(e, "tiled", (4, 4, 1), (32, 64, 8))))
        assert "acc_ptr" in loop
        assert "if (" not in loop and "?" not in loop and "%" not in loop


def test_dividing_tiles_leave_no_predicate_anywhere():
    text = body(lowered(MATMUL, "tiled", (8, 4, 1), (128, 64, 32)))
    assert "if (" not in text and "condval" not in text


def test_aligned_tiles_copy_and_store_vectors():
    a = lowered(
        MATMUL, "tiled", (8, 4, 1), (128, 64, 32), vector_axis="j", vector_elements=4, storage_padding=(("A", 4),)
    )
    text = body(a)
    assert "*(float4*)(A_ptr" in text and "*(float4*)(B_ptr" in text and "*(float4*)(C_ptr" in text
    assert "*(float4*)(frag1_ptr" in text  # a thread's four columns are one access
    assert "float4 tile0_ptr[1152]" in text  # 128 rows of 32 + 4, only ever accessed as vectors
    assert "*(float4*)(frag0_ptr" in text  # four points of the reduction are one access


@pytest.mark.parametrize("shape", [(256, 128, 63), (256, 127, 64)])
def test_unaligned_rows_are_copied_by_elements(shape):
    text = body(lowered(ops.matmul(*shape), "tiled", (8, 4, 1), (128, 64, 32), vector_axis="j", vector_elements=4))
    narrow = "A_ptr" if shape[2] % 2 else "B_ptr"
    assert f"4*)({narrow}" not in text and f"2*)({narrow}" not in text


def test_storage_padding_that_breaks_alignment_disables_vectors_in_the_scratchpad():
    text = body(lowered(MATMUL, "tiled", (8, 4, 1), (128, 64, 32), storage_padding=(("A", 1),)))
    assert "*(float4*)(tile0_ptr" not in text


def test_large_tiles_use_dynamic_scratchpad():
    a = lowered(ops.matmul(512, 512, 128), "tiled", (8, 8, 1), (128, 128, 64))
    assert a.launches[0].dynamic_shared_bytes == (128 * 64 + 64 * 128) * 4
    assert "extern __shared__" in body(a)


def test_implicit_gemm_has_no_global_im2col_buffer():
    e = ops.conv2d(2, 8, 15, 13, 24, 3, 3, stride=2, padding=1, epilogue=("bias", "relu"))
    a = lowered(e, "tiled", (4, 4, 1), (16, 32, 12), canon=lambda x: group_axes(fuse_axes(x)))
    assert len(a.launches) == 1
    assert {x.role for x in a.arguments} == {"input", "output"}
    text = body(a)
    assert "bias_ptr" in text.split("__syncthreads();")[-1]  # the epilogue runs on the accumulators
    loop = text.split("__syncthreads();")[2].split("Y_ptr")[0]
    assert "%" not in loop.split("if (")[0]  # the gather's index arithmetic stays in the copy


def test_padded_reduction_is_masked_where_zero_is_not_neutral():
    e = ops.pool2d("max", 2, 8, 15, 13, 3, 3, stride=2, padding=1)
    a = lowered(e, "tiled", (1, 1, 2, 1, 1), (2, 4, 8, 2, 3))
    assert re.search(r"if \(\(\(kh_step \* 2\) \+ kh_u\) < 3\)", body(a))
    assert "-CUDART_INF_F" in body(a)


def test_split_reduction_writes_parts_and_combines_them_in_order():
    a = lowered(ops.matmul(33, 35, 300), "tiled", (4, 4, 1), (32, 32, 16), split_k=3)
    first, second = a.launches
    assert [(x.name, x.shape) for x in a.arguments if x.role == "workspace"] == [("partial", (3, 33, 35))]
    assert first.grid == (3 * 2 * 2, 1, 1)
    assert first.arguments == ("A", "B", "partial") and second.arguments == ("C", "partial")
    assert first.source == second.source and first.entry != second.entry
    assert "atomic" not in a.source


def test_softmax_is_one_kernel_without_workspace():
    a = lowered(ops.softmax((16, 1000)), "rows", (1, 4), (1, 512), vector_axis="k", vector_elements=4)
    assert len(a.launches) == 1 and a.launches[0].block == (128, 1, 1)
    assert all(x.role != "workspace" for x in a.arguments)
    text = body(a)
    assert "__shfl_xor_sync" in text and "float4" in text


def test_column_reduction_reads_neighbouring_columns():
    text = body(lowered(ops.reduce("sum", (64, 1000), 0), "rows", (1, 1), (128, 1)))
    assert "shfl" not in text
    assert re.search(r"min\(\(\(\(\(int\)blockIdx\.x\) \* 128\) \+ \(\(int\)threadIdx\.x\)\), 999\)", text)


def test_streaming_reads_and_writes_vectors():
    e = ops.elementwise(("relu",), (64, 64))
    text = body(lowered(e, "streaming", (4,), (1024,), vector_axis="d0*d1", vector_elements=4))
    assert "*(float4*)(X_ptr" in text and "*(float4*)(Y_ptr" in text
    assert "if (" not in text


def test_half_precision_accumulates_in_float():
    a = lowered(ops.matmul(64, 64, 32, dtype="float16"), "tiled", (4, 4, 1), (32, 32, 16))
    assert "float acc_ptr" in body(a) and "half* __restrict__ C_ptr" in body(a)
    assert "cuda_fp16.h" in a.source


def chain():
    i, j, k, m = (axis_index(n) for n in "ijkm")
    a, b = Tensor("A", (40, 24)), Tensor("B", (24, 30))
    product = Call("mul", (Load("A", (i, k)), Load("B", (k, j))))
    first = Stage(
        Tensor("M", (40, 30)), (Axis("i", 40), Axis("j", 30), Axis("k", 24, REDUCTION)), (i, j), product, "sum"
    )
    second = Stage(Tensor("R", (40,)), (Axis("i", 40), Axis("m", 30, REDUCTION)), (i,), Load("M", (i, m)), "max")
    last = Stage(
        Tensor("Y", (40, 30)), (Axis("i", 40), Axis("j", 30)), (i, j),
        Call("exp", (Call("sub", (Load("M", (i, j)), Load("R", (i,)))),)),
    )  # fmt: skip
    return TensorExpr("chain", (a, b), (first, second, last), ("Y",))


def test_what_no_template_fuses_runs_stage_by_stage():
    a = lowered(chain(), "tiled", (4, 2, 1), (16, 16, 8), canon=lambda e: e)
    assert [x.arguments for x in a.launches] == [("A", "B", "M"), ("M", "R"), ("M", "R", "Y")]
    assert [x.name for x in a.arguments if x.role == "workspace"] == ["M", "R"]


def test_names_that_are_no_identifiers():
    i = axis_index("i")
    e = TensorExpr(
        "1 + x", (Tensor("int", (64,)),),
        (Stage(Tensor("a.b", (64,)), (Axis("i", 64),), (i,), Call("neg", (Load("int", (i,)),))),), ("a.b",),
    )  # fmt: skip
    (launch,) = lowered(e, "streaming", (1,), (64,), canon=lambda x: x).launches
    assert set(launch.arguments) == {"int", "a.b"}
    assert re.fullmatch(r"[A-Za-z_]\w*", launch.entry)


def test_source_is_self_contained():
    source = lowered(MATMUL, "tiled", (8, 4, 1), (128, 64, 32)).source
    assert "cuda/std" not in source and "cuda.h" not in source
    assert source.count('extern "C" __global__') == 1


def test_vectors_of_bytes_outside_a_tensor_are_filled():
    # TVM holds eight of them in an int2, and fills it by eight arguments.
    e = ops.matmul(20, 40, 24, dtype="int8")
    a = lowered(e, "tiled", (2, 8, 1), (16, 32, 16), vector_axis="j", vector_elements=8, stages=2)
    assert "make_int2((signed char)0, (signed char)0, (signed char)0" in body(a)
    verdict = prove(a, orders=("random",))
    assert verdict.ok, str(verdict)


def test_lowering_is_deterministic():
    make = lambda: lowered(MATMUL, "tiled", (8, 4, 1), (128, 64, 32)).source  # noqa: E731
    assert make() == make()


def test_cpu_program_is_refused():
    p = RProgram(fuse_axes(MATMUL), "cpu", "tiled", (("register", (4, 4, 1)), ("l1", (8, 8, 8))))
    with pytest.raises(BuildError, match="expected a program for a gpu, got one for a cpu"):
        lower(p, MATMUL, "sm_70", "test")


def test_structure_must_fit_the_expression():
    with pytest.raises(BuildError, match="structure 'streaming' does not fit"):
        lowered(MATMUL, "streaming", (1, 1, 1), (8, 8, 8))


def test_tensors_beyond_32_bit_offsets_are_refused():
    e = ops.elementwise(("relu",), (2**16, 2**15))
    with pytest.raises(BuildError, match=r"fewer than 2\*\*31 elements"):
        lowered(e, "streaming", (4,), (1024,))


def test_positions_that_would_wrap_beyond_the_end_of_an_axis_are_refused():
    e = ops.elementwise(("relu",), (2**31 - 100,))
    with pytest.raises(
        BuildError, match=r"axis '\w+' of '\w+', padded to whole tiles: expected fewer than 2\*\*31 elements"
    ):
        lowered(e, "streaming", (3,), (768,))
    e = ops.elementwise(("relu",), (2**31 - 1030,))
    assert lowered(e, "streaming", (4,), (1024,)).launches[0].grid == (2**21 - 1, 1, 1)


@pytest.mark.parametrize("elements", [2**31 - 1, 2**31 - 5, 2**31 - 100])
def test_the_longest_rows_are_refused_in_so_many_words_or_summed(elements):
    with pytest.raises(BuildError, match=r"padded to whole tiles: expected fewer than 2\*\*31 elements, got"):
        lowered(ops.elementwise(("relu",), (elements,), dtype="int8"), "streaming", (4,), (1024,))
    sums = lowered(ops.reduce("sum", (elements,), (0,), dtype="int8"), "rows", (1, 4), (1, 4096))
    assert sums.launches[0].grid == (1, 1, 1)


def test_indices_of_padded_tiles_do_not_wrap():
    i, k = Axis("i", 5), Axis("k", 9, REDUCTION)
    rows = Index((Term("i", 2**28), Term("k", 1)), 0)
    x = Tensor("X", (2**30 + 9,), "float32")
    s = Stage(Tensor("Y", (5,), "float32"), (i, k), (axis_index("i"),), Load("X", (rows,)), "sum", "float32")
    e = TensorExpr("strided", (x,), (s,), ("Y",))
    with pytest.raises(BuildError, match=r"indices of 'X' over whole tiles: expected less than 2\*\*31, got"):
        lower(RProgram(e, "gpu", "rows", (("register", (1, 1)), ("shared", (16, 32)))), e, "sm_70", "test")


@pytest.mark.parametrize(
    ("structure", "tiles"), [("tiled", ((8, 8, 1), (64, 64, 8))), ("rows", ((1, 1, 1), (1, 32, 8)))]
)
def test_workspaces_beyond_32_bit_offsets_are_refused(structure, tiles):
    e = ops.matmul(2**15, 2**15, 64)
    with pytest.raises(BuildError, match=r"workspace 'partial': expected fewer than 2\*\*31 elements, got 2147483648"):
        lowered(e, structure, *tiles, split_k=2)
    if structure == "tiled":
        lowered(ops.matmul(2**14, 2**15, 64), structure, *tiles, split_k=2)
