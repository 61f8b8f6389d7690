"""Arithmetic, movement, gathering and resampling where ONNX's own node tests do not look."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from roller.models.onnx.evaluate_constants import Evaluator
from roller.models.onnx.interpolation import AxisSampling, interpolation_matrix, nearest_positions
from roller.models.onnx.lowering_registry import Compute, InputView, LibraryCall, Unsupported, lower_node
from roller_runtime.plan.program_steps import Value
from roller_runtime.session import array_functions
from tests.models.onnx.lowering_oracle import agrees, lowered, node, site_of
from tests.offenders import every

RNG = np.random.default_rng(5)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def lowering(n, arrays, out, constants=()):
    """Return what a node becomes, without computing it."""
    values = {name: Value(name, a.shape, a.dtype.name) for name, a in zip(n.inputs, arrays, strict=True)}
    values["o0"] = Value("o0", out, arrays[0].dtype.name)
    return lower_node(site_of(n, values, {n.inputs[i]: arrays[i] for i in constants}))


@every("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu"])
@every(("a", "b"), [((2, 3, 4), (4,)), ((2, 3, 4), (3, 1)), ((2, 3, 4), ()), ((2, 1, 4), (2, 1, 1))])
def test_broadcasting(op, a, b):
    agrees(node(op, 2), [normal(*a), normal(*b) + 3])


@pytest.mark.parametrize("constants", [(), (1,)])
def test_quotients_of_integers_go_towards_zero(constants):
    a = np.array([7, -7, 8, -8, 1, -1], np.int32)
    (got,) = lowered(node("Div", 2), [a, np.full(1, 3, np.int32)], constants)
    assert got.tolist() == [2, -2, 2, -2, 0, 0]


def test_quotients_of_the_least_integer_are_those_of_c():
    """Its magnitude is not an int64: no quotient may go by it."""
    least = np.iinfo(np.int64).min
    a = np.array([5, -5, least, least, least, 0, least + 1, 7], np.int64)
    b = np.array([least, least, least, 2, -1, least, least, -2], np.int64)
    wanted = [0, 0, 1, least // 2, least, 0, 0, -3]
    types = [Value("o0", a.shape, "int64")]
    assert lowered(node("Div", 2), [a, b], types=types)[0].tolist() == wanted
    folded = Evaluator({"": 17})(onnx.helper.make_node("Div", ["a", "b"], ["y"]), {}, [a, b], types)
    assert folded is not None and folded[0].tolist() == wanted


@every("fmod", [0, 1])
@every("dtype", ["int32", "int8", "float32"])
def test_remainders_have_the_sign_they_should(fmod, dtype):
    a, b = np.array([7, -7, 7, -7, 6, -6], dtype), np.array([3, 3, -3, -3, 3, -3], dtype)
    (got,) = lowered(node("Mod", 2, fmod=fmod), [a, b], types=[Value("o0", (6,), dtype)])
    assert got.tolist() == (np.fmod if fmod else np.mod)(a, b).tolist()


@every("exponent", [2, 3, 0.5, -1, 8, 2.5])
def test_powers_by_a_constant(exponent):
    x = np.abs(normal(5, 3)) + 0.5
    agrees(node("Pow", 2), [x, np.array(exponent, np.float32)], (1,))


def test_powers_of_integers():
    x, y = np.array([2, -3, 0, -1, 5], np.int32), np.array([10, 3, -1, -3, 0], np.int32)
    (got,) = lowered(node("Pow", 2), [x, y], types=[Value("o0", (5,), "int32")])
    assert got.tolist() == [1024, -27, 0, -1, 1]
    with pytest.raises(Unsupported, match="int64"):
        lowered(node("Pow", 2), [x.astype(np.int64), y.astype(np.int64)], types=[Value("o0", (5,), "int64")])


@every(
    ("start", "end", "step"),
    [(-1, -100, -1), (100, 0, -2), (5, 1, -3), (0, 100, 3), (-4, -1, 1), (2, 3, 1), (0, -1, 2), (3, -6, -1)],
)
def test_slices_are_those_of_python(start, end, step):
    x = normal(3, 6)
    bounds = [np.array([v], np.int64) for v in (start, end, 1, step)]
    want = x[:, slice(start, end, step)]
    if want.size:
        got = lowered(node("Slice", 5), [x, *bounds], (1, 2, 3, 4), [Value("o0", want.shape)])[0]
        np.testing.assert_array_equal(got, want)


@every(
    ("indices", "kind"),
    [
        ([0, 1, 2, 3], Compute), ([5, 3, 1], Compute), ([0, 0, 1, 1, 2, 2], Compute), ([1, 2, 1, 2, 1, 2], Compute),
        ([[0, 1], [3, 4]], Compute), (-1, Compute), ([0, 2, 3], LibraryCall), ([4, 0, 0], LibraryCall),
    ],
)  # fmt: skip
def test_regular_indices_are_an_access_map(indices, kind):
    x, at = normal(2, 6, 3), np.array(indices, np.int64)
    n = node("Gather", 2, axis=1)
    assert isinstance(lowering(n, [x, at], (2, *at.shape, 3), (1,)), kind)
    agrees(n, [x, at], (1,))
    agrees(n, [x, at])


def test_an_index_outside_is_an_error():
    with pytest.raises(Unsupported, match="index 6 of an axis of 6"):
        lowering(node("Gather", 2), [normal(6), np.array([6])], (1,), (1,))
    with pytest.raises(IndexError, match="expected -6 to 5"):
        array_functions.FUNCTIONS["gather"](np, [normal(6), np.array([6])], {"axis": 0})


def test_movement_that_moves_nothing_is_a_view():
    x = normal(1, 3, 1, 4)
    assert isinstance(lowering(node("Transpose", 1, perm=[2, 1, 0, 3]), [x], (1, 3, 1, 4)), InputView)
    assert isinstance(lowering(node("Transpose", 1, perm=[0, 3, 2, 1]), [x], (1, 4, 1, 3)), Compute)
    pads = np.zeros(8, np.int64)
    assert isinstance(lowering(node("Pad", 2), [x, pads], x.shape, (1,)), InputView)


@every("mode", ["constant", "edge", "reflect", "wrap"])
@every("pads", [(0, 2, 1, 3), (1, 0, 0, 0), (2, 3, 2, 1)])
def test_borders(mode, pads):
    agrees(node("Pad", 2, mode=mode), [normal(4, 5), np.array(pads, np.int64)], (1,))


def test_negative_borders_cut():
    want = [np.pad(np.arange(12, dtype=np.float32).reshape(3, 4)[1:], ((0, 1), (0, 0)))[:, :3]]
    x, pads = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([-1, 0, 1, -1])
    agrees(node("Pad", 2), [x, pads], (1,), wanted=want)


def test_one_hot_takes_indices_from_the_end():
    values = np.array([2, 5], np.float32)
    indices = np.array([[0, -1], [3, 7]], np.int64)
    agrees(node("OneHot", 3, axis=0), [indices, np.array(4, np.int64), values], (1,))


@every("mode", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
@every("kind", ["nearest", "linear", "cubic"])
@every("shape", [(1, 2, 5, 7), (1, 2, 3, 4)])
def test_resizing(mode, kind, shape):
    x, sizes = normal(*shape), np.array([1, 2, 8, 3], np.int64)
    n = node("Resize", 4, mode=kind, coordinate_transformation_mode=mode)
    agrees(n, [x, None, None, sizes], (3,))


def test_upsampling_by_a_whole_number_is_an_access_map():
    indices = nearest_positions(AxisSampling(4, 8, 2.0, "asymmetric"), "floor")
    assert indices.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    table = interpolation_matrix(AxisSampling(9, 4, 4 / 9, "half_pixel"), "linear", antialias=True)
    np.testing.assert_allclose(table.sum(axis=1), 1)


def test_largest_elements_of_equal_ones_come_in_order():
    x = np.array([[1, 3, 3, 2, 3]], np.uint8)
    values, at = array_functions.FUNCTIONS["top_k"](np, [x], {"axis": 1, "k": 3, "largest": 1})
    assert (values.tolist(), at.tolist()) == ([[3, 3, 3]], [[1, 2, 4]])
    values, at = array_functions.FUNCTIONS["top_k"](np, [x], {"axis": 1, "k": 2, "largest": 0})
    assert (values.tolist(), at.tolist()) == ([[1, 2]], [[0, 3]])


@pytest.mark.parametrize(
    ("op", "message"),
    [("NonZero", "no lowering"), ("Dropout", "random numbers"), ("GridSample", "none of zeros")],
)
def test_refusals_say_why(op, message):
    x = normal(1, 1, 4, 4)
    extra = {"Dropout": [np.array(0.5, np.float32), np.array(True)], "GridSample": [normal(1, 2, 2, 2)]}.get(op, [])
    attributes = {"padding_mode": "mirror"} if op == "GridSample" else {}
    n = node(op, 1 + len(extra), **attributes)
    with pytest.raises(Unsupported, match=message):
        lowering(n, [x, *extra], x.shape, tuple(range(1, 1 + len(extra))))


@pytest.mark.parametrize("index", [0, -1])
def test_the_one_element_of_a_scalar_is_gathered_and_scattered_to(index):
    scalar, where = np.array(2.0, np.float32), np.array(index)
    (got,) = array_functions.FUNCTIONS["gather_elements"](np, (scalar, where), {"axis": 0})
    assert got.shape == () and got == 2.0
    for reduction, value in (("none", 3.0), ("add", 5.0), ("mul", 6.0), ("max", 3.0), ("min", 2.0)):
        given = (scalar, where, np.array(3.0, np.float32))
        (got,) = array_functions.FUNCTIONS["scatter_elements"](np, given, {"axis": 0, "reduction": reduction})
        assert got.shape == () and got.dtype == np.float32 and got == value
    with pytest.raises(IndexError, match="expected -1 to 0, got 1"):
        array_functions.FUNCTIONS["gather_elements"](np, (scalar, np.array(1)), {"axis": 0})
