"""Padded sizes of a step's weights: only weights grow, with all products of a weight, at the prices of lint."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from roller.hardware import load_spec
from roller.insight.cost.kernels import Kernels
from roller.insight.cost.padding import LEAST_GAIN
from roller.insight.step_profile.profiling import profile
from roller.insight.step_profile.weight_padding import padded_weights
from roller.insight.whatif.predict import what_if
from roller.ops import matmul

torch = pytest.importorskip("torch")


def traced(*sizes, batch=2048, amp="bf16"):
    from roller.insight.tracing import trace

    layers = [layer for k, n in pairwise(sizes) for layer in (torch.nn.Linear(k, n), torch.nn.ReLU())]
    return trace(torch.nn.Sequential(*layers), torch.zeros(batch, sizes[0]), optimizer="sgd", amp=amp, device="a100")


def pads_of(step):
    graph = step.graph("a100")
    return graph, padded_weights(graph, step)


def test_a_linear_layer_of_999_is_padded_and_one_of_1024_is_not():
    _, (pad,) = pads_of(traced(1024, 999, 1024))
    assert pad.sizes.keys() == {999} and pad.sizes[999] in (1000, 1008, 1024)
    assert set(pad.weights) == {"0.weight", "0.bias", "2.weight"}
    assert str(pad) == f"pad 999 -> {pad.sizes[999]} (0.bias, 0.weight, 2.weight)"
    assert pads_of(traced(1024, 1024, 1024))[1] == ()


def test_the_gain_is_the_difference_of_the_prices_of_all_its_products():
    graph, (pad,) = pads_of(traced(1024, 999, 1024))
    prices, to = Kernels(load_spec("a100").sustained, "library"), pad.sizes[999]
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


def test_a_graph_without_a_gpu_has_no_pads():
    step = traced(1024, 999, 1024)
    assert padded_weights(replace(step.graph("a100"), device=None), step) == ()


def test_padded_sizes_follow_the_what_ifs():
    found = profile(traced(1024, 999, 1024), "a100").hints(2.0)
    origins = [hint.origin for hint in found]
    assert origins == sorted(origins, reverse=True) and origins.count("lint") == 1
    last = found[-1]
    assert last.memory.delta_bytes is None and last.delta_s < 0 and last.change.startswith("pad 999 -> ")
