"""The doctor names the field a set of times was made wrong by, and says when it cannot tell."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import roller
from roller import ops
from roller.hardware import load_spec
from roller.probing.find_wrong_spec_field import OPERATORS, PLAUSIBLE, RECORDS, MeasuredProgram, diagnose
from roller.probing.read_measured_programs import cached_measured_programs
from roller.runtime.cache import KernelCache
from roller.templates.price_with_templates import log_prices
from tests.runtime.cache_entries import make_entry, make_key

COMPUTE = [
    ops.matmul(1024, 1024, 1024), ops.matmul(512, 512, 1024), ops.matmul(2048, 1024, 512), ops.matmul(768, 768, 768),
    ops.matmul(1536, 512, 1024), ops.conv2d(8, 64, 28, 28, 128, 3, 3, padding=1),
]  # fmt: skip
DOUBLE = [ops.matmul(1024, 512, 512, dtype="float64"), ops.matmul(512, 512, 1024, dtype="float64"),
          ops.matmul(768, 512, 640, dtype="float64")]  # fmt: skip
MEMORY = [
    ops.elementwise("relu", (1 << 24,)), ops.elementwise("add", (1 << 23,)), ops.elementwise("relu", (3 << 23,)),
    ops.reduce("sum", (8192, 4096), (1,)), ops.elementwise("mul", (5 << 22,)),
]  # fmt: skip
SMALL = [
    ops.elementwise("relu", (4096,)), ops.elementwise("add", (512,)), ops.matmul(32, 32, 32),
    ops.reduce("sum", (32, 256), (1,)), ops.elementwise("relu", (1 << 13,)), ops.elementwise("mul", (700,)),
    ops.elementwise("add", (60, 40)), ops.reduce("max", (16, 300), (1,)),
]  # fmt: skip
ALL = [*COMPUTE, *DOUBLE, *MEMORY, *SMALL]


def measured(device, change, noise=0.02, expressions=ALL, seed=0, count=3):
    """Times of a device that differs from its spec by ``change`` factors, with noise per operator and per record."""
    spec = load_spec(device)
    values = spec.values()
    true = spec.with_overrides({f: values[f] / factor for f, factor in change.items()})
    rng, out = np.random.default_rng(seed), []
    for e in expressions:
        found = roller.construct(e, spec, top_k=count)
        seconds = np.exp(log_prices([c.program for c in found], true))
        seconds = seconds * np.exp(noise * rng.standard_normal(len(found))) * np.exp(noise * rng.standard_normal())
        out += [MeasuredProgram(str(e), c.program, float(s)) for c, s in zip(found, seconds, strict=True)]
    return out, spec


@pytest.mark.parametrize(
    ("device", "field", "factor"),
    [
        ("v100", "memory_layers.global.bandwidth_bytes_per_s", 1.18),
        ("v100", "compute.ops_per_cycle_per_unit.fma", 1.18),
        ("v100", "execution.launch_s", 1 / 1.18),
        ("cpu-avx512", "memory_layers.dram.bandwidth_bytes_per_s", 1 / 1.18),
        ("cpu-avx512", "memory_layers.dram.bandwidth_bytes_per_s", 1.18),
        ("cpu-avx512", "execution.launch_s", 1.18),
    ],
)
def test_the_field_that_is_off_by_18_percent_is_named(device, field, factor):
    found = diagnose(*measured(device, {field: factor}))
    assert found.finding is not None, found.reason
    assert found.finding.field == field
    assert 1 + found.finding.too_high == pytest.approx(factor, rel=0.06)
    side = "high" if factor > 1 else "low"
    assert f"{field} looks " in str(found.finding) and f"% {side}: " in str(found.finding)


def test_a_few_wild_records_change_nothing():
    field = "memory_layers.global.bandwidth_bytes_per_s"
    observations, spec = measured("v100", {field: 1.18})
    rng = np.random.default_rng(1)
    wild = [
        MeasuredProgram(o.operator, o.program, o.measured_s * (4 if rng.random() < 0.08 else 1)) for o in observations
    ]
    found = diagnose(wild, spec)
    assert found.finding is not None and found.finding.field == field
    assert found.finding.too_high == pytest.approx(0.18, abs=0.06)


@pytest.mark.parametrize("device", ["v100", "cpu-avx512"])
@pytest.mark.parametrize("seed", range(2))
def test_noise_has_no_explanation(device, seed):
    found = diagnose(*measured(device, {}, noise=0.25, seed=seed))
    assert found.finding is None
    assert found.reason.startswith("cannot tell: measured times are ")
    assert "no field explains that" in found.reason


def test_what_agrees_needs_none():
    found = diagnose(*measured("v100", {}, noise=0.01))
    assert found.finding is None
    assert found.reason.startswith("nothing to explain: predictions are within ")


@pytest.mark.parametrize("device", ["v100", "cpu-avx512"])
def test_two_fields_that_explain_alike_are_both_named(device):
    # Nothing but large matmuls: a slow clock and a low FMA rate look the same.
    found = diagnose(*measured(device, {"compute.ops_per_cycle_per_unit.fma": 1.18}, noise=0.01, expressions=COMPUTE))
    assert found.finding is None
    assert "explain the residuals equally well" in found.reason
    assert "clock_hz" in found.reason and "compute.ops_per_cycle_per_unit.fma" in found.reason


def test_too_few_records_tell_nothing():
    few, spec = measured("v100", {"clock_hz": 1.18}, expressions=MEMORY[: OPERATORS - 1])
    assert len(few) >= RECORDS
    for observations in (few, [], few[:3]):
        found = diagnose(observations, spec)
        assert found.finding is None and not found.tried
        assert f"expected at least {RECORDS} measured programs of {OPERATORS} operators" in found.reason
    assert json.loads(json.dumps(diagnose(few, spec).to_dict()))["records"] == len(few)


def test_times_that_no_number_explains_are_called_disturbed():
    """A busy machine's times were explained by vectors of 879 lanes."""
    observations, spec = measured("cpu-avx512", {}, noise=0.01)
    busy = [MeasuredProgram(o.operator, o.program, o.measured_s * 300) for o in observations]
    found = diagnose(busy, spec)
    assert found.finding is None
    assert "They look disturbed, or measured on another device" in found.reason
    assert "roller compile --remeasure" in found.reason
    assert all(1 / PLAUSIBLE <= e.value / e.fitted <= PLAUSIBLE for e in found.tried)


def test_a_field_that_would_have_to_be_wildly_wrong_is_not_named():
    found = diagnose(*measured("v100", {"memory_layers.global.bandwidth_bytes_per_s": 40.0}))
    assert found.finding is None
    assert "They look disturbed" in found.reason


def test_doubtful_times_are_no_evidence_and_say_what_disturbed_them():
    cache, why = KernelCache(), "other programs kept {} of 2 processors busy while it was timed: 1 of 9 windows were"
    for n, others in ((64, "1.9"), (65, "1.7"), (66, "")):
        expr = ops.elementwise("relu", (n,))
        entry = make_entry(expr, measured_s=1e-3)
        first, *rest = entry.candidates
        doubted = replace(first, status="doubtful", reason=why.format(others)) if others else first
        cache.store(make_key(expr), replace(entry, candidates=(doubted, *rest)))
    found = cached_measured_programs(cache, "v100", outdated=True)
    assert [o.program.axes[0].extent for o in found.observations] == [66]
    assert found.doubtful == (("other programs kept 1.9 of 2 processors busy", 2),)


def test_evidence_is_what_the_cache_measured_here():
    for n in (64, 65):
        roller.compile(ops.elementwise("relu", (n,)), "cpu", top_k=3)
    roller.compile(ops.elementwise("relu", (66,)), "cpu", deterministic=True)  # not timed
    roller.compile(ops.elementwise("relu", (67,)), "v100", top_k=3)
    roller.compile(ops.elementwise("relu", (68,)), "cpu", options=roller.ConstructOptions(top_k=2, units=1))
    found = cached_measured_programs(KernelCache(), "cpu")
    assert found.outdated == 0
    assert {o.program.axes[0].extent for o in found.observations} == {64, 65}
    assert all(o.measured_s > 0 for o in found.observations)
    assert len({id(o.program.expr) for o in found.observations}) == 2
    assert cached_measured_programs(KernelCache(), "v100").observations == ()
