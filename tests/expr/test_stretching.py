"""Expressions at other extents: those the operators make themselves."""

from __future__ import annotations

import itertools

import pytest

from roller import ops
from roller.errors import ExprError
from roller.expr.change_axis_extents import apply_stretches, find_stretch
from tests.offenders import every


def stretched(expr, extents):
    return apply_stretches(expr, [find_stretch(expr, n) for n in extents], extents)


@every(
    ("stride", "padding", "dilation", "epilogue"),
    list(itertools.product((1, 2, 3), (0, 1, 2), (1, 2), ((), ("bias", "relu")))),
)
def test_convolutions_are_those_of_the_other_image(stride, padding, dilation, epilogue):
    def make(h, w):
        return ops.conv2d(2, 8, h, w, 6, 3, 3, stride=stride, padding=padding, dilation=dilation, epilogue=epilogue)

    for h, w in ((31 - 3 * stride, 29 - 2 * stride), (31 + 5 * stride, 29 + 4 * stride)):
        meant = make(h, w)
        extents = meant.anchor.extents
        assert stretched(make(31, 29), {"ho": extents["ho"], "wo": extents["wo"]}) == meant


@every(
    ("make", "axes"),
    [
        (lambda h: ops.depthwise_conv2d(1, 8, h, 9, 3, 3, padding=1), ("ho",)),
        (lambda h: ops.pool2d("max", 1, 8, h, h, 3, 3, padding=1), ("ho", "wo")),
        (lambda h: ops.pool2d("avg", 1, 8, h, h, 3, 3, padding=1), ("ho", "wo")),
        (lambda h: ops.matmul(h, 16, 8, epilogue=("bias",)), ("i",)),
        (lambda h: ops.matmul(4, 16, h), ("k",)),
        (lambda h: ops.softmax((h, 16)), ("d0",)),
        (lambda h: ops.softmax((4, h)), ("d1",)),
        (lambda h: ops.layer_norm((h, 16)), ("d0",)),
    ],
)
def test_operators_are_those_of_the_other_size(make, axes):
    assert stretched(make(12), dict.fromkeys(axes, 17)) == make(17)
    assert stretched(make(12), dict.fromkeys(axes, 5)) == make(5)


def test_what_is_not_one_answer_is_refused():
    with pytest.raises(ExprError, match="a constant of stage"):
        find_stretch(ops.layer_norm((4, 8)), "d1")
    for extent, why in ((1, "a sum and a mean are the same"), (4, "a constant of stage")):
        with pytest.raises(ExprError, match=why):
            find_stretch(ops.reduce("mean", (extent,)), "d0")
    with pytest.raises(ExprError, match="expected an axis of"):
        find_stretch(ops.matmul(4, 8, 8), "m")
    blocked = ops.from_blocked(1, 16, 4, 4, 8)
    with pytest.raises(ExprError, match="divides it, or counts it backwards"):
        find_stretch(blocked, blocked.axes[1].name)
