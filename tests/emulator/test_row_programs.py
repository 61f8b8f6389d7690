"""Row programs: kept rows, rows read again, lanes of every kind, on odd shapes; what their code loads and how wide."""

import pytest

pytest.importorskip("tvm")

import roller
from benchmarks import ptx
from roller import ops
from roller.backends.cuda import toolchain
from roller.compiler import pipeline
from roller.emulator import prove
from roller.expr import REDUCTION, Axis, Call, Const, Load, Stage, Tensor, TensorExpr, axis_index
from roller.expr.canonical import fuse_axes
from roller.runtime.check import check
from roller.templates.gpu.emit.cuda import lower
from roller.tile import RProgram

SOFTMAX = ops.softmax((13, 200))
COLUMNS = ops.softmax((3, 40, 52), axis=1)
NORM = ops.layer_norm((9, 136))
HALF_NORM = ops.layer_norm((9, 136), dtype="float16")

#: Expression, register and block tile, vector axis (by position) and elements.
PROGRAMS = {
    "kept, a row of part of a warp": (SOFTMAX, (1, 16), (8, 256), 1, 4),
    "kept, rows of two warps, two a thread": (SOFTMAX, (2, 4), (4, 256), 1, 4),
    "kept, three warps": (ops.softmax((5, 301)), (1, 4), (1, 384), 1, 1),
    "kept, eight warps": (ops.softmax((5, 1024)), (1, 4), (1, 1024), 1, 4),
    "kept, blocks of no whole warp": (ops.softmax((5, 21)), (1, 1), (4, 24), 1, 1),
    "read again": (SOFTMAX, (1, 4), (2, 64), 1, 4),
    "columns kept": (COLUMNS, (1, 1, 5), (1, 32, 40), 1, 1),
    "columns kept as vectors": (COLUMNS, (1, 4, 5), (1, 32, 40), 1, 4),
    "columns read again": (COLUMNS, (1, 4, 2), (1, 64, 8), 1, 4),
    "norm kept": (NORM, (1, 8), (2, 256), 1, 4),
    "norm read again": (NORM, (1, 2), (2, 64), 1, 2),
    "norm of half precision": (HALF_NORM, (1, 8), (2, 256), 1, 8),
    "sum of an odd row": (ops.reduce("sum", (37, 121), (1,)), (2, 4), (8, 128), 1, 1),
    "sum of columns": (ops.reduce("sum", (121, 76), (0,)), (4, 2), (128, 16), 0, 4),
    "mean and its epilogue": (ops.reduce("mean", (37, 121), (1,), epilogue=("relu",)), (1, 4), (8, 128), 1, 1),
    "positions": (ops.reduce("argmax", (9, 77), (1,)), (1, 4), (2, 64), 1, 1),
}  # fmt: skip


def lowered(name, arch="sm_70"):
    expr, register, block, axis, elements = PROGRAMS[name]
    form = fuse_axes(expr)
    vector = form.axes[axis].name if elements > 1 else None
    tiles = (("register", register), ("shared", block))
    return lower(RProgram(form, "gpu", "rows", tiles, vector_axis=vector, vector_elements=elements), expr, arch, "test")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_row_program_is_right_in_every_order(built, name):
    proof = prove(lowered(name), compare=lambda *a: check(*a).message, cache_dir=built)
    assert proof.ok, str(proof)


#: Expression, register and block tile, vector axis and elements of programs that hold ``X`` in the scratchpad.
HELD = {
    "steps of a row": (SOFTMAX, (1, 4), (2, 64), "k", 4),
    "single elements": (ops.softmax((5, 1003)), (1, 2), (2, 128), None, 1),
    "half precision": (ops.layer_norm((5, 1000), dtype="float16"), (1, 16), (2, 512), "k", 8),
    "columns": (COLUMNS, (1, 4, 2), (1, 64, 8), "d2", 4),
}


@pytest.mark.parametrize("name", HELD)
def test_a_row_held_in_the_scratchpad(built, name):
    expr, register, block, axis, elements = HELD[name]
    tiles = (("register", register), ("shared", block))
    fields = {"vector_axis": axis, "vector_elements": elements, "interleaved": True, "staged": ("X",)}
    artifact = lower(RProgram(fuse_axes(expr), "gpu", "rows", tiles, **fields), expr, "sm_70", "test")
    proof = prove(artifact, compare=lambda *a: check(*a).message, cache_dir=built)
    assert proof.ok, str(proof)


@pytest.mark.skipif(toolchain.available() is not None, reason="needs the CUDA wheels")
def test_rows_too_long_for_registers_are_held_in_a_large_scratchpad():
    expr, spec = ops.softmax((4096, 50257)), roller.load_spec("h200")
    program = roller.construct(expr, spec, top_k=1)[0].program
    assert program.staged == ("X",) and program.reduction_steps["k"] > 1
    artifact = pipeline.lower(program, expr, spec)
    assert artifact.launches[0].dynamic_shared_bytes >= 4 * 50257
    (kernel,) = ptx.kernels(toolchain.compile_to_ptx(artifact.source, "sm_90")).values()
    # X is loaded as often as Y is stored: once, in whole steps and the rest of the row.
    assert kernel.counts["global_load_32"] == kernel.counts["global_store_32"]
    assert toolchain.build(artifact).build["spill_bytes"] == 0


#: Expression, register and block tile, vector axis, elements, and the parts of the reduction.
SPLIT = {
    "all of it": (ops.reduce("sum", (10007,), (0,)), (1, 4), (1, 1024), None, 1, 5),
    "few rows": (ops.reduce("max", (5, 3000), (1,)), (1, 4), (1, 256), "d1", 4, 4),
    "an epilogue": (ops.reduce("mean", (5, 3000), (1,), epilogue=("relu",)), (1, 4), (2, 256), "d1", 4, 8),
    "more parts than steps need": (ops.reduce("sum", (999, 36), (0,)), (4, 4), (16, 64), "d1", 4, 7),
    "few columns": (ops.reduce("sum", (999, 300), (0,)), (1, 4), (32, 64), None, 1, 16),
}


@pytest.mark.parametrize("name", SPLIT)
def test_a_row_reduction_split_over_blocks(built, name):
    expr, register, block, axis, elements, parts = SPLIT[name]
    tiles = (("register", register), ("shared", block))
    program = RProgram(
        fuse_axes(expr), "gpu", "rows", tiles, vector_axis=axis, vector_elements=elements, interleaved=True,
        split_k=parts,
    )  # fmt: skip
    artifact = lower(program, expr, "sm_70", "test")
    assert len(artifact.launches) == 2 and "atomic" not in artifact.source
    assert [a.shape[0] for a in artifact.arguments if a.role == "workspace"] == [parts]
    proof = prove(artifact, compare=lambda *a: check(*a).message, cache_dir=built)
    assert proof.ok, str(proof)


#: Accesses of a thread: of the input at 128 bits, of anything else, and stores of the result at 128 bits.
ACCESSES = {
    # 200 columns in chunks of 64: three whole ones and a guarded one
    "kept, a row of part of a warp": ({"global_load_128": 4}, {"global_store_128": 4}),
    "kept, eight warps": ({"global_load_128": 1}, {"global_store_128": 1}),
    "columns kept as vectors": ({"global_load_128": 5}, {"global_store_128": 5}),
    # one guarded chunk of X, gamma and beta; X as well before the reductions
    "norm of half precision": ({"global_load_128": 3}, {"global_store_128": 1}),
    "read again": ({"global_load_128": 3 * 2}, {"global_store_128": 2}),
}


@pytest.mark.skipif(toolchain.available() is not None, reason="needs the CUDA wheels")
@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_90"])
@pytest.mark.parametrize("name", ACCESSES)
def test_a_kept_row_is_loaded_once_in_wide_accesses(name, arch):
    artifact = lowered(name, arch)
    (kernel,) = ptx.kernels(toolchain.compile_to_ptx(artifact.source, arch)).values()
    loads, stores = ACCESSES[name]
    counts = kernel.counts
    assert {c: n for c, n in counts.items() if c.startswith("global_load")} == loads
    assert {c: n for c, n in counts.items() if c.startswith("global_store")} == stores
    assert not [c for c in counts if c.startswith("local")]
    assert toolchain.build(artifact).build["spill_bytes"] == 0


@pytest.mark.skipif(toolchain.available() is not None, reason="needs the CUDA wheels")
def test_lanes_of_one_warp_need_no_scratchpad():
    (kernel,) = ptx.kernels(toolchain.compile_to_ptx(lowered("kept, a row of part of a warp").source, "sm_80")).values()
    assert not [c for c in kernel.counts if c.startswith(("shared", "barrier"))]
    assert kernel.counts["shuffle"] == 2 * 4  # sixteen lanes, two reductions


@pytest.mark.skipif(toolchain.available() is not None, reason="needs the CUDA wheels")
def test_warps_of_a_row_meet_once_in_the_scratchpad():
    (kernel,) = ptx.kernels(toolchain.compile_to_ptx(lowered("kept, eight warps").source, "sm_80")).values()
    assert kernel.counts["shuffle"] == 2 * (5 + 3)
    assert kernel.counts["shared_store_32"] == 2 and kernel.counts["shared_load_32"] == 2
    assert kernel.counts["barrier"] <= 3


def residual_norm(rows, columns):
    """``Z = A + B`` and its root-mean-square norm ``Y``: an element-wise result that several stages read."""
    i, j, r = axis_index("i"), axis_index("j"), axis_index("r")
    wide, z = (Axis("i", rows), Axis("j", columns)), Load("Z", (i, r))
    total = Call("add", (Load("A", (i, j)), Load("B", (i, j))))
    mean = Call("mul", (Load("S", (i,)), Const(1.0 / columns)))
    factor = Call("rsqrt", (Call("add", (mean, Const(1e-6))),))
    value = Call("mul", (Call("mul", (Load("Z", (i, j)), factor)), Load("G", (j,))))
    stages = (
        Stage(Tensor("Z", (rows, columns)), wide, (i, j), total),
        Stage(Tensor("S", (rows,)), (wide[0], Axis("r", columns, REDUCTION)), (i,), Call("mul", (z, z)), "sum"),
        Stage(Tensor("Y", (rows, columns)), wide, (i, j), value),
    )
    inputs = (Tensor("A", (rows, columns)), Tensor("B", (rows, columns)), Tensor("G", (columns,)))
    return TensorExpr("residual_norm", inputs, stages, ("Z", "Y"))


@pytest.mark.skipif(toolchain.available() is not None, reason="needs the CUDA wheels")
def test_what_an_element_wise_result_is_made_of_is_kept(built):
    expr = residual_norm(13, 256)
    tiles = (("register", (1, 8)), ("shared", (4, 256)))
    program = RProgram(expr, "gpu", "rows", tiles, vector_axis="r", vector_elements=4, interleaved=True)
    artifact = lower(program, expr, "sm_80", "test")
    (kernel,) = ptx.kernels(toolchain.compile_to_ptx(artifact.source, "sm_80")).values()
    assert kernel.counts["global_load_128"] == 3 * 2 and kernel.counts["global_store_128"] == 2 * 2
    assert not kernel.counts["global_load_32"]
    proof = prove(artifact, compare=lambda *a: check(*a).message, cache_dir=built)
    assert proof.ok, str(proof)
