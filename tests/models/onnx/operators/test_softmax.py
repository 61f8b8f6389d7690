"""Softmax and its relatives, before and after they ran along one dimension."""

from __future__ import annotations

import numpy as np

from roller.expr.canonical import fuse_axes
from tests.models.onnx.lowering_oracle import agrees, expressions, node
from tests.offenders import every


def _array(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@every("op", ["Softmax", "LogSoftmax", "Hardmax"])
@every("axis", [0, 1, 2, -1, None])
@every("version", [11, 13])
def test_along_one_dimension_or_all_behind_it(op, axis, version):
    x = _array((3, 4, 5))
    soft = node(op, 1, axis=axis, version=version)
    if version == 11:
        rows = x.reshape(1 if axis == 0 else 3 if axis in (1, None) else 12, -1)
        flat = node(op, 1, axis=1, version=13)
        from tests.models.onnx.lowering_oracle import reference

        agrees(soft, [x], wanted=[reference(flat, [rows])[0].reshape(x.shape)])
    else:
        agrees(soft, [x])


def test_dimensions_of_one_element_are_no_second_one():
    ((expr, _),) = expressions(node("Softmax", 1, version=11), [_array((1, 10, 1, 1))])
    assert [a.extent for a in expr.anchor.reduction_axes] == [10]


def test_all_dimensions_behind_an_axis_are_one_row():
    ((expr, _),) = expressions(node("Softmax", 1, version=11), [_array((2, 3, 4))])
    assert [[a.extent for a in s.axes] for s in fuse_axes(expr).stages] == [[2, 12]] * 3
