"""Channels in blocks on a CPU: what is packed, which programs are chosen, and that the kernels are right."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

import roller
from roller import ops
from roller.expr.canonical import fuse_axes
from roller.templates.cpu.decisions import BOX, PANEL
from roller.templates.cpu.emit.axis_tiling_plans import program_decisions, spatial_plans
from roller.templates.cpu.tiled.emit_load_staging_plans import plan_box
from roller.tile.geometry import Geometry
from tests.codegen.cpu_programs import assert_right, kernel

_CASES = {
    "padded": lambda: ops.conv2d(2, 24, 9, 15, 40, 3, 3, 1, 1, layout="NCHW16c"),
    "stride": lambda: ops.conv2d(1, 32, 15, 17, 32, 3, 3, 2, 1, layout="NCHW16c", epilogue=("bias", "sigmoid")),
    "dilation": lambda: ops.conv2d(1, 16, 14, 13, 48, 3, 3, 1, 2, 2, layout="NCHW16c"),
    "1x1": lambda: ops.conv2d(1, 64, 7, 7, 80, 1, 1, layout="NCHW16c", epilogue=("bias", "residual", "relu")),
    "groups": lambda: ops.conv2d(1, 32, 7, 9, 64, 3, 3, 1, 1, groups=2, layout="NCHW16c"),
    "small groups": lambda: ops.conv2d(1, 32, 7, 9, 32, 3, 3, 1, 1, groups=8, layout="NCHW16c"),
    "block 8": lambda: ops.conv2d(1, 12, 9, 9, 20, 3, 3, layout="NCHW8c"),
    "block 32": lambda: ops.conv2d(1, 40, 9, 9, 64, 3, 3, layout="NCHW32c"),
    "float16": lambda: ops.conv2d(1, 32, 9, 9, 32, 3, 3, 1, 1, layout="NCHW16c", dtype="float16"),
    "first layer": lambda: ops.conv2d(1, 3, 31, 29, 32, 7, 7, 2, 3, layout="NCHW16c"),
    "depthwise": lambda: ops.depthwise_conv2d(1, 40, 14, 15, 5, 5, 1, 2, layout="NCHW16c", epilogue=("bias", "silu")),
    "depthwise stride": lambda: ops.depthwise_conv2d(2, 32, 17, 15, 3, 3, 2, 1, layout="NCHW16c", multiplier=2),
    "max": lambda: ops.pool2d("max", 2, 40, 17, 15, 3, 3, 2, 1, layout="NCHW16c"),
    "average": lambda: ops.pool2d("avg", 1, 32, 14, 13, 3, 3, 1, 1, False, layout="NCHW16c", epilogue=("bias", "relu")),
    "to": lambda: ops.to_blocked(2, 40, 13, 11),
    "from": lambda: ops.from_blocked(2, 40, 13, 11),
}


@pytest.mark.parametrize("name", _CASES)
def test_the_first_choices_are_right(name):
    expr = _CASES[name]()
    for candidate in roller.construct(expr, device="cpu-avx512", top_k=2):
        assert_right(expr, candidate.program)


def test_weights_are_packed_in_panels_and_padded_images_copied_as_boxes():
    expr = fuse_axes(_CASES["padded"]())
    image, weights = Geometry.of(expr).loads
    found = roller.construct(_CASES["padded"](), device="cpu-avx512", top_k=1)[0].program
    program = replace(found, staged=("X", "W"))
    decisions = program_decisions(program)
    assert [decisions.staging(a) for a in (image, weights)] == [BOX, PANEL]
    assert decisions.phases(image) == 1  # strides are no lanes: nothing to de-interleave
    load = next(ld for ld in expr.anchor.loads if ld.tensor == "X")
    assert plan_box(load, expr.anchor, spatial_plans(program), "fi", 1, 0).extents[-1] == 16


@pytest.mark.parametrize("expr", [
    ops.conv2d(1, 256, 14, 14, 512, 1, 1, layout="NCHW16c"),
    ops.conv2d(1, 64, 58, 58, 64, 3, 3, layout="NCHW16c"),
])  # fmt: skip
def test_lanes_are_channels_and_images_without_padding_are_read_in_place(expr):
    options = roller.ConstructOptions(constants=("W",))
    program = roller.construct(expr, device="cpu-avx512", top_k=1, options=options)[0].program
    assert program.vector_axis == "fi"
    assert program.staged == ("W",)
    rows = {n: t for n, t in program.tile("register").items() if n in ("ho", "wo", "ho*wo")}
    assert max(rows.values()) > 1  # weights are loaded once for several pixels
    assert program.tile("register")["fo"] > 1  # a pixel is broadcast to several vectors


def test_transposing_tasks_cover_the_lines_they_touch():
    program = roller.construct(ops.from_blocked(1, 64, 56, 56), device="cpu-avx512", top_k=1)[0].program
    task = program.block_tile
    assert task["c"] >= 16  # one line holds the channels of a block
    assert task["h*w"] * 64 <= roller.load_spec("cpu-avx512").layer("l1").capacity_bytes


@functools.cache
def _built(name, **arguments):
    expr = getattr(ops, name)(**arguments)
    return kernel(expr, roller.construct(expr, device="cpu-avx512", top_k=1)[0].program)


def test_blocks_there_and_back():
    x = np.random.default_rng(0).standard_normal((2, 21, 5, 7)).astype("float32")
    blocked = _built("to_blocked", n=2, c=21, h=5, w=7)(x)
    assert blocked.shape == (2, 2, 5, 7, 16)
    assert not blocked[:, 1, :, :, 5:].any()
    np.testing.assert_array_equal(_built("from_blocked", n=2, c=21, h=5, w=7)(blocked), x)


def test_what_lies_beyond_the_channels_is_ignored_and_written_as_zero():
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((24, 20, 3, 3)).astype("float32")
    bias = rng.standard_normal(24).astype("float32")
    x = rng.standard_normal((1, 2, 9, 7, 16)).astype("float32")
    other = x.copy()
    other[:, 1, :, :, 4:] = 1e6
    conv = _built("conv2d", n=1, c=20, h=9, w=7, f=24, kh=3, kw=3, padding=1, layout="NCHW16c",
                  epilogue=("bias", "sigmoid"))  # fmt: skip
    first, second = conv(x, weights, bias).copy(), conv(other, weights, bias)
    np.testing.assert_array_equal(first, second)
    assert not first[:, 1, :, :, 8:].any()
    assert first[:, 1, :, :, :8].all()  # a sigmoid is nowhere zero


def test_blocked_and_plain_layouts_agree():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((1, 20, 9, 7)).astype("float32")
    w = rng.standard_normal((24, 20, 3, 3)).astype("float32")
    sizes = {"n": 1, "c": 20, "h": 9, "w": 7, "f": 24, "kh": 3, "kw": 3, "stride": 2, "padding": 1}
    blocked = _built("to_blocked", n=1, c=20, h=9, w=7)(x)
    out = _built("conv2d", **sizes, layout="NCHW16c")(blocked, w)
    plain = _built("conv2d", **sizes)(x, w)
    np.testing.assert_allclose(_built("from_blocked", n=1, c=24, h=5, w=4)(out), plain, rtol=1e-4, atol=1e-4)
