"""Fusion and grouping keep the values; the key is one per computation."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from roller import ops
from roller.errors import ExprError
from roller.expr import (
    REDUCTION,
    Axis,
    Call,
    Cast,
    Const,
    Index,
    IndexValue,
    Load,
    Stage,
    Tensor,
    TensorExpr,
    Term,
    axis_index,
)
from roller.expr.canonical import fuse_axes, group_axes
from tests.cases import arrays_for
from tests.offenders import every

_small = st.integers(1, 5)


def _agrees(expr: TensorExpr) -> None:
    arrays = arrays_for(expr)
    (want,) = expr.evaluate(arrays)
    for form in (fuse_axes(expr), group_axes(expr), group_axes(fuse_axes(expr))):
        if form is None:
            continue
        views = [a.reshape(t.shape) for a, t in zip(arrays, form.inputs, strict=True)]
        (got,) = form.evaluate(views)
        np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-12, atol=1e-12)
        corner = np.array(form.output_tensors[0].shape, dtype=np.int64).reshape(1, -1) - 1
        np.testing.assert_allclose(form.evaluate(views, corner)[0], want.ravel()[-1:], rtol=1e-12, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    n=_small, c=_small, h=st.integers(1, 7), w=st.integers(1, 7), f=_small, k=st.tuples(_small, _small),
    stride=st.integers(1, 3), dilation=st.integers(1, 2), pads=st.tuples(*[st.integers(0, 2)] * 4),
    layout=st.sampled_from(["NCHW", "NHWC"]), epilogue=st.sampled_from([(), ("bias",), ("relu", "add")]),
)  # fmt: skip
def test_conv2d_forms_agree(
    n: int, c: int, h: int, w: int, f: int, k: tuple[int, int], stride: int, dilation: int,
    pads: tuple[int, int, int, int], layout: str, epilogue: tuple[str, ...],
) -> None:  # fmt: skip
    try:
        expr = ops.conv2d(n, c, h, w, f, *k, stride, pads, dilation, layout=layout, epilogue=epilogue)
    except ExprError as err:
        assert "covers" in str(err)
        reach = [dilation * (x - 1) + 1 for x in k]
        assert reach[0] > h + pads[0] + pads[1] or reach[1] > w + pads[2] + pads[3]
        return
    _agrees(expr)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4).flatmap(
    lambda shape: st.tuples(st.just(tuple(shape)), st.sets(st.integers(0, len(shape) - 1), min_size=1))
), st.sampled_from(["sum", "mean", "max", "argmax"]), st.booleans())  # fmt: skip
def test_reductions_forms_agree(case: tuple[tuple[int, ...], set[int]], kind: str, keepdims: bool) -> None:
    shape, axes = case
    picked = tuple(axes)[:1] if kind == "argmax" else tuple(axes)
    _agrees(ops.reduce(kind, shape, picked, keepdims))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(_small, st.booleans()), min_size=1, max_size=4), st.sampled_from(["add", "mul", "max"]))
def test_broadcast_forms_agree(dims: list[tuple[int, bool]], fn: str) -> None:
    shape = tuple(n for n, _ in dims)
    other = tuple(1 if narrow else n for n, narrow in dims)
    _agrees(ops.elementwise(fn, shape, (other,)))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_elementwise_fuses_to_one_axis_and_one_key(shape: list[int]) -> None:
    expr = ops.elementwise("relu", tuple(shape))
    total = int(np.prod(shape))
    assert [a.extent for a in fuse_axes(expr).axes] == [total]
    assert expr.key == ops.elementwise("relu", (total,)).key
    assert expr.key != ops.elementwise("abs", (total,)).key


def test_goldens_of_the_papers() -> None:
    fused = fuse_axes(ops.elementwise("relu", (17, 11, 3)))
    assert [(a.name, a.extent) for a in fused.axes] == [("d0*d1*d2", 561)]
    grouped = group_axes(ops.conv2d(2, 3, 5, 7, 8, 3, 3, padding=1))
    assert grouped is not None
    assert sorted(a.extent for a in grouped.axes) == [8, 27, 70]
    assert group_axes(ops.matmul(4, 5, 6)) is None


def test_one_by_one_convolution_fuses_pixels() -> None:
    fused = fuse_axes(ops.conv2d(2, 3, 5, 7, 8, 1, 1))
    assert [a.extent for a in fused.axes] == [2, 8, 35, 3]


@every("change", [
    lambda: ops.matmul(8, 9, 11), lambda: ops.matmul(8, 9, 10, transpose_a=True), lambda: ops.matmul(8, 9, 10, batch=2),
    lambda: ops.matmul(8, 9, 10, dtype="float16"), lambda: ops.matmul(8, 9, 10, epilogue="relu"),
    lambda: ops.matmul(8, 9, 10, out_dtype="float16"), lambda: ops.matmul(8, 9, 10, acc_dtype="float64"),
])  # fmt: skip
def test_key_sees_every_difference(change: object) -> None:
    assert change().key != ops.matmul(8, 9, 10).key  # type: ignore[operator]


def test_key_ignores_the_order_of_a_sum_of_terms() -> None:
    def window(swap: bool) -> TensorExpr:
        i, k = axis_index("i", 2), axis_index("k")
        terms = (*k.terms, *i.terms) if swap else (*i.terms, *k.terms)
        axes = (Axis("i", 3), Axis("k", 2, "reduction"))
        body = Call("mul", (Load("X", (type(i)(terms),)), Const(2.0)))
        return TensorExpr("w", (Tensor("X", (6,)),), (Stage(Tensor("Y", (3,)), axes, (axis_index("i"),), body, "sum"),),
                          ("Y",))  # fmt: skip

    assert window(False).key == window(True).key


def test_magnitude_keeps_the_count_of_a_window() -> None:
    expr = ops.pool2d("avg", 1, 1, 4, 4, 3, 3, padding=1, count_include_pad=False)
    ones = -np.ones((1, 1, 4, 4), np.float32)
    np.testing.assert_allclose(expr.evaluate([ones], magnitude=True)[0], 1.0)


def test_a_replaced_expression_remembers_nothing() -> None:
    """Results memoised on an expression must not answer for one made from it."""
    from dataclasses import replace

    from roller.expr.canonical import fuse_axes
    from roller.ops import elementwise

    relu, tanh = elementwise("relu", (4, 5)), elementwise("tanh", (4, 5))
    assert fuse_axes(relu).axes[0].extent == 20
    changed = replace(relu, stages=tanh.stages)
    assert changed.key == tanh.key != relu.key
    assert fuse_axes(changed).stages[0].body == fuse_axes(tanh).stages[0].body


def _centred(joint):
    """``x - max(x)`` over the last two dimensions; the maximum is walked by axes of its own."""
    d = tuple(Axis(f"d{n}", e) for n, e in enumerate((2, 3, 5)))
    k = tuple(Axis(f"k{n}", e, REDUCTION) for n, e in ((1, 3), (2, 5)))
    every = tuple(axis_index(a.name) for a in d)
    inside = (every[0], axis_index("k1"), axis_index("k2")) if joint else (every[0], Index(), axis_index("k2"))
    largest = Stage(Tensor("m", (2,)), (d[0], *(k if joint else k[1:])), every[:1], Load("X", inside), "max")
    value = Call("sub", (Load("X", every), Load("m", every[:1])))
    return TensorExpr(
        "centred", (Tensor("X", (2, 3, 5)),), (largest, Stage(Tensor("Y", (2, 3, 5)), d, every, value)), ("Y",)
    )


def test_axes_merge_in_all_stages_of_a_tensor_or_in_none():
    x = np.random.default_rng(0).random((2, 3, 5), np.float32)
    for joint, shape in ((True, (2, 15)), (False, (2, 3, 5))):
        expr = _centred(joint)
        fused = fuse_axes(expr)
        assert fused.inputs[0].shape == shape
        (want,), (got,) = expr.evaluate([x]), fused.evaluate([x.reshape(shape)])
        np.testing.assert_array_equal(got.reshape(want.shape), want)


@every("digit", [Term("i", 1, 2), Term("i", 1, 1, 3), Term("i", 2, 2, 3), Term("j", 1, 3),
                                   Term("j", 1, 1, 2), Term("j", 3, 2, 3), Term("j", 1, 4), Term("i", 1, 4, 9)],
                         ids=str)  # fmt: skip
@every("extents", [(12, 6), (5, 7)], ids=str)
@every("as_data", [False, True])
def test_an_axis_that_is_divided_is_grouped_by_its_digits_or_not_at_all(digit, extents, as_data) -> None:
    (m, n), t = extents, Index((digit,))
    x, y = Tensor("X", (m + 2 * n,)), Tensor("Y", (4, m, n))
    value = Cast("float32", IndexValue(t)) if as_data else Load("X", (t,))
    other = Load("Z", (axis_index("h"), axis_index("k")))
    axes = (Axis("h", 4), Axis("i", m), Axis("j", n), Axis("k", 3, REDUCTION))
    body = Call("mul", (Call("add", (value, Load("X", (axis_index("i"),)))), other))
    body = Call("add", (body, Load("X", (axis_index("j"),))))
    where = tuple(axis_index(a) for a in "hij")
    stage = Stage(y, axes, where, body, "sum", "float32")
    _agrees(TensorExpr("digits", (x, Tensor("Z", (4, 3))), (stage,), ("Y",)))
