"""Winograd programs on GPUs: awkward extents, paddings, layouts, epilogues, splits, accuracy, builds without spills."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tvm")

import roller
from roller import ConstructOptions, ops
from roller.artifact import Constant
from roller.backends.cuda.toolchain import build
from roller.construction.neighbours import neighbour_programs
from roller.emulator import emulate, prove
from roller.errors import BuildError
from roller.expr.canonical import fuse_axes
from roller.runtime.check import check
from roller.runtime.random_inputs import random_inputs
from roller.templates.gpu.emit.cuda import lower
from roller.tile import RProgram
from roller.tile.alignment import broken_rules
from roller.tile.structures import STRUCTURES
from roller.tile.winograd_batched_product import (
    CHANNEL,
    ELEMENT,
    FILTER,
    TILE,
    batched_product,
    tiled_product_of_program,
)


def winograd(expression, m, register=None, block=None, **changes):
    """Return a program from tiles of the product: filters, output tiles, channels."""
    form, structure = fuse_axes(expression), f"winograd{m}"
    found = batched_product(form, structure)
    own = {ELEMENT: 1, FILTER: 4, TILE: 2, CHANNEL: 1, **(register or {})}
    step = {**own, FILTER: 16, TILE: 16, CHANNEL: 8, **(block or {})}
    tiles = tuple((n, tuple(t[a.name] for a in found.expr.axes)) for n, t in (("register", own), ("shared", step)))
    program = RProgram(found.expr, "gpu", "tiled", tiles, staged=("X", "W"), **changes)
    outer = found.outer(program, form, structure)
    assert found.inner(outer) == program
    return outer


def assert_right(expression, program, arch="sm_70"):
    artifact = lower(program, expression, arch, "test")
    verdict = prove(artifact, compare=lambda *a: check(*a).message)
    assert verdict.ok, str(verdict)
    return artifact


SHAPES = [
    (1, 16, 8, 8, 16, 1),  # whole tiles
    (3, 17, 9, 7, 33, 1),  # nothing divides
    (2, 16, 4, 4, 16, 0),  # less than one tile of outputs
    (1, 20, 3, 21, 40, (1, 1, 0, 0)),  # a single row of outputs
    (1, 18, 19, 3, 5, (0, 0, 1, 1)),  # a single column, few filters
    (2, 3, 11, 10, 24, (0, 2, 1, 0)),  # asymmetric padding, few channels
    (1, 32, 6, 6, 16, 2),  # more padding than the window needs
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("m", "layout"), [(4, "NCHW"), (4, "NHWC"), (2, "NCHW")])
def test_shapes_paddings_and_layouts_in_every_order(shape, m, layout):
    n, c, h, w, f, padding = shape
    e = ops.conv2d(n, c, h, w, f, 3, 3, padding=padding, layout=layout)
    artifact = assert_right(e, winograd(e, m))
    assert len(artifact.launches) == 3
    assert [a.role for a in artifact.arguments].count("workspace") == 3


@pytest.mark.parametrize("filters", ["OHWI", "HWIO"])
def test_layouts_of_the_filters(filters):
    e = ops.conv2d(2, 17, 9, 7, 30, 3, 3, padding=1, layout="NHWC", kernel_layout=filters)
    assert_right(e, winograd(e, 4))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("size", [(10, 9), (12, 8)], ids=["clipped", "vectors"])
def test_epilogues(layout, size):
    e = ops.conv2d(2, 16, *size, 20, 3, 3, padding=1, layout=layout, epilogue=("bias", "add", "relu"))
    assert_right(e, winograd(e, 4))


def test_a_split_reduction_combines_before_the_way_back():
    e = ops.conv2d(1, 40, 7, 9, 18, 3, 3, padding=1, epilogue=("bias",))
    artifact = assert_right(e, winograd(e, 2, split_k=2))
    assert len(artifact.launches) == 4
    assert [a.role for a in artifact.arguments].count("workspace") == 4


@pytest.mark.parametrize(("m", "register", "block"), [(4, {FILTER: 8, TILE: 4}, {FILTER: 64, TILE: 32}), (2, {}, {})])
def test_vectors_and_padded_rows(m, register, block):
    e = ops.conv2d(2, 24, 11, 13, 30, 3, 3, padding=1)
    program = winograd(e, m, register, block)
    columns = batched_product(program.expr, f"winograd{m}").columns
    wide = replace(program, vector_axis=columns, vector_elements=2, interleaved=True, storage_padding=(("X", 4),))
    assert_right(e, wide)


@pytest.mark.parametrize(
    ("arch", "stages", "raster"), [("sm_70", 2, 1), ("sm_80", 3, 1), ("sm_80", 1, 4), ("sm_80", 2, 4)]
)
def test_the_product_may_be_a_pipeline_and_its_blocks_in_any_order(arch, stages, raster):
    e = ops.conv2d(2, 40, 9, 11, 20, 3, 3, padding=1)
    artifact = assert_right(e, winograd(e, 4, stages=stages, raster=raster), arch)
    assert ("cp.async" in artifact.source) == (arch == "sm_80" and stages > 1)


@pytest.mark.parametrize("constants", [("W",), ("X",)])
def test_constant_filters_are_transformed_ahead(constants):
    e = ops.conv2d(2, 17, 9, 7, 33, 3, 3, padding=1, epilogue=("bias",))
    artifact = assert_right(e, replace(winograd(e, 4), constants=constants))
    roles = {a.name: a.role for a in artifact.arguments}
    assert roles["W_transformed"] == ("panel" if constants == ("W",) else "workspace")
    assert (artifact.prepare is not None) == (constants == ("W",))
    assert ("W" in artifact.launches[0].arguments) == (constants == ("X",))
    if artifact.prepare is not None:
        assert artifact.prepare.arguments == ("W", "W_transformed")
        built = replace(build(artifact), constants=(Constant(1),))
        assert type(built).from_dict(built.to_dict()).prepare == artifact.prepare


def test_constants_cost_no_call_their_transform():
    e = ops.conv2d(8, 512, 7, 7, 512, 3, 3, padding=1)
    free, fixed = (
        next(c for c in roller.construct(e, "v100", options=o) if c.program.structure == "winograd4")
        for o in (ConstructOptions(), ConstructOptions(constants=("W",)))
    )
    assert fixed.estimate.terms["transform_s"] < 0.5 * free.estimate.terms["transform_s"]


def test_a_program_says_what_its_product_is():
    e = ops.conv2d(2, 17, 9, 7, 33, 3, 3, padding=1)
    program = winograd(e, 4, {FILTER: 4, TILE: 2}, {FILTER: 32, TILE: 16, CHANNEL: 8})
    assert program.tile("register") == {"n": 1, "f": 4, "ho": 4, "wo": 8, "c": 1, "kh": 3, "kw": 3}
    assert program.block_tile == {"n": 1, "f": 32, "ho": 4, "wo": 64, "c": 8, "kh": 3, "kw": 3}
    inner = tiled_product_of_program(program)
    assert inner.block_tile == {"e": 1, "f": 32, "t": 16, "c": 8}
    assert inner.threads_per_block == program.threads_per_block == 64
    assert RProgram.from_dict(program.to_dict()) == program
    assert tiled_product_of_program(inner) is None
    assert tiled_product_of_program(replace(program, kind="cpu")) is None


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize(("channels", "limit"), [(16, 0.25), (64, 0.15)])
@pytest.mark.parametrize("positive", [False, True])
def test_error_stays_well_inside_the_bound(m, channels, limit, positive):
    e = ops.conv2d(1, channels, 12, 12, 16, 3, 3, padding=1)
    rng = np.random.default_rng(5)
    draw = (lambda s: rng.uniform(0, 1, s)) if positive else rng.standard_normal
    arrays = [draw(t.shape).astype(np.float32) for t in e.inputs]
    outputs = emulate(lower(winograd(e, m), e, "sm_70", "v100"), arrays)
    result = check(e, arrays, outputs)
    assert result.ok
    assert result.max_ratio < limit


def test_an_infinity_stays_in_its_tile():
    e = ops.conv2d(1, 16, 12, 12, 16, 3, 3, padding=1)
    x, w = random_inputs(e, 1)
    x[0, 3, 5, 5] = np.inf
    (y,) = emulate(lower(winograd(e, 4), e, "sm_70", "v100"), [x, w])
    assert not np.isfinite(y[:, :, 4:8, 4:8]).any()
    assert np.isfinite(y[:, :, :4, :4]).all()
    assert np.isfinite(y[:, :, 8:, 8:]).all()


def test_a_program_that_does_not_fit_says_so():
    strided = fuse_axes(ops.conv2d(1, 16, 9, 9, 16, 3, 3, stride=2))
    ones = (1,) * len(strided.axes)
    program = RProgram(strided, "gpu", "winograd4", (("register", ones), ("shared", ones)))
    with pytest.raises(BuildError, match="3x3 window"):
        lower(program, strided, "sm_70", "v100")
    large = fuse_axes(ops.conv2d(1024, 64, 256, 256, 64, 3, 3, padding=1))
    program = replace(winograd(large, 4), expr=large)
    with pytest.raises(BuildError, match="fewer than 2\\*\\*31 elements"):
        lower(program, large, "sm_70", "v100")


CONV = ops.conv2d(32, 64, 28, 28, 64, 3, 3, padding=1)


@pytest.mark.parametrize("device", ["v100", "a100", "h200", "mi250x"])
def test_pool_offers_them_where_they_win(device):
    spec = roller.load_spec(device)
    found = roller.construct(CONV, device)
    assert found[0].program.structure == "winograd4"
    plain = roller.construct(CONV, device, options=ConstructOptions(top_k=1, winograd=False))[0].estimate.seconds
    near = {"tiled"} if plain <= 2 * found[0].estimate.seconds else set()
    assert {c.program.structure for c in found} == {"winograd4", "winograd2"} | near
    sides = {s: t.output_side for s, t in STRUCTURES.items() if t.output_side}
    fewest = {s: (m + 2) ** 2 / (9 * m * m) * CONV.flops / (2 * spec.ops_per_s("fma")) for s, m in sides.items()}
    for c in found:
        assert c.program.relaxed == broken_rules(c.program, spec)
        if c.program.traits.output_side:
            assert c.estimate.seconds >= fewest[c.program.structure] + c.estimate.terms["transform_s"] / 2
            assert c.estimate.terms["launch_s"] >= 3 * spec.execution.launch_s


def test_option_turns_them_off():
    found = roller.construct(CONV, "v100", options=ConstructOptions(winograd=False))
    assert {c.program.structure for c in found} == {"tiled"}


@pytest.mark.parametrize(
    "expr",
    [
        ops.conv2d(32, 8, 28, 28, 64, 3, 3, padding=1),  # too few channels for the stated error
        ops.conv2d(32, 64, 28, 28, 64, 3, 3, stride=2),
        ops.conv2d(32, 64, 28, 28, 64, 5, 5),
        ops.conv2d(32, 64, 28, 28, 64, 3, 3, dilation=2),
        ops.conv2d(32, 64, 28, 28, 64, 3, 3, dtype="float64"),
        replace(CONV, allow_padding=False),
        ops.conv2d(1024, 64, 256, 256, 64, 3, 3, padding=1),  # offsets beyond 32 bits
    ],
    ids=["channels", "stride", "window", "dilation", "float64", "no-padding", "too-large"],
)
def test_others_are_not_offered(expr):
    found = roller.construct(expr, "v100", options=ConstructOptions(top_k=20))
    assert not [c for c in found if c.program.traits.output_side]


def test_direct_sums_stay_where_transforms_do_not_pay():
    few_filters = ops.conv2d(32, 64, 28, 28, 4, 3, 3, padding=1)
    assert roller.construct(few_filters, "v100", top_k=1)[0].program.structure == "tiled"


def test_workspaces_that_stay_in_l2_cost_no_dram():
    small, large = ops.conv2d(1, 64, 14, 14, 64, 3, 3, padding=1), CONV

    def moved(e):
        found = roller.construct(e, "a100", options=ConstructOptions(top_k=10))
        best = next(c for c in found if c.program.structure == "winograd4").estimate.terms
        return best["dram_bytes"], best["workspace_bytes"]

    assert moved(small)[0] == sum(t.nbytes for t in (*small.inputs, *small.output_tensors))
    assert moved(large)[0] > moved(large)[1]


def test_neighbours_are_tilings_of_the_same_product():
    best = roller.construct(CONV, "v100", top_k=1)[0].program
    found = neighbour_programs(best, CONV, roller.load_spec("v100"), ConstructOptions())
    assert len(found) > 5
    assert {c.program.structure for c in found} == {"winograd4"}
    assert {tiled_product_of_program(c.program).block_tile[ELEMENT] for c in found} == {1}


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_90"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_best_programs_build_without_spills(arch, layout):
    device = {"sm_70": "v100", "sm_80": "a100", "sm_90": "h200"}[arch]
    e = ops.conv2d(32, 64, 28, 28, 64, 3, 3, padding=1, layout=layout, epilogue=("bias", "relu"))
    found = roller.construct(e, device, top_k=100)
    for structure in (name for name, traits in STRUCTURES.items() if traits.output_side):
        best = next(c for c in found if c.program.structure == structure)
        built = build(lower(best.program, e, arch, device))
        assert built.build["spill_bytes"] == 0
