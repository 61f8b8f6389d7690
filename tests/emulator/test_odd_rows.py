"""Rows whose pitch is no multiple of a vector: aligned vectors between guarded edges, right and never misaligned."""

import pytest

pytest.importorskip("tvm")

import roller
from benchmarks import ptx
from roller import ops
from roller.backends.cuda import toolchain
from roller.compiler import pipeline
from roller.emulator import prove
from roller.expr import REDUCTION, Axis, Call, Load, Stage, Tensor, TensorExpr, axis_index
from roller.expr.canonical import fuse_axes
from roller.runtime.check import check
from roller.templates.gpu.emit.cuda import lower
from roller.tile import RProgram


def part_of_rows(rows, columns, pitch, other, first=0, dtype="float32"):
    """Row sums of ``A[:, first : first + columns] * B[:, :columns]`` over arrays of other pitches."""
    i, k = axis_index("i"), Axis("k", columns, REDUCTION)
    inside = axis_index("k") if not first else type(i)(axis_index("k").terms, first)
    body = Call("mul", (Load("A", (i, inside)), Load("B", (i, axis_index("k")))))
    s = Stage(Tensor("Y", (rows,), "float32"), (Axis("i", rows), k), (i,), body, "sum")
    return TensorExpr("part", (Tensor("A", (rows, pitch), dtype), Tensor("B", (rows, other), dtype)), (s,), ("Y",))


#: Expression, register and block tile, vector elements, inputs in the scratchpad, parts of the reduction.
PROGRAMS = {
    "kept": (ops.softmax((5, 33)), (1, 4), (4, 64), 4, (), 1),
    "kept, two rows a thread": (ops.softmax((7, 201)), (2, 16), (4, 256), 4, (), 1),
    "read again": (ops.softmax((5, 257), dtype="float16"), (2, 8), (4, 128), 8, (), 1),
    "held": (ops.softmax((5, 1031)), (1, 8), (2, 256), 4, ("X",), 1),
    "held, bfloat16": (ops.layer_norm((3, 1031), dtype="bfloat16"), (1, 16), (2, 512), 8, ("X",), 1),
    "operands that do not move with the rows": (ops.layer_norm((5, 257)), (2, 8), (4, 256), 4, (), 1),
    "kept, operands of all rows": (ops.rms_norm((5, 257), dtype="float16"), (2, 16), (4, 512), 8, (), 1),
    "a sum": (ops.reduce("sum", (6, 257), (1,), dtype="float16"), (2, 8), (8, 128), 8, (), 1),
    "positions": (ops.reduce("argmax", (9, 77), (1,)), (1, 4), (2, 32), 4, (), 1),
    "split over blocks": (ops.reduce("max", (5, 3001), (1,)), (1, 4), (1, 256), 4, (), 4),
    "pitches of the same parity": (part_of_rows(5, 101, 107, 103), (1, 4), (2, 64), 4, (), 1),
    "pitches of other parities": (part_of_rows(5, 101, 103, 104), (1, 4), (2, 64), 4, (), 1),
    "whole vectors of an odd pitch": (part_of_rows(5, 96, 101, 97), (1, 4), (2, 40), 4, (), 1),
    "aligned rows of odd length": (part_of_rows(5, 97, 104, 100), (1, 4), (2, 40), 4, (), 1),
    "a start within the rows": (part_of_rows(5, 97, 104, 104, 3, "float16"), (1, 8), (2, 64), 8, (), 1),
}  # fmt: skip


def lowered(name, arch="sm_70"):
    expr, register, block, elements, staged, parts = PROGRAMS[name]
    form = fuse_axes(expr)
    program = RProgram(
        form, "gpu", "rows", (("register", register), ("shared", block)), staged=staged, interleaved=True,
        vector_axis=form.anchor.reduction_axes[0].name, vector_elements=elements, split_k=parts,
    )  # fmt: skip
    return lower(program, expr, arch, "test")


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_odd_row_is_right_and_aligned(built, name):
    artifact = lowered(name)
    assert "float4*)" in artifact.source or "uint4*)" in artifact.source  # vectors, whatever the pitch
    proof = prove(artifact, compare=lambda *a: check(*a).message, cache_dir=built)
    assert proof.ok, str(proof)


@pytest.mark.parametrize("device", ["v100", "a100", "h200", "mi50"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_long_odd_rows_are_read_in_vectors_by_price(device, dtype):
    spec = roller.load_spec(device)
    for expr in (ops.softmax((4096, 50257), dtype=dtype), ops.reduce("sum", (4096, 50257), (1,), dtype=dtype)):
        found = roller.construct(expr, spec, top_k=4)
        assert found[0].program.vector_elements > 1
        # How many rows L2 keeps for their second pass may decide between widths, by a hair: not the edges of odd rows.
        widest = [r for r in found if r.program.vector_elements * expr.inputs[0].itemsize_bytes == 16]
        assert widest and widest[0].estimate.interval_s[1] <= 1.02 * found[0].estimate.interval_s[1]
    short = roller.construct(ops.softmax((4096, 33), dtype=dtype), spec, top_k=1)[0].program
    assert short.vector_elements == 1  # the edges would be most of the row


@pytest.mark.slow
@pytest.mark.parametrize("device", ["v100", "a100", "h200", "mi50"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_is_constructed_for_long_odd_rows_is_right(built, device, dtype):
    spec = roller.load_spec(device)
    for expr in (ops.softmax((3, 50257), dtype=dtype), ops.layer_norm((3, 50257), dtype=dtype)):
        artifact = pipeline.lower(roller.construct(expr, spec, top_k=1)[0].program, expr, spec)
        proof = prove(artifact, compare=lambda *a: check(*a).message, cache_dir=built)
        assert proof.ok, str(proof)


@pytest.mark.skipif(toolchain.available() is not None, reason="needs the CUDA wheels")
@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_90"])
@pytest.mark.parametrize("name", ["kept", "read again", "held, bfloat16", "split over blocks"])
def test_odd_rows_are_built_with_wide_accesses(arch, name):
    artifact = lowered(name, arch)
    kernels = ptx.kernels(toolchain.compile_to_ptx(artifact.source, arch)).values()
    assert any(k.counts["global_load_128"] for k in kernels)
    assert not [c for k in kernels for c in k.counts if c.startswith("local")]
    assert toolchain.build(artifact).build["spill_bytes"] == 0
