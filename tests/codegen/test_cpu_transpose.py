"""Panels whose lanes are rows of the tensor: blocks shuffled in registers, rests element by element."""

import pytest

from roller import ops
from tests.codegen.cpu_programs import assert_right, canonical, host_mcpu, program


def shuffles(e, p):
    from roller.templates.cpu.emit.lower_cpu_program import lower

    return "T.Shuffle" in lower(p, e, host_mcpu(), 2, "test", 64).launches[0].source


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("shape", [(7, 64, 64), (5, 50, 37), (9, 33, 15), (3, 130, 3)])
def test_extents_that_fill_no_block(shape, lanes):
    e = ops.matmul(*shape, transpose_b=True, epilogue=("bias",))
    tiles = {"i": 3, "j": 2 * lanes}, {"i": 6, "j": 4 * lanes}
    assert_right(e, program(canonical(e), "tiled", *tiles, "j", lanes, staged=("B",)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8"])
def test_other_dtypes(dtype):
    e = ops.matmul(6, 40, 37, transpose_b=True, dtype=dtype)
    assert_right(e, program(canonical(e), "tiled", {"i": 3, "j": 16}, {}, "j", 16, staged=("A", "B")))


def test_floats_of_8_bits_are_copied():
    """Their conversion is arithmetic on single elements: no vector of them may be left in the code."""
    pytest.importorskip("ml_dtypes")
    e = ops.matmul(5, 20, 19, transpose_b=True, dtype="float8_e4m3fn", out_dtype="float32")
    p = program(canonical(e), "tiled", {"i": 3, "j": 16}, {}, "j", 16, staged=("A", "B"))
    assert not shuffles(e, p)
    assert_right(e, p)


@pytest.mark.parametrize("vector", ["i", "j"])
def test_batches_and_both_operands(vector):
    e = ops.matmul(21, 34, 50, batch=3, transpose_b=True)
    register = {"i": 16 if vector == "i" else 3, "j": 16 if vector == "j" else 3}
    assert_right(e, program(canonical(e), "tiled", register, {"b": 2}, vector, staged=("A", "B")))


def test_weights_of_a_convolution():
    e = ops.conv2d(2, 20, 9, 9, 40, 3, 3, padding=1)
    p = program(canonical(e), "tiled", {"f": 16, "wo": 3}, {"f": 32, "wo": 9}, "f", staged=("X", "W"))
    assert_right(e, p)


@pytest.mark.parametrize(("lanes", "expected"), [(2, False), (4, True)])
def test_blocks_of_few_lanes_are_copied(lanes, expected):
    e = ops.matmul(7, 32, 32, transpose_b=True)
    assert shuffles(e, program(canonical(e), "tiled", {"i": 2, "j": lanes}, {}, "j", lanes, staged=("B",))) is expected
