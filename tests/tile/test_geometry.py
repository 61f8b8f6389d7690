"""Tile inference against the numbers of the papers and against what a reader can work out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller import ops
from roller.expr.canonical import fuse_axes, group_axes
from roller.tile.geometry import Geometry
from roller.tile.staged_tile_layout import tile_layout
from tests.cases import ODD_CASES
from tests.offenders import every
from tests.tile.programs import traffic_bytes


def _reads(m, n, k, tile):
    """Elements a matmul loads with tiles of ``tile`` outputs and one reduction point."""
    g = Geometry.of(ops.matmul(m, n, k))
    return float(sum(a.elements_loaded_per_launch(np.array([[*tile, 1]]))[0] for a in g.loads))


@pytest.mark.parametrize(("tile", "factor"), [((1, 1), 2.0), ((1, 4), 1.25), ((4, 4), 0.5)])
def test_matmul_reads_of_the_paper(tile, factor):
    m, n, k = 64, 32, 16
    assert _reads(m, n, k, tile) == factor * m * n * k


def test_tile_4_4_2_loads_4x2_and_2x4_and_stores_4x4():
    g = Geometry.of(ops.matmul(64, 64, 64))
    tile = np.array([[4, 4, 2]])
    assert [tuple(a.extents(tile)[0]) for a in (*g.loads, g.store)] == [(4, 2), (2, 4), (4, 4)]
    assert g.footprint_bytes(tile)[0] == 4 * (8 + 8 + 16)


@given(x=st.sampled_from([1, 2, 4, 8, 16, 32, 64]), y=st.sampled_from([1, 2, 4, 8, 16, 32, 64]),
       step=st.sampled_from([1, 4, 32]))  # fmt: skip
def test_matmul_traffic_is_mnk_times_the_inverse_sides(x, y, step):
    m, n, k = 128, 64, 96
    q = traffic_bytes(Geometry.of(ops.matmul(m, n, k)), np.array([[x, y, step]]))[0]
    assert q == 4 * (m * n * k * (1 / x + 1 / y) + m * n)


def test_sliding_windows_share_their_halo():
    """Tile of 4x4 outputs, stride 2, dilation 3, 3x3 window: 1 + 2*3 + 3*2 = 13 rows and columns."""
    g = Geometry.of(ops.conv2d(1, 1, 64, 64, 1, 3, 3, stride=2, dilation=3))
    image = g.loads[0].extents(np.array([[1, 1, 4, 4, 1, 3, 3]]))
    assert tuple(image[0]) == (1, 1, 13, 13)


def test_data_tiles_end_with_the_tensor():
    g = Geometry.of(ops.matmul(5, 6, 7))
    whole = g.footprint_bytes(np.array([[5, 6, 7], [64, 64, 64]]))
    assert whole.tolist() == [4 * (35 + 42 + 30)] * 2
    bordered = Geometry.of(ops.conv2d(1, 1, 8, 8, 1, 3, 3, padding=1)).loads[0]
    assert bordered.elements(np.array([[1, 1, 32, 32, 1, 3, 3]]))[0] == 10 * 10


def test_many_tiles_at_once_equal_one_at_a_time():
    g = Geometry.of(fuse_axes(ops.conv2d(2, 6, 9, 11, 4, 3, 3, padding=1, stride=2)))
    tiles = np.array(list(itertools.product(*([1, 2, int(e)] for e in g.extents))), np.int64)
    alone = [(g.footprint_bytes(t[None])[0], traffic_bytes(g, t[None])[0], g.blocks(t[None])[0]) for t in tiles]
    together = zip(g.footprint_bytes(tiles), traffic_bytes(g, tiles), g.blocks(tiles), strict=True)
    assert list(together) == alone


@given(m=st.integers(1, 40), n=st.integers(1, 40), k=st.integers(1, 40),
       tile=st.tuples(*[st.integers(1, 40)] * 3), axis=st.integers(0, 1))  # fmt: skip
def test_larger_output_tiles_hold_more_and_load_less(m, n, k, tile, axis):
    g = Geometry.of(ops.matmul(m, n, k))
    grown = list(tile)
    grown[axis] *= 2
    small, large = np.array([tile]), np.array([grown])
    assert g.footprint_bytes(large)[0] >= g.footprint_bytes(small)[0]
    assert traffic_bytes(g, large)[0] <= traffic_bytes(g, small)[0]


def test_traffic_is_never_below_compulsory_where_everything_is_read():
    for m, n, k, t in itertools.product((7, 16), (5, 16), (3, 16), (1, 4, 64)):
        expr = ops.matmul(m, n, k)
        assert traffic_bytes(Geometry.of(expr), np.array([[t, t, t]]))[0] >= expr.compulsory_bytes


def test_epilogue_operands_come_once_per_output_tile():
    g = Geometry.of(ops.matmul(8, 8, 64, epilogue=("bias",)))
    (bias,) = g.extras
    assert bias.elements_loaded_per_launch(np.array([[4, 4, 4], [4, 4, 64], [8, 8, 4]])).tolist() == [16, 16, 8]


def test_grid_order_ends_with_the_axis_contiguous_in_the_output():
    for expr in (ops.matmul(8, 8, 8), ops.conv2d(2, 3, 8, 8, 4, 3, 3), ops.conv2d(2, 3, 8, 8, 4, 3, 3, layout="NHWC")):
        for form in (expr, fuse_axes(expr), group_axes(fuse_axes(expr))):
            if form is None:
                continue
            g = Geometry.of(form)
            last = g.names[g.order[-1]]
            assert any(t.axis == last and t.coef == 1 for t in form.anchor.store[-1].terms)
            assert sorted(g.order) == np.flatnonzero(g.spatial).tolist()


@every(("name", "factory"), ODD_CASES, ids=[c[0] for c in ODD_CASES])
def test_scratchpad_layouts_hold_exactly_the_data_tile(name, factory):
    """Code generation allocates what the model counts, for every tile inside its axes."""
    plain = fuse_axes(factory())
    for form in (plain, group_axes(plain)):
        if form is None:
            continue
        g = Geometry.of(form)
        for share in (1, 2, 3):
            tile = np.maximum(1, g.extents // share)
            block = dict(zip(g.names, tile.tolist(), strict=True))
            for access in g.loads:
                load = next(
                    ld for ld in form.anchor.loads if (ld.tensor, ld.index) == (access.tensor.name, access.index)
                )
                layout = tile_layout(form.anchor, load, access.tensor, block)
                assert np.prod(layout.extents, dtype=np.int64) == access.elements(tile[None])[0]
