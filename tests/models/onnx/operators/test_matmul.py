"""Matrix products against NumPy."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.models.onnx.lowering_oracle import agrees, expressions, node
from tests.offenders import every


def _array(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@every(
    ("a", "b"),
    [((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)),
     ((6, 1, 3, 4), (2, 4, 5)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,)), ((1, 1), (1, 1)), ((1, 3, 4), (2, 1, 4, 1))],
)  # fmt: skip
def test_products_of_all_ranks(a, b):
    agrees(node("MatMul", 2), [_array(a), _array(b, 1)])


def test_a_batch_that_one_operand_shares_is_rows():
    ((expr, _),) = expressions(node("MatMul", 2), [_array((2, 3, 4)), _array((4, 5))])
    from roller.expr.canonical import fuse_axes

    assert [a.extent for a in fuse_axes(expr).axes] == [6, 5, 4]


@given(
    ta=st.booleans(), tb=st.booleans(), alpha=st.sampled_from([1.0, 0.5]), beta=st.sampled_from([1.0, 0.0, 2.0]),
    c=st.sampled_from([None, (), (1,), (5,), (3, 1), (1, 5), (3, 5)]),
)  # fmt: skip
def test_gemm(ta, tb, alpha, beta, c):
    a, b = _array((4, 3) if ta else (3, 4)), _array((5, 4) if tb else (4, 5), 1)
    how = {"transA": int(ta), "transB": int(tb), "alpha": alpha, "beta": beta}
    agrees(node("Gemm", 3, **how), [a, b, None if c is None else _array(c, 2)])


def test_a_bias_is_an_epilogue():
    ((expr, _),) = expressions(node("Gemm", 3, transB=1), [_array((3, 4)), _array((5, 4), 1), _array((5,), 2)])
    assert expr.epilogue is not None


@every("zero_a", [None, (), (3,)])
@every("zero_b", [None, (), (5,)])
def test_integers_less_their_zero_points(zero_a, zero_b):
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 255, (3, 4)).astype(np.uint8), rng.integers(0, 255, (4, 5)).astype(np.uint8)
    za = None if zero_a is None else rng.integers(0, 9, zero_a).astype(np.uint8)
    zb = None if zero_b is None else rng.integers(0, 9, zero_b).astype(np.uint8)
    left = a.astype(np.int32) - (0 if za is None else za.astype(np.int32)[..., None] if za.ndim else int(za))
    right = b.astype(np.int32) - (0 if zb is None else zb.astype(np.int32))
    agrees(node("MatMulInteger", 4), [a, b, za, zb], wanted=[left @ right])
