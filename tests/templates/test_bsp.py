"""Bulk-synchronous devices: boxes that hold what tiles read, prices of phases, codelets that run unit by unit."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import roller
from benchmarks.common import operators
from roller.artifact import KernelArtifact
from roller.compiler.pipeline import lower
from roller.construction.neighbours import neighbour_programs
from roller.emulator import prove
from roller.emulator.codelet_emulator import EmulatedCodelets
from roller.errors import BuildError, EmulationError, NoCandidateError, TileError
from roller.expr import Index, Tensor
from roller.expr.scalar import Term
from roller.ops import from_spec
from roller.perf.tile_batch import batch_of
from roller.templates.bsp.common.tile_and_superstep_counts import pieces_per_tile, results_per_worker_piece
from roller.templates.bsp.emit.schedule import build_schedule
from roller.templates.price_with_templates import estimate_with_terms
from roller.tile.superstep_schedule import Schedule, codelet_name
from roller.tile.tensor_boxes import Box, axes_tiles_must_span, boxes_of
from tests.builds import builds_folder

SPEC = roller.load_spec("ipu_mk2")
OPERATORS = (
    "matmul(m=33, n=20, k=17, epilogue=('bias', 'relu'))", "matmul(m=4, n=16, k=1000)",
    "matmul(m=24, n=40, k=32, dtype='float16')", "matmul(m=5, n=6, k=40, dtype='int8')",
    "conv2d(1, 3, 13, 13, 8, 3, 3, stride=2, padding=1)", "depthwise_conv2d(1, 8, 12, 12, 3, 3, padding=1)",
    "elementwise('relu', (20003,), dtype='int8')", "elementwise('gelu', (7, 33), dtype='float16')",
    "reduce('max', (12, 130), (1,))", "reduce('sum', (5, 7), (0, 1))", "softmax((12, 130))",
    "pool2d('max', 1, 8, 13, 13, 3, 3, stride=2)",
)  # fmt: skip
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator builds codelets with g++")


def kernels(text: str) -> list[KernelArtifact]:
    """One kernel of each sort of program: structure, split or not, in steps or not, in waves or not."""
    expr = roller.ops.parse(text)
    sorts = {}
    for c in roller.construct(expr, SPEC, top_k=200):
        p = c.program
        steps = max([1, *p.reduction_steps.values()])
        sorts.setdefault((p.structure, p.split_k > 1, steps > 1, p.blocks > SPEC.units), p)
    return [lower(p, expr, SPEC) for p in sorts.values()]


@given(st.data())
def test_a_box_holds_what_any_tile_of_its_extent_touches(data):
    extents = {"a": data.draw(st.integers(1, 24)), "b": data.draw(st.integers(1, 12))}
    term = st.builds(Term, st.sampled_from(list(extents)), st.sampled_from([-2, -1, 1, 2, 3]),
                     st.sampled_from([1, 1, 2, 3, 4]), st.sampled_from([0, 0, 2, 3, 5]))  # fmt: skip
    index = Index(tuple(data.draw(st.lists(term, min_size=1, max_size=3))), data.draw(st.integers(-3, 9)))
    size = data.draw(st.integers(1, 60))
    box = Box(Tensor("t", (size,)), ((index,),), tuple(extents.items()))
    tile = {n: data.draw(st.integers(1, e)) for n, e in extents.items()}
    count, step = int(box.counts(tile)[0]), box.lattice[0]
    place = {n: data.draw(st.integers(0, (e - 1) // tile[n])) * tile[n] for n, e in extents.items()}
    ranges = {n: (f, min(f + tile[n], extents[n]) - 1) for n, f in place.items()}
    start = box.start(ranges)[0]
    held = {start + step * i for i in range(count)}
    for a in range(ranges["a"][0], ranges["a"][1] + 1):
        for b in range(ranges["b"][0], ranges["b"][1] + 1):
            at = index({"a": a, "b": b})
            assert not 0 <= at < size or at in held


def test_what_a_unit_computes_itself_is_whole():
    softmax = roller.construct(roller.ops.parse("softmax((12, 130))"), SPEC, top_k=1)[0].program
    assert axes_tiles_must_span(softmax.expr) == {"k"}
    assert axes_tiles_must_span(roller.ops.matmul(8, 8, 8)) == frozenset()
    tiles = {"scratchpad": {"d0": 2, "k": 65}}
    with pytest.raises(TileError, match="all 130 of axis 'k'"):
        roller.predict(roller.ops.parse("softmax((12, 130))"), SPEC, tiles)


def test_tiles_beyond_a_scratchpad_are_refused_with_its_bytes():
    with pytest.raises(TileError, match=r"3,145,728 bytes of a unit's scratchpad, 524,288 are usable"):
        roller.predict(roller.ops.matmul(512, 512, 512), SPEC, {"scratchpad": {"i": 512, "j": 512, "k": 512}})
    small = SPEC.with_overrides({"memory_layers.scratchpad.usable_bytes": 64})
    with pytest.raises(NoCandidateError):
        roller.construct(roller.ops.parse("softmax((12, 130))"), small)


def test_terms_add_up_and_say_their_phases():
    for text in OPERATORS[:1] + OPERATORS[-2:-1]:
        program = roller.construct(roller.ops.parse(text), SPEC, top_k=1)[0].program
        estimate, term = estimate_with_terms(program, SPEC)
        assert term.value == estimate.seconds == sum(p.value for p in term.parts)
        assert [p.name for p in term.parts] == ["computing", "exchange", "synchronisation", "streaming", "launch"]


def test_what_the_scratchpads_do_not_hold_is_streamed():
    fits = roller.construct(roller.ops.matmul(1024, 1024, 1024), SPEC, top_k=1)[0].estimate
    large = roller.construct(roller.ops.matmul(65536, 4096, 1024), SPEC, top_k=1)[0].estimate
    assert fits.terms["streaming_bytes"] == 0
    assert large.bottleneck == "streaming" and large.terms["resident_bytes"] > SPEC.home.capacity_bytes


@pytest.mark.parametrize(("field", "bound"), [
    ("memory_layers.exchange.bandwidth_bytes_per_s", "exchange_s"), ("execution.barrier_s", "sync_s"),
    ("clock_hz", "compute_s"),
])  # fmt: skip
def test_every_phase_hangs_on_its_number(field, bound):
    name = str(roller.construct(roller.ops.matmul(512, 512, 512), SPEC, top_k=1)[0].program)
    before = roller.predict(roller.ops.matmul(512, 512, 512), SPEC, name).terms
    changed = SPEC.with_overrides({field: SPEC.values()[field] * 2})
    after = roller.predict(roller.ops.matmul(512, 512, 512), changed, name).terms
    assert {k for k in ("compute_s", "exchange_s", "sync_s") if after[k] != before[k]} >= {bound}


@pytest.mark.slow
def test_all_operators_are_constructed_and_their_names_read_back():
    for row in operators():
        expr = from_spec(row)
        best = roller.construct(expr, SPEC, top_k=1)[0]
        assert roller.predict(expr, SPEC, str(best.program)) == best.estimate


@pytest.mark.parametrize("text", [OPERATORS[0], OPERATORS[2], "softmax((12, 130))"])
def test_neighbours_are_programs_that_construction_could_make(text):
    expr = roller.ops.parse(text)
    for c in roller.construct(expr, SPEC, top_k=40)[::20]:
        found = neighbour_programs(c.program, expr, SPEC, roller.ConstructOptions())
        assert found
        for other in found[:10]:
            assert {n: t for n, t in other.program.tiles if n == "register"} == dict(c.program.tiles[:1])
            assert roller.predict(expr, SPEC, str(other.program)) == other.estimate


def test_a_schedule_is_data():
    program = roller.construct(roller.ops.matmul(64, 64, 64), SPEC, top_k=1)[0].program
    schedule = build_schedule(program, SPEC, "k")
    assert Schedule.from_dict(json.loads(json.dumps(schedule.to_dict()))) == schedule
    a = schedule.tensor("A")
    assert a.counts == tuple(int(n) for n in boxes_of(program.expr)["A"].counts(program.block_tile))


@needs_compiler
@pytest.mark.parametrize("text", [OPERATORS[0], *(pytest.param(t, marks=pytest.mark.slow) for t in OPERATORS[1:])])
def test_codelets_compute_unit_by_unit(text):
    folder = builds_folder()
    made = kernels(text)
    for artifact in made[:1] if text == OPERATORS[0] else made:
        carried = KernelArtifact.from_dict(json.loads(json.dumps(artifact.to_dict())))
        proof = prove(carried, cache_dir=folder)
        assert proof.ok and proof.proved == "emulated", str(proof)


@needs_compiler
def test_what_no_exchange_brought_cannot_be_read():
    artifact = kernels(OPERATORS[0])[0]
    schedule = json.loads(json.dumps(artifact.target["schedule"]))
    operand = next(t for t in schedule["tensors"] if t["name"] == "A")
    operand["counts"][-1] -= 1  # the last column stays away
    broken = replace(artifact, target={**artifact.target, "schedule": schedule})
    proof = prove(broken, cache_dir=builds_folder())
    assert not proof.ok and "no exchange brought it" in str(proof)


@needs_compiler
def test_an_output_nobody_sends_is_missed():
    artifact = kernels(OPERATORS[0])[0]
    schedule = {**artifact.target["schedule"], "tasks": artifact.target["schedule"]["tasks"] - 1}
    broken = EmulatedCodelets(replace(artifact, target={**artifact.target, "schedule": schedule}),
                           cache_dir=builds_folder())  # fmt: skip
    arrays = [np.zeros(a.shape, a.dtype) for a in artifact.inputs]
    with pytest.raises(EmulationError, match="no unit sent one"):
        broken(arrays)


def test_what_takes_too_long_is_not_proved():
    artifact = kernels(OPERATORS[0])[0]
    if shutil.which("g++"):
        assert "runs whole or not at all" in prove(artifact, budget_s=1e-6).proved


def test_a_dtype_without_a_type_is_refused():
    expr = roller.ops.parse("elementwise('relu', (64,), dtype='bfloat16')")
    program = roller.construct(expr, SPEC, top_k=1)[0].program
    with pytest.raises(BuildError, match=r"expected a dtype of .*got 'bfloat16'"):
        lower(program, expr, SPEC)


@pytest.mark.slow
@needs_compiler
def test_names_that_differ_in_signs_alone_are_not_one_name():
    # Groups split the filters into 'f/4' and 'f%4'.
    artifact = kernels("conv2d(1, 8, 6, 6, 8, 3, 3, groups=2, padding=1)")[0]
    assert {"f/4", "f%4"} <= set(artifact.program.axis_names)
    assert prove(artifact, cache_dir=builds_folder()).ok


@given(st.lists(st.text(st.sampled_from("f4*/%_ 2a"), min_size=1), unique=True, min_size=2, max_size=6))
def test_plain_names_are_as_many_as_names(names):
    assert len({codelet_name(n) for n in names}) == len(names)
    assert all(codelet_name(n).replace("_", "a").isalnum() for n in names)


@pytest.mark.slow
@needs_compiler
def test_two_workers_of_a_unit_write_no_word_in_common():
    artifact = kernels("elementwise('relu', (7, 33), dtype='int8')")[0]
    launch = artifact.launches[0]
    single = re.sub(r"\((n_\w+) \+ 3\) / 4", r"\1", launch.source).replace(" * 4", " * 1")
    broken = replace(artifact, launches=(replace(launch, source=single),))
    folder = builds_folder()
    assert prove(artifact, cache_dir=folder).ok
    assert "another worker of the codelet writes into the same word" in str(prove(broken, cache_dir=folder))


@needs_compiler
@pytest.mark.parametrize("text", [
    OPERATORS[-2], "matmul(m=33, n=21, k=17, epilogue=('bias', 'relu'))", "elementwise('relu', (7, 33), dtype='int8')",
])  # fmt: skip
def test_workers_have_the_shares_that_are_priced(text, monkeypatch):
    expr, written = roller.ops.parse(text), {}
    run = EmulatedCodelets.run

    def watched(self, entry, memories, how):
        run(self, entry, memories, how)
        memory = memories[-2]  # before the last one, which is the place
        owners = np.repeat(memory.owners, max(1, 4 // memory.data.itemsize))[: len(memory.data)]
        written.setdefault(entry, (memory.data.itemsize, owners[memory.held > 0]))  # of the first unit: a whole tile

    monkeypatch.setattr(EmulatedCodelets, "run", watched)
    options = roller.ConstructOptions(top_k=40, matrix_units=False)
    program = max((c.program for c in roller.construct(expr, SPEC, options=options) if c.program.split_k == 1),
                  key=lambda p: np.prod(list(p.block_tile.values())))  # fmt: skip
    assert prove(lower(program, expr, SPEC), cache_dir=builds_folder()).ok
    batch, vector = batch_of([program]), program.tile("register")[program.vector_axis]
    assert len(written) == len(program.expr.stages)
    for stage, (itemsize, owners) in zip(program.expr.stages, written.values(), strict=True):
        busiest, piece = np.bincount(owners)[1:].max(), results_per_worker_piece(vector, itemsize)
        share = -(-int(pieces_per_tile(stage, batch)[0]) // SPEC.limits.threads_per_unit)
        assert (share - 1) * piece < busiest <= share * piece
