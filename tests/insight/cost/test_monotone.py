"""No price of a library's kernel falls because a number of the device gets worse, but for what docs/limits.md names."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from roller import load_spec, ops
from roller.insight.cost.kernel_prices import KernelPricer

DEVICES = ("v100", "a100", "h100", "t4", "mi300x", "l4", "p100", "b200")
#: Of different templates: matrix units, threads, a matrix and a vector, a split reduction, depthwise windows.
OPERATORS = {
    "product": lambda: ops.matmul(512, 512, 512),
    "half": lambda: ops.matmul(1024, 768, 512, dtype="float16"),
    "vector": lambda: ops.matmul(1, 1000, 512),
    "few": lambda: ops.matmul(64, 64, 4096, dtype="float16"),
    "batch": lambda: ops.matmul(128, 64, 128, 12, dtype="float16"),
    "convolution": lambda: ops.conv2d(8, 64, 28, 28, 64, 3, 3, padding=1, dtype="float16"),
    "depthwise": lambda: ops.conv2d(2, 8, 14, 14, 8, 3, 3, padding=1, groups=8),
}


def _layer(spec, name, share, *keys):
    def worse(layer):
        return replace(layer, **{k: v * share for k in keys if (v := getattr(layer, k)) is not None})

    return replace(spec, memory_layers=tuple(worse(x) if x.name == name else x for x in spec.memory_layers))


def _scratchpad(spec, share):
    layers = []
    for x in spec.memory_layers:
        if x.name == "shared":
            size = int(x.capacity_bytes * share)
            x = replace(x, capacity_bytes=size, usable_bytes=x.usable_bytes and min(x.usable_bytes, size))
        layers.append(x)
    return replace(spec, memory_layers=tuple(layers))


def _rate(spec, name, share):
    rates = tuple((n, v * share if n == name else v) for n, v in spec.compute.rates)
    return replace(spec, compute=replace(spec.compute, rates=rates))


def _rates(spec, families, share):
    rates = tuple((n, v * share if n.partition(".")[0] in families else v) for n, v in spec.compute.rates)
    return replace(spec, compute=replace(spec.compute, rates=rates))


def _slower(spec, name, share):
    return replace(spec, execution=replace(spec.execution, **{name: getattr(spec.execution, name) / share}))


WORSE = {
    "dram bandwidth": lambda s, x: _layer(
        s, "global", x, "bandwidth_bytes_per_s", "read_bandwidth_bytes_per_s", "triad_bandwidth_bytes_per_s"
    ),
    "l2 bandwidth": lambda s, x: _layer(s, "l2", x, "bandwidth_bytes_per_s"),
    "dram latency": lambda s, x: _layer(s, "global", 1 / x, "latency_s"),
    "l2 capacity": lambda s, x: _layer(s, "l2", x, "capacity_bytes"),
    "scratchpad": _scratchpad,
    "launch": lambda s, x: _slower(s, "launch_s", x),
    "step latency": lambda s, x: _slower(s, "step_latency_s", x),
    "units": lambda s, x: replace(s, units=max(1, int(s.units * x))),
    "fma": lambda s, x: _rate(s, "fma", x),
    "issue": lambda s, x: _rate(s, "issue", x),
    "load and store": lambda s, x: _rate(s, "load_store", x),
}


#: Numbers of matrix units, in a test of their own.
MATRIX = {
    "matrix": lambda s, x: _rates(s, ("matrix", "group_matrix"), x),
    "l2 latency": lambda s, x: _layer(s, "l2", 1 / x, "latency_s"),
    "scratchpad bandwidth": lambda s, x: _layer(s, "shared", x, "bandwidth_bytes_per_s"),
}


def _allowed(spec, number: str) -> float:
    """Return by what share a price may fall: 0 but for the exceptions of docs/limits.md."""
    power_bound = spec.power_w is not None and spec.execution.busy_cycle_j is not None
    if number == "units" and power_bound:
        return 0.1
    if number == "matrix" and power_bound:
        return 0.005
    return 0.02 if number in ("scratchpad", "load and store") and spec.fragments else 1e-9


def _falls(seed: int, pairs: int, numbers=WORSE) -> list[str]:
    rng, known, found = random.Random(seed), {}, []
    for _ in range(pairs):
        device, name, number = rng.choice(DEVICES), rng.choice(list(OPERATORS)), rng.choice(list(numbers))
        share, spec = rng.choice((0.95, 0.9, 0.75, 0.5)), load_spec(device).sustained
        if (device, name) not in known:
            known[device, name] = KernelPricer(spec, "library").price_expression(OPERATORS[name]()).seconds
        now = KernelPricer(numbers[number](spec, share), "library").price_expression(OPERATORS[name]()).seconds
        if now < known[device, name] * (1 - _allowed(spec, number)):
            found.append(f"{name} on {device}, {number} x {share}: {known[device, name]} to {now}")
    return found


def test_no_price_falls_where_a_number_gets_worse():
    assert _falls(3, 30) == []


@pytest.mark.exhaustive
def test_no_price_of_a_thousand_pairs_falls():
    assert _falls(11, 1000) == []


def test_no_price_falls_where_a_matrix_unit_or_what_feeds_it_gets_worse():
    assert _falls(5, 60, MATRIX) == []
