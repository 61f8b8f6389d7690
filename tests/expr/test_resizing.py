"""A size that may grow changes no old element: with zeros beside them, for operators and for random expressions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

from roller.errors import ExprError, RollerError
from roller.expr import Tensor, TensorExpr
from roller.expr.sizes_growable_by_padding import enlarge_size, growing_sizes
from roller.ops import parse
from roller.te.reader import read
from tests.fuzz.arrays import inputs_of
from tests.fuzz.draw import QUICK, expressions
from tests.fuzz.language import as_te
from tests.offenders import every

#: Operators, and the extents that may grow.
OPERATORS = {
    "matmul(m=5, n=7, k=9, epilogue=('bias', 'gelu'))": (5, 7, 9),
    "matmul(m=5, n=7, k=9, transpose_b=True)": (5, 7, 9),
    "conv2d(3, 5, 9, 9, 7, 3, 3, stride=2, padding=1)": (3, 7, 5),
    "conv2d(3, 5, 9, 11, 7, 1, 1)": (3, 7, 9, 11, 5),
    "depthwise_conv2d(2, 6, 9, 9, 3, 3, padding=1)": (2, 6),
    "pool2d('max', 2, 3, 8, 8, 2, 2, stride=2)": (2, 3),
    "softmax((7, 5))": (7,),
    "layer_norm((7, 5))": (7,),
    "reduce('sum', (3, 5), (1,))": (3, 5),
    "reduce('max', (3, 5), (1,))": (3,),
    "reduce('mean', (3, 5), (1,))": (3, 5),  # divided by the old extent
    "elementwise('add', (3, 5))": (3, 5),
}


def assert_grows(expr, extra, seed=0):
    """Grow every size that may, with zeros, and compare the old elements of all results."""
    given = inputs_of([(t.name, t.shape, t.dtype) for t in expr.inputs], seed, special=False)
    meant = expr.evaluate(list(given.values()))
    if not all(np.isfinite(r).all() for r in meant):
        return  # a zero times what is not finite is no zero
    for size in growing_sizes(expr):
        larger = enlarge_size(expr, size, size.extent + extra)
        arrays = []
        for t in larger.inputs:
            array = np.zeros(t.shape, given[t.name].dtype)
            array[tuple(slice(n) for n in given[t.name].shape)] = given[t.name]
            arrays.append(array)
        for old, new in zip(meant, larger.evaluate(arrays), strict=True):
            found = np.asarray(new)[tuple(slice(n) for n in old.shape)]
            np.testing.assert_allclose(found, old, rtol=1e-9, atol=1e-12, err_msg=str(size))  # sums in another order


@every(("text", "extents"), OPERATORS.items())
def test_which_sizes_of_an_operator_grow(text, extents):
    expr = parse(text)
    assert tuple(s.extent for s in growing_sizes(expr)) == extents
    assert_grows(expr, 3)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(case=expressions(QUICK))
def test_random_expressions_grow(case):
    try:
        expr = read(as_te(case))
    except RollerError:
        assume(False)
    with np.errstate(all="ignore"):
        assert_grows(expr, 2)


def test_a_size_has_its_axes_and_dimensions():
    expr = parse("matmul(m=5, n=7, k=9, epilogue=('bias',))")
    _, columns, inner = growing_sizes(expr)
    assert (columns.reduced, inner.reduced) == (False, True)
    assert len(columns.axes) == 2 and len(columns.dims) == 4  # of product and epilogue; operand, bias, both results
    assert enlarge_size(expr, inner, 16).anchor.points == 5 * 7 * 16


@pytest.mark.parametrize(("outside", "grows"), [(0.0, True), (1.0, False)])
def test_a_sum_takes_no_padding_in_that_is_not_zero(outside, grows):
    padded = parse("conv2d(1, 2, 5, 5, 3, 3, 3, padding=1)").anchor
    load = next(n for n in padded.loads if n.guard)
    expr = TensorExpr(
        "windows", (Tensor(load.tensor, (1, 2, 5, 5)),),
        (replace(padded, body=replace(load, outside=outside)),), (padded.name,),
    )  # fmt: skip
    assert (2 in {s.extent for s in growing_sizes(expr)}) == grows
    assert_grows(expr, 3)


def test_sizes_only_grow():
    expr = parse("matmul(m=5, n=7, k=9)")
    with pytest.raises(ExprError, match="expected an extent of at least 5, got 4"):
        enlarge_size(expr, growing_sizes(expr)[0], 4)
