"""Convolutions against onnx's reference: any rank, groups, strides, dilation, padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from roller.models.onnx.lowering_registry import Unsupported
from tests.models.onnx.lowering_oracle import agrees, expressions, node


def _array(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@given(
    rank=st.integers(1, 3), n=st.integers(1, 2), groups=st.integers(1, 3), cg=st.integers(1, 2), fg=st.integers(1, 2),
    data=st.data(), bias=st.booleans(), pad=st.sampled_from(["pads", "VALID", "SAME_UPPER", "SAME_LOWER", None]),
)  # fmt: skip
def test_convolutions(rank, n, groups, cg, fg, data, bias, pad):
    per = st.tuples(*[st.integers(1, 3)] * rank)
    size = data.draw(st.tuples(*[st.integers(1, 6)] * rank))
    kernel, strides, dilations = data.draw(per), data.draw(per), data.draw(per)
    pads = data.draw(st.tuples(*[st.integers(0, 2)] * (2 * rank)))
    if pad not in (None, "VALID", "pads"):
        dilations = (1,) * rank  # the reference ignores dilation there
    spare = [a + b for a, b in zip(pads[:rank], pads[rank:], strict=True)] if pad == "pads" else [0] * rank
    if pad in (None, "VALID", "pads"):
        fits = (s + p - d * (k - 1) >= 1 for s, p, d, k in zip(size, spare, dilations, kernel, strict=True))
        assume(all(fits))
    how = {"pads": list(pads)} if pad == "pads" else {"auto_pad": pad}
    conv = node("Conv", 3, group=groups, strides=list(strides), dilations=list(dilations), **how)
    x, w = _array((n, groups * cg, *size)), _array((groups * fg, cg, *kernel), 1)
    agrees(conv, [x, w, _array(groups * fg, 2) if bias else None])


def test_the_forms_are_those_construction_knows():
    x = _array((1, 8, 6, 6))
    ((conv, _),) = expressions(node("Conv", 3, pads=[1, 1, 1, 1]), [x, _array((4, 8, 3, 3)), _array(4)])
    assert [a.name for a in conv.axes] == ["n", "f", "ho", "wo", "c", "kh", "kw"]
    assert conv.epilogue is not None
    ((depthwise, _),) = expressions(node("Conv", 2, group=8), [x, _array((8, 1, 3, 3))])
    assert [a.name for a in depthwise.axes] == ["n", "f", "ho", "wo", "kh", "kw"]


def test_halves_accumulate_in_single_precision():
    x, w = _array((1, 4, 5, 5), dtype=np.float16), _array((2, 4, 3, 3), 1, np.float16)
    agrees(node("Conv", 2), [x, w], rtol=2e-3, atol=1e-2)
    ((expr, _),) = expressions(node("Conv", 2), [x, w])
    assert expr.anchor.acc_dtype == "float32"


@pytest.mark.parametrize("points", [0, 3])
def test_integers_less_their_zero_points(points):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (1, 2, 5, 5)).astype(np.uint8)
    w = rng.integers(-100, 100, (3, 2, 3, 3)).astype(np.int8)
    zero, per_filter = np.array(points, np.uint8), np.array([0, points, 1], np.int8)
    agrees(node("ConvInteger", 3, pads=[1, 1, 1, 1]), [x, w, zero], (2,))
    wide, narrow = x.astype(np.int64) - points, w - per_filter.astype(np.int64)[:, None, None, None]
    wanted = sum(
        np.einsum("chw,fc->fhw", wide[0, :, i : i + 3, j : j + 3], narrow[:, :, i, j])
        for i in range(3) for j in range(3)
    )  # fmt: skip
    agrees(node("ConvInteger", 4), [x, w, zero, per_filter], (2,), wanted=[wanted[None].astype(np.int32)])


def test_what_makes_no_sense_is_refused():
    with pytest.raises(Unsupported, match="groups do not divide"):
        expressions_of = node("Conv", 2, group=3)
        agrees(expressions_of, [_array((1, 4, 5, 5)), _array((2, 4, 3, 3))], wanted=[_array((1, 2, 3, 3))])
    with pytest.raises(Unsupported, match="declared result"):
        agrees(node("Conv", 2), [_array((1, 4, 5, 5)), _array((2, 4, 3, 3))], wanted=[_array((1, 2, 4, 4))])
