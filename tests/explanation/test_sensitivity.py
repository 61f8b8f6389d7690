"""How predictions follow a device's numbers: by construction of the case, known beforehand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import roller
from roller import ops
from roller.errors import NoCandidateError, TileError
from roller.explanation import spec_change_effects
from roller.explanation.sensitivity import COST
from roller.hardware import load_spec
from roller.hardware.checks import Quantity
from roller.perf.sensitivity import elasticity, finite_difference_steps
from roller.templates.price_with_templates import log_prices


def elasticities(programs, spec):
    """Return, per field that matters to any of the programs, the elasticities of their predicted times."""
    base = log_prices(programs, spec)
    found = {s: elasticity(s, lambda other: log_prices(programs, other), base) for s in finite_difference_steps(spec)}
    return {s: e for s, e in found.items() if np.abs(e).max(initial=0.0) > 0}


STREAM = ops.elementwise("relu", (1 << 24,))
MATMUL = ops.matmul(2048, 2048, 2048)
DRAM = {"v100": "memory_layers.global.bandwidth_bytes_per_s", "cpu-avx512": "memory_layers.dram.bandwidth_bytes_per_s"}


def effects(found):
    return {e.field: e.percent for e in found.effects}


@pytest.mark.parametrize("device", DRAM)
@pytest.mark.parametrize("reconstruct", [False, pytest.param(True, marks=pytest.mark.slow)])
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
    spare = {x.field for x in stream.reducible}
    assert DRAM[device] not in spare and "compute.ops_per_cycle_per_unit.fma" in spare


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
    for step in finite_difference_steps(spec):
        found = elasticity(step, lambda other: log_prices([program], other), base)
        assert math.isfinite(found[0]), step.field
    shared = next(s for s in finite_difference_steps(spec) if s.field == "limits.registers_per_unit")
    assert [x / shared.value for x, _ in shared.sides] == [0.5, 2]


def test_several_operators_count_by_their_geometric_mean():
    both = roller.sensitivity([STREAM, MATMUL], "v100")
    assert not both.reconstructed, "as many constructions as fields and operators take minutes"
    alone = [roller.sensitivity(e, "v100", reconstruct=False) for e in (STREAM, MATMUL)]
    assert both.seconds == (*alone[0].seconds, *alone[1].seconds)
    slopes = [effects(x) for x in alone]
    for e in both.effects[:5]:
        assert e.percent == pytest.approx(sum(a.get(e.field, 0.0) for a in slopes) / 2, abs=0.005)
        assert len(e.per_operator) == 2
    assert [e.weight for e in both.effects] == sorted((e.weight for e in both.effects), reverse=True)
    assert json.loads(json.dumps(both.to_dict()))["operators"] == list(both.operators)


def check_against(found, seconds_of, spec):
    """Set every field that is named to every value that is named, and hold the printed times to what comes."""
    assert found.effects and found.enlarge is not None
    for e in found.effects:
        assert e.seconds == found.seconds
        for c in e.changes:
            assert c.seconds == seconds_of(load_spec(spec, {e.field: c.value})), (e.field, c.value)
            assert c.percent == pytest.approx(100 * (c.seconds[0] / found.seconds[0] - 1), abs=1e-9)
    assert found.enlarge.best.percent < -0.1, "what is recommended gains"
    for x in found.reducible:
        assert x.change.value < load_spec(spec).values()[x.field] and x.change.percent <= COST
        assert x.change.seconds == seconds_of(load_spec(spec, {x.field: x.change.value}))


def test_a_few_fields_against_construct():
    expr, options = ops.elementwise("gelu", (4096, 512)), roller.ConstructOptions()
    fields = ("units", "clock_hz", DRAM["v100"], "limits.registers_per_unit")
    found = list(
        spec_change_effects.effects(
            load_spec("v100"), spec_change_effects.reconstructing_pricer([expr], options), fields
        )
    )
    assert [e.field for e in found] == [f for f in load_spec("v100").values() if f in fields]
    for e in found:
        for c in e.changes:
            best = roller.construct(expr, load_spec("v100", {e.field: c.value}), options=options)[0]
            assert c.seconds == (best.estimate.seconds,)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["v100", "cpu-avx512"])
def test_what_is_printed_is_what_construct_shows_of_the_changed_device(device):
    """``construct --set FIELD=VALUE`` with the same options; the finding this is for recommended ``units``, in vain."""
    expr, options = ops.matmul(512, 768, 256), roller.ConstructOptions(pool=512)
    found = roller.sensitivity(expr, device, options=options)
    assert found.reconstructed

    def constructed(spec):
        try:
            return (roller.construct(expr, spec, options=options)[0].estimate.seconds,)
        except NoCandidateError:
            return (math.inf,)

    check_against(found, constructed, device)


@pytest.mark.parametrize("device", ["h200", "cpu-avx512"])
def test_what_is_printed_of_a_program_is_what_predict_says_of_its_name(device):
    found = roller.sensitivity(MATMUL, device, reconstruct=False)
    name = str(roller.construct(MATMUL, device)[0].program)

    def named(spec):
        try:
            return (roller.predict(MATMUL, spec, name).seconds,)
        except TileError:
            return (math.inf,)

    check_against(found, named, device)


def test_values_are_as_many_digits_as_are_printed():
    spec = load_spec("h200")
    for e in spec_change_effects.effects(spec, lambda s: (1.0,)):
        for c in e.changes:
            assert float(f"{c.value:.12g}") == c.value != e.value


def test_waves_are_steps_to_either_side():
    """Of 96 blocks a unit each, 80 units take two waves: no other count near it is better, 100 take one."""
    values = spec_change_effects.values_to_try(80, Quantity("units", 1, 999, True))
    changes = tuple(spec_change_effects.relative_field_change(n, (float(-(-96 // n)),), (2.0,)) for n in values)
    effect = spec_change_effects.FieldEffect("units", 80, "units", (2.0,), changes)
    assert [(c.value, round(c.percent)) for c in effect.changes] == [(64, 0), (72, 0), (88, 0), (100, -50)]
    assert effect.best.value == effect.beside(larger=True).value == 100
    assert effect.beside(larger=False).value == 72
