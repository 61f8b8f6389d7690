"""How predictions follow a device's numbers: by construction of the case, known beforehand."""

from __future__ import annotations

import json
import math

import pytest

import roller
from roller import ops
from roller.hardware import load_spec
from roller.perf.sensitivity import elasticities, elasticity, field_steps, log_prices
from roller.report.sensitivity import COST, REDUCED

STREAM = ops.elementwise("relu", (1 << 24,))
MATMUL = ops.matmul(2048, 2048, 2048)
DRAM = {"v100": "memory_layers.global.bandwidth_bytes_per_s", "cpu-avx512": "memory_layers.dram.bandwidth_bytes_per_s"}


def effects(found):
    return {e.field: e.percent for e in found.effects}


@pytest.mark.parametrize("device", DRAM)
@pytest.mark.parametrize("reconstruct", [False, True])
def test_a_stream_follows_bandwidth_and_a_matmul_the_arithmetic(device, reconstruct):
    options = roller.ConstructOptions(top_k=1, pool=256)
    stream = roller.sensitivity(STREAM, device, reconstruct=reconstruct, options=options)
    assert stream.enlarge.field == DRAM[device]
    assert effects(stream)[DRAM[device]] == pytest.approx(-1, abs=0.1)
    assert abs(effects(stream).get("compute.ops_per_cycle_per_unit.fma", 0)) < 0.05
    matmul = roller.sensitivity(MATMUL, device, reconstruct=reconstruct, options=options)
    fma = effects(matmul)["compute.ops_per_cycle_per_unit.fma"]
    assert fma < -0.5 < effects(matmul).get(DRAM[device], 0)
    assert effects(matmul)["clock_hz"] <= fma + 0.05, "the clock speeds up all that the FMA rate does"
    assert dict(stream.reducible).get(DRAM[device]) is None
    assert "compute.ops_per_cycle_per_unit.fma" in dict(stream.reducible)


def test_an_elasticity_is_the_change_one_would_measure():
    spec = load_spec("v100")
    program = roller.construct(MATMUL, spec, top_k=1)[0].program
    found = {s.field: e[0] for s, e in elasticities([program], spec).items()}
    for field in ("clock_hz", "execution.step_latency_s", "compute.ops_per_cycle_per_unit.fma"):
        larger = spec.with_overrides({field: spec.values()[field] * 1.01})
        change = (log_prices([program], larger) - log_prices([program], spec))[0] / math.log(1.01)
        assert found[field] == pytest.approx(change, abs=0.02)
    assert not any(f.startswith("accuracy.") for f in found)


def test_a_side_on_which_a_program_does_not_fit_does_not_count():
    spec = load_spec("v100")
    program = roller.construct(MATMUL, spec, top_k=1)[0].program
    base = log_prices([program], spec)
    for step in field_steps(spec):
        found = elasticity(step, lambda other: log_prices([program], other), base)
        assert math.isfinite(found[0]), step.field
    shared = next(s for s in field_steps(spec) if s.field == "limits.registers_per_unit")
    assert [round(x, 3) for x, _ in shared.sides] == [-0.693, 0.693]


def test_several_operators_count_by_their_geometric_mean():
    both = roller.sensitivity([STREAM, MATMUL], "v100")
    alone = [effects(roller.sensitivity(e, "v100")) for e in (STREAM, MATMUL)]
    for e in both.effects[:5]:
        mean = sum(a.get(e.field, 0.0) for a in alone) / 2
        assert e.percent == pytest.approx(mean, abs=0.005)
        assert len(e.per_operator) == 2
    assert [abs(e.percent) for e in both.effects] == sorted((abs(e.percent) for e in both.effects), reverse=True)
    assert json.loads(json.dumps(both.to_dict()))["operators"] == list(both.operators)


def test_what_is_named_reducible_is():
    spec = load_spec("v100")
    found = roller.sensitivity(STREAM, spec)
    program = roller.construct(STREAM, spec, top_k=1)[0].program
    assert found.reducible
    for field, change in found.reducible:
        value = spec.values()[field] * (1 - REDUCED)
        smaller = spec.with_overrides({field: math.floor(value) if isinstance(spec.values()[field], int) else value})
        factor = math.exp((log_prices([program], smaller) - log_prices([program], spec))[0])
        assert factor - 1 == pytest.approx(change, abs=1e-9)
        assert change <= COST
