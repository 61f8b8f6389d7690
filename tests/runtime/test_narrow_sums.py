"""Sums in any accumulator: right kernels in every order are right, and one term too few or too many is wrong."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from roller import ops
from roller.backends.periodic_inputs import periodic_inputs
from roller.expr import Axis, Call, Const, Load, Stage, Tensor, TensorExpr, axis_index
from roller.expr.random_inputs_with_exact_sums import choose_exact_inputs
from roller.runtime.check import Oracle
from roller.runtime.random_inputs import random_inputs

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
LENGTHS = (3, 17, 64, 256, 512, 1024, 8192)


def matmul(k, dtype):
    e = ops.matmul(16, 12, k, dtype=dtype, acc_dtype=dtype)
    return e, lambda a, b: np.einsum("ik,kj->ijk", a, b)


def reduce(k, dtype):
    e = ops.reduce("sum", (192, k), axes=(1,), dtype=dtype, acc_dtype=dtype)
    return e, lambda x: x


def conv(k, dtype):
    channels = -(-k // 9)
    e = ops.conv2d(1, channels, 8, 8, 16, 3, 3, dtype=dtype, acc_dtype=dtype)

    def terms(x, w):
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
        return np.einsum("nchwrs,fcrs->nfhwcrs", windows, w).reshape(1, 16, 6, 6, -1)

    return e, terms


def in_order(terms, scalar, parts=1):
    """Sums of ``parts`` runs, one term after the other, and the sum of those."""
    runs = np.array_split(terms.astype(scalar), parts, axis=-1)
    sums = []
    for run in runs:
        total = np.zeros(run.shape[:-1], scalar)
        for n in range(run.shape[-1]):
            total = (total + run[..., n]).astype(scalar)
        sums.append(total)
    return sums[0] if parts == 1 else in_order(np.stack(sums, axis=-1), scalar)


def in_pairs(terms, scalar):
    """The tree of a reduction between lanes."""
    terms = terms.astype(scalar)
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = np.concatenate([terms, np.zeros_like(terms[..., :1])], axis=-1)
        terms = (terms[..., ::2] + terms[..., 1::2]).astype(scalar)
    return terms[..., 0]


CASES = [
    pytest.param(make, dtype, k, id=f"{make.__name__}-{dtype}-{k}")
    for make in (matmul, reduce, conv)
    for dtype in DTYPES
    for k in LENGTHS
]


def terms_of(make, dtype, k, inputs=random_inputs):
    e, terms = make(k, dtype)
    arrays = inputs(e)
    oracle = Oracle(e, arrays)
    each = terms(*(np.asarray(a, np.float64) for a in arrays))
    (points,) = oracle.points
    return oracle, each[tuple(points.T)]


@pytest.mark.parametrize(("make", "dtype", "k"), CASES)
def test_a_wrong_sum_is_refused(make, dtype, k):
    oracle, terms = terms_of(make, dtype, k)
    scalar, right = DTYPES[dtype], terms.sum(axis=-1)
    assert oracle.check_compared_elements([right.astype(scalar)]).ok
    for wrong in (np.zeros_like(right), -right, right + 1, right * 1.5):
        assert not oracle.check_compared_elements([wrong.astype(scalar)]).ok
    for n in {0, 1, 2, k // 2, k - 1}:
        assert not oracle.check_compared_elements([(right - terms[:, n]).astype(scalar)]).ok, n
        assert not oracle.check_compared_elements([(right + terms[:, n]).astype(scalar)]).ok, n


@pytest.mark.parametrize(("make", "dtype", "k"), CASES)
def test_a_right_sum_is_accepted_in_any_order(make, dtype, k):
    oracle, terms = terms_of(make, dtype, k)
    terms, scalar = terms[:16], DTYPES[dtype]
    rest = oracle._expected[0].found.value[16:]
    shuffled = np.random.default_rng(0).permuted(terms, axis=-1)
    ascending = np.sort(terms, axis=-1)
    made = [in_order(terms, scalar), in_order(terms[:, ::-1], scalar), in_order(shuffled, scalar),
            in_order(terms, scalar, 7), in_pairs(terms, scalar)]  # fmt: skip
    if scalar is not np.float32:
        made.append(in_order(ascending, scalar))
    for found in made:
        result = oracle.check_compared_elements([np.concatenate([found, rest.astype(scalar)])])
        assert result.ok, result.message


def test_inputs_on_a_device_count_everywhere_too():
    oracle, terms = terms_of(matmul, "bfloat16", 2048, periodic_inputs)
    right = terms.sum(axis=-1)
    assert terms.any(axis=0).all()
    assert not oracle.check_compared_elements([np.zeros_like(right)]).ok
    assert not any(oracle.check_compared_elements([right - terms[:, n]]).ok for n in range(0, 2048, 97))
    assert oracle.check_compared_elements([in_order(terms, DTYPES["bfloat16"])]).ok


def test_what_one_row_reads_has_no_zeros():
    """A row by a matrix: the zeros are in the matrix, of which each position has many elements."""
    found = choose_exact_inputs(ops.matmul(1, 4096, 8192, dtype="bfloat16", acc_dtype="bfloat16"))
    assert found["A"].density == 1
    assert found["B"].density < 1 / 32
    row, matrix = random_inputs(ops.matmul(1, 512, 2048, dtype="bfloat16", acc_dtype="bfloat16"))
    assert np.all(row != 0)
    assert np.all(np.any(matrix != 0, axis=1))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("k", [2, 3, 64, 1024, 8192, 1 << 20])
def test_one_sum_alone_is_not_zero(dtype, k):
    for seed in range(1 if k > 8192 else 10):
        e = ops.reduce("sum", (k,), dtype=dtype, acc_dtype=dtype)
        (x,) = random_inputs(e, seed)
        oracle = Oracle(e, [x])
        right = x.astype(np.float64).sum().reshape(1)
        assert oracle.check_compared_elements([right]).ok
        assert not oracle.check_compared_elements([right + 1]).ok
        assert k == 2 or not oracle.check_compared_elements([np.zeros(1)]).ok


def summed(body, *inputs, rows=64, k=1024, dtype="float16"):
    """``sum of body over r`` of inputs ``(rows, k)``."""
    axes = (Axis("i", rows), Axis("r", k, "reduction"))
    stage = Stage(Tensor("y", (rows,), dtype), axes, (axis_index("i"),), body, "sum", dtype)
    return TensorExpr("summed", tuple(Tensor(n, (rows, k), dtype) for n in inputs), (stage,), ("y",))


A, B = (Load(n, (axis_index("i"), axis_index("r"))) for n in "ab")


@pytest.mark.parametrize("body", [
    Call("max", (A, Const(0.0, "float16"))), Call("abs", (A,)), Call("mul", (A, A)), Call("sub", (A, B)),
    Call("add", (Call("mul", (A, B)), A)),
], ids=["relu", "abs", "square", "difference", "shifted"])  # fmt: skip
def test_sums_of_exact_functions_are_exact(body):
    e = summed(body, *sorted({ld.tensor for ld in (Stage(Tensor("t", ()), (), (), body).loads)}))
    arrays = random_inputs(e)
    oracle, (exact,) = Oracle(e, arrays), e.evaluate(arrays)
    assert oracle.check([exact]).ok
    for wrong in (np.zeros_like(exact), -exact, exact + 1):
        assert not oracle.check([wrong]).ok


def test_what_is_divided_by_is_not_zero():
    """The sum of one stage is of what another divides by."""
    i, k = axis_index("i"), 8192
    whole = summed(A, "a", rows=4, k=k)
    each = Stage(Tensor("z", (4, k), "float16"), (Axis("i", 4), Axis("r", k)), (i, axis_index("r")),
                 Call("div", (Load("y", (i,)), A)), None, "float16")  # fmt: skip
    e = TensorExpr("both", whole.inputs, (*whole.stages, each), ("z",))
    (x,) = random_inputs(e)
    assert np.all(x != 0)


def test_positive_terms_swallow_each_other_in_half_precision():
    """One after the other they come to 2048 and no further, which is right; zeros and other signs are not."""
    e = summed(A, "a", rows=3, k=8192)
    ones = np.ones((3, 8192), np.float16)
    assert Oracle(e, [ones]).check([np.full(3, 2048.0)]).ok
    x = np.random.default_rng(0).standard_normal((3, 8192)).astype(np.float16)
    bound = Oracle(e, [x])._expected[0].found
    limit = 4 * 2.0**-10 * np.sqrt(8192) * np.abs(x.astype(np.float64)).sum(axis=1)
    assert np.all(bound.high - bound.low <= 2.1 * limit), "terms of random signs do not"
    assert Oracle(e, [x]).check([in_order(x, np.float16).astype(np.float64)]).ok
