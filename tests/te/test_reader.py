"""Reading TE tensors and PrimFuncs: round trips, TOPI operators, inlining, guards, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import topi

from roller import ops
from roller.errors import ExprError
from roller.expr import Bound, Index, IndexValue, TensorExpr, Term, walk_scalar_tree
from roller.expr.canonical import fuse_axes, group_axes
from roller.te.compat import Schedule, te, tirx
from roller.te.reader import read, to_te
from tests.cases import ODD_CASES, Case, arrays_for
from tests.offenders import every


def _p(name: str, *shape: int, dtype: str = "float32") -> Any:
    return te.placeholder(shape, name=name, dtype=dtype)


@every("case", ODD_CASES, ids=[c[0] for c in ODD_CASES])
def test_round_trip_keeps_the_key_and_the_values(case: Case) -> None:
    _, factory = case
    expr = factory()
    back = read(to_te(expr))
    assert back.key == expr.key
    assert [t.shape for t in back.inputs] == [t.shape for t in expr.inputs]
    arrays = arrays_for(expr, factory)
    np.testing.assert_allclose(back.evaluate(arrays)[0], expr.evaluate(arrays)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("label", ["conv2d-same3", "conv2d-bias-relu", "matmul-batch", "elementwise-chain"])
def test_canonical_forms_can_be_written(label: str) -> None:
    expr = dict(ODD_CASES)[label]()
    forms = [f for f in (fuse_axes(expr), group_axes(expr)) if f is not None]
    for form in forms:
        arrays = arrays_for(form)
        (got,) = read(to_te(form)).evaluate(arrays)
        np.testing.assert_allclose(got, form.evaluate(arrays)[0], rtol=1e-12, atol=1e-12)


def _conv(*args: Any) -> list[Any]:
    x, w = _p("X", 1, 16, 28, 28), _p("W", 32, 16, 3, 3)
    return [x, w, topi.nn.conv2d(x, w, *args)]


def _depthwise() -> list[Any]:
    x, w = _p("X", 1, 16, 28, 28), _p("W", 16, 1, 3, 3)
    return [x, w, topi.nn.depthwise_conv2d_nchw(x, w, 1, 1, 1)]


def _grouped() -> list[Any]:
    x, w = _p("X", 1, 4, 6, 6), _p("W", 6, 2, 3, 3)
    return [x, w, topi.nn.group_conv2d_nchw(x, w, 1, 1, 1, 2)]


def _max_pool() -> list[Any]:
    x = _p("X", 1, 16, 28, 28)
    return [x, topi.nn.pool2d(x, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], "max")]


def _dense(bias: bool) -> list[Any]:
    a, w, b = _p("A", 8, 100), _p("W", 64, 100), _p("b", 64)
    return [a, w, b, topi.nn.dense(a, w, b)] if bias else [a, w, topi.nn.dense(a, w)]


def _dense_f16() -> list[Any]:
    a, w = _p("A", 8, 16, dtype="float16"), _p("W", 4, 16, dtype="float16")
    return [a, w, topi.nn.dense(a, w, out_dtype="float32")]


def _unary(fn: Callable[..., Any], *args: Any) -> list[Any]:
    s = _p("S", 64, 100)
    return [s, fn(s, *args)]


@every(
    ("tensors", "same"),
    [
        (lambda: _conv(2, 1, 1), ops.conv2d(1, 16, 28, 28, 32, 3, 3, 2, 1)),
        (lambda: _conv(1, 2, 2), ops.conv2d(1, 16, 28, 28, 32, 3, 3, 1, 2, 2)),
        (lambda: _conv(1, (0, 1, 2, 1), 1), ops.conv2d(1, 16, 28, 28, 32, 3, 3, 1, (0, 2, 1, 1))),
        (_depthwise, ops.depthwise_conv2d(1, 16, 28, 28, 3, 3, 1, 1)),
        (_grouped, ops.conv2d(1, 4, 6, 6, 6, 3, 3, 1, 1, groups=2)),
        (_max_pool, ops.pool2d("max", 1, 16, 28, 28, 3, 3, 2, 1)),
        (lambda: _dense(False), ops.matmul(8, 64, 100, transpose_b=True)),
        (lambda: _dense(True), ops.matmul(8, 64, 100, transpose_b=True, epilogue="bias")),
        (_dense_f16, ops.matmul(8, 4, 16, transpose_b=True, dtype="float16", out_dtype="float32")),
        (lambda: _unary(topi.nn.softmax), ops.softmax((64, 100))),
        (lambda: _unary(topi.nn.relu), ops.elementwise("relu", (64, 100))),
        (lambda: _unary(topi.sum, 1), ops.reduce("sum", (64, 100), 1)),
        (lambda: _unary(topi.max, 0), ops.reduce("max", (64, 100), 0)),
        (lambda: _unary(topi.min, 1), ops.reduce("min", (64, 100), 1)),
        (lambda: _unary(topi.prod, 1), ops.reduce("prod", (64, 100), 1)),
        (lambda: _unary(topi.sum), ops.reduce("sum", (64, 100))),
        (lambda: _unary(topi.sum, 0, True), ops.reduce("sum", (64, 100), 0, True)),
    ],
    ids=["conv-s2", "conv-d2", "conv-asym", "depthwise", "grouped", "max-pool", "dense", "dense-bias", "dense-f16",
         "softmax", "relu", "sum", "max", "min", "prod", "sum-all", "sum-keep"],
)  # fmt: skip
def test_topi_is_the_ready_operator(tensors: Callable[[], list[Any]], same: TensorExpr) -> None:
    assert read(tensors()).key == same.key


def _values(tensors: list[Any], reference: Callable[..., np.ndarray]) -> TensorExpr:
    expr = read(tensors)
    arrays = arrays_for(expr)
    np.testing.assert_allclose(expr.evaluate(arrays)[0], reference(*arrays), rtol=1e-5, atol=1e-5)
    return expr


def test_a_long_chain_is_read_or_refused_in_words() -> None:
    def chain(length: int) -> list[Any]:
        x = last = te.placeholder((8,), name="X")
        for _ in range(length):
            last = _doubled(last)
        return [x, last]

    assert len(read(chain(120)).stages) == 1
    with pytest.raises(ExprError, match=r"nested in one another less deeply.* Split the computation"):
        read(chain(700))


def _doubled(tensor: Any) -> Any:
    return te.compute((8,), lambda i: tensor[i] * 2.0)


def test_epilogue_chain_becomes_one_stage() -> None:
    x, w, b = _p("X", 1, 4, 6, 6), _p("W", 5, 4, 3, 3), _p("B", 5, 1, 1)
    y = topi.nn.relu(topi.add(topi.nn.conv2d(x, w, 1, 1, 1), b))
    expr = read([x, w, b, y])
    assert len(expr.stages) == 2
    assert expr.epilogue is not None
    assert [a.name for a in expr.epilogue.axes] == [a.name for a in expr.anchor.spatial_axes]
    reference = ops.conv2d(1, 4, 6, 6, 5, 3, 3, 1, 1, epilogue=("bias", "relu"))
    arrays = arrays_for(expr)
    want = reference.evaluate([arrays[0], arrays[1], arrays[2].ravel()])[0]
    np.testing.assert_allclose(expr.evaluate(arrays)[0], want)
    assert [t.name for t in read(y).inputs] == ["X", "W", "B"]  # only the output given


def test_prologue_and_padding_are_inlined_as_guards() -> None:
    x, w = _p("X", 1, 3, 6, 6), _p("W", 4, 3, 3, 3)
    expr = read([x, w, topi.nn.conv2d(topi.nn.relu(x), w, 1, 1, 1)])
    (stage,) = expr.stages
    image = next(ld for ld in stage.loads if ld.tensor == "X")
    assert image.guard == tuple(Bound(i, 0, 6) for i in image.index[2:])
    arrays = arrays_for(expr)
    want = ops.conv2d(1, 3, 6, 6, 4, 3, 3, 1, 1).evaluate([np.maximum(arrays[0], 0), arrays[1]])[0]
    np.testing.assert_allclose(expr.evaluate(arrays)[0], want)


def test_guard_written_inline() -> None:
    x = _p("X", 10)
    k = te.reduce_axis((0, 3), name="k")
    y = te.compute((5,), lambda i: te.sum(
        te.if_then_else(te.all(i * 2 + k >= 1, i * 2 + k - 1 < 10), x[i * 2 + k - 1], 0.0), axis=k))  # fmt: skip
    expr = _values([x, y], lambda a: np.array([np.pad(a, (1, 2))[2 * i : 2 * i + 3].sum() for i in range(5)]))
    (load,) = expr.anchor.loads
    assert load.guard == (Bound(Index((Term("i", 2), Term("k")), -1), 0, 10),)


def test_padding_that_a_function_moves_needs_a_selection() -> None:
    x = _p("X", 4, 5)
    _values(
        [x, topi.exp(topi.nn.pad(topi.exp(x), (1, 1), (2, 0)))], lambda a: np.exp(np.pad(np.exp(a), ((1, 2), (1, 0))))
    )


def test_layout_changes_become_quasi_affine_reads() -> None:
    s = _p("S", 8, 10)
    expr = _values([s, topi.nn.relu(topi.reshape(s, (16, 5)))], lambda a: np.maximum(a.reshape(16, 5), 0))
    assert not all(i.is_affine for i in expr.anchor.loads[0].index)
    _values([s, topi.add(topi.transpose(s), 1.0)], lambda a: a.T + 1)
    _values([s, topi.strided_slice(s, [1, 0], [8, 5], [2, 1])], lambda a: a[1:8:2, :5])
    x, w = _p("x", 2, 3, 4, 5), _p("w", 7, 60)
    _values([x, w, topi.nn.dense(topi.nn.flatten(x), w)], lambda a, b: a.reshape(2, 60) @ b.T)
    _values([x, topi.concatenate([x, x], axis=3)], lambda a: np.concatenate([a, a], 3))


def test_selection_on_data() -> None:
    x = _p("x", 4, 5)
    y = topi.where(topi.greater(x, topi.multiply(x, x)), x, topi.negative(x))
    _values([x, y], lambda a: np.where(a > a * a, a, -a))


def test_layer_norm_and_average_pool() -> None:
    x, g, b = _p("x", 4, 10), _p("g", 10), _p("b", 10)
    expr = read([x, g, b, topi.nn.layer_norm(x, g, b, [1])])
    arrays = arrays_for(expr)
    want = ops.layer_norm((4, 10), 1e-5).evaluate(arrays)[0]
    np.testing.assert_allclose(expr.evaluate(arrays)[0], want, rtol=1e-6, atol=1e-6)
    image = _p("image", 1, 2, 7, 7)
    pooled = topi.nn.pool2d(image, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], "avg", count_include_pad=False)
    own = ops.pool2d("avg", 1, 2, 7, 7, 3, 3, 2, 1, count_include_pad=False)
    _values([image, pooled], lambda a: own.evaluate([a])[0])


def test_prim_func_and_several_outputs() -> None:
    s = _p("S", 6, 9)
    total = topi.sum(s, axis=1)
    scaled = te.compute((6, 9), lambda i, j: s[i, j] * total[i], name="scaled")
    expr = read(te.create_prim_func([s, total, scaled]))
    arrays = arrays_for(expr)
    rows, out = expr.evaluate(arrays)
    np.testing.assert_allclose(rows, arrays[0].sum(1), rtol=1e-5)
    np.testing.assert_allclose(out, arrays[0] * arrays[0].sum(1, keepdims=True), rtol=1e-5)
    assert expr.stages[0].spatial_axes[0] == expr.stages[1].spatial_axes[0]


def test_tensors_of_one_name_are_told_apart() -> None:
    a, b = _p("A", 3, 4), _p("A", 3, 4)
    _values([a, b, topi.subtract(a, b)], lambda x, y: x - y)


def _scheduled() -> Any:
    s = _p("S", 64, 100)
    schedule = Schedule(te.create_prim_func([s, topi.nn.relu(s)]))
    block = schedule.get_sblock("compute")
    schedule.split(schedule.get_loops(block)[0], [None, 8])
    return schedule.mod["main"]


def _gather() -> list[Any]:
    s, at = _p("S", 64, 100), _p("at", 8, dtype="int32")
    return [s, at, te.compute((8, 100), lambda i, j: s[at[i], j], name="G")]


def _symbolic() -> list[Any]:
    z = te.placeholder((te.var("n"), 4), name="Z")
    return [z, topi.nn.relu(z)]


def _mixed_division() -> list[Any]:
    d = _p("D", 256)
    return [d, te.compute((16, 16), lambda i, j: d[(i * 16 + j) // 3], name="N")]


def _product_of_axes() -> list[Any]:
    d = _p("D", 256)
    return [d, te.compute((16, 16), lambda i, j: d[i * j], name="N")]


def _extern() -> list[Any]:
    s = _p("S", 4)
    out = te.extern((4,), [s], lambda i, o: tirx.call_packed("f", i[0], o[0]), name="ext", dtype="float32")
    return [s, out]


def _started() -> list[Any]:
    s = _p("S", 4, 5)
    k = te.reduce_axis((0, 5), name="k")
    odd = te.comm_reducer(lambda x, y: x + y, lambda t: tirx.const(1, t), name="odd")
    return [s, te.compute((4,), lambda i: odd(s[i, k], axis=k), name="started")]


def _combiner() -> list[Any]:
    s = _p("S", 4, 5)
    k = te.reduce_axis((0, 5), name="k")
    odd = te.comm_reducer(lambda x, y: x * y + x, lambda t: tirx.const(1, t), name="odd")
    return [s, te.compute((4,), lambda i: odd(s[i, k], axis=k), name="horner")]


def _scalar() -> list[Any]:
    s = te.placeholder((), name="s")
    return [s, te.compute((), lambda: s() * 2.0, name="twice")]


@every(
    ("source", "message"),
    [
        (_gather, "'S'.*dimension 0.*data of 'at'"),
        (_symbolic, "'Z'.*symbolic 'n'"),
        (_mixed_division, "'D'.*quotient of a sum"),
        (_product_of_axes, "'D'.*multiplies two axes"),
        (lambda: _unary(topi.argmax, 1), "tuple reduction.*argmax"),
        (_extern, "'ext'.*ExternOp"),
        (_started, "'started'.*start from 0.0, got 1.0"),
        (_combiner, "'horner'.*another combiner"),
        (_scalar, "'twice'.*no axis to tile"),
        (_scheduled, "scheduled"),
        (lambda: _conv(1, 1, 1)[::2], r"inputs \['W'\] are not in the list"),
        (lambda: [3], "got int"),
        (list, "got nothing"),
        (lambda: [_p("X", 3)], "placeholders"),
        (lambda: _unary(topi.log2), "intrinsic.*outside the supported"),
    ],
)
def test_refusals_name_the_tensor(source: Callable[[], Any], message: str) -> None:
    with pytest.raises(ExprError, match=message):
        read(source())


@every("stored", ["float16", "float64", "int32", "int8", "bool"])
@every("given", ["float16", "float32", "int32"])
@every("last", ["float32", ""])
def test_a_cast_may_be_followed_by_anything(given: str, stored: str, last: str) -> None:
    x = _p("X", 4, 6, dtype=given)
    cast = te.compute((4, 6), lambda i, j: x[i, j].astype(stored), name="T")
    y = te.compute((6, 4), lambda i, j: cast[j, i].astype(last) if last else cast[j, i], name="Y")
    expr = read([x, y])
    assert expr.outputs == ("Y",) and expr.output_tensors[0].dtype == (last or stored)
    assert read(to_te(expr)).key == expr.key
    assert expr.name == "Y" and read([x, y], name="cast").name == "cast", "errors name what its author named"
    values = np.arange(24).reshape(4, 6).astype(given)
    np.testing.assert_array_equal(
        np.asarray(expr.evaluate([values])[0]), values.astype(stored).T.astype(last or stored)
    )


def test_conditions_on_data_keep_what_they_ask_of_positions() -> None:
    x, s = _p("X", 9), _p("S", 4)
    both = te.compute((9,), lambda i: tirx.if_then_else(tirx.all(i < 4, s[i] > 0.0), s[i], x[i]), name="Y")
    one = te.compute((9,), lambda i: tirx.if_then_else(tirx.any(i >= 4, s[i] > 0.0), x[i], s[i]), name="Y")
    values = [np.arange(9.0), np.array([-1.0, 2.0, -3.0, 4.0])]
    inside = np.concatenate([values[1], np.zeros(5)])
    first = np.arange(9) < 4
    np.testing.assert_array_equal(
        read([x, s, both]).evaluate(values)[0], np.where(first & (inside > 0), inside, values[0])
    )
    np.testing.assert_array_equal(
        read([x, s, one]).evaluate(values)[0], np.where(~first | (inside > 0), values[0], inside)
    )


def test_a_position_beyond_32_bits_is_arithmetic() -> None:
    x = _p("X", 70_000, dtype="int64")
    wide = tirx.const(70_000, "int64")
    expr = read([x, te.compute((70_000,), lambda i: x[i] + i.astype("int64") * wide, name="Y")])
    assert all(
        n.index.range({"i": 70_000})[1] < 2**31
        for n in walk_scalar_tree(expr.stages[0].body)
        if isinstance(n, IndexValue)
    )
    assert expr.evaluate([np.zeros(70_000, np.int64)])[0][-1] == 69_999 * 70_000
