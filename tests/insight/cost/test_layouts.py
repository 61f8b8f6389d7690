"""Layouts and precisions of convolutions: conversions of planes, Winograd's algorithm, TF32, AMD's matrix units."""

from __future__ import annotations

import math

import pytest

from roller import load_spec, ops
from roller.insight.cost.gpu import depthwise
from roller.insight.cost.operator_price import Pricer
from roller.insight.trace.torch_release import TorchRelease
from roller.insight.trace.trace import Operator, TensorRecord

pytestmark = pytest.mark.filterwarnings("ignore::roller.errors.RollerWarning")


def image(n, c, h, w, dtype, innermost):
    stride = (c * h * w, 1, w * c, c) if innermost else (c * h * w, h * w, w, 1)
    return (n, c, h, w), stride, dtype


def convolution(c, f, k, dtype="float16", innermost=False, size=28, batch=32, groups=1):
    shapes = image(batch, c, size, size, dtype, innermost), image(f, c // groups, k, k, dtype, innermost)
    x, w = (TensorRecord(*shape, n) for n, shape in enumerate(shapes))
    y = TensorRecord(*image(batch, f, size, size, dtype, innermost), 2)
    arguments = {
        "input": {"tensor": 0}, "weight": {"tensor": 1}, "bias": None, "stride": [1, 1], "padding": [k // 2, k // 2],
        "dilation": [1, 1], "transposed": False, "output_padding": [0, 0], "groups": groups,
    }  # fmt: skip
    return Operator(0, "aten.convolution.default", "forward", (x, w), (y,), arguments)


def test_planes_of_channels_are_converted_around_a_matrix_units_kernel_and_channels_last_are_not():
    pricer = Pricer(load_spec("a100"))
    planes, innermost = (pricer.price_operator(convolution(256, 256, 3, innermost=x)) for x in (False, True))
    assert (planes.kernels, innermost.kernels) == (4, 1)  # the image, the filters, and the result back
    both = 2 * 2 * 32 * 28 * 28 * 256  # bytes of an image and a result
    least = 2 * both / load_spec("a100").memory_layers[-1].bandwidth_bytes_per_s
    assert innermost.seconds + least < planes.seconds < 3 * innermost.seconds + least


def test_channels_that_are_no_vectors_are_padded_in_either_layout():
    pricer = Pricer(load_spec("a100"))
    launches = pricer.price_operator(convolution(3, 64, 7, innermost=True, size=224)).launches
    assert launches[0].name.startswith("read 9.19 MiB, write 12.2 MiB") and "c=4" in launches[-1].name


def test_a_device_without_the_unit_converts_nothing():
    for device, dtype in (("p100", "float16"), ("v100", "float32"), ("mi210", "float16")):
        price = Pricer(load_spec(device)).price_operator(convolution(256, 256, 1, dtype))
        assert price.kernels == 1, device


def test_winograd_is_used_for_windows_of_three_in_float32_alone():
    pricer = Pricer(load_spec("v100"))
    three, one = (pricer.price_operator(convolution(256, 256, k, "float32")) for k in (3, 1))
    direct = 9 * one.seconds  # as many products for each point
    assert three.seconds < 0.7 * direct
    innermost = pricer.price_operator(convolution(256, 256, 3, "float32", innermost=True))
    assert innermost.seconds > 1.4 * three.seconds


def test_tf32_is_that_of_convolutions_unless_products_are_allowed_too():
    spec = load_spec("a100")
    x, w, y = (TensorRecord((4096, 4096), (4096, 1), "float32", n) for n in range(3))
    product = Operator(0, "aten.mm.default", "forward", (x, w), (y,))
    image = convolution(512, 512, 1, "float32", innermost=True)
    usual, none, both = (Pricer(spec, tf32=kinds) for kinds in (("convolution",), (), ("convolution", "product")))
    assert usual.price_operator(image).seconds < 0.5 * none.price_operator(image).seconds
    assert usual.price_operator(product) == none.price_operator(product)
    assert both.price_operator(product).seconds < 0.3 * usual.price_operator(product).seconds
    old = Pricer(load_spec("v100"), tf32=("convolution", "product"))
    assert old.price_operator(product) == Pricer(load_spec("v100"), tf32=()).price_operator(product)


def test_float32_uses_the_matrix_unit_of_cdna_in_libraries_alone():
    from roller.compiler import pipeline

    expr = ops.matmul(4096, 4096, 4096)
    for device in ("mi100", "mi210", "mi250x"):
        spec = load_spec(device)
        peak_s = 2 * 4096**3 / (2 * 128 * spec.units * spec.clock_hz)
        assert peak_s < pipeline.predict(expr, spec, policy="library-graph").seconds < 1.9 * peak_s
        assert pipeline.construct(expr, spec, top_k=1)[0].program.fragment is None


def test_groups_that_fill_no_block_are_padded_with_groups_of_zeros():
    pricer = Pricer(load_spec("a100"))
    eleven, twelve = (
        pricer.price_operator(convolution(8 * n, 8 * n, 3, innermost=True, groups=n)).seconds for n in (11, 12)
    )
    assert eleven < 1.1 * twelve


def test_before_cudnn_9_planes_are_converted_for_a_point_too_and_wide_groups_run_directly():
    spec, older = load_spec("rtx3090"), TorchRelease.parse("1.12")
    today, then = Pricer(spec), Pricer(spec, release=older)
    point = convolution(256, 256, 1)
    assert (today.price_operator(point).kernels, then.price_operator(point).kernels) == (1, 3)
    wide, narrow = (convolution(32 * n, 32 * n, 3, innermost=True, groups=32) for n in (64, 16))
    assert then.price_operator(wide).seconds > 5 * today.price_operator(wide).seconds
    assert then.price_operator(narrow) == today.price_operator(narrow)
    assert then.price_operator(convolution(2048, 2048, 3, groups=32)).kernels > 1  # planes: converted, as ever
    on_amd = (Pricer(load_spec("mi210"), release=r).price_operator(wide) for r in (older, TorchRelease()))
    assert len(set(on_amd)) == 1


def test_depthwise_windows_on_channels_innermost_are_padded_groups_where_cudnn_has_no_kernel_for_them():
    spec = load_spec("rtx3090")
    today, then = Pricer(spec), Pricer(spec, release=TorchRelease.parse("1.12"))
    three, seven, nine = (convolution(256, 256, k, innermost=True, groups=256) for k in (3, 7, 9))
    assert today.price_operator(seven).resource == "dram" and today.price_operator(nine).resource == "compute"
    assert today.price_operator(nine).seconds > 10 * today.price_operator(seven).seconds
    planes = convolution(256, 256, 9, groups=256)  # PyTorch's own kernel
    assert today.price_operator(nine).seconds > 2 * today.price_operator(planes).seconds
    assert then.price_operator(three).seconds > 1.2 * today.price_operator(three).seconds
    assert then.price_operator(nine) == today.price_operator(nine)


def test_planes_are_copied_before_a_depthwise_convolution_whose_filters_suggest_channels_innermost():
    given = convolution(256, 256, 3, innermost=True, groups=256)
    planes = TensorRecord(*image(32, 256, 28, 28, "float16", False), 0)
    mixed = Operator(0, given.name, given.phase, (planes, given.inputs[1]), given.outputs, given.arguments)
    kernels = [Pricer(load_spec("rtx3090")).price_operator(o).kernels for o in (given, mixed)]
    assert kernels == [1, 2]


def norm(channels, innermost, name="aten.cudnn_batch_norm.default", training=True):
    x, y = (TensorRecord(*image(64, channels, 56, 56, "float16", innermost), n) for n in (0, 1))
    arguments = {"input": {"tensor": 0}, "training": training}
    return Operator(0, name, "forward", (x,), (y,), arguments)


def test_a_batch_norm_on_planes_has_a_block_for_each_channel_and_few_draw_little():
    pricer = Pricer(load_spec("rtx3090"))
    few, many = (pricer.price_operator(norm(c, innermost=False)).seconds / c for c in (16, 512))
    assert few > 3 * many
    few, many = (pricer.price_operator(norm(c, innermost=True)).seconds / c for c in (16, 512))
    assert few < 1.2 * many
    backward = "aten.cudnn_batch_norm_backward.default"
    planes, innermost = (pricer.price_operator(norm(16, x, backward)).seconds for x in (False, True))
    assert planes > 3 * innermost


def test_operands_across_the_threads_of_an_element_wise_kernel_cost_sectors_of_the_shared_cache():
    spec = load_spec("rtx3090")
    pricer, l2 = Pricer(spec), spec.layer("l2").bandwidth_bytes_per_s
    innermost, planes, others = (
        TensorRecord(*image(64, 64, 56, 56, "float16", x), n) for n, x in enumerate((True, False, False))
    )
    elements = 64 * 64 * 56 * 56
    across = pricer.price_operator(Operator(0, "aten.clone.default", "forward", (innermost,), (planes,)))
    assert across.resource == "l2" and across.seconds >= elements * 32 / l2  # a sector of 32 bytes for each
    along = pricer.price_operator(Operator(0, "aten.clone.default", "forward", (others,), (planes,)))
    assert along.resource == "dram" and along.seconds < 0.5 * across.seconds


@pytest.mark.parametrize(
    ("device", "published_tflops"), [("rtx3090", 76.7), ("rtx4090", 179.2), ("mi250x", 147.0), ("mi300x", 782.0)]
)
def test_the_clock_of_a_whole_model_is_what_its_note_says(device, published_tflops):
    spec = load_spec(device).sustained
    peak = 2e-12 * spec.compute.ops_per_cycle_per_unit["matrix.bfloat16"] * spec.units * spec.clock_hz
    assert peak == pytest.approx(published_tflops, rel=1e-3)


def test_an_interpolation_on_planes_has_a_thread_for_each_point_of_a_plane():
    pricer = Pricer(load_spec("rtx3090"))

    def seconds(innermost, name="bilinear2d"):
        x, y = (TensorRecord(*image(64, 512, n, n, "float32", innermost), n) for n in (7, 14))
        return pricer.price_operator(Operator(0, f"aten.upsample_{name}.default", "forward", (x,), (y,))).seconds

    assert seconds(innermost=False) > 50 * seconds(innermost=True)
    assert seconds(innermost=False, name="nearest2d") < 1.1 * seconds(innermost=True)


def test_products_of_8_bit_floats_take_half_the_time_of_16_bits_where_a_unit_has_them():
    pricer = Pricer(load_spec("h100"))

    def seconds(dtype, name):
        x, w = TensorRecord((8192, 8192), (8192, 1), dtype, 0), TensorRecord((8192, 8192), (1, 8192), dtype, 1)
        scale, y = TensorRecord((), (), "float32", 2), TensorRecord((8192, 8192), (8192, 1), "bfloat16", 3)
        arguments = {"self": {"tensor": 0}, "mat2": {"tensor": 1}}
        return pricer.price_operator(Operator(0, name, "forward", (x, w, scale), (y,), arguments)).seconds

    wide = seconds("bfloat16", "aten.mm.default")
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        assert 0.45 * wide < seconds(dtype, "aten._scaled_mm.default") < 0.65 * wide


def test_a_batch_by_one_expanded_matrix_reads_the_matrix_once():
    left = TensorRecord((4096, 7, 384), (7 * 384, 384, 1), "float16", 0)
    out = TensorRecord((4096, 7, 1152), (7 * 1152, 1152, 1), "float16", 2)
    pricer = Pricer(load_spec("rtx4090"))

    def seconds(batch_stride):
        right = TensorRecord((4096, 384, 1152), (batch_stride, 1, 384), "float16", 1)
        return pricer.price_operator(Operator(0, "aten.bmm.default", "forward", (left, right), (out,))).seconds

    assert seconds(0) < 0.2 * seconds(384 * 1152)


@pytest.mark.parametrize(
    ("shape", "window", "stride", "is_cudnn"),
    [
        ((64, 64, 1000), (9,), 1, True),  # an image of one dimension has height 1
        ((64, 64, 1000), (9,), 2, False),
        ((64, 16, 1000), (9,), 1, False),
        ((1, 64, 56, 56), (5, 5), 2, True),  # one sample
        ((64, 64, 56, 56), (5, 5), 2, False),
        ((64, 256, 56, 56), (5, 5), 2, True),
        ((64, 64, 56, 56), (7, 7), 1, False),
        ((64, 64, 6, 7), (3, 3), 1, True),  # the width alone counts
    ],
)
def test_depthwise_convolutions_on_planes_that_pytorch_leaves_to_cudnn(shape, window, stride, is_cudnn):
    def record(sizes, number):
        strides = [math.prod(sizes[n + 1 :]) for n in range(len(sizes))]
        return TensorRecord(tuple(sizes), tuple(strides), "float16", number)

    out = (*shape[:2], *((n + 2 * (k // 2) - k) // stride + 1 for n, k in zip(shape[2:], window, strict=True)))
    found = depthwise.depthwise_forward_kernel(
        record(shape, 0), record((shape[1], 1, *window), 1), record(out, 2), [stride] * len(window), [1] * len(window)
    )
    assert (found is None) == is_cudnn


@pytest.mark.parametrize(("device", "dtype"), [("a100", "float16"), ("l4", "bfloat16"), ("rtx3090", "float32")])
def test_few_filters_take_the_matrix_unit_too(device, dtype):
    pricer = Pricer(load_spec(device))
    four, eight, sixteen = (
        pricer.price_operator(convolution(96, filters, 3, dtype=dtype, innermost=True)).seconds
        for filters in (4, 8, 16)
    )
    assert four <= 1.02 * eight and eight <= 1.02 * sixteen
