"""What a guarded load yields outside its guard goes through conversions: one to integers changes a fraction."""

from __future__ import annotations

import numpy as np
from tvm import te, tirx

import roller
from roller.expr.evaluate import evaluate
from roller.te.reader import read
from tests.offenders import every


@every("inlined", (True, False))
@every("other", (-0.125, 3.0, 1e6, float("nan")))
@every("through", ("int64", "int8", "float16", "bool"))
def test_the_other_value_of_a_choice_is_not_converted(through: str, other: float, inlined: bool) -> None:
    x = te.placeholder((8,), "float32", name="X")

    def converted(i: tirx.Var) -> tirx.PrimExpr:
        return x[i].astype(through).astype("float32")

    t = te.compute((8,), converted, name="T") if inlined else None
    y = te.compute(
        (8,), lambda i: tirx.Select(i <= 3, t[i] if t is not None else converted(i), tirx.const(other, "float32"))
    )
    given = np.array([0.0, 1.0, 2.0, 3.0, 1.0, 1.0, 1.0, 1.0], np.float32)
    kept = given.astype(through).astype(np.float32)
    (got,) = evaluate(read(y), [given])
    np.testing.assert_array_equal(np.asarray(got, np.float32), np.where(np.arange(8) <= 3, kept, np.float32(other)))


def test_a_kernel_of_a_choice_between_a_conversion_and_a_fraction_is_right() -> None:
    x = te.placeholder((8,), "float32", name="X")
    t = te.compute((8,), lambda i: x[i].astype("int64").astype("float32"), name="T")
    y = te.compute((8,), lambda i: tirx.Select(i <= 3, t[i], tirx.const(-0.125, "float32")).astype("bool"))
    kernel = roller.compile(y, device="cpu", top_k=1, cache=False)
    np.testing.assert_array_equal(kernel(np.zeros(8, np.float32)), np.arange(8) > 3)
