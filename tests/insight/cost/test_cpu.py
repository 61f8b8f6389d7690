"""Prices of PyTorch's kernels on a processor: rates, caches, threads and fresh pages."""

from __future__ import annotations

import pytest

import roller
from roller.errors import RollerError
from roller.insight.cost.cpu import ProcessorPricer
from roller.insight.cost.cpu.operator_table import operator_kind, operator_work
from roller.insight.cost.cpu.operator_work import GRAIN_ELEMENTS, OperatorWork
from roller.insight.cost.cpu.processor_rates import ProcessorRates
from roller.insight.forecast import forecast
from roller.insight.trace.trace import AllocEvent, FreeEvent, Operator, Storage, TensorRecord, Trace
from tests.offenders import every

SPEC = roller.load_spec("cpu-avx512")


def tensor(number, *shape, dtype="float32", stride=None):
    steps = [1]
    for n in reversed(shape[1:]):
        steps.insert(0, steps[0] * n)
    return TensorRecord(shape, stride or tuple(steps[: len(shape)]), dtype, number)


def operator(name, inputs, outputs, index=0, **arguments):
    return Operator(index, f"aten.{name}", "forward", tuple(inputs), tuple(outputs), arguments)


def step(*operators, sizes=None):
    """Return a step whose storages are all there before it, or are made and freed in it as ``sizes`` says."""
    made = sizes or {}
    events = [e for n, size in made.items() for e in (AllocEvent(n, size, 0),)] + [FreeEvent(n, 0) for n in made]
    storages = {n: Storage("temporary", size_bytes=size) for n, size in made.items()}
    return Trace(operators, tuple(events), storages, (0, len(operators)))


def seconds(*operators, spec=SPEC, sizes=None):
    return [p.seconds for p in ProcessorPricer(spec).price_last_step(step(*operators, sizes=sizes))]


def product(m, n, k, index=0, first=0):
    x, w, y = tensor(first, m, k), tensor(first + 1, k, n), tensor(first + 2, m, n)
    return operator("mm.default", (x, w), (y,), index)


def relu(n, index=0):
    return operator("relu.default", (tensor(0, n),), (tensor(1, n),), index)


@pytest.mark.parametrize("n", [256, 1024, 2048])
def test_large_products_keep_up_most_of_the_rate(n):
    least = 2 * n**3 / (2 * SPEC.ops_per_s("fma"))
    assert least < seconds(product(n, n, n))[0] < 2 * least


@pytest.mark.parametrize("arguments", [{"mat2": None}, {"self": 3, "mat2": "two"}])
def test_arguments_that_a_row_does_not_foresee_are_priced_by_bytes(arguments):
    x, w, y = tensor(0, 8, 16), tensor(1, 16, 4), tensor(2, 8, 4)
    work, is_mapped = operator_work(operator("mm.default", (x, w), (y,), **arguments))
    assert not is_mapped and work.multiplies == 0.0


def test_a_greatest_takes_longer_than_a_mean_and_an_adaptive_pool_knows_its_window():
    x, y = tensor(0, 8, 64, 32, 32), tensor(1, 8, 64, 8, 8)
    cycles = {n: operator_work(operator(f"{n}.default", (x,), (y,), **given))[0].cycles for n, given in (
        ("max_pool2d_with_indices", {"kernel_size": (4, 4)}), ("adaptive_max_pool2d", {}),
        ("avg_pool2d", {"kernel_size": (4, 4)}))}  # fmt: skip
    assert cycles["adaptive_max_pool2d"] == cycles["max_pool2d_with_indices"] > cycles["avg_pool2d"]


def test_what_is_packed_is_shared_by_as_many_cores_as_there_are_products():
    def arithmetic(batch, cores):
        x, w, y = tensor(0, batch, 512, 512), tensor(1, batch, 512, 512), tensor(2, batch, 512, 512)
        work = operator_work(operator("bmm.default", (x, w), (y,)))[0]
        return ProcessorRates(SPEC).arithmetic_s(work, cores) * cores / batch

    assert arithmetic(8, 1) == pytest.approx(arithmetic(8, 4))
    assert arithmetic(8, 4) < arithmetic(1, 4)


def test_few_columns_are_padded_and_few_rows_wait_for_the_second_operand():
    wide, narrow = seconds(product(512, 16, 512))[0], seconds(product(512, 3, 512))[0]
    assert narrow == pytest.approx(wide, rel=0.1)
    rate = lambda m: 2 * m * 1024 * 1024 / seconds(product(m, 1024, 1024))[0]  # noqa: E731
    assert rate(16) < 0.6 * rate(512)


def test_what_was_touched_lately_is_in_a_cache():
    near = seconds(*(relu(1 << 18, n) for n in range(2)))
    far = seconds(*(operator("relu.default", (tensor(2 * n, 1 << 24),), (tensor(2 * n + 1, 1 << 24),), n)
                    for n in range(3)))  # fmt: skip
    each = 3 * 4  # a number is read, its place read, and written
    assert far[1] >= (1 << 24) * each / SPEC.layer("dram").bandwidth_bytes_per_s
    assert near[1] < (1 << 18) * each / SPEC.layer("dram").bandwidth_bytes_per_s


def test_a_tensor_that_is_mapped_anew_costs_its_pages():
    n = 16 << 20
    known, fresh = seconds(relu(n))[0], seconds(relu(n), sizes={1: 4 * n})[0]
    pages = 4 * n / 4096
    assert pages * SPEC.execution.fault_s / SPEC.units < fresh - known < 1.01 * pages * SPEC.execution.fault_s
    small = 1 << 20  # the heap has its pages from the step before
    assert seconds(relu(small), sizes={1: 4 * small})[0] == pytest.approx(seconds(relu(small))[0], rel=0.5)


@pytest.mark.parametrize(("elements", "threads"), [(9, 1), (GRAIN_ELEMENTS, 1), (GRAIN_ELEMENTS + 1, 2), (1 << 22, 2)])
def test_a_loop_is_shared_from_a_grain_on(elements, threads):
    work, _ = operator_work(relu(elements))
    assert ProcessorRates(SPEC).thread_count(work) == threads


def test_draws_are_made_one_after_the_other():
    x = tensor(0, 1 << 20)
    one, two = (roller.load_spec("cpu-avx512", {"units": n}) for n in (1, 2))
    draw = operator("bernoulli_.float", (x,), (x,), p=0.5)
    assert ProcessorRates(two).thread_count(operator_work(draw)[0]) == 1
    assert seconds(draw, spec=one)[0] == pytest.approx(seconds(draw, spec=two)[0], rel=0.3)


def convolution(inputs, outputs, window=3, groups=1, name="convolution.default"):
    x, w = tensor(0, 4, inputs, 32, 32), tensor(1, outputs, inputs // groups, window, window)
    y = tensor(2, 4, outputs, 32, 32)
    sides = {"stride": [1, 1], "padding": [window // 2] * 2, "dilation": [1, 1], "transposed": False, "groups": groups}
    if name == "convolution.default":
        return operator(name, (x, w), (y,), input={"tensor": 0}, weight={"tensor": 1}, **sides)
    named = {"grad_output": {"tensor": 0}, "input": {"tensor": 1}, "weight": {"tensor": 2}}
    made = (tensor(3, *x.shape), tensor(4, *w.shape))
    return operator(name, (y, x, w), made, **named, output_mask=[True, True, False], **sides)


def test_channels_of_convolutions_are_padded_to_vectors():
    assert operator_work(convolution(20, 20))[0].multiplies == pytest.approx(
        operator_work(convolution(32, 32))[0].multiplies
    )
    image, least = operator_work(convolution(3, 32))[0], 4 * 32 * 32 * 27 * 32
    assert least < image.multiplies < 1.5 * least  # the channels of an image have a kernel of their own


def test_what_is_loaded_of_an_image_is_used_for_all_results():
    few, many = (operator_work(convolution(n, n))[0].multiplies / n**2 for n in (16, 256))
    assert few > 1.4 * many


def test_an_operand_far_away_is_waited_for():
    """The same product, after others pushed its operands out of the caches, or not."""
    x, w, y, large = tensor(0, 64, 1024), tensor(1, 1024, 1024), tensor(2, 64, 1024), tensor(3, 1 << 24)
    multiply = operator("mm.default", (x, w), (y,))
    away = operator("relu_.default", (large,), (large,), 1)
    assert seconds(multiply, away)[0] > 1.3 * seconds(multiply)[0]


def test_a_gradient_of_a_convolution_is_twice_the_work():
    forward, backward = convolution(64, 64), convolution(64, 64, name="convolution_backward.default")
    assert operator_work(backward)[0].multiplies == pytest.approx(2 * operator_work(forward)[0].multiplies)
    assert seconds(backward)[0] > 1.8 * seconds(forward)[0]


@pytest.mark.parametrize(("length", "share"), [(512, 1.0), (2048, 0.625)])
def test_a_causal_mask_saves_whole_blocks_of_keys(length, share):
    q, k, v = (tensor(n, 2, 4, length, 64) for n in range(3))
    name = "_scaled_dot_product_flash_attention_for_cpu.default"
    given = {"query": {"tensor": 0}, "key": {"tensor": 1}, "value": {"tensor": 2}}
    outs = (tensor(3, 2, 4, length, 64), tensor(4, 2, 4, length))
    full, masked = (
        operator_work(operator(name, (q, k, v), outs, is_causal=c, **given))[0] for c in (False, True)
    )  # fmt: skip
    assert full.multiplies == 2 * 8 * length * length * 64
    assert masked.multiplies == pytest.approx(share * full.multiplies)


def test_a_recurrent_layer_goes_step_by_step():
    def layer(steps):
        x, wi, wh = tensor(0, steps, 8, 64), tensor(1, 512, 64), tensor(2, 512, 128)
        rest = (tensor(3, 512), tensor(4, 512), tensor(5, 8, 128), tensor(6, 8, 128))
        return operator(
            "mkldnn_rnn_layer.default", (x, wi, wh, *rest), (tensor(7, steps, 8, 128),), input={"tensor": 0},
            hidden_size=128, mode=2,
        )  # fmt: skip

    assert operator_work(layer(40))[0].multiplies == 40 * 8 * 512 * (64 + 128)
    assert operator_work(layer(40))[0].forks == 2 * operator_work(layer(20))[0].forks


def test_columns_are_summed_in_strips():
    x = tensor(0, 1024, 1024)
    rows, columns = (operator("sum.dim_IntList", (x,), (tensor(1, 1024),), dim=[d]) for d in (1, 0))
    assert seconds(columns)[0] > 1.5 * seconds(rows)[0] and operator_work(rows)[0].scattered_bytes == 0


def test_what_has_no_row_is_priced_by_its_bytes():
    work, mapped = operator_work(operator("of_tomorrow.default", (tensor(0, 1000),), (tensor(1, 1000),)))
    assert not mapped and isinstance(work, OperatorWork) and work.parallel_elements == 1000
    view = operator("view.default", (tensor(0, 8, 2),), (TensorRecord((16,), (1,), "float32", 0),))
    assert operator_work(view) == (None, True)


@every(("packet", "kind"), [
    ("aten.mm", "products"), ("aten.relu_", "element-wise"), ("aten.convolution_backward", "convolutions"),
    ("aten.native_batch_norm", "rows"), ("aten.clone", "moving"), ("aten.mkldnn_rnn_layer", "recurrent"),
    ("aten.max_pool2d_with_indices", "windows"), ("aten.sum", "reductions"), ("aten.of_tomorrow", "element-wise"),
])  # fmt: skip
def test_kinds(packet, kind):
    assert operator_kind(packet) == kind


def test_a_step_on_a_processor_is_issued_and_computed_in_series():
    small = step(*(product(16, 16, 16, n) for n in range(10)))
    found = forecast(small, SPEC)
    assert found.iteration_s == pytest.approx(found.host_s + found.device_s) and found.bound_by_launches
    assert forecast(step(product(2048, 2048, 2048)), SPEC).bound_by_launches is False
    ours = forecast(step(product(256, 256, 256)), SPEC, policy="roller")
    assert {p.provenance for _, p in ours.operators} == {"construct"}


def test_what_no_processor_does():
    with pytest.raises(RollerError, match="expected one processor, got 2 of 'cpu-avx512'"):
        forecast(step(product(64, 64, 64)), SPEC, devices=2)
    with pytest.raises(RollerError, match="policy: expected"):
        forecast(step(product(64, 64, 64)), SPEC, policy="magic")
    with pytest.raises(RollerError, match="expected a GPU or a CPU, got 'ipu_mk2'"):
        forecast(step(product(64, 64, 64)), "ipu_mk2")


def test_weights_of_a_recurrent_layer_are_copied_and_so_are_their_gradients():
    steps, batch, width, hidden = 5, 2, 48, 32
    x, kept = tensor(0, steps, batch, width), 4 * hidden * (width + hidden)
    weights = [tensor(1, 4 * hidden, width), tensor(2, 4 * hidden, hidden)]
    found = {}
    for times, name in ((1, "mkldnn_rnn_layer"), (2, "mkldnn_rnn_layer_backward")):
        arguments = {"input": {"tensor": 0}, "hidden_size": hidden}
        layer = operator(f"{name}.default", [x, *weights], [tensor(3, steps, batch, hidden)], **arguments)
        found[times] = operator_work(layer)[0].buffers
    for times, buffers in found.items():
        recurrent, copies = buffers
        assert recurrent == (4.0 * 4 * hidden * hidden, times * steps)
        # A copy is fetched and written where it is made, and read once: of the weights, and of their gradients.
        assert copies == (4.0 * kept, 3.0 * times)
