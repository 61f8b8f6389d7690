"""Padded sizes of a step's weights: only weights grow, with all products of a weight, at the prices of lint."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from roller.hardware import load_spec
from roller.insight.cost.kernel_prices import KernelPricer
from roller.insight.cost.worthwhile_size_padding import LEAST_GAIN
from roller.insight.step_profile import find_worthwhile_weight_padding
from roller.insight.step_profile.find_worthwhile_weight_padding import find_weight_paddings
from roller.insight.step_profile.profiling import profile
from roller.insight.whatif.predict import what_if
from roller.ops import matmul

torch = pytest.importorskip("torch")


def traced(*sizes, batch=2048, amp="bf16"):
    from roller.insight.tracing import trace

    layers = [layer for k, n in pairwise(sizes) for layer in (torch.nn.Linear(k, n), torch.nn.ReLU())]
    return trace(torch.nn.Sequential(*layers), torch.zeros(batch, sizes[0]), optimizer="sgd", amp=amp, device="a100")


def pads_of(step):
    graph = step.graph("a100")
    return graph, find_weight_paddings(graph, step)


def test_a_linear_layer_of_999_is_padded_and_one_of_1024_is_not():
    _, (pad,) = pads_of(traced(1024, 999, 1024))
    assert pad.sizes.keys() == {999} and pad.sizes[999] in (1000, 1008, 1024)
    assert set(pad.weights) == {"0.weight", "0.bias", "2.weight"}
    assert str(pad) == f"pad 999 -> {pad.sizes[999]} (0.bias, 0.weight, 2.weight)"
    assert pads_of(traced(1024, 1024, 1024))[1] == ()


def test_the_gain_is_the_difference_of_the_prices_of_all_its_products():
    graph, (pad,) = pads_of(traced(1024, 999, 1024))
    prices, to = KernelPricer(load_spec("a100").sustained, "library"), pad.sizes[999]
    products = [n for n in pad.delta_s if "mm" in graph.tasks[n].context.operator]
    assert len(products) == 5  # two forward, three backward: the first layer has no gradient of its input

    def seconds(m, n, k, *rest, **more):
        return prices.price_expression(matmul(m, n, k, None, *rest, dtype="bfloat16", **more)).seconds

    def forward(size):
        first = seconds(2048, size, 1024, False, True, epilogue=("bias",))
        return first + seconds(2048, 1024, size, False, True, epilogue=("bias",))

    found = math.fsum(pad.delta_s[n] for n in products if graph.tasks[n].context.phase == "forward")
    assert found == pytest.approx(forward(to) - forward(999)) and forward(999) > LEAST_GAIN * forward(to)
    whole = math.fsum(pad.delta_s.values())
    answer = what_if(graph, pad)
    # the device is the bottleneck, but for the first kernels, which wait for their launches
    assert answer.iteration_us - answer.baseline_us == pytest.approx(1e6 * whole, rel=1e-3)
    assert answer.rests_on == "predicted" and any("are zeros" in sentence for sentence in answer.assumptions)


def test_a_size_of_the_batch_is_not_padded_as_one_of_a_weight():
    assert pads_of(traced(1024, 1024, batch=999))[1] == ()
    assert pads_of(traced(1024, 999, 1024, batch=999))[1] == ()  # which of both a kernel's 999 is cannot be told


def test_every_launch_of_a_kernel_counts(monkeypatch):
    from roller.insight.tracing import trace

    lstm = torch.nn.LSTM(1023, 512, bidirectional=True)
    step = trace(lstm, torch.zeros(16, 256, 1023), optimizer="sgd", amp="bf16", device="a100", loss=_first_sum)
    graph, (pad,) = pads_of(step)
    prices, (task,) = KernelPricer(load_spec("a100").sustained, "library"), _tasks(graph, "aten._cudnn_rnn.default")

    def seconds(width):
        product = matmul(16 * 256, 4 * 512, width, transpose_b=True, dtype="bfloat16")
        return prices.price_expression(product).seconds

    assert pad.delta_s[task] == pytest.approx(2 * (seconds(pad.sizes[1023]) - seconds(1023)))  # one in each direction
    whole_s = sum(t.duration_us for t in graph.tasks if t.on_device) / 1e6
    monkeypatch.setattr(find_worthwhile_weight_padding, "LEAST_SHARE", 3 * seconds(1023) / whole_s)
    assert pads_of(step)[1] == (pad,)  # the four launches of backward together have this share
    monkeypatch.setattr(find_worthwhile_weight_padding, "LEAST_SHARE", 9 * seconds(1023) / whole_s)
    assert pads_of(step)[1] == ()


def _first_sum(result):
    return result[0].sum()


def _tasks(graph, operator):
    return [t.id for t in graph.tasks if t.kind == "kernel" and t.context.operator == operator]


def test_a_size_of_several_kernels_gets_its_largest_padding():
    paddings = [{999: 1000, 777: 784}, {777: 778}, {501: 504}, {999: 1008, 250: 256}]
    for order in (paddings, paddings[::-1]):
        found = find_worthwhile_weight_padding._merge_paddings(order)
        assert sorted(found, key=len) == [{501: 504}, {999: 1008, 777: 784, 250: 256}]


def test_a_graph_without_a_gpu_has_no_pads():
    step = traced(1024, 999, 1024)
    assert find_weight_paddings(replace(step.graph("a100"), device=None), step) == ()


def test_padded_sizes_follow_the_what_ifs():
    found = profile(traced(1024, 999, 1024), "a100").hints(2.0)
    origins = [hint.origin for hint in found]
    assert origins == sorted(origins, reverse=True) and origins.count("lint") == 1
    last = found[-1]
    assert last.memory.delta_bytes is None and last.delta_s < 0 and last.change.startswith("pad 999 -> ")
