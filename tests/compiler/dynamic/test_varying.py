"""Kernels for a size that varies: right at every extent, in bounds, few, and none compiled for a new one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import roller
from roller.backends.cpu.launcher import CpuKernel
from roller.compiler.dynamic.compile import _KernelTimes, _seconds_at_all_extents
from roller.compiler.dynamic.dynamic_range import parse_open_range
from roller.compiler.dynamic.kernel import VaryingKernel
from roller.compiler.dynamic.program_families import (
    ProgramFamily,
    choose_covering_rows,
    families,
    price_families_at_extents,
    sample_extents,
    templates_allow_families,
)
from roller.errors import LaunchError, RollerError
from roller.expr.sizes_growable_by_padding import growing_sizes
from roller.templates.common.options import ConstructOptions
from tests.fuzz.arrays import Guarded, guarded_copy
from tests.offenders import every

SPEC = roller.load_spec("cpu-avx2")


def arrays_of(expr, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(-8, 9, t.shape).astype(t.dtype) for t in expr.inputs]


def compiled(expr, **shapes):
    return roller.compile(expr, shapes=shapes, deterministic=True)


@pytest.fixture(scope="module")
def product():
    """A product with 2 to 64 rows, by its predictions."""
    return compiled(roller.ops.matmul(64, 32, 16), i=(2, 64))


@pytest.mark.parametrize(
    ("make", "axis", "high"),
    [
        (lambda n: roller.ops.matmul(n, 40, 24, epilogue=("bias", "relu")), "i", 70),
        (lambda n: roller.ops.matmul(n, 33, 17, transpose_b=True), "i", 37),
        (lambda n: roller.ops.conv2d(n, 4, 9, 9, 6, 3, 3, stride=2, epilogue=("bias", "add")), "n", 5),
    ],
    ids=["epilogue", "transposed", "batch"],
)
def test_every_extent_is_right_and_in_bounds(make, axis, high):
    kernel = compiled(make(high), **{axis: (1, high)})
    assert isinstance(kernel, VaryingKernel) and len(kernel.variants) <= 8
    everyone = [CpuKernel(v.artifact) for v in kernel.variants]
    for extent in range(1, high + 1):
        expr = make(extent)
        given = arrays_of(expr, extent)
        held = [guarded_copy(a, str(a.dtype), extent % 2 == 0) for a in given]
        for guard in held:
            guard.protect()
        (meant,) = expr.evaluate(given)
        np.testing.assert_array_equal(kernel(*(g.array for g in held)), meant.astype("float32"), str(extent))
        for variant, loaded in zip(kernel.variants, everyone, strict=True):  # those the table does not choose here, too
            if variant.family.rows <= extent:
                out = Guarded(meant.shape, "float32", extent % 2 == 1)
                loaded.reshaped(variant.at(kernel.varies, extent))(*(g.array for g in held), out=out.array)
                np.testing.assert_array_equal(out.array, meant.astype("float32"))


def test_nothing_is_compiled_for_a_new_extent(monkeypatch, product):
    kernel = product
    monkeypatch.setattr("roller.templates.cpu.emit.build_library.build_library", None)
    a, b = np.ones((9, 16), "float32"), np.ones((16, 32), "float32")
    out = np.empty((9, 32), "float32")
    assert kernel(a, b, out=out) is out and (out == 16).all()
    first = kernel._ready[9]
    kernel(a, b)
    assert kernel._ready[9] is first


def test_few_extents_are_kept_ready(monkeypatch, product):
    monkeypatch.setattr("roller.compiler.dynamic.kernel._MOST_READY", 3)
    p = product
    kernel, b = VaryingKernel(p.varies, p.variants, p._table, p._regrets, p.spec), np.ones((16, 32), "float32")
    for rows in (*range(2, 12), 2):
        assert (kernel(np.ones((rows, 16), "float32"), b) == 16).all()
    assert list(kernel._ready) == [10, 11, 2]


def test_constants_are_packed_once_for_all_extents():
    weights = np.arange(16 * 32, dtype="float32").reshape(16, 32) % 7
    kernel = roller.compile(
        roller.ops.matmul(64, 32, 16), shapes={"i": (1, 64)}, constants={"B": weights}, deterministic=True
    )
    for rows in (1, 5, 12, 64):
        a = np.ones((rows, 16), "float32") * rows
        np.testing.assert_array_equal(kernel(a), a @ weights)
    assert len({id(k.module) for k in kernel._ready.values()}) == len(kernel._loaded)


def test_the_kernel_of_an_extent_stands_alone(tmp_path, product):
    kernel = product
    one = kernel.at(17)
    assert one.artifact.expression == roller.ops.matmul(17, 32, 16) and one.estimate.seconds > 0
    loaded = roller.load(one.save(tmp_path / "kernel.json"))
    a, b = arrays_of(roller.ops.matmul(17, 32, 16))
    np.testing.assert_array_equal(loaded(a, b), one(a, b))


def test_what_a_call_may_not_have_is_said(product):
    kernel = product
    b = np.ones((16, 32), "float32")
    for rows in (1, 65, 0):
        with pytest.raises(LaunchError, match=f"an extent of 'i' from 2 to 64, got {rows}"):
            kernel(np.ones((rows, 16), "float32"), b)
    with pytest.raises(LaunchError, match=r"expected shape \(8, 16\), got \(8, 15\)"):
        kernel(np.ones((8, 15), "float32"), b)
    with pytest.raises(LaunchError, match="expected 2 arrays"):
        kernel()
    with pytest.raises(LaunchError, match="expected a NumPy or DLPack array, got list"):
        kernel([[1.0] * 16] * 8, b)
    with pytest.raises(LaunchError, match="an extent of 'i'"):
        kernel.at(1)
    for wrong in (7.0, "7", None, True):
        with pytest.raises(LaunchError, match=r"expected one whole number for each of \['i'\], got at\("):
            kernel.at(wrong)
    for values, named, said in (
        ((4, 2), {}, "4, 2"), ((), {"j": 3}, "j=3"), ((), {"i": 3, "j": 3}, "i=3, j=3"),
        ((5,), {"i": 7}, "5, i=7"), ((), {}, ""),
    ):  # fmt: skip
        with pytest.raises(LaunchError, match=rf"one whole number for each of .*, got at\({said}\)\. Use at\(i=2\)"):
            kernel.at(*values, **named)
    assert kernel.ranges == {"i": (2, 64)}
    assert kernel.at(i=7).artifact == kernel.at(7).artifact and len(kernel.kernels) <= 8


def test_an_array_without_a_shape_says_its_extent(product):
    class Given:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    assert product(Given(np.ones((5, 16), "float32")), np.ones((16, 32), "float32")).shape == (5, 32)


@every(
    ("shapes", "match"),
    [
        ({}, "expected axes"), (3, "expected axes"), ({"m": (1, 8)}, "an axis that can vary, got 'm'"),
        ({"i": (0, 8)}, "at least 1"), ({"i": (8, 4)}, "range of extents"), ({"i": range(0)}, "range of extents"),
        ({"i": range(1, 9, 2)}, "range of extents"), ({"i": (1.0, 8)}, "range of extents"), ({"i": 8}, "range of"),
        ({"i": (True, 8)}, "range of extents"), ({"i": (1, 1 << 30)}, "at most 1048576 extents"),
    ],
)  # fmt: skip
def test_wrong_ranges_say_so(shapes, match):
    with pytest.raises(RollerError, match=match):
        roller.compile(roller.ops.matmul(8, 8, 8), shapes=shapes)


@every("options", [{"prove": True}, {"prove_s": 5}, {"remeasure": True}, {"refine_s": 1.0}, {"top_k": 3}])
def test_what_a_range_does_not_have_is_said(options):
    with pytest.raises(
        RollerError, match=f"expected none of prove, .* beside ranges, got {next(iter(options))}. Leave it out"
    ):
        roller.compile(roller.ops.matmul(8, 8, 8), shapes={"i": (1, 8)}, **options)


def test_only_this_processor_and_gpus_take_ranges():
    with pytest.raises(RollerError, match="this machine's processor"):
        roller.compile(roller.ops.matmul(8, 8, 8), "ipu_mk2", shapes={"i": (1, 8)})
    with pytest.raises(RollerError, match="a pretended v100"):
        roller.compile(roller.ops.matmul(8, 8, 8), "null:v100", shapes={"i": (1, 8)})
    varies = parse_open_range(roller.ops.softmax((8, 8)), {"d0": (1, 8)})
    assert families(varies, SPEC, ConstructOptions())[0] == [], "templates of rows need the extent when they are chosen"
    assert not templates_allow_families(varies, SPEC, ConstructOptions())


def test_a_range_has_its_expression_at_every_extent():
    varies = parse_open_range(roller.ops.matmul(8, 16, 32, epilogue=("bias",)), {"i": range(1, 100)})
    assert (varies.low, varies.high, varies.place) == (1, 99, (0, 0))
    assert varies.at(7) == roller.ops.matmul(7, 16, 32, epilogue=("bias",))


def test_a_family_keeps_its_tiles():
    varies = parse_open_range(roller.ops.matmul(64, 64, 64), {"i": (1, 500)})
    found, best = families(varies, SPEC, ConstructOptions())
    assert set(best) == set(sample_extents(1, 500)) and len(found) > 8
    for family in found:
        n, rows = family.axis, family.rows
        for extent in (rows, rows + 1, 10 * rows, 500):
            program = family.at(extent)
            assert program.expr.anchor.extents["i"] == extent and program.tiles[0] == family.program.tiles[0]
            assert program.tiles[-1][1][n] <= -(-extent // rows) * rows
    costs = price_families_at_extents(found, (1, 500), SPEC)
    assert np.isfinite(costs[:, 1]).sum() > 8  # what is beyond a capacity is not for this extent
    assert all(np.isinf(cost) for cost, f in zip(costs[:, 0], found, strict=True) if f.rows > 1)


def test_few_families_are_chosen_by_what_they_add():
    costs = np.array([[2.0, 2.0, 2.0], [np.inf, 1.0, 4.0], [np.inf, 4.0, 1.0], [np.inf, 1.1, 1.1]])
    best = np.array([2.0, 1.0, 1.0])
    assert choose_covering_rows(costs, best, 8) == [0, 3, 1, 2]
    assert choose_covering_rows(costs, best, 2) == [0, 3]
    assert choose_covering_rows(costs[[0, 0]], best, 8) == [0]


def test_a_kernel_beyond_a_capacity_is_for_no_extent_from_there_on(monkeypatch, product):
    def priced(found, extents, spec):
        return np.array([[1e-6 if x < 20 else np.inf for x in extents]])

    monkeypatch.setattr("roller.compiler.dynamic.compile.price_families_at_extents", priced)
    variant, every = product.variants[0], np.arange(2, 65)
    rows, times = variant.family.rows, _KernelTimes([variant.family], SPEC)
    times.price((2, rows, 12, 16, 24, 64))
    seconds = _seconds_at_all_extents(0, rows, times, every)
    assert np.isfinite(seconds[(every >= rows) & (every <= 16)]).all() and np.isinf(seconds[every > 16]).all()


def test_a_kernel_takes_what_it_took_at_near_extents(product):
    families = [v.family for v in product.variants] * 3
    times = _KernelTimes(families[:3], SPEC)
    times.price((16, 32, 64))
    predicted = times.predicted
    assert [times.at(n, 32) for n in range(3)] == list(predicted[32]), "nothing was measured"
    times.measured[0] = {16: 2.0 * predicted[16][0], 64: 3.0 * predicted[64][0]}
    assert times.at(0, 16) == times.measured[0][16]
    assert times.at(0, 32) == pytest.approx(6**0.5 * predicted[32][0]), "as far from one as from the other"
    assert times.at(1, 32) == pytest.approx(1.1 * 6**0.5 * predicted[32][1]), "off as the others, and not near the best"
    times.price([20])
    assert times.at(0, 20) == pytest.approx(2.0 * times.predicted[20][0], rel=0.06)


def test_few_kernels_are_timed_where_near_extents_say_how_they_compare(product):
    times = _KernelTimes([product.variants[0].family] * 4, SPEC)
    times.predicted = {x: np.array([1.0, 1.1, 1.3, 1.5]) * x for x in (8, 16, 64)}
    assert times.near(range(4), 16) == [0, 1, 2]
    times.measured = {n: {8: t} for n, t in enumerate((8.0, 10.0, 10.5, 12.0))}
    assert times.near(range(4), 16) == [0], "1.25 and more of the fastest beside them"
    assert times.near(range(4), 64) == [0, 1, 2], "too far"


def test_units_are_those_that_are_asked_for():
    one = roller.compile(
        roller.ops.matmul(64, 32, 16), shapes={"i": (2, 64)}, deterministic=True, options=ConstructOptions(units=1)
    )
    assert all(v.artifact.target["cores"] == 1 for v in one.variants)


def test_pieces_cover_the_range(product):
    kernel, pieces = product, product.pieces
    assert (pieces[0].low, pieces[-1].high) == (2, 64)
    assert all(one.high + 1 == then.low for one, then in itertools.pairwise(pieces))
    assert all(p.regret >= -1e-9 for p in pieces) and "i from 2 to 64" in repr(kernel)


def test_a_family_is_of_one_size():
    expr = roller.ops.matmul(64, 32, 16)
    program = roller.construct(expr, SPEC, top_k=1)[0].program
    family = ProgramFamily(program, growing_sizes(program.expr)[0])
    assert family.at(64).tiles == program.tiles
