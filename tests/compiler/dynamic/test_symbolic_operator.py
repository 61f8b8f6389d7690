"""Operators with several sizes that vary: right at every size, in bounds, few kernels, none compiled for a new size."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from tvm import te

import roller
from roller.backends.cpu.launcher import CpuKernel
from roller.compile_arguments import parse_expression, spec_and_local_device
from roller.compiler.dynamic import compile_cpu_extents
from roller.compiler.dynamic.dynamic_axes import parse_dynamic_axes
from roller.compiler.dynamic.symbolic_call import SymbolicRange
from roller.errors import LaunchError, NoCandidateError, RollerError
from roller.templates.common.options import ConstructOptions
from roller.tile.split_axis_into_tasks import TiledAxis
from tests.fuzz.arrays import Guarded, guarded_copy

OPS = roller.ops


def arrays_of(expr, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0 if t.dtype == "uint8" else -8, 9, t.shape).astype(t.dtype) for t in expr.inputs]


def right_in_bounds(kernel, expr, seed, exact=True):
    """Run a call between protected pages, inputs read-only, and hold it against float64."""
    given = arrays_of(expr, seed)
    held = [guarded_copy(a, str(a.dtype), seed % 2 == 0) for a in given]
    for guard in held:
        guard.protect()
    (meant,) = expr.evaluate(given)
    dtype = expr.output_tensors[0].dtype
    out = Guarded(meant.shape, dtype, seed % 2 == 1)
    kernel(*(g.array for g in held), out=out.array)
    if exact:
        np.testing.assert_array_equal(out.array, meant.astype(dtype), str(expr))
    else:
        np.testing.assert_allclose(out.array, meant, rtol=1e-4, atol=1e-2 * np.abs(meant).max(), err_msg=str(expr))


def sums_exactly(kernel):
    """Whether small whole numbers make the result exact: not by Winograd's algorithm, nor of exponentials."""
    p = kernel.program.program
    return p.traits.output_side == 0 and not p.traits.spreads_reductions and len(p.expr.stages) < 3


def every_kernel_right(kernel, sizes, seed):
    """Run every kernel that takes some sizes, those that are not chosen there, too, where proof was given."""
    from roller.compiler.dynamic.prove_kernel_for_call_sizes import fault

    expr = kernel.expression.at(sizes)
    for k in kernel.kernels:
        if k.takes(sizes) and not fault(k, expr, sizes, kernel.spec.units):
            loaded = CpuKernel(k.artifact).reshaped(k.at(sizes, expr))
            right_in_bounds(loaded, expr, seed, exact=sums_exactly(k))


def compiled(expr, **shapes):
    """Compile by predictions, from few programs: what is right does not depend on how many there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_cpu_extents, "EFFORT", replace(compile_cpu_extents.EFFORT, cover=3, built=3, enough=3))
        spec = spec_and_local_device("cpu")[0].emitted.sustained
        return compile_cpu_extents.compile_extents(
            parse_dynamic_axes(expr, shapes), spec, ConstructOptions(), timed=False
        )


@pytest.fixture(scope="module")
def strided():
    """Windows over an image of any height and width, by predictions."""
    return compiled(image(8, 8), ho=(2, 12), wo=(2, 12))


def image(ho, wo):
    return OPS.pool2d("max", 1, 4, 2 * ho - 1, 2 * wo - 1, 3, 3, stride=2, padding=1)


def test_every_image_is_right_and_in_bounds(strided):
    assert isinstance(strided, SymbolicRange) and len(strided.kernels) <= 8
    draw = random.Random(0)
    for n in range(24):
        sizes = {"ho": draw.randint(2, 12), "wo": draw.randint(2, 12)}
        right_in_bounds(strided, image(**sizes), n)
    assert strided.expression.at({"ho": 7, "wo": 9}) == image(7, 9)


def test_nothing_is_compiled_for_new_sizes_and_they_stay_ready(monkeypatch, strided):
    monkeypatch.setattr("roller.templates.cpu.emit.build_library.build_library", None)
    given = arrays_of(image(5, 6))
    one = strided(*given)
    kernel = strided._ready[given[0].shape]
    np.testing.assert_array_equal(strided(*given), one)
    assert strided._ready[given[0].shape] is kernel
    np.testing.assert_array_equal(strided.at(5, 6)(*given), one)
    np.testing.assert_array_equal(strided.at(wo=6, ho=5)(*given), one)


def test_winograd_products_take_any_image_and_batch():
    made = compiled(OPS.conv2d(1, 16, 12, 12, 16, 3, 3, padding=1), ho=(8, 40), wo=(8, 40))
    assert any(k.program.program.traits.output_side for k in made.kernels)
    draw = random.Random(1)
    for n in range(4):
        sizes = {"ho": draw.randint(8, 40), "wo": draw.randint(8, 40)}
        every_kernel_right(made, sizes, n)


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (OPS.conv2d(1, 16, 12, 12, 16, 3, 3, padding=1, epilogue=("bias", "add")), {"ho": (1, 50), "wo": (1, 50)}),
        (OPS.conv2d(1, 32, 17, 17, 16, 3, 3, padding=1), {"n": (1, 9)}),
        (OPS.conv2d(1, 5, 12, 12, 7, 3, 3), {"ho": (1, 40), "wo": (1, 40)}),
        (OPS.conv2d(1, 4, 15, 15, 6, 3, 3, stride=2, padding=1, epilogue=("bias", "relu")),
         {"ho": (2, 40), "wo": (2, 40)}),
        pytest.param(OPS.conv2d(1, 8, 20, 20, 8, 3, 3, padding=2, dilation=2), {"ho": (3, 40), "wo": (3, 40)},
                     marks=pytest.mark.exhaustive),
        pytest.param(OPS.conv2d(1, 16, 20, 20, 24, 1, 1), {"ho": (1, 40), "wo": (1, 40)}, marks=pytest.mark.exhaustive),
        pytest.param(OPS.depthwise_conv2d(1, 16, 14, 14, 3, 3, padding=1, stride=2), {"ho": (1, 40), "wo": (1, 40)},
                     marks=pytest.mark.exhaustive),
        pytest.param(OPS.pool2d("max", 1, 16, 15, 15, 3, 3, padding=1, stride=2), {"ho": (1, 40), "wo": (1, 40)},
                     marks=pytest.mark.exhaustive),
        (OPS.matmul(64, 48, 33, epilogue=("bias",)), {"i": (1, 200), "j": (1, 200)}),
        pytest.param(OPS.matmul(8, 48, 33), {"j": (1, 300), "k": (1, 100)}, marks=pytest.mark.exhaustive),
        (OPS.softmax((8, 48)), {"d0": (1, 64)}),
        (OPS.conv2d(1, 16, 9, 7, 32, 3, 3, padding=1), {"c": (3, 23)}),
        (OPS.conv2d(1, 16, 9, 7, 32, 3, 3, padding=1), {"f": (2, 40)}),
        (OPS.matmul(9, 24, 5, dtype="uint8", acc_dtype="int32", epilogue=("bias",)), {"i": (3, 63), "j": (3, 23)}),
    ],
    ids=["winograd", "batch", "direct", "strided", "dilated", "pointwise", "depthwise", "pool", "product", "sum",
         "softmax", "channels", "filters", "bytes"],
)  # fmt: skip
def test_hundreds_of_sizes(make, shapes):
    made = compiled(make, **shapes)
    draw = random.Random(2)
    for n in range(20):
        sizes = {a: draw.choice((low, draw.randint(low, high), high)) for a, (low, high) in shapes.items()}
        if n % 4 == 0:
            every_kernel_right(made, sizes, n)
        exact = sums_exactly(made.priced[made._proven_kernel_at(sizes)].kernel)
        right_in_bounds(made, made.expression.at(sizes), n, exact=exact)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "window"), [("max", (3, 3, 1, 1)), ("avg", (2, 2, 2, 0))])
def test_batches_of_pooling_vary_alone(kind, window):
    made = roller.compile(OPS.pool2d(kind, 9, 4, 12, 13, *window), shapes={"n": (1, 9)}, deterministic=True)
    for n in (1, 4, 9):
        x = np.random.default_rng(n).random((n, 4, 12, 13), np.float32)
        (expected,) = OPS.pool2d(kind, n, 4, 12, 13, *window).evaluate([x])
        np.testing.assert_allclose(made(x), expected, rtol=1e-5)


def test_a_size_that_two_axes_share_varies():
    from tvm import te

    a, k = te.placeholder((5, 20), name="A"), te.reduce_axis((0, 20), name="k")
    gram = te.compute((5, 5), lambda i, j: te.sum(a[i, k] * a[j, k], axis=k), name="C")
    made = compiled(parse_expression([a, gram]), i=(2, 20))
    for n in (2, 7, 16, 20):
        (given,) = arrays_of(made.expression.at({"i": n}))
        np.testing.assert_array_equal(made(given), given @ given.T)


def test_a_sum_over_a_size_that_varies():
    made = compiled(OPS.matmul(9, 16, 24), k=(2, 50))
    for n in (2, 3, 8, 31, 50):
        right_in_bounds(made, OPS.matmul(9, 16, n), n)


def test_what_a_call_may_not_have_is_said(strided):
    expr = image(5, 5)
    (x,) = arrays_of(expr)
    with pytest.raises(LaunchError, match=r"of 'X' from 3 to 23 in steps of 2 \('ho' from 2 to 12\), got 25"):
        strided(np.ones((1, 4, 25, 9), "float32"))
    with pytest.raises(LaunchError, match="in steps of 2"):
        strided(np.ones((1, 4, 8, 9), "float32"))
    with pytest.raises(LaunchError, match="expected 1 array"):
        strided(x, x)
    with pytest.raises(LaunchError, match=r"each of \['ho', 'wo'\], got at\(5\). Use at\(ho=2, wo=2\)"):
        strided.at(5)
    with pytest.raises(LaunchError, match=r"got at\(5, 6, ho=7\)"):
        strided.at(5, 6, ho=7)
    with pytest.raises(LaunchError, match="'wo' from 2 to 12, got 13"):
        strided.at(5, 13)
    assert strided.ranges == {"ho": (2, 12), "wo": (2, 12)}


def test_pieces_and_text(strided):
    assert sum(len(p.sizes) for p in strided.pieces) == len(strided.priced[0].places)
    assert all(p.regret >= -1e-9 for p in strided.pieces)
    assert "ho from 2 to 12, wo from 2 to 12" in repr(strided)


@pytest.mark.parametrize(
    ("expr", "shapes", "match"),
    [
        (OPS.layer_norm((4, 8)), {"d1": (2, 8)}, "a constant of stage"),
        (OPS.conv2d(1, 4, 9, 9, 4, 3, 3), {"h": (2, 5)}, "an axis that can vary, got 'h'"),
        (OPS.conv2d(1, 4, 9, 9, 4, 3, 3), {"ho": (4, 4)}, "several extents"),
        (OPS.conv2d(1, 4, 9, 9, 4, 3, 3), {"ho": (4, 3)}, "range of extents"),
    ],
)  # fmt: skip
def test_ambiguous_axes_are_refused(expr, shapes, match):
    with pytest.raises(RollerError, match=match):
        parse_dynamic_axes(expr, shapes)


def test_a_constant_does_not_vary():
    with pytest.raises(RollerError, match="to move no constant, it moves 'B'"):
        parse_dynamic_axes(OPS.matmul(8, 8, 8), {"j": (2, 9)}, constants=(1,))


def test_the_last_task_of_an_open_axis_has_fewer_units():
    axis = TiledAxis.of("y", 9, 2, 4, is_open=True)
    assert (axis.box, axis.groups, axis.boxes) == (4, 2, 3)
    assert axis.passed == pytest.approx(5 / 6)
    assert TiledAxis.of("y", 9, 2, 4).passed == 1.0


def test_a_shape_that_reads_like_other_sizes_is_no_known_size():
    """Three rows of twelve are not three rows and twelve columns, which an earlier call had."""
    make = OPS.matmul(8, 8, 12)
    kernel = compiled(make, i=(1, 16), j=(1, 16))
    for rows, columns in ((3, 12), (3, 5), (12, 3)):
        a, b = np.ones((rows, 12), "float32"), np.ones((12, columns), "float32")
        np.testing.assert_array_equal(kernel(a, b), np.full((rows, columns), 12, "float32"))


def test_an_expression_whose_main_stage_depends_on_sizes_is_refused_in_plain_words():
    """Of two products in a row the first does most of the work for few columns, the second for many."""
    a, w, v = (te.placeholder(s, name=n) for n, s in (("A", (6, 14)), ("W", (14, 9)), ("V", (9, 5))))
    k, q = te.reduce_axis((0, 14), name="k"), te.reduce_axis((0, 9), name="q")
    h = te.compute((6, 9), lambda i, j: te.sum(a[i, k] * w[k, j], axis=k), name="H")
    g = te.compute((6, 9), lambda i, j: te.tanh(h[i, j]), name="G")
    d = te.compute((6, 5), lambda i, m: te.sum(g[i, q] * v[q, m], axis=q), name="D")
    with pytest.raises(NoCandidateError, match=r"expected kernels for all sizes, got none for \[\{'m': 1\}"):
        roller.compile([a, w, v, d], "cpu", shapes={"m": (1, 20)}, deterministic=True)
