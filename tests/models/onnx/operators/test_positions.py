"""Positions are exact, and attributes make the shape: Resize, RoiAlign, ConvTranspose, pooling."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from roller.errors import ModelError
from roller.models.onnx.interpolation import (
    AxisSampling,
    interpolation_matrix,
    nearest_positions,
    resize_scales_and_shape,
    simplest_fraction,
)
from roller.models.onnx.lowering_registry import Unsupported, lower_node
from roller.models.onnx.partition_graph import partition_graph
from roller.models.onnx.read_model import read_onnx_graph
from roller_runtime.plan.program_steps import Value
from tests.models.onnx.lowering_oracle import agrees, lowered, node, site_of
from tests.models.onnx.models import FLOAT, model_of
from tests.offenders import every


@given(p=st.integers(1, 3000), q=st.integers(1, 3000))
def test_float32_hides_no_ratio_of_sizes(p, q):
    assert simplest_fraction(np.float32(p / q)) == Fraction(p, q)


@given(st.floats(width=32, min_value=2.0**-20, max_value=2.0**20))
def test_the_simplest_fraction_is_the_same_float32(value):
    found = simplest_fraction(value)
    assert np.float32(float(found)) == np.float32(value)
    assert found.denominator <= Fraction(value).denominator


@pytest.mark.parametrize(
    ("rounding", "wanted"),
    [("round_prefer_ceil", 15), ("round_prefer_floor", 14), ("floor", 14), ("ceil", 15)],
)
def test_a_half_is_a_half(rounding, wanted):
    # (4 + 1/2) * 20 / 6 - 1/2 is 14.5; the float32 of the scale makes 14.499999.
    assert nearest_positions(AxisSampling(20, 6, Fraction(6, 20), "half_pixel"), rounding)[4] == wanted


@given(source=st.integers(1, 60), target=st.integers(1, 60), rounding=st.sampled_from(["floor", "ceil"]))
def test_whole_positions_are_whole(source, target, rounding):
    found = nearest_positions(AxisSampling(source, target, Fraction(target, source), "asymmetric"), rounding)
    exact = [Fraction(y * source, target) for y in range(target)]
    wanted = [min(x.__floor__() if rounding == "floor" else x.__ceil__(), source - 1) for x in exact]
    assert found.tolist() == wanted


def test_scales_mean_the_ratio_they_were_rounded_from():
    x = np.arange(20, dtype=np.float32).reshape(1, 20)
    n = node("Resize", 3, mode="nearest", nearest_mode="round_prefer_ceil")
    (found,) = lowered(n, [x, None, np.array([1, 6 / 20], np.float32)], (2,), [Value("o0", (1, 6), "float32")])
    assert found.tolist() == [[1, 5, 8, 11, 15, 18]]


def test_corners_are_those_of_the_length_as_it_is():
    # 4 * 2.6 is 10.4: the result has ten elements, and the last of them is the last of the source.
    table = interpolation_matrix(AxisSampling(4, 10, Fraction(13, 5), "align_corners"), "linear")
    assert (table @ np.arange(4.0)).tolist() == pytest.approx([k / 3 for k in range(10)])


@pytest.mark.parametrize(("policy", "wanted"), [("stretch", (7, 8)), ("not_larger", (5, 8)), ("not_smaller", (7, 12))])
def test_a_policy_scales_both_sides(policy, wanted):
    assert resize_scales_and_shape((3, 5), (7, 8), (0, 1), policy)[1] == wanted
    sizes = helper.make_tensor("s", 7, [2], [7, 8])
    n = helper.make_node("Resize", ["x", "", "", "s"], ["y"], keep_aspect_ratio_policy=policy)
    model = model_of([n], [("x", FLOAT, [3, 5])], [("y", FLOAT, None)], opset=19)
    model.graph.initializer.append(sizes)
    assert read_onnx_graph(model).values["y"].shape == wanted


def test_halves_of_a_policy_round_up():
    # 5 * 3 / 6 is two and a half.
    assert resize_scales_and_shape((6, 5), (3, 9), (0, 1), "not_larger")[1] == (3, 3)


@every(
    ("version", "how", "wanted"),
    [
        (22, {}, [10, 102, 20, 203, 30, 300]),
        (11, {}, [10, 102, 20, 203, 30, 300]),
        (1, {}, [1, 10, 102, 20, 203, 30]),  # its equation has the odd element at the end
        (22, {"auto_pad": "SAME_UPPER"}, [1, 10, 102, 20, 203, 30]),
        (22, {"auto_pad": "SAME_LOWER"}, [10, 102, 20, 203, 30, 300]),
        (22, {"auto_pad": "VALID"}, [10, 102, 20, 203, 30, 300]),
    ],
)
@every("constant", [False, True])
def test_an_odd_element_of_a_transposed_convolution(version, how, wanted, constant):
    x, w = np.arange(1, 4, dtype=np.float32).reshape(1, 1, 3), np.array([[[1, 10, 100]]], np.float32)
    n = node("ConvTranspose", 2, strides=[2], output_shape=[6], version=version, **how)
    agrees(n, [x, w], (1,) if constant else (), wanted=[np.array([[wanted]], np.float32)])


def test_valid_means_no_padding():
    x, w = np.ones((1, 1, 3), np.float32), np.array([[[1, 10, 100]]], np.float32)
    n = node("ConvTranspose", 2, auto_pad="VALID", pads=[1, 1], version=11)
    agrees(n, [x, w], wanted=[np.array([[[1, 11, 111, 110, 100]]], np.float32)])


def test_what_no_padding_makes_is_refused():
    n = node("ConvTranspose", 2, strides=[2], output_shape=[9])
    values = {k: Value(k, s, "float32") for k, s in (("i0", (1, 1, 3)), ("i1", (1, 1, 3)), ("o0", (1, 1, 9)))}
    with pytest.raises(Unsupported, match=r"\[9\] elements of \[7\] that its taps make"):
        lower_node(site_of(n, values, {}))


def _transposed(declared):
    n = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], auto_pad="SAME_UPPER",
                         output_padding=[1, 1])  # fmt: skip
    return model_of([n], [("x", FLOAT, [1, 1, 3, 3]), ("w", FLOAT, [1, 1, 3, 3])], [("y", FLOAT, declared)])


def test_attributes_make_the_shape_whatever_inference_says():
    assert read_onnx_graph(_transposed(None)).values["y"].shape == (1, 1, 6, 6)
    assert partition_graph(read_onnx_graph(_transposed([1, 1, 6, 6]))).values["y"].shape == (1, 1, 6, 6)


def test_a_declared_shape_that_the_attributes_contradict_is_refused():
    with pytest.raises(
        ModelError, match=r"declared result has shape \(1, 1, 7, 7\), its attributes make \(1, 1, 6, 6\)"
    ):
        partition_graph(read_onnx_graph(_transposed([1, 1, 7, 7])))


@pytest.mark.parametrize(("auto_pad", "wanted"), [("NOTSET", 2), ("VALID", 2), ("SAME_UPPER", 2)])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_a_last_window_behind_the_image_is_none(op, auto_pad, wanted):
    n = helper.make_node(op, ["x"], ["y"], kernel_shape=[1], strides=[2], ceil_mode=1, auto_pad=auto_pad)
    model = model_of([n], [("x", FLOAT, [1, 1, 4])], [("y", FLOAT, None)], opset=19)
    assert read_onnx_graph(model).values["y"].shape == (1, 1, wanted)


def _pooled(box, **how):
    x = np.arange(100, dtype=np.float32).reshape(1, 1, 10, 10)
    n = node("RoiAlign", 3, output_height=1, output_width=1, version=16, **how)
    arrays = [x, np.array([box], np.float32), np.zeros(1, np.int64)]
    return lowered(n, arrays, (), [Value("o0", (1, 1, 1, 1), "float32")])[0].item()


@every("mode", ["avg", "max"])
@every("box", [[4, 4, 4, 4], [6, 6, 3, 3], [4, 2, 4, 8]])
def test_a_region_without_points_is_zero(mode, box):
    assert _pooled(box, mode=mode, sampling_ratio=0) == 0


def test_the_points_of_a_region_are_counted_exactly():
    # 10 elements by 0.3 are three points; the float32 of 0.3 makes the ceiling four.
    sums = [_pooled([0, 0, 10, 10], mode="max", sampling_ratio=r, spatial_scale=0.3) for r in (0, 3, 4)]
    assert sums[0] == sums[1] != sums[2]


def test_a_region_to_the_last_position_is_within():
    # The middle of 10 to 11 less a half pixel is 10, on the border; the float32 of 0.1 puts it behind.
    assert _pooled([100, 100, 110, 110], sampling_ratio=1, spatial_scale=0.1) == 99


def test_a_region_that_is_no_number_is_none():
    assert np.isnan(_pooled([0, np.nan, 1, 1]))


def test_an_operator_of_a_domain_that_is_not_read_is_named_as_that():
    nodes = [helper.make_node("Scaler", ["x"], ["v"], domain="ai.onnx.ml", offset=[1.0] * 4, scale=[0.5] * 4),
             helper.make_node("TreeEnsembleRegressor", ["x"], ["t"], domain="ai.onnx.ml"),
             helper.make_node("Relu", ["v"], ["y"])]  # fmt: skip
    model = model_of(nodes, [("x", FLOAT, [2, 4])], [("y", FLOAT, [2, 4]), ("t", FLOAT, None)])
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 5))
    with pytest.raises(ModelError, match=r"Scaler of domain 'ai\.onnx\.ml' has no lowering") as caught:
        read_onnx_graph(model)
    assert "operator TreeEnsembleRegressor of domain 'ai.onnx.ml' has no lowering" in str(caught.value)
    assert "depends on the values" not in str(caught.value) and "shape" not in str(caught.value)
