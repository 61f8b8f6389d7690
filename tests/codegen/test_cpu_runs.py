"""Grouped axes: whole vectors inside a run, pieces where a tile crosses an image, a channel or a row."""

import itertools

import numpy as np
import pytest

import roller
from roller.expr import Index, Term, axis_index, strided_run_along
from roller.expr.canonical import group_axes
from tests.codegen.cpu_programs import assert_right, canonical, kernel, program

GROUPED = "n*ho*wo"


def pointwise(n, c, h, w, f, **arguments):
    """Return a 1x1 convolution as the user gives it, and its grouped form."""
    e = roller.ops.conv2d(n, c, h, w, f, 1, 1, **arguments)
    grouped = group_axes(canonical(e))
    assert grouped is not None
    assert GROUPED in {a.name for a in grouped.anchor.axes}
    return e, grouped


def addresses(index, shape, axis, extent):
    """Return the row-major address of every element of the axis, others at zero, by the definition of an index."""
    total = np.zeros(extent, np.int64)
    for i, pitch in zip(index, [int(np.prod(shape[d + 1 :])) for d in range(len(shape))], strict=True):
        values = {t.axis: np.zeros(extent, np.int64) for t in i.terms}
        values[axis] = np.arange(extent)
        total += np.asarray(i(values)) * pitch
    return total


@pytest.mark.parametrize("stride,padded", list(itertools.product((1, 2), (0, 3))))
def test_runs_are_the_longest_of_constant_step(stride, padded):
    n, h, w = 3, 4, 6
    shape = (n, 2, h * stride, w * stride + padded)
    index = (
        Index((Term("v", 1, h * w),)),
        axis_index("c"),
        Index((Term("v", stride, w, h),)),
        Index((Term("v", stride, 1, w),)),
    )
    run = strided_run_along(index, shape, "v", n * h * w)
    at = addresses(index, shape, "v", n * h * w)
    steps = np.diff(at)
    inside = (np.arange(1, len(at)) % run.length) != 0
    assert (steps[inside] == run.step).all()
    jumps = steps[~inside]
    assert len(jumps) and (jumps != run.step).all(), "a longer run was there"


@pytest.mark.parametrize("rows,vectors,lanes", [(3, 1, 16), (4, 2, 16), (5, 3, 8)])
@pytest.mark.parametrize("n,h,w,stride", [(5, 3, 7, 1), (4, 5, 9, 2), (2, 11, 11, 1), (3, 6, 35, 2), (7, 4, 4, 1)])
def test_tiles_that_cross_images_are_stored_and_gathered_by_runs(rows, vectors, lanes, n, h, w, stride):
    e, grouped = pointwise(n, 6, h, w, 10, stride=stride)
    register = {"f": rows, GROUPED: vectors * lanes}
    assert_right(e, program(grouped, "tiled", register, {GROUPED: 4 * lanes}, GROUPED, lanes, staged=("X",)))


@pytest.mark.parametrize(("w", "odd"), [(3, 0), (4, 1), (7, 1), (13, 0), (28, 1), (35, 0)])
def test_every_second_element_is_copied_in_vectors_that_read_nothing_beyond_the_row(w, odd):
    """The last vector of a row ends with its last element, which is the last of the tensor where the row is odd."""
    e, grouped = pointwise(2, 3, 6, 2 * w - odd, 8, stride=2)
    for tile, lanes in ((32, 16), (8, 4)):
        prog = program(grouped, "tiled", {"f": 4, GROUPED: tile}, {GROUPED: 2 * tile}, GROUPED, lanes, staged=("X",))
        assert ("T.Shuffle" in kernel(e, prog).artifact.launches[0].source) == (w >= 4)
        assert_right(e, prog)


@pytest.mark.parametrize("epilogue", [("bias", "relu"), ("residual",), ("bias", "residual", "sigmoid")])
def test_epilogues_read_their_operands_by_the_same_runs(epilogue):
    e, grouped = pointwise(3, 5, 7, 7, 9, epilogue=epilogue)
    assert_right(e, program(grouped, "tiled", {"f": 4, GROUPED: 32}, {GROUPED: 64}, GROUPED, 16, staged=("X",)))


def test_tiles_that_divide_a_run_need_no_pieces():
    e, grouped = pointwise(2, 4, 16, 16, 8)
    prog = program(grouped, "tiled", {"f": 4, GROUPED: 32}, {GROUPED: 64}, GROUPED, 16, staged=("X",))
    source = kernel(e, prog).artifact.launches[0].source
    assert "spill" not in source and "run_" not in source
    assert_right(e, prog)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_runs_of_other_dtypes(dtype):
    e, grouped = pointwise(3, 6, 5, 7, 8, dtype=dtype)
    assert_right(e, program(grouped, "tiled", {"f": 2, GROUPED: 16}, {GROUPED: 32}, GROUPED, 8, staged=("X",)))
