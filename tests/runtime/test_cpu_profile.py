"""Checking and timing built CPU kernels: what a wrong kernel cannot hide behind."""

from types import SimpleNamespace

import numpy as np
import pytest

from roller import ops
from roller.expr import Axis, Call, Const, Load, Stage, Tensor, TensorExpr, axis_index
from roller.runtime import check_and_time_cpu_kernels
from roller.runtime.random_inputs import random_inputs
from tests.offenders import every

EXPR = ops.elementwise("relu", (5, 7))


class _Lazy:
    """A kernel whose output's memory holds the right result already, of which it writes the first ``rows`` rows."""

    def __init__(self, artifact):
        self.rows = artifact.rows

    def bind(self, *arrays):
        right = np.maximum(arrays[0], 0)
        out = right.copy()

        def run():
            out[: self.rows] = right[: self.rows]

        return run, out


@pytest.mark.parametrize(("rows", "status"), [(5, "measured"), (4, "wrong"), (0, "wrong")])
def test_an_element_never_written_is_wrong_whatever_lay_there(monkeypatch, rows, status):
    monkeypatch.setattr(check_and_time_cpu_kernels, "CpuKernel", _Lazy)
    monkeypatch.setattr(check_and_time_cpu_kernels, "replace", lambda artifact, **_: artifact)
    artifact = SimpleNamespace(rows=rows, build={}, target={}, constants=(), program=SimpleNamespace(expr=EXPR))
    records = check_and_time_cpu_kernels.profile(EXPR, {"a": artifact}, budget_s=0.001)
    assert records["a"].status == status


def test_a_kernel_of_which_nothing_can_be_decided_says_so(monkeypatch):
    at = axis_index("i")
    below = Call("sqrt", (Call("sub", (Const(-1.0), Call("abs", (Load("x", (at,)),)))),))
    stage = Stage(Tensor("y", (64,)), (Axis("i", 64),), (at,), below)
    expr = TensorExpr("roots", (Tensor("x", (64,)),), (stage,), ("y",))
    monkeypatch.setattr(check_and_time_cpu_kernels, "CpuKernel", _Lazy)
    monkeypatch.setattr(check_and_time_cpu_kernels, "replace", lambda artifact, **_: artifact)
    artifact = SimpleNamespace(rows=64, build={}, target={}, constants=(), program=SimpleNamespace(expr=expr))
    monkeypatch.setattr(_Lazy, "bind", lambda self, x: (lambda: None, np.full_like(x, np.nan)))
    for timed in (True, False):
        record = check_and_time_cpu_kernels.CpuBench(expr).profile({"a": artifact}, timed, budget_s=0.001)["a"]
        assert record.ok
        assert record.reason.startswith("unchecked: none of 64 compared elements")


@every("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "int64"])
@every("shape", [(), (3, 5)])
def test_poison_is_no_number_or_minus_one(dtype, shape):
    expr = ops.elementwise("relu", shape or 1, dtype=dtype)
    out = np.zeros(shape, random_inputs(expr, 0)[0].dtype)
    check_and_time_cpu_kernels._fill_with_nan(out)
    values = out.astype("float64")
    assert (np.isnan(values) if "float" in dtype else values == -1).all()
