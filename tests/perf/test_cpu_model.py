"""The CPU half of the model: rooflines, trends, bottlenecks."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

import roller
from roller import ops
from roller.templates import price_with_templates
from roller.templates.cpu.emit.build_library import ENTRY
from roller.templates.cpu.emit.lower_cpu_program import lower_module
from roller.templates.cpu.emit.tir_loop_constructors import parallel_task_counts
from roller.templates.price_with_templates import estimate_program
from tests.offenders import every

PROFILES = ("cpu-avx512", "cpu-avx2", "cpu-neon")


def _best(expr, device):
    return roller.construct(expr, device=device, top_k=1)[0].estimate


@pytest.mark.parametrize("device", PROFILES)
def test_no_program_beats_the_roofline(device):
    spec = roller.load_spec(device)
    for expr in (ops.matmul(512, 512, 512), ops.conv2d(4, 64, 28, 28, 64, 3, 3, padding=1)):
        for c in roller.construct(expr, device=device, options=roller.ConstructOptions(winograd=False)):
            assert c.estimate.seconds >= expr.flops / (2 * spec.ops_per_s("fma"))
    streamed = ops.elementwise("relu", (1 << 26,))
    for c in roller.construct(streamed, device=device):
        assert c.estimate.seconds >= streamed.compulsory_bytes / spec.layer("dram").bandwidth_bytes_per_s


@pytest.mark.parametrize("device", PROFILES)
def test_a_large_matmul_computes_and_a_long_relu_waits_for_memory(device):
    assert _best(ops.matmul(1024, 1024, 1024), device).bottleneck == "compute"
    assert _best(ops.elementwise("relu", (1 << 26,)), device).bottleneck == "dram"


@pytest.mark.parametrize("device", PROFILES)
def test_a_large_matmul_reaches_most_of_the_peak(device):
    expr, spec = ops.matmul(1024, 1024, 1024), roller.load_spec(device)
    share = expr.flops / (2 * spec.ops_per_s("fma")) / _best(expr, device).seconds
    assert 0.6 < share < 1.0


def test_wider_vectors_are_faster_at_arithmetic():
    expr = ops.matmul(768, 768, 768)
    wide, narrow = (roller.load_spec(d) for d in ("cpu-avx512", "cpu-avx2"))
    ratio = wide.ops_per_s("fma") / narrow.ops_per_s("fma")
    assert _best(expr, "cpu-avx2").seconds / _best(expr, "cpu-avx512").seconds == pytest.approx(ratio, rel=0.35)


@pytest.mark.parametrize("device", PROFILES)
def test_more_work_takes_longer(device):
    times = [_best(ops.matmul(n, n, n), device).seconds for n in (64, 128, 256, 512, 1024)]
    assert times == sorted(times) and times[-1] > 100 * times[0]


@pytest.mark.parametrize("device", PROFILES)
def test_more_cores_and_bandwidth_are_never_slower(device):
    spec = roller.load_spec(device)
    faster_dram = spec.with_overrides(
        {"memory_layers.dram.bandwidth_bytes_per_s": 2 * spec.layer("dram").bandwidth_bytes_per_s}
    )
    for expr in (ops.matmul(512, 512, 512), ops.elementwise("relu", (1 << 24,)), ops.softmax((4096, 1000))):
        now = _best(expr, spec).seconds
        assert _best(expr, faster_dram).seconds <= now * (1 + 1e-9)
        assert _best(expr, spec.with_overrides({"units": 2 * spec.units})).seconds <= now * (1 + 1e-9)


@pytest.mark.parametrize("device", PROFILES)
def test_construct_agrees_with_pricing_the_same_program_alone(device):

    spec = roller.load_spec(device)
    for expr in (ops.matmul(100, 300, 200), ops.conv2d(1, 16, 14, 14, 32, 3, 3, padding=1), ops.softmax((64, 100))):
        for c in roller.construct(expr, device=device):
            assert price_with_templates.estimate_program(c.program, spec) == c.estimate


@every("device", PROFILES)
@every("expr", [ops.matmul(4, 16, 4), ops.elementwise("relu", (1000,)), ops.softmax((4, 32))], ids=lambda e: e.name)
def test_work_of_less_than_a_fork_is_one_task_and_pays_none(device, expr):
    execution = roller.load_spec(device).execution
    best = _best(expr, device)
    assert best.terms["tasks"] == 1
    assert best.terms["launch_s"] == execution.launch_s
    assert best.seconds < execution.launch_s + execution.fork_s


@pytest.mark.parametrize("device", PROFILES)
@pytest.mark.parametrize(
    "expr", [ops.matmul(256, 256, 256), ops.elementwise("relu", (1 << 22,)), ops.softmax((4096, 256))],
    ids=lambda e: e.name,
)  # fmt: skip
def test_work_of_many_forks_is_shared_out_and_pays_at_least_one(device, expr):
    spec = roller.load_spec(device)
    best = _best(expr, device)
    assert best.terms["tasks"] >= spec.units
    assert best.terms["launch_s"] >= spec.execution.launch_s + spec.execution.fork_s


def test_a_dearer_fork_moves_the_size_from_which_work_is_shared():
    spec = roller.load_spec("cpu-avx512")
    dear = spec.with_overrides({"execution.fork_s": 100 * spec.execution.fork_s})
    expr = ops.matmul(128, 128, 128)
    assert _best(expr, spec).terms["tasks"] > 1
    assert _best(expr, dear).terms["tasks"] == 1
    assert _best(expr, dear).seconds >= _best(expr, spec).seconds


def test_every_parallel_loop_is_a_fork():
    spec = roller.load_spec("cpu-avx512")
    packing = roller.construct(ops.matmul(1024, 1024, 1024), spec, top_k=1)[0].program
    assert packing.staged == ("B",)
    seen, (small, large) = set[int](), (tile for _, tile in packing.tiles[1:])
    for staged, task in itertools.product(((), ("B",), ("A", "B")), (small, large)):
        program = replace(packing, staged=staged, tiles=(*packing.tiles[:-1], ("l2", task)))
        terms = estimate_program(program, spec).terms
        forks = (terms["launch_s"] - spec.execution.launch_s) / spec.execution.fork_s
        loops = parallel_task_counts(lower_module(program, spec.units)[0][ENTRY].body)
        assert forks == pytest.approx(len(loops))
        seen.add(len(loops))
    assert seen == {1, 2, 3}


def test_what_stays_in_the_l2_of_its_core_is_not_fetched_from_beyond():
    near, far = (_best(ops.elementwise("relu", (n,)), "cpu-avx512").terms for n in (1 << 14, 1 << 20))
    assert near["l2_s"] > 0 and near["l3_s"] == 0
    assert far["l2_s"] < 0.01 * far["l3_s"]  # little of what is several times as large survives a pass


def test_a_deep_reduction_is_read_in_pieces_by_the_tiles_of_a_task():
    """Reference: 64 x 64 x 65536 takes half the time in pieces of 512 to 1024 as in one (6 x 64, AVX-512)."""
    found = roller.construct(ops.matmul(64, 64, 65536), device="cpu-avx512", top_k=4)
    assert all(c.program.tile("l1")["k"] < 65536 for c in found)
    flat = roller.construct(ops.matmul(512, 512, 64), device="cpu-avx512", top_k=4)
    assert all(c.program.tile("l1")["k"] == 64 for c in flat)


def test_few_outputs_of_a_deep_reduction_keep_all_cores_busy():
    spec = roller.load_spec("cpu-avx512")
    for shape, transposed in (((16, 16, 65536), False), ((16, 16, 65536), True)):
        e = ops.matmul(*shape, transpose_b=transposed)
        best = roller.construct(e, device=spec, top_k=1)[0]
        assert dict(best.estimate.terms)["tasks"] % spec.units == 0
        without = roller.construct(e, device=spec, options=roller.ConstructOptions(split_k=False))
        assert all(c.program.split_k == 1 for c in without)
        assert best.estimate.seconds <= without[0].estimate.seconds


@pytest.mark.parametrize("kernel", [(1, 1), (3, 1), (3, 3)])
def test_no_term_is_negative_whatever_the_number_of_reductions(kernel):
    for c in roller.construct(ops.conv2d(2, 8, 20, 20, 16, *kernel), device="cpu-avx512", top_k=20):
        assert min(c.estimate.terms.values()) >= 0


@pytest.mark.parametrize("shape", [(128, 3072, 768), (128, 768, 3072), (128, 768, 768)])
def test_weights_that_l2_does_not_keep_are_read_by_one_task_for_all_rows(shape):
    """Reference: 128 x 768 x 3072 with weights from memory: 1.7 ms by tasks of 128 rows, 2.0 of 64, 2.4 of 16."""
    options = roller.ConstructOptions(constants=("B",), top_k=4)
    for c in roller.construct(ops.matmul(*shape), device="cpu-avx512", options=options):
        assert dict(c.program.tiles)["l2"][0] >= shape[0]


def test_weights_that_are_read_once_are_a_stream_beside_the_arithmetic():
    options = roller.ConstructOptions(constants=("B",), top_k=1)
    once, shared = (
        roller.construct(ops.matmul(m, 1024, 2048), device="cpu-avx512", options=options)[0].estimate.terms
        for m in (1, 128)
    )
    assert once["stream_s"] == 0 < shared["stream_s"]


def test_vectors_shorter_than_a_narrow_datapath_cost_less():
    """Six columns are two vectors of four lanes: half the cycles each where whole vectors take two passes."""
    rates = {f"compute.ops_per_cycle_per_unit.{c}": 8 for c in ("fma", "load_store")}  # a vector per cycle
    whole = roller.load_spec("cpu-avx2").with_overrides(rates)
    narrow = whole.with_overrides({"teu.datapath_lanes": 4})
    program = "cpu/tiled register[i=12 j=8 k=1] l1[i=12 j=8 k=290] l2[i=120 j=8 k=290] vector=j:8"
    few, many = ([roller.predict(ops.matmul(232, j, 290), s, program).seconds for s in (whole, narrow)] for j in (6, 8))
    assert few[1] < 0.75 * few[0] and many[1] == many[0]
