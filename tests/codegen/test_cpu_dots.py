"""Dot products on the CPU: lanes along the reduction, tails of every length, chunks, other types, epilogues."""

import numpy as np
import pytest

import roller
from roller import ops
from roller.errors import BuildError
from tests.codegen.cpu_programs import assert_right, canonical, kernel, program

REGISTER, TASK = {"i": 3, "j": 4}, {"i": 6, "j": 12}


def dots(e, lanes=16, chains=1, **tiles):
    return program(canonical(e), "tiled", {**REGISTER, "k": lanes * chains}, TASK, "k", lanes, **tiles)


@pytest.mark.parametrize("chains", [1, 2, 4])
@pytest.mark.parametrize("shape", [(37, 53, 129), (1, 19, 100), (4, 4, 9), (5, 1, 64), (7, 3, 1000)])
def test_extents_that_divide_nothing(shape, chains):
    e = ops.matmul(*shape, transpose_b=True)
    assert_right(e, dots(e, chains=chains))


@pytest.mark.parametrize("chunk", [16, 64, 96])
def test_results_continue_from_chunk_to_chunk(chunk):
    e = ops.matmul(5, 7, 200, transpose_b=True, epilogue=("bias", "relu"))
    assert_right(e, dots(e, chunk={"k": chunk}))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8"])
def test_other_dtypes(dtype):
    e = ops.matmul(13, 18, 77, transpose_b=True, dtype=dtype)
    assert_right(e, dots(e, lanes=8 if dtype == "float64" else 16))


def test_batches():
    e = ops.matmul(3, 9, 70, batch=5, transpose_b=True)
    assert_right(e, dots(e))


@pytest.mark.parametrize("extent", [70, 32])
def test_a_maximum_starts_below_every_element(extent):
    r = roller.expr
    axes = r.Axis("i", 9), r.Axis("k", extent, "reduction")
    i, k = (r.axis_index(a.name) for a in axes)
    body = r.Call("add", (r.Load("X", (i, k)), r.Load("Y", (k,))))
    tensors = r.Tensor("X", (9, extent), "float32"), r.Tensor("Y", (extent,), "float32")
    e = r.TensorExpr(
        "peak", tensors, (r.Stage(r.Tensor("Z", (9,), "float32"), axes, (i,), body, "max", "float32"),), ("Z",)
    )
    p = program(e, "tiled", {"i": 4, "k": 16}, {}, "k")
    x, y = -10 - np.random.default_rng(0).random((9, extent)), np.zeros(extent)
    found = kernel(e, p)(x.astype(np.float32), y.astype(np.float32))
    assert np.array_equal(found, x.astype(np.float32).max(axis=1))


def test_rows_of_a_far_operand_are_fetched_ahead_and_only_where_much_is_computed_per_line():
    far = ops.matmul(8, 5000, 512, transpose_b=True)
    near, thin = ops.matmul(8, 500, 512, transpose_b=True), ops.matmul(1, 5000, 512, transpose_b=True)
    register = {"i": 8, "j": 3, "k": 16}
    sources = [
        kernel(e, program(canonical(e), "tiled", register, {}, "k")).artifact.launches[0].source
        for e in (far, near, thin)
    ]
    assert ["llvm.prefetch" in s or "prefetch" in s for s in sources] == [True, False, False]
    assert_right(far, program(canonical(far), "tiled", register, {"j": 300}, "k"))


def test_packed_operands_are_refused():
    e = ops.matmul(8, 8, 64, transpose_b=True)
    with pytest.raises(BuildError, match="Leave 'staged' empty"):
        kernel(e, dots(e, staged=("B",)))


@pytest.mark.parametrize(
    ("shape", "transposed", "lanes"),
    [((1, 4096, 4096), True, "k"), ((4096, 1, 4096), False, "k"), ((1, 4096, 4096), False, "j")],
)
def test_vectors_run_where_memory_does(shape, transposed, lanes):
    best = roller.construct(ops.matmul(*shape, transpose_b=transposed), device="cpu-avx512", top_k=1)[0].program
    assert best.vector_axis == lanes
    assert best.staged == ()
