"""Streams on a CPU: which layer they wait for, what write-allocate costs, when stores go past the caches."""

from __future__ import annotations

from dataclasses import replace

import pytest

import roller
from roller import ops
from roller.construction.explicit_tiles import program_from_tiles
from roller.templates import price_with_templates

PROFILES = ("cpu-avx512", "cpu-avx2", "cpu-neon")


@pytest.mark.parametrize("device", PROFILES)
def test_stores_go_past_the_caches_only_where_no_cache_keeps_the_result(device):
    kept = roller.load_spec(device).layer("l3").usable_bytes
    for elements, expected in ((1 << 10, False), (kept // 16, False), (kept // 8, False), (kept // 7, True)):
        found = roller.construct(ops.elementwise("relu", (elements,)), device=device, top_k=1)[0]
        assert found.program.nontemporal is expected


def test_write_allocate_is_what_non_temporal_stores_save():
    spec = roller.load_spec("cpu-avx512")
    expr = ops.elementwise("add", (1 << 25,))
    program = replace(roller.construct(expr, device=spec, top_k=1)[0].program, nontemporal=False)
    plain, past = (
        price_with_templates.estimate_program(p, spec) for p in (program, replace(program, nontemporal=True))
    )
    assert plain.terms["dram_s"] / past.terms["dram_s"] == pytest.approx(4 / 3, rel=1e-3)


def test_a_result_that_would_have_stayed_in_a_cache_is_charged_to_its_reader():
    spec = roller.load_spec("cpu-avx512")
    expr = ops.elementwise("relu", (1 << 20,))
    program = roller.construct(expr, device=spec, top_k=1)[0].program
    plain, past = (
        price_with_templates.estimate_program(p, spec) for p in (program, replace(program, nontemporal=True))
    )
    assert past.seconds > plain.seconds


def test_short_rows_gain_nothing():
    spec = roller.load_spec("cpu-avx512")
    expr = ops.elementwise("add", (1 << 20, 40), [(1 << 20, 1)])
    for c in roller.construct(expr, device=spec):
        plain = price_with_templates.estimate_program(replace(c.program, nontemporal=False), spec)
        assert (
            plain.seconds <= price_with_templates.estimate_program(replace(c.program, nontemporal=True), spec).seconds
        )


def test_a_tensor_read_twice_crosses_the_bus_once():
    once, twice = (ops.elementwise(n, (1 << 25,)) for n in ("relu", "gelu"))
    a, b = (roller.construct(e, device="cpu-avx512", top_k=1)[0].estimate for e in (once, twice))
    assert a.terms["dram_s"] == b.terms["dram_s"]


def test_one_core_draws_more_than_its_share_of_the_bus_where_it_can():
    spec = roller.load_spec("cpu-avx512")
    able = spec.with_overrides({"memory_layers.dram.bandwidth_per_teu_bytes_per_s": 3.6e10})
    program = roller.construct(ops.elementwise("relu", (1 << 24,)), device=spec, top_k=1)[0].program
    whole = tuple((n, (1 << 24,) if n == "l2" else e) for n, e in program.tiles)
    one = replace(program, tiles=whole)
    assert (
        price_with_templates.estimate_program(one, able).seconds
        < 0.7 * price_with_templates.estimate_program(one, spec).seconds
    )
    assert (
        price_with_templates.estimate_program(program, able).seconds
        == price_with_templates.estimate_program(program, spec).seconds
    )


def test_tiles_a_person_names_are_priced_with_the_better_stores():
    spec = roller.load_spec("cpu-avx512")
    expr = ops.elementwise("relu", (1 << 25,))
    program = program_from_tiles(expr, spec, {"register": [64], "l2": [1 << 16]})
    assert program.nontemporal
    assert not program_from_tiles(ops.elementwise("relu", (1 << 18,)), spec, {"register": [64]}).nontemporal
