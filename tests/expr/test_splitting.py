"""Axes that are divided everywhere by one number become two: what is computed stays, the batch of products shows."""

import numpy as np
import pytest

from roller import ops
from roller.expr import SPATIAL, Axis, Index, IndexValue, Load, Stage, Tensor, TensorExpr, Term, axis_index
from roller.expr.canonical import fuse_axes, group_axes
from roller.expr.split_commonly_divided_axes import split_axes
from roller.runtime.random_inputs import random_inputs


def same(expr, form):
    arrays = random_inputs(expr, 3)
    (expected,) = expr.evaluate(arrays)
    (found,) = form.evaluate([a.reshape(t.shape) for a, t in zip(arrays, form.inputs, strict=True)])
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-12)


def divided(extent, term, size):
    axis = Axis("i", extent, SPATIAL)
    body = Load("X", (Index((term,)),))
    return TensorExpr(
        "gather", (Tensor("X", (size,)),), (Stage(Tensor("Y", (extent,)), (axis,), (axis_index("i"),), body),), ("Y",)
    )


@pytest.mark.parametrize(
    "expr",
    [
        ops.conv2d(2, 6, 5, 5, 9, 3, 3, 1, 1, groups=3, epilogue=("bias", "relu")),
        ops.conv2d(1, 8, 5, 4, 12, 1, 1, groups=4, epilogue=("bias",)),
        ops.conv2d(1, 4, 6, 6, 6, 3, 3, 2, groups=2, layout="NHWC"),
    ],
)
def test_groups_become_a_batch_of_products(expr):
    form = split_axes(expr)
    assert all(t.is_affine for s in form.stages for ld in s.loads for i in ld.index for t in i.terms)
    assert len(form.anchor.axes) == len(expr.anchor.axes) + 1
    same(expr, form)
    same(expr, fuse_axes(expr))
    grouped = group_axes(fuse_axes(expr))
    if grouped is not None:
        same(expr, grouped)


def test_a_grouped_1x1_convolution_is_a_batched_product():
    fused = fuse_axes(ops.conv2d(1, 8, 5, 4, 12, 1, 1, groups=4))
    assert [(a.name, a.extent) for a in fused.axes] == [("f/3", 4), ("f%3", 3), ("ho*wo", 20), ("c", 2)]
    assert [t.shape for t in fused.inputs] == [(4, 2, 20), (4, 3, 2)]


@pytest.mark.parametrize("term, size", [(Term("i", 1, 3), 4), (Term("i", 2, 3), 8)])
def test_quotients_by_one_number(term, size):
    expr = divided(12, term, size)
    form = split_axes(expr)
    assert [a.extent for a in form.axes] == [4, 3]
    same(expr, form)


def test_what_cannot_be_split_stays():
    uneven = divided(10, Term("i", 1, 3), 4)
    assert split_axes(uneven) is uneven
    both = divided(12, Term("i", 1, 2, 3), 3)
    assert split_axes(both) is both
    axis = Axis("i", 12, SPATIAL)
    place = Stage(
        Tensor("Y", (12,), "int32"),
        (axis,),
        (axis_index("i"),),
        IndexValue(Index((Term("i", 1, 3),)), "int32"),
        None,
        "int32",
    )
    counted = TensorExpr("count", (), (place,), ("Y",))
    assert split_axes(counted) is counted
    remainder = divided(12, Term("i", 1, 1, 3), 3)
    assert split_axes(remainder) is remainder
    plain = ops.conv2d(1, 4, 6, 6, 6, 3, 3)
    assert split_axes(plain) is plain
