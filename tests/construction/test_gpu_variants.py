"""Pipelines and orders of blocks: offered where they win by the model, never otherwise, and within the device."""

from dataclasses import replace

import numpy as np
import pytest

import roller
from roller import ConstructOptions, ops
from roller.perf.tile_batch import TileBatch
from roller.templates.common.forms import canonical_forms
from roller.templates.gpu import price, programs_of_form
from roller.templates.gpu.common.combine_parts_cost import combine_parts_s
from roller.templates.gpu.tiled.pipeline_and_order_variants import (
    STAGES,
    pipeline_stage_counts,
    pipeline_variants_of_program,
    promising_other_splits,
    tiled_variants,
)
from roller.templates.price_with_templates import estimate_program
from roller.tile.geometry import Geometry

EXPRS = {
    "matmul": ops.matmul(1024, 1024, 1024),
    "conv": ops.conv2d(16, 64, 28, 28, 64, 3, 3, padding=1),
    "one_step": ops.matmul(65536, 1024, 2),
    "large": ops.matmul(8192, 8192, 512),
}


def best(name, device, **options):
    return roller.construct(EXPRS[name], device, options=ConstructOptions(top_k=1, winograd=False, **options))[0]


def tiled_pool(name, spec):
    for form in canonical_forms(EXPRS[name], ConstructOptions()):
        yield from (b for b in programs_of_form(Geometry.of(form), spec, ConstructOptions()) if b.structure == "tiled")


@pytest.mark.parametrize("name", ["matmul", "conv"])
@pytest.mark.parametrize("device", ["v100", "a100", "h200", "mi300x"])
def test_a_pipeline_is_chosen_where_it_is_predicted_faster(name, device):
    plain, free = best(name, device, pipelining=False), best(name, device)
    assert (plain.program.stages, plain.program.raster) == (1, 1)
    assert free.estimate.seconds < plain.estimate.seconds
    assert free.program.stages in pipeline_stage_counts(roller.load_spec(device))


def test_one_step_has_nothing_to_overlap():
    for device in ("v100", "h200"):
        assert best("one_step", device).program.stages == 1


@pytest.mark.parametrize("device", ["v100", "a100"])
def test_variants_are_faster_than_their_programs_and_distinct(device):
    spec = roller.load_spec(device)
    for batch in tiled_pool("conv", spec):
        seen = set()
        for v in tiled_variants(batch, spec):
            stages, raster = np.broadcast_arrays(v.stages, v.raster)
            assert (stages * raster > 1).all() and np.isin(stages, (1, *pipeline_stage_counts(spec))).all()
            fast, plain = price(v, spec)["seconds"], price(replace(v, stages=1, raster=1), spec)["seconds"]
            assert (fast < plain).all() and np.isfinite(fast).all()
            seen |= {(v.register[n].tobytes(), v.block[n].tobytes(), int(v.split_k[n])) for n in range(len(v))}
        assert len(seen) == sum(len(v) for v in tiled_variants(batch, spec)) > 0


def test_orders_of_blocks_are_offered_where_operands_exceed_the_cache():
    v100 = roller.load_spec("v100")
    slow = v100.with_overrides({"memory_layers.global.bandwidth_bytes_per_s": 5e10})
    assert max(np.max(v.raster) for b in tiled_pool("large", slow) for v in tiled_variants(b, slow)) > 1
    assert max(np.max(v.raster) for b in tiled_pool("conv", v100) for v in tiled_variants(b, v100)) == 1
    assert roller.construct(EXPRS["large"], slow, top_k=1)[0].program.raster > 1


def test_slots_are_paid_for_in_scratchpad_registers_and_resident_blocks():
    program = replace(best("matmul", "v100", pipelining=False).program, split_k=1)
    for device in ("v100", "a100"):
        spec = roller.load_spec(device)
        plain, two = (dict(estimate_program(replace(program, stages=n), spec).terms) for n in (1, 2))
        assert two["scratchpad_bytes"] == 2 * plain["scratchpad_bytes"]
        assert (two["registers"] > plain["registers"]) == (spec.execution.async_copy_bytes is None)
        assert (two["copy_s"] < plain["copy_s"]) == (spec.execution.async_copy_bytes is not None)


def test_three_stages_do_not_run_without_asynchronous_copies():
    program = best("matmul", "v100", pipelining=False).program
    assert np.isinf(estimate_program(replace(program, stages=3), roller.load_spec("v100")).seconds)


def test_program_variants_are_those_of_a_plain_tiled_program():
    program, spec = best("matmul", "h200", pipelining=False).program, roller.load_spec("h200")
    found = pipeline_variants_of_program(program, spec)
    assert {p.stages for p in found} == {1, *STAGES} and len({str(p) for p in found}) == len(found)
    assert pipeline_variants_of_program(found[0], spec) == []


def test_reductions_are_split_into_the_parts_that_fill_the_last_wave():
    v100, e = roller.load_spec("v100"), ops.matmul(512, 512, 4096)
    options = {"winograd": False, "top_k": 1}
    free, powers = (
        roller.construct(e, v100, options=ConstructOptions(pipelining=p, **options))[0] for p in (True, False)
    )
    assert powers.program.split_k in (1, 2, 4, 8, 16) and free.program.split_k not in (1, 2, 4, 8, 16)
    assert free.program.blocks <= 12 * v100.units
    assert roller.construct(e, v100, options=ConstructOptions(split_k=False, **options))[0].program.split_k == 1


def test_no_split_is_offered_twice():
    v100 = roller.load_spec("v100")
    g = Geometry.of(canonical_forms(ops.matmul(512, 512, 4096), ConstructOptions())[0])
    (batch,) = programs_of_form(g, v100, ConstructOptions())
    found = promising_other_splits(batch, v100)
    rows = lambda b: {  # noqa: E731
        (b.register[n].tobytes(), b.block[n].tobytes(), int(b.split_k[n])) for n in range(len(b))
    }
    assert len(found) and len(rows(found)) == len(found) and not rows(found) & rows(batch)
    assert (found.steps >= 1).all() and (found.split_k > 1).all()


@pytest.mark.parametrize(
    ("device", "shape", "dtype", "slower"),
    [
        ("v100", (8, 8, 1000000), "float32", 3.0),
        ("h200", (8, 8, 1000000), "float32", 7.0),
        # Blocks of a matrix unit keep more bytes on their way, so fewer of them do better: still worse than units say.
        ("v100", (7, 1, 1000000), "float16", 80 / 64),
        ("h200", (7, 1, 1000000), "float16", 132 / 64),
    ],
)
def test_few_outputs_split_a_deep_reduction_until_the_device_is_full(device, shape, dtype, slower):
    (best,) = roller.construct(ops.matmul(*shape, dtype=dtype), device, top_k=1)
    assert best.program.split_k > roller.load_spec(device).units
    fewer = estimate_program(replace(best.program, split_k=64), roller.load_spec(device))
    assert fewer.seconds > slower * best.estimate.seconds


def test_adding_many_parts_is_paid_for():
    h200 = roller.load_spec("h200")
    geometry = Geometry.of(canonical_forms(ops.matmul(8, 8, 1000000), ConstructOptions())[0])
    parts = np.array([1, 2, 16, 48, 1024])
    tile = np.array([[1, 1, 1]] * len(parts)), np.array([[8, 8, 16]] * len(parts))
    times = combine_parts_s(TileBatch(geometry, "tiled", *tile, parts, geometry.load_names), h200)
    assert times[0] == 0 and (np.diff(times) > 0).all()
    assert times[-1] >= 2 * (h200.layer("global").latency_s or 0)  # 32 threads load 16 parts at once, twice
