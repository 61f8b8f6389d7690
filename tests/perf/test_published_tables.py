"""The model's terms against published V100 measurements, before anything is built on them."""

from __future__ import annotations

import numpy as np
import pytest

import roller
from roller import ops
from roller.templates import gpu
from tests.perf.published import columns, table

V100 = roller.load_spec("v100")


def _errors(predicted, measured):
    return np.abs(predicted / measured - 1.0)


def test_compute_rate_of_one_sm():
    t = columns("v100_sm_gflops")
    predicted = gpu.unit_flops_per_s(V100, t["reg_tile_elems"], t["warps_per_sm"]) / 1e9
    errors = _errors(predicted, t["gflops_per_sm"])
    assert len(errors) == 234
    assert errors.mean() <= 0.02 and errors.max() <= 0.08


def test_compute_rate_of_one_warp():
    t = columns("v100_warp_gflops")
    elements = t["reg_y"] * t["reg_x"]
    predicted = gpu.unit_flops_per_s(V100, elements, np.ones(len(elements))) / 1e9
    errors = _errors(predicted, t["gflops_one_warp"])
    assert len(errors) == 786
    assert errors.mean() <= 0.03 and errors.max() <= 0.08


def test_dram_bandwidth_of_small_launches():
    t = columns("v100_glbmem_small")
    predicted = gpu.dram_bandwidth(V100, t["total_warps"]) / 1e9
    errors = _errors(predicted, t["gb_s"])
    assert len(errors) == 40
    assert errors.mean() <= 0.12


def test_the_published_program_within_10_percent():
    (row,) = table("v100_tiles")
    by, bx = (int(x) for x in row["smem_tile"].split("x"))
    ry, rx = (int(x) for x in row["reg_tile"].split("x"))
    m, n, k = (int(x) for x in row["dims"].split("x"))
    tiles = {"shared": {"i": by, "j": bx, "k": int(row["rstep"])}, "register": {"i": ry, "j": rx}}
    estimate = roller.predict(ops.matmul(m, n, k), device="v100", tiles=tiles)
    assert (by // ry) * (bx // rx) == int(row["threads"]) and (m // by) * (n // bx) == int(row["blocks"])
    assert estimate.seconds * 1e3 == pytest.approx(float(row["time_ms"]), rel=0.10)
    assert estimate.bottleneck == "compute"


def test_the_best_constructed_program_beats_the_published_one_on_paper():
    """The ranking is by the same model: construct() finds nothing worse than the published tile."""
    expr = ops.matmul(4096, 4096, 4096)
    published = roller.predict(expr, device="v100", tiles={"shared": (128, 64, 32), "register": (8, 4, 1)})
    assert roller.construct(expr, device="v100", top_k=1)[0].estimate.seconds <= published.seconds
