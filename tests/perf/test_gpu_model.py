"""Properties of the GPU half of the model: bounds, monotony, and one answer however a program is asked about."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import roller
from roller import ConstructOptions, ops, perf
from roller.expr.canonical import fuse_axes
from roller.perf.phase_overlap import time_of_alternating_phases, time_of_two_overlapping_phases
from roller.templates import gpu, price_with_templates
from roller.templates.common.forms import canonical_forms
from roller.templates.gpu import programs_of_form
from roller.tile.geometry import Geometry
from tests.offenders import every

V100 = roller.load_spec("v100")
EXPRS = {
    "matmul": ops.matmul(512, 1000, 300),
    "conv": ops.conv2d(16, 64, 14, 14, 64, 3, 3, padding=1),
    "relu": ops.elementwise("relu", (1000, 1000)),
    "rows": ops.reduce("sum", (2000, 1000), (1,)),
    "depthwise": ops.depthwise_conv2d(8, 30, 42, 42, 5, 5, padding=2),
    "pooling": ops.pool2d("avg", 8, 16, 29, 64, 3, 3, stride=2),
}
POOLS = {
    name: programs_of_form(Geometry.of(fuse_axes(e)), V100, ConstructOptions(pool=2048))[0] for name, e in EXPRS.items()
}
_times = st.floats(1e-9, 1.0)


@given(memory=_times, compute=_times, blocks=st.integers(1, 64))
def test_overlap_lies_between_the_longer_phase_and_the_sum(memory, compute, blocks):
    time = float(time_of_two_overlapping_phases(np.array(memory), np.array(compute), blocks))
    assert max(memory, compute) * (1 - 1e-9) <= time <= (memory + compute) * (1 + 1e-6)
    more = float(time_of_two_overlapping_phases(np.array(memory), np.array(compute), blocks + 1))
    assert more <= time * (1 + 1e-6)
    assert time == float(time_of_two_overlapping_phases(np.array(compute), np.array(memory), blocks))


def test_one_customer_adds_and_many_hide_the_shorter_phase():
    assert float(time_of_two_overlapping_phases(np.array(3.0), np.array(1.0), 1)) == pytest.approx(4.0)
    assert float(time_of_two_overlapping_phases(np.array(3.0), np.array(1.0), 64)) == pytest.approx(3.0)


@given(phases=st.lists(_times, min_size=1, max_size=4), customers=st.floats(1, 16))
def test_alternating_phases_take_between_the_longest_and_their_sum(phases, customers):
    times = [np.array([t]) for t in phases]
    time = float(time_of_alternating_phases(times, np.array([customers]))[0])
    assert max(phases) * (1 - 1e-9) <= time <= sum(phases) * (1 + 1e-9)
    assert float(time_of_alternating_phases(times, np.array([customers + 0.5]))[0]) <= time * (1 + 1e-9)
    assert float(time_of_alternating_phases([*times, np.array([0.0])], np.array([customers]))[0]) == pytest.approx(time)


@given(memory=_times, compute=_times, customers=st.integers(1, 32))
def test_two_alternating_phases_have_a_closed_form(memory, compute, customers):
    """Buzen's, which the CPU half uses."""
    closed = float(time_of_two_overlapping_phases(np.array(memory), np.array(compute), customers))
    assert float(
        time_of_alternating_phases((np.array(memory), np.array(compute)), np.array(customers))
    ) == pytest.approx(closed, rel=1e-5)


@pytest.mark.parametrize("device", ["v100", "k80", "mi50", "h200"])
@pytest.mark.parametrize("name", EXPRS)
def test_the_lower_bound_is_one(name, device):
    spec = roller.load_spec(device)
    for form in canonical_forms(EXPRS[name], ConstructOptions()):
        for found in programs_of_form(Geometry.of(form), spec, ConstructOptions(pool=1024)):
            seconds, bound = gpu.price(found, spec)["seconds"], gpu.lower_bound_s(found, spec)
            assert (bound <= seconds * (1 + 1e-12)).all() and (bound > 0).all()
            assert (gpu.arithmetic_bound_s(found, spec) <= bound * (1 + 1e-8)).all()


def test_blocks_in_step_hide_no_more_than_their_groups_do():
    """One group: copies and arithmetic one after the other, however many blocks are resident."""
    one, two, more = (
        gpu.price(POOLS["matmul"], V100.with_overrides({"execution.overlap_blocks": n}))["seconds"] for n in (1, 2, 8)
    )
    assert (one >= two).all() and (two >= more).all() and (one > 1.1 * more).any()


def test_integer_pipes_of_their_own_run_beside_the_arithmetic():
    """Without them, addresses take the slots of additions: no program is faster, and the copies are longer."""
    rates = tuple((c, r) for c, r in V100.compute.rates if c != "integer")
    plain = replace(V100, compute=replace(V100.compute, rates=rates))
    beside, shared = (gpu.price(POOLS["conv"], s) for s in (V100, plain))
    assert (shared["seconds"] >= beside["seconds"] * (1 - 1e-12)).all()
    assert shared["copy_s"] == pytest.approx(2 * beside["copy_s"])


def test_dram_serves_a_halo_once_to_all_blocks_of_a_wave():
    """Blocks side by side reload the border between them through L2; DRAM sees the image about once."""
    expr = ops.depthwise_conv2d(8, 16, 64, 64, 5, 5, padding=2)
    tiles = {"smem": {"ho": 8, "wo": 8, "kh": 5, "kw": 5}, "reg": {}}
    terms = roller.predict(expr, "v100", tiles).terms
    image = expr.inputs[0].nbytes
    assert terms["l2_bytes"] - expr.output_tensors[0].nbytes > 1.8 * image
    assert terms["dram_bytes"] < 1.1 * (image + expr.output_tensors[0].nbytes)


@every("name", EXPRS)
@every("layer", ["global", "l2"])
@every("factor", [1.1, 2.0, 10.0])
def test_more_bandwidth_is_never_slower(name, layer, factor):
    key = f"memory_layers.{layer}.bandwidth_bytes_per_s"
    faster = V100.with_overrides({key: V100.layer(layer).bandwidth_bytes_per_s * factor})
    before, after = (gpu.price(POOLS[name], s)["seconds"] for s in (V100, faster))
    assert (after <= before * (1 + 1e-9)).all()


@every(
    "overrides",
    [
        {"execution.launch_s": 0.0}, {"execution.barrier_s": 0.0}, {"execution.step_latency_s": 0.0},
        {"memory_layers.global.latency_s": 1e-9},
    ],
)  # fmt: skip
@every("name", EXPRS)
def test_less_latency_is_never_slower(name, overrides):
    before, after = (gpu.price(POOLS[name], s)["seconds"] for s in (V100, V100.with_overrides(overrides)))
    assert (after <= before * (1 + 1e-9)).all()


def test_dram_bandwidth_rises_with_warps_to_the_peak():
    rate = gpu.dram_bandwidth(V100, np.arange(1, 20000))
    peak = V100.layer("global").bandwidth_bytes_per_s
    assert (np.diff(rate) > 0).all() and rate[-1] <= peak and rate[-1] > 0.95 * peak


@pytest.mark.parametrize("name", ["matmul", "relu", "rows"])
def test_no_program_beats_the_roofline(name):
    expr = EXPRS[name]
    seconds = gpu.price(POOLS[name], V100)["seconds"]
    assert (seconds >= expr.flops / (2 * V100.ops_per_s("fma"))).all()
    assert (seconds >= expr.compulsory_bytes / V100.layer("global").bandwidth_bytes_per_s).all()


@pytest.mark.parametrize("name", EXPRS)
def test_the_bounded_search_for_the_best_rows_is_exact(name):
    seconds = price_with_templates.price(POOLS[name], V100)["seconds"]
    best = price_with_templates.best_rows(POOLS[name], V100, 25)
    assert [s for s, _ in best] == pytest.approx(np.sort(seconds)[: len(best)].tolist(), rel=1e-12)
    assert [seconds[row] for _, row in best] == pytest.approx([s for s, _ in best], rel=1e-12)


@pytest.mark.parametrize("name", EXPRS)
def test_a_limit_keeps_what_is_below_it_and_on_demand_the_best(name):
    batch = POOLS[name].take(np.arange(len(POOLS[name])))  # which remembers nothing
    best = price_with_templates.best_rows(POOLS[name], V100, 25)
    assert [x for x in price_with_templates.best_rows(batch, V100, 25, best[9][0]) if x[0] <= best[9][0]][:10] == best[
        :10
    ]
    batch = POOLS[name].take(np.arange(len(POOLS[name])))
    assert price_with_templates.best_rows(batch, V100, 25, best[0][0] / 2, always=True)[:1] == best[:1]


@pytest.mark.parametrize("device", ["v100", "a100"])
@pytest.mark.parametrize("name", ["matmul", "conv"])
def test_stages_and_orders_of_one_batch_cost_what_they_cost_alone(name, device):
    spec = roller.load_spec(device)
    batch = next(
        b for b in programs_of_form(Geometry.of(EXPRS[name]), spec, ConstructOptions(pool=64)) if b.structure == "tiled"
    )
    for stages, raster in (((2, 3, 4), 1), (2, (1, 4, 8)), (1, (4, 8)), ((2, 4), (8, 1))):
        together = batch.with_stages_and_rasters(stages, raster)
        alone = [
            gpu.price(replace(batch, stages=int(s), raster=int(r)), spec)["seconds"]
            for s, r in np.broadcast(stages, raster)
        ]
        assert (gpu.price(together, spec)["seconds"] == np.concatenate(alone)).all()
    assert batch.priced(spec, np.ones(len(batch))).stored_seconds(spec) is not None
    assert (
        replace(batch, stages=2).stored_seconds(spec) is None and batch.take(np.arange(2)).stored_seconds(spec) is None
    )


@pytest.mark.parametrize("name", EXPRS)
def test_nothing_is_remembered_from_another_device_or_other_tiles(name):
    batch, other = POOLS[name].take(np.arange(0, len(POOLS[name]), 5)), roller.load_spec("a100")
    for spec in (V100, other, V100):
        gpu.lower_bound_s(batch, spec)
        for some in (batch, batch.take(np.arange(0, len(batch), 2)), batch.with_stages_and_rasters(1, (4, 1))):
            fresh = replace(some)
            assert (gpu.price(some, spec)["seconds"] == gpu.price(fresh, spec)["seconds"]).all()
            assert (gpu.lower_bound_s(some, spec) == gpu.lower_bound_s(fresh, spec)).all()


@pytest.mark.parametrize("name", EXPRS)
@pytest.mark.parametrize("device", ["v100", "mi50"])
def test_predict_prices_a_constructed_program_as_construct_did(name, device):
    options = ConstructOptions(axis_fusion=False, axis_grouping=False, split_k=False, winograd=False, pipelining=False)
    spec = roller.load_spec(device)
    for c in roller.construct(EXPRS[name], device=device, options=options):
        assert price_with_templates.estimate_program(c.program, spec) == c.estimate
        named = roller.predict(EXPRS[name], device=device, tiles=dict(c.program.tiles)).seconds
        # Tiles do not say whether windows are walked, in place or staged: the fastest way counts.
        ways = c.program.structure == "window" or name in ("depthwise", "pooling")
        assert named == c.estimate.seconds or (ways and named < c.estimate.seconds)


def test_programs_priced_together_and_alone_cost_the_same():
    found = roller.construct(EXPRS["conv"], device="v100") + roller.construct(EXPRS["matmul"], device="v100")
    together = price_with_templates.estimate_programs([c.program for c in found], V100)
    assert together == [c.estimate for c in found]


def test_a_block_that_cannot_run_costs_infinity():
    program = roller.construct(EXPRS["matmul"], device="v100", top_k=1)[0].program
    small = replace(
        V100, memory_layers=tuple(replace(x, usable_bytes=256) if x.name == "shared" else x for x in V100.memory_layers)
    )
    assert price_with_templates.estimate_program(program, small).seconds == float("inf")


def test_epilogue_operands_do_not_scale_with_the_reduction_steps():
    """A bias of 1000 elements is read once per output tile: more bytes than without it, but not per step."""
    tiles = {"shared": {"i": 64, "j": 64, "k": 4}, "register": {"i": 4, "j": 4}}
    plain, biased = (
        roller.predict(ops.matmul(512, 1024, 4096, epilogue=e), device="v100", tiles=tiles).terms["l2_bytes"]
        for e in ((), ("bias",))
    )
    assert biased - plain == pytest.approx(8 * 1024 * 4)  # 8 rows of output tiles, 1024 floats each


@given(seconds=st.floats(0, 1e3), terms=st.dictionaries(st.text(min_size=1), st.floats(0, 1e12), max_size=5))
def test_estimates_survive_json(seconds, terms):
    estimate = roller.Estimate(seconds, "compute", tuple(terms.items()))
    again = roller.Estimate.from_dict(json.loads(json.dumps(estimate.to_dict())))
    assert again == estimate and again.terms == terms


def test_an_estimate_names_its_bottleneck_and_every_term():
    estimate = roller.construct(EXPRS["relu"], device="v100", top_k=1)[0].estimate
    assert estimate.bottleneck == "dram"
    assert {"compute_s", "dram_s", "l2_s", "latency_s", "launch_s", "waves", "registers"} <= set(estimate.terms)
    error = f"×/÷ {math.exp(estimate.expected_error):.2f}"
    assert str(estimate) == f"predicted {estimate.seconds * 1e3:.4g} ms {error}, bound by dram"


@pytest.mark.parametrize("device", ["v100", "h200", "mi50"])
def test_more_elements_never_take_less_time(device):
    """Few loads draw little bandwidth, but one element is waited for no longer than many."""
    longest = 0.0
    for n in (1, 2, 3, 10, 31, 32, 100, 1000, 1024, 10_000, 32_768, 100_000, 1_000_000, 10_000_000):
        (best,) = roller.construct(ops.elementwise("relu", (n,)), device=device, top_k=1)
        assert best.estimate.seconds >= 0.98 * longest, n
        longest = max(longest, best.estimate.seconds)


def test_half_the_bytes_of_one_product_are_not_slower():
    seconds = [
        roller.construct(ops.matmul(1, 1, 1, dtype=t), device="h200", top_k=1)[0].estimate.seconds
        for t in ("float16", "float32")
    ]
    assert seconds[0] <= 1.02 * seconds[1]


def test_the_system_takes_its_part_of_the_scratchpad_of_every_resident_block():
    spec = roller.load_spec("a100")
    batch = perf.batch_of([roller.construct(EXPRS["relu"], spec, top_k=1)[0].program])
    asked = np.array([20480])
    within, _ = gpu.occupancy(batch, spec, asked)
    free, _ = gpu.occupancy(batch, spec.with_overrides({"memory_layers.shared.reserved_bytes": 0}), asked)
    assert (within, free) == (167936 // (20480 + 1024), 167936 // 20480) == (7, 8)
