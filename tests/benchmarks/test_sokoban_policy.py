"""Sokoban prunes exactly, contains what construction finds, and its programs become kernels like any others."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import roller
from benchmarks.sokoban import cpu as sokoban_cpu
from benchmarks.sokoban import gpu as sokoban_gpu
from benchmarks.sokoban.construct import Best, contains, search, sokoban_candidates
from benchmarks.sokoban.cpu import task_counts
from benchmarks.sokoban.space import axis_sizes, bounded_products, tile_counts
from roller import ops
from roller.construction.explicit_tiles import program_from_tiles
from roller.construction.parse_program_names import program_from_name
from roller.templates import price_with_templates
from roller.templates.common.forms import canonical_forms
from roller.templates.common.options import ConstructOptions
from roller.templates.cpu import decisions_for_device
from roller.templates.gpu import lower_bound_s, programs_of_form
from roller.tile.geometry import Geometry

#: Its space holds no programs that walk windows, which only come from construction, where the search starts; pipelines
#: are a choice per program found, made after the search.
OPTIONS = ConstructOptions(windows=False, pipelining=False)
#: Small enough to price every program: all structures, halos, strides, borders, odd extents, epilogues, few blocks.
SMALL = {
    "matmul": ops.matmul(12, 20, 8),
    "deep": ops.matmul(4, 8, 64),
    "batched": ops.matmul(5, 6, 7, batch=2, epilogue=("bias", "relu")),
    "conv": ops.conv2d(n=1, c=2, h=3, w=3, f=3, kh=2, kw=2, padding=1),
    "pointwise": ops.conv2d(n=1, c=4, h=3, w=3, f=5, kh=1, kw=1, stride=2),
    "depthwise": ops.depthwise_conv2d(n=1, c=3, h=4, w=4, kh=3, kw=3, padding=1),
    "relu": ops.elementwise("relu", (5, 37)),
    "sums": ops.reduce("sum", (6, 40), axes=(1,)),
    "softmax": ops.softmax((5, 24)),
}


def times(found):
    return [e.seconds for _, e in found.programs()]


def exhaustive(expr, spec, count=10):
    """The best programs of every program of the space, priced one and all."""
    best = Best(spec, count, prune=False)
    tally = search(expr, spec, replace(OPTIONS, top_k=count), best)
    return best, tally


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("device", ["v100", "cpu-avx512"])
def test_pruning_loses_nothing(name, device):
    spec = roller.load_spec(device)
    every, counted = exhaustive(SMALL[name], spec)
    pruned, report = sokoban_candidates(SMALL[name], spec, OPTIONS)
    assert [c.estimate.seconds for c in pruned] == times(every)
    constructed = roller.construct(SMALL[name], spec, options=ConstructOptions(windows=False, pipelining=False))
    assert all(a.estimate.seconds <= b.estimate.seconds for a, b in zip(pruned, constructed, strict=False))
    assert report.tilings == counted.tilings and report.priced <= counted.priced


@pytest.mark.parametrize("device", ["v100", "h200"])
def test_pipelines_are_chosen_for_what_is_found(device):
    spec, free = roller.load_spec(device), replace(OPTIONS, pipelining=True)
    plain, varied = (sokoban_candidates(SMALL["matmul"], spec, o)[0] for o in (OPTIONS, free))
    constructed = roller.construct(SMALL["matmul"], spec, options=free)
    assert varied[0].estimate.seconds < plain[0].estimate.seconds and varied[0].program.stages > 1
    assert varied[0].estimate.seconds <= constructed[0].estimate.seconds


@pytest.mark.parametrize("count", [1, 50])
def test_any_number_of_programs(count):
    spec = roller.load_spec("v100")
    every, _ = exhaustive(SMALL["matmul"], spec, count)
    found, _ = sokoban_candidates(SMALL["matmul"], spec, replace(OPTIONS, top_k=count))
    assert [c.estimate.seconds for c in found] == times(every)
    assert len({str(c.program) for c in found}) == count


def test_of_equal_programs_the_least_footprint_wins():
    found, _ = sokoban_candidates(ops.elementwise("relu", (1 << 22,)), roller.load_spec("v100"), OPTIONS)
    pairs = [(float(f"{c.estimate.seconds:.5e}"), sum(t[0] for _, t in c.program.tiles)) for c in found]
    assert pairs == sorted(pairs) and len({s for s, _ in pairs}) < len(pairs)


#: Problems of real size, whose bounds exclude most of the space.
LARGE = {
    "matmul": ops.matmul(4096, 4096, 4096),
    "few": ops.matmul(128, 1000, 2048),
    "conv": ops.conv2d(n=16, c=128, h=28, w=28, f=128, kh=3, kw=3, padding=1),
    "depthwise": ops.depthwise_conv2d(n=16, c=84, h=43, w=43, kh=5, kw=5, stride=2, padding=2),
}


@pytest.mark.parametrize("device", ["v100", "k80", "a100"])
@pytest.mark.parametrize("name", LARGE)
def test_gpu_bounds_are_below_every_price(name, device):
    spec = roller.load_spec(device)
    for form in canonical_forms(LARGE[name], OPTIONS):
        batch = programs_of_form(Geometry.of(form), spec, OPTIONS)[0]
        batch = batch.take(np.arange(0, len(batch), 7))
        space = sokoban_gpu._Space(batch.geometry, batch.traits, spec, OPTIONS)
        seconds = price_with_templates.price(batch, spec)["seconds"]
        register = sokoban_gpu._register_bounds(space, batch.register)
        block = np.where(batch.geometry.spatial, batch.block, 1)
        steps = sokoban_gpu._bound_over_steps(space, batch.register, block, sokoban_gpu._without_limits(spec))
        whole = batch.split_k == 1
        slack = 1 + 1e-9
        assert (register <= seconds * slack).all() and (steps[whole] <= seconds[whole] * slack).all()
        assert (steps / batch.split_k <= seconds * slack).all()
        assert (lower_bound_s(batch, spec) <= seconds * slack).all()


@pytest.mark.parametrize("name", LARGE)
def test_cpu_bounds_are_below_every_price(name):
    spec = roller.load_spec("cpu-avx512")
    rng = np.random.default_rng(0)
    for form in canonical_forms(LARGE[name], OPTIONS):
        for family in sokoban_cpu.families(Geometry.of(form), spec, OPTIONS):
            register, chunk = sokoban_cpu.kernels_of(family)
            some = rng.integers(0, len(register), 64)
            register, chunk = register[some], chunk[some]
            bound = sokoban_cpu._kernel_bounds(family, register, chunk)
            g = family.geometry
            tiles = -(-g.extents // register)
            tasks = np.where(g.spatial, register * rng.integers(1, tiles + 1), chunk)
            batch = family.batch(register, tasks)
            count = decisions_for_device(batch, spec).count_tasks
            idle = -(-count // spec.units) * spec.units / count
            seconds = price_with_templates.price(batch, spec)["seconds"]
            assert (bound * idle <= seconds * (1 + 1e-9)).all(), family


@pytest.mark.parametrize("device", ["v100", "mi50", "cpu-avx512"])
@pytest.mark.parametrize("name", [*SMALL, *LARGE])
def test_what_construction_finds_is_in_the_space(name, device):
    spec, options = roller.load_spec(device), ConstructOptions(windows=False, pipelining=False)
    for c in roller.construct({**SMALL, **LARGE}[name], spec, options=options):
        assert contains(c.program, spec, options), c.program


def test_the_published_program_is_in_the_space():
    expr, spec = LARGE["matmul"], roller.load_spec("v100")
    tiles = {"shared": {"i": 128, "j": 64, "k": 32}, "register": {"i": 8, "j": 4}}
    assert contains(program_from_tiles(expr, spec, tiles), spec)
    odd = {"shared": {"i": 129, "j": 64, "k": 32}, "register": {"i": 3, "j": 4}}
    assert not contains(program_from_tiles(expr, spec, odd), spec)


def test_4096_cubed_is_enumerated_with_little_work():
    _, report = sokoban_candidates(LARGE["matmul"], roller.load_spec("v100"), OPTIONS)
    assert report.tilings > 10**7 > 100 * report.bounded and report.priced <= report.bounded


@given(st.integers(1, 5000))
def test_sizes_and_counts(extent):
    sizes = axis_sizes(extent, (8, 32), 10**6)
    assert {d for d in range(1, extent + 1) if extent % d == 0} <= set(sizes)
    assert set(range(8, extent + 1, 8)) <= set(sizes) and sizes == tuple(sorted(set(sizes)))
    assert max(sizes) < 2 * max(extent, 32)
    counts = task_counts(extent)
    assert {d for d in range(1, extent + 1) if extent % d == 0} <= set(counts.tolist())
    assert {-(-extent // n) for n in range(1, extent + 1)} <= set(counts.tolist())  # every number of tasks
    tiles, threads = -(-extent // 3), set(tile_counts(extent, 3, sizes, 1024, 1, 32).tolist())
    assert {s // 3 for s in sizes if s % 3 == 0 and s <= 3072} <= threads and max(threads) <= 1024
    assert {t for t in (tiles, -(-tiles // 32) * 32, 1 << (tiles - 1).bit_length()) if t <= 1024} <= threads


@given(st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=5, unique=True).map(sorted), min_size=1, max_size=4),
       st.integers(1, 200))  # fmt: skip
def test_bounded_products_are_all_and_only_those(choices, limit):
    found = bounded_products([np.array(c) for c in choices], limit)
    expected = [c for c in itertools.product(*choices) if math.prod(c) <= limit]
    assert [tuple(r) for r in found.tolist()] == expected


@pytest.mark.parametrize("options", [{"allow": True, "epsilon": 0.0}, {"split_k": False}, {"units": 4}])
def test_options_are_honoured(options):
    allow = options.pop("allow", None)
    chosen = replace(OPTIONS, **options)
    found, _ = sokoban_candidates(SMALL["deep"] if allow is None else SMALL["matmul"], roller.load_spec("v100"), chosen)
    for c in found:
        waste = max(-a.extent % c.program.block_tile[a.name] for a in c.program.axes)
        assert allow is None or waste == 0
        assert chosen.split_k or c.program.split_k == 1


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu-avx512", "h200"])
def test_its_programs_are_named_back(device):
    expr, spec = ops.matmul(64, 48, 96, batch=3, dtype="float16"), roller.load_spec(device)
    for c in sokoban_candidates(expr, spec, ConstructOptions(top_k=3))[0]:
        assert program_from_name(expr, spec, str(c.program)) == c.program
