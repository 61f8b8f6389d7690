"""A limit of power lowers the clock of kernels that keep arithmetic busy, and of no others."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import roller
from roller import ops
from roller.errors import SpecError
from tests.perf.test_terms import rebuilt

L4 = roller.load_spec("l4")
FREE = replace(L4, power_w=None, execution=replace(L4.execution, busy_cycle_j=None, idle_cycle_j=None))
PRODUCT = ops.matmul(2048, 2048, 2048)
ADD = ops.elementwise("add", (4096, 4096))


def best(expr, spec, **options):
    return roller.construct(expr, spec, options=roller.ConstructOptions(top_k=1, **options))[0]


@pytest.mark.parametrize("expr", [PRODUCT, ops.matmul(2048, 2048, 2048, dtype="float16")])
def test_arithmetic_is_no_faster_than_the_power_pays_for(expr):
    held, free = (best(expr, s).estimate for s in (L4, FREE))
    assert held.seconds > 1.5 * free.seconds
    assert held.clock_hz < 0.75 * L4.clock_hz and free.clock_hz == L4.clock_hz
    assert held.bottleneck == "compute"
    busy = {"float32": 128, "float16": 512}[expr.inputs[0].dtype]
    assert held.seconds > 2048**3 / busy * L4.execution.busy_cycle_j / L4.power_w


def test_memory_holds_the_boost_clock():
    held, free = (best(ADD, s).estimate for s in (L4, FREE))
    assert held == free
    assert held.clock_hz == L4.clock_hz


def test_of_programs_that_power_holds_the_one_with_fewest_cycles_wins():
    program = best(PRODUCT, FREE, winograd=False).program
    slower = {"shared": {"i": 32, "j": 32, "k": 8}, "register": {"i": 2, "j": 2}}
    assert roller.predict(PRODUCT, L4, str(program)).seconds < roller.predict(PRODUCT, L4, slower).seconds


def test_more_power_is_more_speed_up_to_the_boost_clock():
    name = str(best(PRODUCT, L4).program)
    seconds = [roller.predict(PRODUCT, L4.with_overrides({"power_w": w}), name).seconds for w in (50, 72, 100, 1000)]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] == pytest.approx(1.44 * seconds[1], rel=0.02)
    assert seconds[-1] == roller.predict(PRODUCT, FREE, name).seconds


def test_the_estimate_says_its_clock_and_keeps_it():
    found = best(PRODUCT, L4).estimate
    assert type(found).from_dict(found.to_dict()) == found
    assert best(PRODUCT, "v100").estimate.clock_hz == roller.load_spec("v100").clock_hz
    assert best(PRODUCT, "cpu-avx2").estimate.clock_hz == roller.load_spec("cpu-avx2").clock_hz


def test_what_a_board_draws_anyway_is_no_power_of_cycles():
    t4 = roller.load_spec("t4")
    tiles = {"shared": {"i": 128, "j": 128, "k": 8}, "register": {"i": 8, "j": 8}}
    halved = t4.with_overrides({"power_w": t4.power_w / 2 + t4.execution.standing_w / 2})
    seconds = [roller.predict(PRODUCT, s, tiles).seconds - s.execution.launch_s for s in (t4, halved)]
    assert seconds[1] == pytest.approx(2 * seconds[0])  # half of what is left beside it
    told = roller.explain(PRODUCT, t4)
    assert told.time.find("most the board draws beside the 26 W it always does").value == 44
    assert rebuilt(json.loads(json.dumps(told.to_dict()))["time"]) == told.estimate.seconds


def test_bytes_through_the_shared_cache_are_paid_for_too():
    t4 = roller.load_spec("t4")
    free = t4.with_overrides({f"memory_layers.{n}.byte_j": 1e-14 for n in ("l2", "global")})
    large = {"shared": {"i": 128, "j": 128, "k": 8}, "register": {"i": 8, "j": 8}}
    small = {"shared": {"i": 64, "j": 64, "k": 8}, "register": {"i": 8, "j": 8}}
    held, paid_for = ([roller.predict(PRODUCT, s, t).seconds for t in (large, small)] for s in (t4, free))
    slower = [a / b for a, b in zip(held, paid_for, strict=True)]
    assert 1.05 < slower[0] < slower[1], "a small tile loads twice as much for the same products"
    assert roller.predict(ADD, t4, str(best(ADD, t4).program)).clock_hz == t4.clock_hz
    told = roller.explain(PRODUCT, t4)
    paid = told.time.find("energy of bytes through L2")
    assert paid.value == pytest.approx(told.time.find("bytes through L2").value * t4.layer("l2").byte_j)


@pytest.mark.parametrize(
    ("name", "tera", "dtype"), [("t4", 4.3, "float32"), ("l4", 10.6, "float32"), ("t4", 24.0, "float16")]
)
def test_the_energy_of_a_cycle_is_what_its_note_says(name, tera, dtype):
    found = roller.predict(ops.matmul(4096, 4096, 4096, dtype=dtype), name, policy="library-graph")
    assert 2 * 4096**3 / found.seconds == pytest.approx(tera * 1e12, rel=0.02)


def test_an_energy_of_bytes_without_a_limit_of_power_is_refused():
    with pytest.raises(SpecError, match=r"memory_layers\.l2\.byte_j: expected beside power_w"):
        roller.load_spec("v100", {"memory_layers.l2.byte_j": 1e-10})


def test_an_explanation_adds_up_to_the_held_time():
    told = roller.explain(PRODUCT, L4)
    assert told.estimate.clock_hz < L4.clock_hz
    assert told.time.find("most the board draws").value == L4.power_w
    assert rebuilt(json.loads(json.dumps(told.to_dict()))["time"]) == told.estimate.seconds
