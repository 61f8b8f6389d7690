"""Score, seeds and pools: what the constructor chooses from."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import roller
from roller import ConstructOptions, ops
from roller.expr.canonical import fuse_axes
from roller.templates.common.data_reuse_score import reuse_score, traffic_and_footprint
from roller.templates.common.reduction_steps import MAX_STEP_POINTS, reduction_steps
from roller.templates.common.scale_up import aligned_extents, factorisations_of_lanes, unique_rows
from roller.templates.gpu import programs_of_form
from roller.tile.geometry import Geometry
from roller.tile.structures import structure_of

V100 = roller.load_spec("v100")


def data_reuse_score(geometry, tiles, grown):
    """What growing tiles is worth, as construction asks for it."""
    return reuse_score(traffic_and_footprint(geometry, tiles), traffic_and_footprint(geometry, grown))


def test_data_reuse_score_of_a_matmul_by_hand():
    """64^3, tile 4x4x2: Q = 4*(64^3*(1/x + 1/y) + 64^2), F = 4*(2x + 2y + xy).

    Doubling i saves 4*64^3/8 bytes for 4*(2*4 + 4*4) more: 32768/24. Doubling k saves nothing.
    """
    g = Geometry.of(ops.matmul(64, 64, 64))
    tile = np.array([[4, 4, 2]])
    wide = np.array([[8, 4, 2]])
    assert data_reuse_score(g, tile, wide)[0] == pytest.approx(32768 / 24, rel=1e-12)
    assert data_reuse_score(g, tile, np.array([[4, 4, 4]]))[0] == 0.0
    # On the now oblong tile the short side saves more per byte: 64^3/8 / (2*4 + 8*4) against 64^3/16 / (2*8 + 8*4).
    short, long = (data_reuse_score(g, wide, np.array([t]))[0] for t in ([8, 8, 2], [16, 4, 2]))
    assert short == pytest.approx(64**3 / 8 / 40, rel=1e-12)
    assert long == pytest.approx(64**3 / 16 / 48, rel=1e-12)


def test_score_where_the_footprint_does_not_grow():
    before = (np.array([10.0, 10.0]), np.array([4.0, 4.0]))
    after = (np.array([8.0, 10.0]), np.array([4.0, 4.0]))
    assert reuse_score(before, after).tolist() == [np.inf, -np.inf]


def test_the_published_block_is_in_the_pool_before_ranking():
    batches = programs_of_form(Geometry.of(fuse_axes(ops.matmul(4096, 4096, 4096))), V100, ConstructOptions())
    found = [
        (tuple(r[:2]), tuple(b[:2]))
        for batch in batches
        for r, b in zip(batch.register.tolist(), batch.block.tolist(), strict=True)
    ]
    assert ((8, 4), (128, 64)) in found


@pytest.mark.parametrize(
    "expr",
    [
        ops.matmul(512, 512, 512), ops.conv2d(16, 32, 14, 14, 32, 3, 3, padding=1),
        ops.depthwise_conv2d(16, 64, 28, 28, 3, 3, padding=1), ops.elementwise("relu", (128, 1000)),
        ops.reduce("sum", (4096, 1024), (1,)), ops.pool2d("max", 16, 64, 28, 28, 2, 2, stride=2),
    ],
    ids=lambda e: e.name,
)  # fmt: skip
def test_pools_are_distinct_and_fit(expr):
    options = ConstructOptions(pool=2048)
    for batch in programs_of_form(Geometry.of(fuse_axes(expr)), V100, options):
        rows = np.concatenate([batch.register, batch.block, batch.split_k[:, None]], axis=1)
        assert len(unique_rows(rows)) == len(rows)
        assert 10 <= len(rows[batch.split_k == 1]) <= options.pool
        assert (batch.block % batch.register == 0).all()
        threads = batch.threads_per_block
        whole = threads % 32 == 0 if batch.structure != "window" else threads >= 0.7 * (-(-threads // 32) * 32)
        assert whole.all() and (threads <= 1024).all()
        assert (batch.split_k <= np.maximum(1, batch.counts[:, ~batch.geometry.spatial].prod(axis=1))).all()


def test_structures_follow_properties_of_the_expression():
    def structure(expr):
        return structure_of(Geometry.of(fuse_axes(expr))).name

    assert structure(ops.elementwise(("add", "relu"), (8, 8))) == "streaming"
    assert structure(ops.reduce("sum", (64, 64), (1,))) == "rows"
    assert structure(ops.softmax((8, 64))) == "rows"
    assert structure(ops.matmul(8, 8, 8, epilogue=("bias", "relu"))) == "tiled"
    assert structure(ops.pool2d("max", 1, 8, 8, 8, 3, 3)) == "tiled"
    assert structure(ops.reduce("argmax", (9, 13), (1,))) == "rows"


@given(counts=st.lists(st.integers(1, 300), min_size=1, max_size=4), lanes=st.sampled_from([32, 64]))
def test_seeds_are_every_factorisation_of_the_lanes_that_is_of_use(counts, lanes):
    seeds = factorisations_of_lanes(np.array(counts), np.ones(len(counts), bool), lanes)
    assert (seeds.prod(axis=1) == lanes).all()
    room = [1 << max(0, (c - 1).bit_length()) for c in counts]
    powers = [1 << p for p in range(lanes.bit_length())]
    useful = {
        s for s in itertools.product(powers, repeat=len(counts))
        if np.prod(s) == lanes and all(x <= r for x, r in zip(s, room, strict=True))
    }  # fmt: skip
    found = {tuple(s) for s in seeds.tolist()}
    assert len(found) == len(seeds)
    assert found == useful if useful else len(found) == 1


@given(extent=st.integers(1, 400), limit=st.sampled_from([1, 4, 16, 32]))
def test_aligned_extents_are_powers_of_two_and_divisors(extent, limit):
    sizes = aligned_extents(extent, limit)
    assert list(sizes) == sorted(set(sizes)) and sizes[0] == 1
    for size in sizes:
        assert size <= limit
        assert extent % size == 0 or (size & (size - 1) == 0 and size < 2 * extent)
    assert {d for d in range(1, limit + 1) if extent % d == 0} <= set(sizes)


@given(rows=st.lists(st.tuples(*[st.integers(0, 3)] * 3), max_size=30))
def test_unique_rows_keep_the_first_appearance(rows):
    table = np.array(rows, np.int64).reshape(-1, 3)
    assert [tuple(r) for r in unique_rows(table).tolist()] == list(dict.fromkeys(rows))


def test_windows_are_taken_whole_or_not_at_all_and_other_steps_double():
    g = Geometry.of(ops.conv2d(4, 64, 14, 14, 32, 3, 3, padding=1))
    windows = dict(zip(g.names, g.window_axes.tolist(), strict=True))
    assert {n for n, w in windows.items() if w} == {"kh", "kw"}
    steps = reduction_steps(g, np.ones(len(g.names), np.int64), limit=100)
    by_axis = {n: set(steps[:, a].tolist()) for a, n in enumerate(g.names)}
    assert by_axis["kh"] <= {1, 3} and by_axis["kw"] <= {1, 3}
    assert by_axis["n"] == by_axis["f"] == {1}
    assert {1, 2, 4, 8, 16} <= by_axis["c"]
    assert (steps.prod(axis=1) <= MAX_STEP_POINTS).all()
    assert len(unique_rows(steps)) == len(steps)
