"""The terms of a price, put together again by their rules alone, are the price: with ==, for every structure."""

from __future__ import annotations

import math

import numpy as np
import pytest

import roller
from roller import ops
from roller.perf import RULES
from roller.templates.price_with_templates import estimate_with_terms

CASES = {
    "matmul": ops.matmul(512, 768, 1024),
    "deep": ops.matmul(64, 64, 8192),
    "half": ops.matmul(1024, 512, 1024, dtype="float16"),
    "conv": ops.conv2d(4, 32, 14, 14, 64, 3, 3, padding=1, epilogue=("bias", "relu")),
    "depthwise": ops.depthwise_conv2d(4, 32, 28, 28, 3, 3, padding=1),
    "softmax": ops.softmax((512, 1000)),
    "sum": ops.reduce("sum", (64, 4096), axes=(1,)),
    "relu": ops.elementwise("relu", (1 << 20,)),
    "dots": ops.matmul(8, 512, 2048, transpose_b=True),
}
DEVICES = ("cpu-avx512", "cpu-neon", "v100", "h200", "mi250x", "k80")


def rebuilt(term):
    """Return the value of a term from the leaves of its JSON, by the rules as documented; nothing of roller."""
    if term["rule"] == "given":
        assert "parts" not in term
        return term["value"]
    v = [rebuilt(p) for p in term["parts"]]
    if term["rule"] == "sum":
        total = v[0]
        for x in v[1:]:
            total = total + x
        return total
    if term["rule"] == "product":
        return math.prod(v[1:], start=v[0])
    if term["rule"] == "quotient":
        total = v[0]
        for x in v[1:]:
            total = total / x
        return total
    if term["rule"] == "alternating":
        return mean_value_analysis(v[0], v[1:])
    if term["rule"] in ("largest", "smallest", "ceiling"):
        return {"largest": max, "smallest": min, "ceiling": lambda x: math.ceil(x[0])}[term["rule"]](v)
    if term["rule"] == "difference":
        return v[0] - v[1]
    one = np.array(v[:2]).reshape(2, 1)  # powers as NumPy takes them of arrays
    if term["rule"] == "overlapped":
        longest = np.maximum(np.maximum(one[0], one[1]), 1e-30)
        r = np.minimum(np.minimum(one[0], one[1]) / longest, 1.0 - 1e-9)
        return float((longest * (1.0 - r ** (v[2] + 1)) / (1.0 - r ** v[2]))[0])
    if term["rule"] == "knee":
        return float(((one[0] ** v[2] + one[1] ** v[2]) ** (1.0 / v[2]))[0])
    if term["rule"] == "saturating":
        return float((((one[0] / one[1]) ** -v[2] + 1.0) ** (-1.0 / v[2]) * one[1])[0])
    raise AssertionError(term["rule"])


def mean_value_analysis(customers, phases):
    """Time in which all customers have gone once through all phases (Reiser); interpolated between whole numbers."""
    total = phases[0]
    for d in phases[1:]:
        total = total + d
    total = max(total, 1e-30)
    time, previous, queues = total, total, [d / total for d in phases]
    for n in range(2, math.ceil(customers) + 1):
        waits = [d * (1.0 + q) for d, q in zip(phases, queues, strict=True)]
        cycle = waits[0]
        for w in waits[1:]:
            cycle = cycle + w
        cycle = max(cycle, 1e-30)
        queues = [n * w / cycle for w in waits]
        each = cycle / n
        time = previous + (each - previous) * min(customers - n + 1, 1.0)
        previous = each
    return time


def check(program, spec, seconds):
    """Rebuild every term of a program's price, each from the leaves below it."""
    estimate, term = estimate_with_terms(program, spec)
    assert estimate.seconds == seconds == term.value
    nodes = [t for _, t in term.walk()]
    for t in nodes:
        assert t.rule in RULES
        assert rebuilt(t.to_dict()) == t.value, f"{spec.name} {program}: {t.name}"
    return {t.rule for t in nodes}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_the_price_is_made_of_its_terms(name, device):
    spec = roller.load_spec(device)
    for c in roller.construct(CASES[name], spec):
        check(c.program, spec, c.estimate.seconds)


def test_every_rule_is_met():
    met = set()
    for device in DEVICES:
        spec = roller.load_spec(device)
        for expr in CASES.values():
            c = roller.construct(expr, spec, top_k=1)[0]
            met |= check(c.program, spec, c.estimate.seconds)
    assert met == set(RULES)
