"""Positions converted to narrow integers wrap around: as values, in guards, and nowhere as an index."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import te, tirx

import roller
from roller.errors import ExprError
from roller.te.reader import read

N = 300
AT = np.arange(N)


def made(f: Callable[[te.Tensor, tirx.Var], tirx.PrimExpr]) -> np.ndarray:
    x = te.placeholder((N,), "float32", name="X")
    y = te.compute((N,), lambda i: f(x, i), name="Y")
    kernel = roller.compile(y, device="cpu", top_k=1, cache=False)
    return np.asarray(kernel(AT.astype(np.float32)))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool"])
def test_values(dtype: str) -> None:
    np.testing.assert_array_equal(made(lambda x, i: x[i] + i.astype(dtype).astype("float32")), AT + AT.astype(dtype))


def test_arithmetic() -> None:
    got = made(lambda x, i: x[i] + (i.astype("uint8") + tirx.const(200, "uint8")).astype("float32"))
    np.testing.assert_array_equal(got, AT + (AT.astype(np.uint8) + np.uint8(200)))


@pytest.mark.parametrize("choose", [tirx.Select, tirx.if_then_else])
def test_guards(choose: Callable[..., tirx.PrimExpr]) -> None:
    got = made(lambda x, i: choose(i.astype("uint8") < 10, x[i], tirx.const(-1, "float32")))
    np.testing.assert_array_equal(got, np.where(AT.astype(np.uint8) < 10, AT, -1))


@pytest.mark.parametrize("dtype", ["uint8", "bool"])
def test_an_index_is_refused_where_it_wraps_around_and_taken_where_it_does_not(dtype: str) -> None:
    x = te.placeholder((N,), "float32", name="X")

    def of(extent: int) -> te.Tensor:
        return te.compute((extent,), lambda i: x[i.astype(dtype).astype("int32")], name="Y")

    with pytest.raises(ExprError, match=f"leaves the range of {dtype}"):
        read(of(N))
    assert read(of(2))
