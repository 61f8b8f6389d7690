"""Transposed convolutions against ONNX Runtime (which has no dilated groups) and onnx's reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.models.onnx.lowering_oracle import agrees, expressions, node, runtime


def _array(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@given(
    rank=st.integers(1, 2), groups=st.integers(1, 2), cg=st.integers(1, 2), fg=st.integers(1, 2), data=st.data(),
    bias=st.booleans(), constant=st.booleans(),
)  # fmt: skip
def test_any_of_them(rank, groups, cg, fg, data, bias, constant):
    def per(low, high):
        return data.draw(st.tuples(*[st.integers(low, high)] * rank))

    size, kernel, strides, dilations = per(1, 4), per(1, 4), per(1, 3), per(1, 2)
    pads = data.draw(st.tuples(*[st.integers(0, 2)] * (2 * rank)))
    extra = tuple(data.draw(st.integers(0, s - 1)) for s in strides)
    sides = zip(strides, size, extra, dilations, kernel, strict=True)
    full = [s * (n - 1) + e + d * (k - 1) + 1 for s, n, e, d, k in sides]
    assume(all(f > p + q for f, p, q in zip(full, pads[:rank], pads[rank:], strict=True)))
    op = node("ConvTranspose", 3, group=groups, strides=list(strides), dilations=list(dilations), pads=list(pads),
              output_padding=list(extra), version=11)  # fmt: skip
    arrays = [_array((2, groups * cg, *size)), _array((groups * cg, fg, *kernel), 1)]
    arrays.append(_array(groups * fg, 2) if bias else None)
    agrees(op, arrays, (1,) if constant else (), wanted=runtime(op, arrays))


@pytest.mark.parametrize("how", [{"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}, {"output_shape": [10, 8]}])
def test_padding_by_the_wanted_size(how):
    op = node("ConvTranspose", 2, strides=[3, 2], version=11, **how)
    arrays = [_array((1, 2, 3, 3)), _array((2, 3, 3, 3), 1)]
    for constants in ((), (1,)):
        agrees(op, arrays, constants, wanted=runtime(op, arrays))


def test_phases_multiply_no_zeros():
    op = node("ConvTranspose", 2, strides=[2, 2], pads=[1, 1, 1, 1], version=11)
    found = expressions(op, [_array((1, 8, 6, 6)), _array((8, 4, 4, 4), 1)], (1,))
    assert found[0][0].anchor.points == 4 * 4 * (6 + 1) ** 2 * 8 * 2 * 2
