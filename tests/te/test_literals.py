"""Literals beyond the range of the dtype they are converted to: wrapped as C does, or refused in roller's words."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te, tirx

import roller
from roller.errors import ExprError
from roller.expr import Axis, Cast, Const, Index, Stage, Tensor, TensorExpr, Term
from roller.expr.evaluate import evaluate
from roller.te.reader import read


@pytest.mark.parametrize("dtype", ("int8", "uint8", "bool", "int16"))
@pytest.mark.parametrize("value", (380.0, -3.75, 7.0))
def test_a_literal_is_converted_as_evaluation_does(value: float, dtype: str) -> None:
    """380 as bfloat16 and then int8, which TVM would not write."""
    at = Index((Term("i"),))
    body = Cast(dtype, Const(value, "float32"))
    out = Tensor("y", (4,), dtype)
    expr = TensorExpr("literal", (Tensor("x", (4,), "float32"),), (Stage(out, (Axis("i", 4),), (at,), body),), ("y",))
    x = np.zeros(4, np.float32)
    kernel = roller.compile(expr, device="cpu", top_k=1, cache=False)
    np.testing.assert_array_equal(kernel(x), evaluate(expr, [x])[0].astype(dtype))


def test_what_tvm_refuses_is_an_error_of_the_expression() -> None:
    x = te.placeholder((8,), "int32", name="X")

    def of(i: tirx.Var) -> tirx.PrimExpr:
        """Of the last branch i is 5, so that the 7 alone is left of it."""
        return tirx.Select(i != 5, x[i] > 3, tirx.Select(i * 4 <= 0, x[7 - i], tirx.const(7, "int32")).astype("bool"))

    y = te.compute((8,), of, name="Y")
    with pytest.raises(ExprError, match=r"te: TVM makes no function of 'Y': .*exceeds range of bool.*Where a literal"):
        read(y)
