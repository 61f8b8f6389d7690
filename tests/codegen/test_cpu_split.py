"""Reductions split over tasks on the CPU: parts that divide nothing, epilogues once, the same bits every time."""

import numpy as np
import pytest

from roller import ops
from roller.errors import BuildError
from roller.runtime.random_inputs import random_inputs
from tests.codegen.cpu_programs import assert_right, canonical, kernel, program


def split(e, vector="j", parts=3, chunk=32, **more):
    register = {"i": 3, "j": 16} if vector == "j" else {"i": 3, "j": 4, "k": 16}
    return program(canonical(e), "tiled", register, {"i": 6}, vector, chunk={"k": chunk}, split_k=parts, **more)


@pytest.mark.parametrize("vector", ["j", "k"])
@pytest.mark.parametrize(
    ("shape", "parts"), [((7, 21, 230), 3), ((7, 21, 230), 64), ((3, 33, 64), 2), ((13, 5, 1000), 5)]
)
def test_parts_that_divide_nothing(shape, parts, vector):
    e = ops.matmul(*shape, transpose_b=vector == "k")
    assert_right(e, split(e, vector, parts))


@pytest.mark.parametrize("vector", ["j", "k"])
def test_the_epilogue_sees_the_whole_sum(vector):
    e = ops.matmul(9, 34, 300, transpose_b=vector == "k", epilogue=("bias", "relu"))
    assert_right(e, split(e, vector))


@pytest.mark.parametrize("vector", ["j", "k"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_other_dtypes(dtype, vector):
    e = ops.matmul(5, 18, 200, transpose_b=vector == "k", dtype=dtype)
    assert_right(e, split(e, vector))


def test_batches_and_an_output_stored_across():
    e = ops.matmul(20, 5, 200, batch=3, transpose_a=True)
    p = program(canonical(e), "tiled", {"i": 16, "j": 2}, {}, "i", chunk={"k": 48}, split_k=4)
    assert_right(e, p)


@pytest.mark.parametrize("vector", ["j", "k"])
def test_the_same_bits_every_time_and_on_any_number_of_cores(vector):
    e = ops.matmul(4, 16, 4096, transpose_b=vector == "k")
    arrays = random_inputs(e, 3)
    p = split(e, vector, 4, 64)
    first = kernel(e, p)
    results = [kernel(e, p, cores=1)(*arrays), *(first(*arrays) for _ in range(20))]
    assert all(np.array_equal(results[0], r) for r in results)


def test_what_cannot_be_split_is_refused():
    e = ops.matmul(4, 16, 64)
    with pytest.raises(BuildError, match="Leave 'staged' empty"):
        kernel(e, split(e, staged=("B",)))
    with pytest.raises(BuildError, match="Make the l1 tile smaller"):
        kernel(e, split(e, chunk=64))
