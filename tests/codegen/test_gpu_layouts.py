"""Convolutions in NHWC: right in every order, channels copied in 128-bit accesses; the better form is taken."""

import pytest

pytest.importorskip("tvm")

import roller
from roller import ConstructOptions, ops
from roller.compiler.pipeline import lower
from roller.emulator import prove
from roller.runtime.check import check

SPEC = roller.load_spec("v100")
DIRECT = ConstructOptions(top_k=2, winograd=False)
LAST = {"layout": "NHWC", "kernel_layout": "HWIO"}


@pytest.mark.parametrize(
    "expr",
    [
        ops.conv2d(1, 12, 9, 7, 20, 3, 3, padding=1, epilogue=("bias", "relu"), **LAST),
        ops.conv2d(2, 8, 9, 9, 12, 3, 2, stride=2, layout="NHWC", kernel_layout="OHWI"),
        ops.conv2d(2, 42, 7, 7, 21, 1, 1, stride=2, **LAST),
        ops.conv2d(1, 6, 8, 8, 9, 3, 3, padding=1, groups=3, **LAST),
        ops.conv2d(1, 16, 6, 5, 8, 3, 3, padding=1, dtype="float16", **LAST),
    ],
    ids=["padded", "ohwi", "multiples of 7", "groups", "half"],
)
def test_convolutions_with_channels_last(expr):
    for c in roller.construct(expr, SPEC, options=DIRECT):
        verdict = prove(lower(c.program, expr, SPEC), compare=lambda *a: check(*a).message)
        assert verdict.ok, f"{c.program}: {verdict}"


@pytest.mark.parametrize(
    "expr",
    [
        ops.conv2d(32, 64, 28, 28, 128, 1, 1, stride=2, **LAST),
        ops.conv2d(32, 168, 21, 21, 168, 1, 1, **LAST),
        ops.conv2d(32, 64, 28, 28, 64, 3, 3, padding=1, layout="NHWC", kernel_layout="OHWI"),
    ],
    ids=["strided", "channels of 7 and 42", "padded"],
)
def test_channels_are_copied_in_the_widest_vectors(expr):
    best = roller.construct(expr, SPEC, options=DIRECT)[0].program
    source = lower(best, expr, SPEC).source
    for tensor in ("X", "W"):
        assert f"*(float4*)({tensor}_ptr" in source and f"= {tensor}_ptr[" not in source, best


def test_weights_in_the_order_of_the_image_are_a_run_of_the_grouped_reduction():
    grouped = ConstructOptions(winograd=False)
    expr = ops.conv2d(4, 8, 7, 7, 16, 3, 3, padding=1, layout="NHWC", kernel_layout="HWIO")
    names = {c.program.axis_names for c in roller.construct(expr, SPEC, options=grouped)}
    assert names <= {("n", "ho", "wo", "f", "kh", "kw", "c"), ("n*ho*wo", "f", "kh*kw*c"), ("f", "n*ho*wo", "kh*kw*c")}


@pytest.mark.parametrize("size", [(256, 7), (512, 14), (168, 21)])
def test_the_better_form_of_a_convolution_is_taken(size):
    """Odd images tile as one axis, or as they are: whichever is predicted to be faster."""
    c, side = size
    expr = ops.conv2d(128, c, side, side, c, 3, 3, padding=1)
    both, plain = (
        roller.construct(expr, SPEC, options=ConstructOptions(top_k=1, winograd=False, axis_grouping=g))[0]
        for g in (True, False)
    )
    assert both.estimate.seconds <= plain.estimate.seconds
    assert both.program.axis_names == plain.program.axis_names or both.estimate.seconds < plain.estimate.seconds
