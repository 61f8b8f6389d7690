"""A CPU program is emitted as it is priced: over all operators, odd shapes, blocked channels, random programs.

Decisions are taken once (:mod:`roller.templates.cpu.decisions`), over a pool to price it and over one program to emit
it.
Here the two meet: rows of a pool against the plans of the program made of them, and the price against the emitted TIR.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import roller
from benchmarks.common import operators
from roller import ConstructOptions, ops
from roller.construction.constructor import program_from_row
from roller.expr.canonical import fuse_axes
from roller.ops import from_spec
from roller.perf.tile_batch import batch_of
from roller.templates.common.forms import canonical_forms
from roller.templates.cpu import decisions_for_device, price
from roller.templates.cpu.decisions import BOX, IN_PLACE, PANEL
from roller.templates.cpu.emit.axis_tiling_plans import program_decisions
from roller.templates.cpu.emit.build_library import ENTRY, PACK
from roller.templates.cpu.emit.lower_cpu_program import lower_module
from roller.templates.cpu.emit.tir_loop_constructors import parallel_task_counts
from roller.templates.cpu.registry import pool as cpu_pool
from roller.tile.geometry import Geometry
from tests.cases import ODD_CASES
from tests.codegen.cpu_programs import program
from tests.codegen.test_cpu_blocked import _CASES as BLOCKED

SPEC = roller.load_spec("cpu-avx512")
#: Shapes whose decisions were once taken in two ways.
KNOWN = {
    "float64": lambda: ops.matmul(40, 50, 60, dtype="float64"),
    "strides of dilated windows": lambda: ops.conv2d(2, 24, 30, 30, 40, 3, 3, stride=2, padding=2, dilation=3),
    "blocks shorter than vectors": BLOCKED["block 8"],
    "row by matrix": lambda: ops.matmul(1, 131, 67),
    "short chunks": lambda: ops.matmul(37, 29, 23),
}
ODD = {**dict(ODD_CASES), **BLOCKED, **KNOWN}
TABLE = {row["id"]: functools.partial(from_spec, row) for row in operators()}


@functools.cache
def pool(name, form, constants):
    make = (TABLE | ODD)[name]
    forms = canonical_forms(make(), ConstructOptions())
    canonical = forms[form % len(forms)]
    known = tuple(t.name for t in canonical.inputs[1:]) if constants else ()
    batches = cpu_pool(Geometry.of(canonical), SPEC, ConstructOptions(constants=known))
    return [replace(b, constants=known) for b in batches if len(b) and b.structure in ("tiled", "streaming")]


def rows(names):
    return st.tuples(
        st.sampled_from(sorted(names)), st.integers(0, 1), st.booleans(), st.integers(0, 99), st.integers(0, 1 << 20)
    )


def chosen(drawn):
    """Return a batch and one of its rows, or ``None`` where the operator has no such programs."""
    name, form, constants, batch, row = drawn
    batches = pool(name, form, constants)
    return (batches[batch % len(batches)], row % len(batches[batch % len(batches)])) if batches else None


def assert_one_decision(drawn):
    found = chosen(drawn)
    if found is None:
        return
    batch, i = found
    many, one = decisions_for_device(batch, SPEC), program_decisions(program_from_row(batch, i, SPEC))
    for name in ("lanes", "chains", "tile", "tiles", "per_task", "chunk", "unrolled", "parts", "share", "split_axis",
                 "loop_order", "block", "vectors", "operand_vectors", "stores_vectors"):  # fmt: skip
        np.testing.assert_array_equal(getattr(many, name)[i], getattr(one, name)[0], name)
    for a, b in zip(batch.geometry.loads, one.batch.geometry.loads, strict=True):
        assert many.staging(a) == one.staging(b)
        assert many.phases(a) == one.phases(b)
        assert many.upfront(a)[i] == one.upfront(b)[0]


def assert_emitted_as_priced(drawn):
    """Tasks, and loops that wake workers, of the emitted function against those that are priced."""
    found = chosen(drawn)
    if found is None:
        return
    batch, i = found
    made = program_from_row(batch, i, SPEC)
    single = made.expr.anchor.combiner is not None and all(a.extent == 1 for a in made.expr.anchor.spatial_axes)
    if single or (len(made.expr.stages) > 1 and made.structure == "streaming"):
        return  # reduced by parts; stages of a stream have tasks of their own
    terms = price(batch_of([made]), SPEC)
    module, _, names = lower_module(made, SPEC.units)
    loops = parallel_task_counts(module[ENTRY].body)
    tasks = int(terms["tasks"][0])
    assert max(1, loops[-1] if loops else 1) == tasks
    if tasks > 1:
        forks = round((terms["launch_s"][0] - SPEC.execution.launch_s) / SPEC.execution.fork_s)
        assert len(loops) == forks
    d = program_decisions(made)
    staged = [a for a in d.batch.geometry.loads if d.staging(a) != IN_PLACE]
    ahead = {a.tensor.name for a in staged if d.staging(a) == PANEL} & set(made.constants)
    assert (PACK in names) == bool(ahead)


@given(rows(KNOWN))
@settings(max_examples=12)
def test_a_pool_and_a_program_are_decided_alike(drawn):
    assert_one_decision(drawn)


@given(rows(KNOWN))
@settings(max_examples=6)
def test_what_is_emitted_is_what_is_priced(drawn):
    assert_emitted_as_priced(drawn)


@pytest.mark.slow
@given(rows(TABLE | ODD))
@settings(max_examples=400)
def test_every_pool_and_its_programs_are_decided_alike(drawn):
    assert_one_decision(drawn)


@pytest.mark.slow
@given(rows(ODD))
@settings(max_examples=200)
def test_all_that_is_emitted_is_what_is_priced(drawn):
    assert_emitted_as_priced(drawn)


def _decisions(expr, *arguments, **more):
    return program_decisions(program(expr, *arguments, **more))


def test_a_chunk_of_a_reduction_is_not_unrolled_whole():
    expr = fuse_axes(ops.matmul(37, 29, 23))
    register = {"i": 1, "j": 16}
    assert _decisions(expr, "tiled", register, register, "j").unrolled.any()
    assert not _decisions(expr, "tiled", register, register, "j", chunk={"k": 8}).unrolled.any()


def test_channels_in_blocks_are_no_window():
    g = Geometry.of(fuse_axes(ops.conv2d(1, 32, 9, 9, 32, 3, 3, 1, 1, layout="NCHW16c")))
    windows = {g.names[a] for x in g.loads for a in np.flatnonzero(x.window_axes)}
    assert {"kh", "kw"} <= windows
    assert not windows & {"co", "ci"}
    assert [g.names[a] for a in g.reduction_order][:2] == ["kh", "kw"]


def test_vectors_hold_half_as_many_float64():
    expr = fuse_axes(ops.matmul(64, 64, 64, dtype="float64"))
    batch = batch_of([program(expr, "tiled", {"i": 4, "j": 16}, {"i": 64, "j": 64}, "j", lanes=8)])
    assert decisions_for_device(batch, SPEC).lanes.tolist() == [8]
    assert decisions_for_device(batch, SPEC).vectors.tolist() == [8]
    flops = 2 * 64**3
    peak = 2 * SPEC.compute.ops_per_cycle_per_unit["fma.float64"] * SPEC.clock_hz * SPEC.units
    assert price(batch, SPEC)["compute_s"][0] >= flops / peak


def test_what_every_task_reads_once_is_not_packed():
    expr = fuse_axes(ops.matmul(1, 131, 67))
    row = {"j": 16}
    assert _decisions(expr, "tiled", row, row, "j", staged=("B",)).staged(PANEL) == []
    packed, plain = (price(batch_of([program(expr, "tiled", row, row, "j", staged=s)]), SPEC) for s in (("B",), ()))
    assert packed["seconds"] == plain["seconds"]
    constant = replace(program(expr, "tiled", row, row, "j", staged=("B",)), constants=("B",))
    assert [a.tensor.name for a in program_decisions(constant).staged(PANEL)] == ["B"]


def test_panels_packed_by_their_tasks_wake_no_workers_before():
    expr = fuse_axes(ops.matmul(96, 160, 64))
    rows, all_rows = {"i": 4, "j": 16}, {"i": 96, "j": 16}
    assert SPEC.execution.fork_s
    launch = []
    for task in (rows, all_rows):
        made = program(expr, "tiled", rows, task, "j", staged=("B",))
        assert math.prod(program_decisions(made).tasks[0]) > 1
        launch.append(price(batch_of([made]), SPEC)["launch_s"][0])
    assert launch[0] - launch[1] == pytest.approx(SPEC.execution.fork_s)


def test_a_panel_too_large_to_pack_ahead_is_packed_by_every_task_that_reads_it():
    expr = fuse_axes(ops.matmul(64, 1 << 15, 1 << 12))
    rows, seconds = {"i": 4, "j": 32}, []
    for height in (16, 64):
        made = program(expr, "tiled", rows, {"i": height, "j": 1 << 12}, "j", staged=("B",))
        d = program_decisions(made)
        (panel,) = d.staged(PANEL)
        assert not d.upfront(panel).any()
        assert d.packing_count(panel).tolist() == [64 // height]
        seconds.append(price(batch_of([made]), SPEC)["pack_s"][0])
    assert seconds[0] == pytest.approx(4 * seconds[1])


def test_strides_of_a_dilated_window_are_not_sorted_by_phase():
    for dilation, phases in ((1, 2), (3, 1)):
        expr = fuse_axes(ops.conv2d(1, 24, 30, 30, 40, 3, 3, stride=2, padding=2, dilation=dilation))
        d = _decisions(expr, "tiled", {"wo": 16}, {"wo": 16}, "wo", staged=("X",))
        (box,) = d.staged(BOX)
        assert d.phases(box) == phases


def test_runs_shorter_than_vectors_are_stored_one_by_one():
    wide, short = (fuse_axes(ops.conv2d(1, 12, 9, 9, 32, 3, 3, layout=f"NCHW{n}c")) for n in (16, 8))
    for expr, vectors in ((wide, True), (short, False)):
        (grouped,) = [f for f in canonical_forms(expr, ConstructOptions()) if "fo*fi" in {a.name for a in f.axes}]
        tile = {"fo*fi": 16}
        d = _decisions(grouped, "tiled", tile, tile, "fo*fi", staged=("X", "W"))
        assert d.stores_vectors.tolist() == [vectors]


def test_dot_products_loop_over_the_most_tiles_outermost():
    expr = fuse_axes(ops.matmul(37, 29, 64, transpose_b=True))
    made = program(expr, "tiled", {"i": 12, "j": 1, "k": 16}, {"i": 37, "j": 29}, "k")
    d = program_decisions(made)
    assert d.batch.traits.reuses and d.batch.sums_along_vectors
    assert d.tiles[0, :2].tolist() == [4, 29]
    assert [expr.axes[a].name for a in d.loop_order[0]] == ["j", "i"]


def test_a_split_shares_the_chunks_of_one_axis():
    expr = fuse_axes(ops.matmul(8, 16, 640))
    register = {"i": 4, "j": 16}
    made = program(expr, "tiled", register, register, "j", chunk={"k": 128}, split_k=4)
    d = program_decisions(made)
    assert (d.split_chunks[0], d.share[0], d.parts[0]) == (5, 2, 3)
    assert price(batch_of([made]), SPEC)["tasks"][0] == 2 * 3
