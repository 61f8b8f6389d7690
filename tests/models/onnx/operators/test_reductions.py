"""Reductions against onnx's reference."""

from __future__ import annotations

import numpy as np
import pytest

from roller.expr import TensorExpr
from roller.models.onnx.lowering_registry import Unsupported
from tests.models.onnx.lowering_oracle import agrees, expressions, node
from tests.offenders import every

_OPS = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
        "ReduceLogSumExp", "ReduceSumSquare"]  # fmt: skip


def _array(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).uniform(0.1, 2, shape).astype(dtype)


@every("op", _OPS)
@every("axes", [None, (1,), (0, -1), (0, 1, 2)])
@every("keep", [0, 1])
def test_reductions_by_attribute_and_by_input(op, axes, keep):
    x = _array((3, 4, 5))
    given = None if axes is None else np.asarray(axes, np.int64)
    agrees(node(op, 2, keepdims=keep), [x, given], (1,))
    agrees(node(op, 1, keepdims=keep, axes=None if axes is None else list(axes), version=11), [x])


@every("op", _OPS)
def test_no_axes_may_mean_none(op):
    agrees(node(op, 2, noop_with_empty_axes=1), [_array((3, 4)), np.zeros(0, np.int64)], (1,))


@every("op", ["ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare"])
def test_whole_numbers(op):
    x = np.arange(-6, 6, dtype=np.int32).reshape(3, 4)
    agrees(node(op, 2), [x, np.array([1])], (1,))


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_booleans(op):
    x = np.array([[True, False], [False, False], [True, True]])
    agrees(node(op, 2, keepdims=0), [x, np.array([1])], (1,))


def test_a_mean_of_whole_numbers_is_refused():
    with pytest.raises(Unsupported, match="int32"):
        agrees(node("ReduceMean", 1), [np.ones((3, 4), np.int32)])


@every("op", ["ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2"])
def test_of_nothing_is_the_neutral_value(op):
    x, axes = np.zeros((2, 0, 3), np.float32), np.array([1])
    wanted = {"ReduceProd": 1.0, "ReduceMax": -np.inf, "ReduceMin": np.inf}.get(op, 0.0)
    agrees(node(op, 2, keepdims=0), [x, axes], (1,), wanted=[np.full((2, 3), wanted, np.float32)])


def test_large_exponents_do_not_overflow():
    x = np.array([[1000.0, 1001.0], [-np.inf, -np.inf], [np.inf, 0]], np.float32)
    wanted = np.array([1001.3132617, -np.inf, np.inf], np.float32)
    with np.errstate(divide="ignore"):
        agrees(node("ReduceLogSumExp", 2, keepdims=0), [x, np.array([1])], (1,), wanted=[wanted])


@every("op", ["ArgMax", "ArgMin"])
@every("axis", [0, 1, -1])
@every("last", [0, 1])
def test_positions(op, axis, last):
    x = np.random.default_rng(0).integers(0, 3, (3, 4, 5)).astype(np.float32)
    for keep in (0, 1):
        agrees(node(op, 1, axis=axis, keepdims=keep, select_last_index=last), [x])


@pytest.mark.parametrize(("op", "towards"), [("ArgMax", np.inf), ("ArgMin", -np.inf)])
@pytest.mark.parametrize("last", [0, 1])
def test_no_position_is_invented_where_nothing_equals_the_extreme(op, towards, last):
    """The operand of a fused kernel may be rounded otherwise when it is read again for the position."""
    x = _array((3, 7))
    ((expr, _),) = expressions(node(op, 1, axis=1, keepdims=0, select_last_index=last), [x])
    extreme, found = expr.stages
    second = TensorExpr("second", (*expr.inputs, extreme.output), (found,), (found.name,))
    missed = np.nextafter(x.max(axis=1) if op == "ArgMax" else x.min(axis=1), np.float32(towards))
    (places,) = second.evaluate([x, missed.reshape(extreme.output.shape)])
    assert ((places >= 0) & (places < 7)).all()


def test_a_reduction_is_one_stage():
    ((expr, _),) = expressions(node("ReduceSum", 2, keepdims=0), [_array((3, 4)), np.array([1])], (1,))
    assert len(expr.stages) == 1
