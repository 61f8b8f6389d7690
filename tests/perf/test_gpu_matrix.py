"""Properties of the model of matrix units: bounds, what more of anything does, what stages hide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import roller
from roller import ConstructOptions, ops
from roller.errors import SpecError
from roller.expr.canonical import fuse_axes, group_axes
from roller.perf.expected_errors import UNVALIDATED, prediction_error
from roller.perf.tile_batch import TileBatch
from roller.templates import gpu, price_with_templates
from roller.templates.common.forms import canonical_forms
from roller.templates.gpu.common.matrix_operand_copies import (
    copies_both_operands_asynchronously,
    fetched_element_registers,
    gather_address_registers,
    operand_copies,
)
from roller.templates.gpu.common.occupancy import MATRIX_BASE_REGISTERS, operand_register_limit
from roller.templates.gpu.matrix.candidates import STAGES, matrix_candidates
from roller.tile.geometry import Geometry
from roller.tile.matrix_operands import program_operands

A100 = roller.load_spec("a100")
EXPRS = {
    "matmul": ops.matmul(2048, 1024, 768, dtype="float16"),
    "bytes": ops.matmul(2048, 1000, 768, dtype="int8"),
    "conv": ops.conv2d(16, 64, 14, 14, 64, 3, 3, padding=1, dtype="float16"),
}
#: A device whose scratchpad holds any number of stages of many blocks.
ROOMY = A100.with_overrides(
    {"memory_layers.shared.capacity_bytes": 1 << 28, "memory_layers.shared.usable_bytes": 1 << 26}
)


def batches(name, spec=A100):
    return [
        b for f in canonical_forms(EXPRS[name], ConstructOptions())
        for b in matrix_candidates((Geometry.of(f),), spec, ConstructOptions())
    ]  # fmt: skip


def stepped(expr):
    """The form of a convolution whose outputs alone are grouped."""
    return Geometry.of(group_axes(fuse_axes(expr), reductions=False))


def seconds(batch, spec=A100):
    return gpu.price(batch, spec)["seconds"]


@pytest.mark.parametrize("name", EXPRS)
def test_more_stages_are_never_slower_where_scratchpad_is_free(name):
    for batch in batches(name, ROOMY):
        times = np.array([seconds(replace(batch, stages=s), ROOMY) for s in STAGES])
        assert (np.diff(times, axis=0) <= 1e-12).all()


def one_program(geometry, block, threads, square=16):
    """A batch of one program of ``square`` x ``square`` x 16 register tiles, ``threads`` per block."""
    register, names = np.array([[square, square, 16]]), ("i", "j", "k")
    fragment = next(f for f in A100.fragments if f.name == "mma.m16n8k16.f16.f32")
    batch = TileBatch(
        geometry, "matrix", register, np.array([block]), np.ones(1, np.int64), geometry.load_names,
        fragment=fragment, matrix_axes=names,
    )  # fmt: skip
    assert batch.threads_per_block[0] == threads
    return batch


def test_threads_that_find_no_row_of_a_tile_fetch_nothing():
    geometry = Geometry.of(ops.matmul(513, 513, 65, dtype="float16"))
    batch = one_program(geometry, (192, 192, 16), 512, square=48)
    # 512 threads take 32 of 192 rows of A in a round, 2 of 16 rows of B: the last 128 threads have no row of theirs.
    assert fetched_element_registers(batch, A100).tolist() == [6 + 8]


def test_registers_of_a_matrix_program_are_those_its_block_leaves_a_thread():
    geometry = Geometry.of(ops.matmul(512, 512, 64, dtype="float16"))
    few, many = (
        operand_register_limit(one_program(geometry, b, t), A100)[0]
        for b, t in (((64, 64, 16), 512), ((32, 32, 16), 128))
    )
    assert (few, many) == (128 - MATRIX_BASE_REGISTERS, 255 - MATRIX_BASE_REGISTERS)


def test_gathered_rows_keep_their_places_in_registers():
    expr = ops.conv2d(16, 3, 224, 224, 64, 7, 7, stride=2, padding=3, dtype="float16")
    gathered = [b for f in canonical_forms(expr, ConstructOptions())
                for b in matrix_candidates((Geometry.of(f),), A100, ConstructOptions())]  # fmt: skip
    assert any((gather_address_registers(b, A100) > 0).any() for b in gathered)
    for b in gathered:
        assert (gather_address_registers(b, A100) <= fetched_element_registers(b, A100)).all()
    for name in ("matmul", "bytes"):
        assert not any(gather_address_registers(b, A100).any() for b in batches(name))


@pytest.mark.parametrize("device", ["a100", "h200"])
def test_rings_of_one_batch_cost_what_they_cost_alone(device):
    spec = roller.load_spec(device)
    for batch in batches("matmul", spec):
        batch = replace(batch, stages=1, raster=1)
        rings = batch.with_stages_and_rasters((2, 3, 4, 5), (1, 2, 4, 8))
        alone = [seconds(replace(batch, stages=s, raster=r), spec) for s, r in ((2, 1), (3, 2), (4, 4), (5, 8))]
        assert (seconds(rings, spec) == np.concatenate(alone)).all()


def test_two_stages_hide_what_one_waits_for_and_their_scratchpad_costs_blocks():
    batch = max(batches("matmul", ROOMY), key=lambda b: np.max(b.stages))
    one, two = seconds(replace(batch, stages=1), ROOMY), seconds(replace(batch, stages=2), ROOMY)
    assert (two < one).all()
    resident = [gpu.price(replace(batch, stages=s), A100)["blocks_per_unit"] for s in (1, 5)]
    assert (resident[1] <= resident[0]).all()


@pytest.mark.parametrize("name", EXPRS)
def test_nothing_beats_the_matrix_unit_or_the_memory(name):
    expr = EXPRS[name]
    dtype = expr.inputs[0].dtype
    for batch in batches(name):
        times = seconds(batch)
        assert (times >= expr.flops / (2 * A100.ops_per_s("matrix", dtype))).all()
        assert (times >= expr.compulsory_bytes / A100.layer("global").bandwidth_bytes_per_s).all()


@pytest.mark.parametrize("name", [*EXPRS, "stepped"])
def test_the_lower_bound_is_one(name):
    found = batches(name) if name in EXPRS else matrix_candidates((stepped(EXPRS["conv"]),), A100, ConstructOptions())
    for batch in found:
        times, bound = seconds(batch), gpu.lower_bound_s(batch, A100)
        assert (bound <= times * (1 + 1e-12)).all() and (bound > 0).all()


@pytest.mark.parametrize("name", EXPRS)
@pytest.mark.parametrize(
    "key",
    [
        "compute.ops_per_cycle_per_unit.matrix.float16", "compute.ops_per_cycle_per_unit.matrix.int8",
        "compute.ops_per_cycle_per_unit.load_store", "compute.ops_per_cycle_per_unit.issue",
        "memory_layers.l2.bandwidth_bytes_per_s", "memory_layers.global.bandwidth_bytes_per_s",
    ],
)  # fmt: skip
def test_twice_of_anything_is_never_slower(name, key):
    twice = A100.with_overrides({key: 2 * A100.values()[key]})
    assert all((seconds(b, twice) <= seconds(b) * (1 + 1e-9)).all() for b in batches(name))


def test_the_arithmetic_of_a_full_pipeline_is_the_rate_of_the_unit():
    """With everything else free, a batch of whole waves needs its products over the rate, and nothing more."""
    free = {
        "memory_layers.l2.bandwidth_bytes_per_s": 1e17, "memory_layers.global.bandwidth_bytes_per_s": 1e17,
        "memory_layers.global.read_bandwidth_bytes_per_s": 1e17,
        "memory_layers.global.triad_bandwidth_bytes_per_s": 1e17, "memory_layers.global.latency_s": 1e-11,
        "memory_layers.shared.latency_s": 1e-11,
        "execution.barrier_s": 0.0, "execution.launch_s": 0.0, "compute.ops_per_cycle_per_unit.issue": 1e6,
        "compute.ops_per_cycle_per_unit.load_store": 1e6, "units": 64,
    }  # fmt: skip
    spec = A100.with_overrides(free)
    expr = ops.matmul(1024, 1024, 2048, dtype="float16")
    found = [c for c in roller.construct(expr, device=spec) if c.program.structure == "matrix"]
    best = min(c.estimate.seconds for c in found)
    assert best == pytest.approx(expr.flops / (2 * spec.ops_per_s("matrix", "float16")), rel=0.02)


def test_steps_over_a_window_find_what_they_read_again_in_the_first_cache():
    """Nine taps read one tile of filters and one of the image through L2, as far as both fit beside the scratchpad."""
    expr = ops.conv2d(64, 128, 28, 28, 128, 3, 3, padding=1, dtype="float16")
    geometry = stepped(expr)
    batch = matrix_candidates((geometry,), A100, ConstructOptions())[0]
    block = np.array([[128, 128, 16, 1, 1]])
    one = replace(batch, register=block // [2, 2, 1, 1, 1], block=block, split_k=np.ones(1, np.int64), stages=2)
    small = A100.with_overrides(
        {"memory_layers.shared.capacity_bytes": 48 << 10, "memory_layers.shared.usable_bytes": 48 << 10}
    )
    kept, missed = (float(gpu.price(one, s)["l2_bytes"][0]) for s in (A100, small))
    outputs, taps = expr.output_tensors[0].nbytes, 9
    assert missed - outputs > taps * (kept - outputs)
    assert kept > expr.compulsory_bytes


def test_bank_conflicts_raise_the_price():
    expr = EXPRS["matmul"]
    slow = A100.with_overrides({"compute.ops_per_cycle_per_unit.matrix.float16": 16384.0})  # bound by the scratchpad
    made = next(c.program for c in roller.construct(expr, device=slow) if c.program.structure == "matrix")
    made = replace(made, stages=1)
    rows = {x.tensor.name: x.layout.extents[-1] for x in program_operands(made)}
    worst = tuple((t, 64 - n % 64) for t, n in rows.items())  # all rows start at the first bank
    apart, same = price_with_templates.estimate_programs([made, replace(made, storage_padding=worst)], slow)
    assert same.terms["bank_conflicts"] > apart.terms["bank_conflicts"] == 1.0
    assert same.terms["compute_s"] > apart.terms["compute_s"]


def test_a_fragment_without_a_rate_is_an_error_that_names_it():
    rates = tuple((c, r) for c, r in A100.compute.rates if c != "matrix.float16")
    bare = replace(A100, compute=replace(A100.compute, rates=rates))
    with pytest.raises(SpecError, match=r"matrix\.float16: expected the rate of fragment 'mma\.m16n8k16\.f16\.f32'"):
        gpu.price(batches("matmul")[0], bare)


@pytest.mark.parametrize(
    ("expr", "widths"),
    [
        (ops.matmul(256, 256, 256, dtype="float16"), (8, 8)),
        (ops.matmul(256, 252, 256, dtype="float16"), (8, 4)),
        (ops.matmul(256, 256, 255, dtype="float16"), (1, 8)),
        (ops.matmul(256, 256, 256, dtype="int8"), (16, 1)),  # bytes of B cannot be transposed on the way
        (ops.matmul(256, 256, 256, transpose_b=True, dtype="int8"), (16, 16)),
        (ops.conv2d(8, 64, 16, 16, 64, 1, 1, dtype="float16"), (8, 8)),
        (ops.conv2d(8, 64, 14, 14, 64, 1, 1, dtype="float16"), (8, 4)),
    ],
)
def test_elements_copied_at_once(expr, widths):
    form = canonical_forms(expr, ConstructOptions())[0]
    for batch in matrix_candidates((Geometry.of(form),), A100, ConstructOptions()):
        found = {c.access.tensor.name: c for c in operand_copies(batch)}
        names = [t.name for t in expr.inputs]
        if names[0] == "X":
            names = names[::-1]
        assert tuple(int(found[n].width.max()) for n in names) == widths
        assert bool(copies_both_operands_asynchronously(batch, A100).all()) == all(
            w * expr.inputs[0].itemsize_bytes >= 4 for w in widths
        )


def test_predictions_for_a_matrix_unit_are_not_trusted_like_those_that_were_validated():
    spec = roller.load_spec("v100")
    expr, plain = ops.matmul(2048, 2048, 2048, dtype="float16"), ConstructOptions(matrix_units=False, pipelining=False)
    best, other = (roller.construct(expr, spec, options=o)[0] for o in (ConstructOptions(), plain))
    assert (best.program.structure, other.program.structure) == ("matrix", "tiled")
    assert best.estimate.expected_error == UNVALIDATED["matrix_error"]
    tiled = other.estimate
    assert tiled.expected_error == prediction_error(spec, tiled.bottleneck)
    for bound in ("compute", "dram"):  # latency, which bounds this one, was validated by nothing either
        assert prediction_error(spec, bound) < UNVALIDATED["matrix_error"] == prediction_error(spec, bound, matrix=True)
    known = spec.with_overrides({"accuracy.matrix_error": 0.07})
    best = roller.construct(ops.matmul(2048, 2048, 2048, dtype="float16"), known)[0]
    assert best.program.structure == "matrix" and best.estimate.expected_error == 0.07
