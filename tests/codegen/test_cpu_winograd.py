"""Winograd programs on the CPU: awkward extents, paddings, layouts, epilogues, constants, accuracy; who is offered."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import roller
from roller import ConstructOptions, ops
from roller.backends.cpu import CpuKernel
from roller.errors import BuildError
from roller.expr.canonical import fuse_axes
from roller.expr.join_split_channel_axes import join_channel_digits
from roller.models.graph.blocked_channel_rewrite import BlockedLayout, rewrite_to_blocked
from roller.runtime.check import check
from roller.runtime.random_inputs import random_inputs
from roller.te.compat import tirx, tvm_ffi
from roller.templates.cpu.emit.lower_cpu_program import lower
from roller.templates.emit.winograd_transform_products import multiply_by_inverse_transform, multiply_by_transform
from roller.tile.structures import STRUCTURES
from roller.tile.winograd import count_vector_operations, window_product, winograd_matrices
from roller_runtime.plan.program_steps import KernelSource
from tests.codegen.cpu_programs import assert_right, canonical, host_mcpu, kernel, program


def winograd(expression, m, register=None, task=None, lanes=16):
    """Return a program whose register and task tiles are given in output tiles (rows, columns) and units (others)."""
    unit = {"ho": m, "wo": m}
    grown = ({a: n * unit.get(a, 1) for a, n in (t or {}).items()} for t in (register, task))
    tile, box = grown
    tile = {"ho": m, "wo": m, "f": lanes, **tile}
    return program(canonical(expression), f"winograd{m}", tile, {**tile, **box}, "f", lanes, staged=("W",))


SHAPES = [
    (1, 16, 8, 8, 16, 1),  # whole tiles
    (3, 17, 9, 7, 33, 1),  # nothing divides
    (2, 16, 4, 4, 16, 0),  # less than one tile of outputs
    (1, 20, 3, 21, 40, (1, 1, 0, 0)),  # a single row of outputs
    (1, 18, 19, 3, 5, (0, 0, 1, 1)),  # a single column, fewer filters than lanes
    (2, 3, 11, 10, 24, (0, 2, 1, 0)),  # asymmetric padding, few channels
    (1, 32, 6, 6, 16, 2),  # more padding than the window needs
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("m", "layout"), [(4, "NCHW"), (4, "NHWC"), (2, "NCHW")])
def test_shapes_paddings_and_layouts(shape, m, layout):
    n, c, h, w, f, padding = shape
    e = ops.conv2d(n, c, h, w, f, 3, 3, padding=padding, layout=layout)
    assert_right(e, winograd(e, m, {"ho": 2, "wo": 2}, {"wo": 4}))


@pytest.mark.parametrize(
    ("m", "register", "task"),
    [
        (4, {}, {}),
        (4, {"f": 48, "wo": 3}, {"f": 96, "ho": 2}),
        (4, {"f": 32, "ho": 2, "wo": 2}, {"n": 2, "wo": 6}),
        (2, {"n": 2, "ho": 3, "wo": 2}, {"n": 4, "f": 64}),
    ],
)
def test_every_tiling_gives_the_same_sums(m, register, task):
    e = ops.conv2d(3, 16, 13, 18, 56, 3, 3, padding=1, epilogue=("bias", "relu"))
    assert_right(e, winograd(e, m, register, task))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_epilogues(layout):
    e = ops.conv2d(2, 16, 10, 9, 20, 3, 3, padding=1, layout=layout, epilogue=("bias", "add", "relu"))
    assert_right(e, winograd(e, 4, {"wo": 2}, {"ho": 2}, 8))


def test_one_core_and_narrow_vectors():
    e = ops.conv2d(2, 16, 10, 9, 20, 3, 3, padding=1)
    assert_right(e, winograd(e, 4, {"wo": 2}, {}, 4), cores=1)


def test_a_program_of_one_task_wakes_nobody():
    e = ops.conv2d(1, 16, 8, 8, 16, 3, 3, padding=1)
    one, several = winograd(e, 4, {"wo": 2}, {"ho": 2}), winograd(e, 4, {"wo": 2}, {})
    parallel = [lower(p, e, host_mcpu(), 2, "test", 64).target["parallel"] for p in (one, several)]
    assert parallel == [False, True]
    assert_right(e, one)


@pytest.mark.parametrize("constants", [("W",), ("X",)])
def test_constant_filters_are_transformed_before_the_first_call(constants):
    e = ops.conv2d(1, 24, 9, 12, 20, 3, 3, padding=1, epilogue=("bias",))
    prog = replace(winograd(e, 4, {"wo": 2}, {}), constants=constants)
    artifact = lower(prog, e, host_mcpu(), 2, "test", 64)
    arrays = random_inputs(e, 3)
    held = tuple(replace(c, values=arrays[c.position].tobytes()) for c in artifact.constants)
    fixed = {c.position for c in held}
    y = CpuKernel(replace(artifact, constants=held))(*(a for n, a in enumerate(arrays) if n not in fixed))
    assert check(e, arrays, y).ok
    ahead = "W_transformed" in artifact.launches[0].arguments
    assert ahead == ("W" in constants)
    assert ahead == ("W" not in artifact.launches[0].arguments)


def test_structure_is_found_by_access_maps():
    fits = [
        ops.conv2d(2, 16, 9, 9, 8, 3, 3),
        ops.conv2d(2, 16, 9, 9, 8, 3, 3, padding=(1, 0, 2, 1), layout="NHWC"),
        ops.conv2d(2, 16, 9, 9, 8, 3, 3, padding=1, epilogue=("bias", "relu")),
    ]
    for e in fits:
        found = window_product(fuse_axes(e))
        assert (found.channel, found.filter, [s[:2] for s in found.slides]) == ("c", "f", [("ho", "kh"), ("wo", "kw")])


@pytest.mark.parametrize(
    "expr",
    [
        ops.conv2d(1, 16, 9, 9, 8, 3, 3, stride=2),
        ops.conv2d(1, 16, 9, 9, 8, 3, 3, stride=(1, 2)),
        ops.conv2d(1, 16, 9, 9, 8, 3, 3, dilation=2),
        ops.conv2d(1, 16, 9, 9, 8, 5, 5),
        ops.conv2d(1, 16, 9, 9, 8, 3, 1),
        ops.conv2d(1, 16, 9, 9, 8, 1, 1),
        ops.conv2d(1, 16, 9, 9, 8, 3, 3, groups=2),
        ops.conv2d(1, 16, 9, 9, 8, 3, 3, dtype="float16", acc_dtype="float16"),
        ops.conv2d(1, 16, 9, 9, 8, 3, 3, dtype="float64"),
        ops.depthwise_conv2d(1, 16, 9, 9, 3, 3),
        ops.matmul(9, 9, 9),
        ops.softmax((4, 9)),
    ],
    ids=str,
)
def test_other_structures_are_refused(expr):
    assert window_product(fuse_axes(expr)) is None
    offered = roller.construct(expr, "cpu-avx512", options=ConstructOptions(top_k=50))
    assert not [c for c in offered if c.program.traits.output_side]


def test_a_program_that_does_not_fit_says_so():
    e = ops.conv2d(1, 16, 9, 9, 16, 3, 3, stride=2)
    with pytest.raises(BuildError, match="3x3 window"):
        kernel(e, program(canonical(e), "winograd4", {"f": 16}, {}, "f"))


@pytest.mark.parametrize("m", [2, 4])
def test_matrices_are_exact(m):
    a, g, b = (np.array(x) for x in winograd_matrices(m))
    rng = np.random.default_rng(m)
    d, w = rng.standard_normal((m + 2, m + 2)), rng.standard_normal((3, 3))
    y = a @ ((g @ w @ g.T) * (b @ d @ b.T)) @ a.T
    direct = [[np.sum(d[i : i + 3, j : j + 3] * w) for j in range(m)] for i in range(m)]
    np.testing.assert_allclose(y, direct, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize(("channels", "limit"), [(16, 0.25), (128, 0.15)])
@pytest.mark.parametrize("positive", [False, True])
def test_error_stays_well_inside_the_bound(m, channels, limit, positive):
    e = ops.conv2d(1, channels, 16, 16, 32, 3, 3, padding=1)
    rng = np.random.default_rng(5)
    draw = (lambda s: rng.uniform(0, 1, s)) if positive else rng.standard_normal
    arrays = [draw(t.shape).astype(np.float32) for t in e.inputs]
    result = check(e, arrays, kernel(e, winograd(e, m, {"wo": 4}))(*arrays))
    assert result.ok
    assert result.max_ratio < limit


def test_an_infinity_stays_in_its_tile():
    e = ops.conv2d(1, 16, 12, 12, 16, 3, 3, padding=1)
    x, w = random_inputs(e, 1)
    x[0, 3, 5, 5] = np.inf
    y = kernel(e, winograd(e, 4, {"wo": 3}))(x, w)
    assert not np.isfinite(y[:, :, 4:8, 4:8]).any()
    assert np.isfinite(y[:, :, :4, :4]).all()
    assert np.isfinite(y[:, :, 8:, 8:]).all()


@pytest.mark.parametrize("device", ["cpu-avx512", "cpu-avx2", "cpu-neon"])
def test_pool_offers_them_with_finite_prices(device):
    e = ops.conv2d(8, 128, 28, 28, 128, 3, 3, padding=1)
    found = roller.construct(e, device, options=ConstructOptions(top_k=20))
    mine = [c for c in found if c.program.traits.output_side]
    assert mine
    assert all(np.isfinite(c.estimate.seconds) and c.estimate.seconds > 0 for c in mine)
    spec = roller.load_spec(device)
    sides = {s: t.output_side for s, t in STRUCTURES.items() if t.output_side}
    fewest = {s: (m + 2) ** 2 / (9 * m * m) * e.flops / (2 * spec.ops_per_s("fma")) for s, m in sides.items()}
    assert all(c.estimate.seconds >= fewest[c.program.structure] for c in mine)
    assert found[0].program.structure == "winograd4"


def test_option_turns_them_off():
    e = ops.conv2d(8, 128, 28, 28, 128, 3, 3, padding=1)
    found = roller.construct(e, "cpu-avx512", options=ConstructOptions(top_k=50, winograd=False))
    assert {c.program.structure for c in found} == {"tiled"}
    with pytest.raises(roller.errors.RollerError, match="winograd"):
        ConstructOptions(winograd="no")


def test_the_model_keeps_to_direct_sums_where_transforms_do_not_pay():
    few_filters = ops.conv2d(1, 512, 7, 7, 8, 3, 3, padding=1)
    few_channels = ops.conv2d(8, 3, 56, 56, 64, 3, 3, padding=1)
    for e in (few_filters, few_channels):
        assert roller.construct(e, "cpu-avx512", top_k=1)[0].program.structure == "tiled"


def test_constants_cost_no_call_their_transform():
    e = ops.conv2d(1, 256, 14, 14, 256, 3, 3, padding=1)
    free, fixed = (
        next(c for c in roller.construct(e, "cpu-avx512", options=o) if c.program.traits.output_side)
        for o in (ConstructOptions(top_k=60), ConstructOptions(top_k=60, constants=("W",)))
    )
    assert free.estimate.terms["pack_s"] > 0 == fixed.estimate.terms["pack_s"]
    assert fixed.estimate.seconds < free.estimate.seconds


def test_operations_are_those_the_template_prints():
    for m, where in itertools.product((2, 4), range(3)):
        matrix = winograd_matrices(m)[where]
        values = [tirx.Var(f"x{j}", "float32") for j in range(len(matrix[0]))]
        printed: dict[str, set[str]] = {"Add": set(), "Sub": set(), "Mul": set()}

        def count(node, printed=printed):
            printed.get(type(node).__name__, set()).add(str(node))

        for out in (multiply_by_inverse_transform if where == 0 else multiply_by_transform)(matrix, values):
            tvm_ffi.structural_walk(out, count)
        sums = len(printed["Add"]) + len(printed["Sub"])
        assert sums <= count_vector_operations(matrix) <= sums + len(printed["Mul"])


def blocked(n, c, h, w, f, padding=1, epilogue=(), image=True, result=True, block=16):
    """Return a convolution whose channels lie in blocks, and whose axes hold them whole."""
    e = ops.conv2d(n, c, h, w, f, 3, 3, padding=padding, epilogue=epilogue)
    shapes = {"X": (n, c, h, w), **{t.name: t.shape for t in (*e.inputs, *e.output_tensors) if t.shape[1:2] == (f,)}}
    named = {name: BlockedLayout.of(s, block) for name, s in shapes.items() if len(s) == 4 and name != "W"}
    kept = {name: layout for name, layout in named.items() if (image if name == "X" else result)}
    made = rewrite_to_blocked(KernelSource(e, ("W",)), kept).source.expression
    return made, join_channel_digits(canonical(made))


@pytest.mark.parametrize(
    ("shape", "ends"),
    [
        ((2, 32, 9, 10, 48), {}),
        ((1, 48, 8, 8, 32), {"result": False}),  # read in blocks, stored plain
        ((1, 20, 7, 9, 32), {"image": False}),  # channels that fill no block
        ((2, 16, 6, 11, 16), {"padding": (0, 2, 1, 0)}),  # one block each: nothing is cut
        ((1, 32, 9, 9, 48), {"epilogue": ("bias", "add", "relu")}),
    ],
)
def test_channels_in_blocks(shape, ends):
    e, form = blocked(*shape, **ends)
    form = form or canonical(e)
    found = window_product(form)
    tile = {found.slides[0][0]: 4, found.slides[1][0]: 8, found.filter: min(32, shape[-1])}
    assert_right(e, program(form, "winograd4", tile, {**tile, found.slides[0][0]: 8}, found.filter, 16, staged=("W",)))


def test_blocked_convolutions_are_offered_winograd_where_vectors_lie_in_a_block():
    def structures(block):
        e, _ = blocked(1, 64, 28, 28, 64, block=block)
        options = ConstructOptions(top_k=4, constants=(e.inputs[1].name,))
        return [c.program.structure for c in roller.construct(e, "cpu-avx512", options=options)]

    assert structures(16)[0] == "winograd4" and not any(STRUCTURES[s].output_side for s in structures(8))
