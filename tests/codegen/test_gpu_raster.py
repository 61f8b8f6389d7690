"""The order of blocks: every tile once, whatever the raster; the kernels stay right; the model sees the reuse."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tvm")

import roller
from roller import ops
from roller.emulator import prove
from roller.expr.canonical import fuse_axes
from roller.perf.tile_batch import TileBatch
from roller.te.compat import analyzer_with_extents, substitute, tirx
from roller.templates.gpu.common.l2_and_dram_traffic import _tile_of_wave
from roller.templates.gpu.emit.axis_map import block_coordinates
from roller.templates.gpu.emit.cuda import lower
from roller.templates.price_with_templates import estimate_program
from roller.tile import RProgram
from roller.tile.geometry import Geometry
from tests.offenders import every


def positions(steps, raster):
    flat = tirx.Var("b", "int32")
    place, simplify = block_coordinates(flat, steps, raster), analyzer_with_extents([]).simplify
    count = int(np.prod(steps))
    return [tuple(int(simplify(substitute(p, {flat: tirx.const(b, "int32")}))) for p in place) for b in range(count)]


@every("steps", [(6, 4), (7, 3), (2, 5, 3), (3, 1, 4), (2, 5, 1, 3), (5,), (1, 1), (1, 9)])
@every("raster", [1, 2, 4, 16])
def test_every_tile_belongs_to_one_block(steps, raster):
    assert sorted(positions(steps, raster)) == [tuple(int(x) for x in i) for i in np.ndindex(*steps)]


def test_blocks_run_over_tiles_of_the_slower_axis_first():
    assert positions((5, 3), 2)[:8] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 0), (3, 0)]
    assert positions((5, 3), 2)[12:] == [(4, 0), (4, 1), (4, 2)]  # a last group of one


@pytest.mark.parametrize(("raster", "split"), [(2, 1), (4, 1), (2, 2)])
def test_kernels_stay_right(raster, split):
    e = ops.matmul(70, 67, 24)
    tiles = (("register", (2, 4, 1)), ("shared", (16, 16, 8)))
    p = RProgram(fuse_axes(e), "gpu", "tiled", tiles, staged=("A", "B"), raster=raster, split_k=split)
    proof = prove(lower(p, e, "sm_70", "test"))
    assert proof.ok, proof


@every(("steps", "raster"), [((6, 4), 2), ((7, 3), 4), ((3, 1, 4), 2), ((2, 5, 3), 2), ((4, 4), 1)])
@every("resident", [1, 2, 5, 8, 12])
def test_the_model_counts_the_piece_a_wave_covers(steps, raster, resident):
    e = ops.matmul(steps[-2] * 16, steps[-1] * 16, 32, batch=steps[0] if len(steps) == 3 else None)
    g = Geometry.of(e)
    block = np.array([[1] * (len(steps) - 2) + [16, 16, 8]])
    batch = TileBatch(g, "tiled", block, block, np.ones(1, np.int64), g.load_names, raster=raster)
    covered = _tile_of_wave(batch, np.array([resident]))[0] // block[0]
    first = np.array(positions(steps, raster)[:resident])
    bounding = first.max(axis=0) - first.min(axis=0) + 1
    # The last row or column of tiles may be short of blocks; the box around those of the first wave is meant.
    assert (covered[: len(steps)] == bounding).all()


def test_squarer_waves_load_less_from_memory():
    spec = roller.load_spec("v100")
    e = ops.matmul(4096, 4096, 4096)
    tiles = (("register", (8, 8, 1)), ("shared", (128, 64, 8)))
    p = RProgram(fuse_axes(e), "gpu", "tiled", tiles, staged=("A", "B"))
    plain, squarer = (dict(estimate_program(replace(p, raster=r), spec).terms)["dram_bytes"] for r in (1, 4))
    assert squarer < plain
