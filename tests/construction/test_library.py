"""Programs that a library's policy allows, and what they cost."""

from __future__ import annotations

import numpy as np
import pytest

import roller
from roller import ops
from roller.templates.common.library_kernel_limits import POLICIES
from roller.templates.registry import programs_of
from tests.offenders import every

LIBRARY = POLICIES["library"]


def _batches(expr, device, policy="library"):
    return [b for b in programs_of(expr, roller.load_spec(device), roller.ConstructOptions(policy=policy)) if len(b)]


@every("batch", [None, 8])
@every("device", ["v100", "a100", "t4", "p100"])
def test_products_have_the_tiles_of_the_policy_and_two_of_them_in_the_scratchpad(device, batch):
    sides = {(i, j) for i, j, _ in LIBRARY.product_tiles}
    found = _batches(ops.matmul(2048, 1024, 512, batch=batch), device)
    assert found
    for b in found:
        i, j, k = (b.geometry.names.index(n) for n in "ijk")
        assert b.stages == LIBRARY.product_stages and (b.block[:, k] == LIBRARY.product_step).all()
        assert {tuple(row) for row in b.block[:, [i, j]].tolist()} <= sides
        assert (np.delete(b.block, [i, j, k], axis=1) == 1).all()


def test_convolutions_are_implicit_products_without_winograd():
    expr = ops.conv2d(8, 64, 28, 28, 64, 3, 3, stride=1, padding=1)
    assert {b.structure for b in _batches(expr, "v100")} == {"tiled"}
    assert {"winograd4", "tiled"} <= {b.structure for b in _batches(expr, "v100", "roller")}
    assert roller.predict(expr, "v100", policy="library-graph").seconds > 0


def test_half_precision_takes_the_matrix_unit():
    for b in _batches(ops.matmul(1024, 1024, 1024, dtype="float16"), "a100"):
        assert b.fragment is not None
        rows = [b.geometry.names.index(n) for n in b.matrix_axes[:2]]
        assert np.isin(b.block[:, rows], LIBRARY.unit_sides).all()


@pytest.mark.parametrize(
    ("expr", "reads"),
    [(ops.softmax((4096, 1024)), 1), (ops.softmax((4096, 4096)), 3), (ops.layer_norm((4096, 4096)), 2)],
    ids=["held", "one pass per reduction", "sums together"],
)
def test_rows_are_read_as_often_as_their_reductions_need(expr, reads):
    """Caches that hold no row: what is read again comes from memory again."""
    small = {"memory_layers.shared.kept_share": 0.01, "memory_layers.l2.kept_share": 0.01}
    moved = roller.predict(expr, roller.load_spec("t4").with_overrides(small), policy="library").terms["dram_bytes"]
    assert moved == pytest.approx((reads + 1) * expr.inputs[0].nbytes, rel=0.02)


def test_rows_read_again_come_from_the_nearest_cache_that_holds_them():
    """Rows of 4 KB: the L2 of an A100 holds those of all blocks; a first cache saves it reading them twice."""
    expr, a100 = ops.layer_norm((8192, 1024)), roller.load_spec("a100")
    sizes = {"wide": 1.0, "none": 0.01}
    found = {n: a100.with_overrides({"memory_layers.shared.kept_share": s}) for n, s in sizes.items()}
    near, far = (roller.predict(expr, spec, policy="library").terms for spec in found.values())
    assert near["dram_bytes"] == far["dram_bytes"] == pytest.approx(2 * expr.inputs[0].nbytes, rel=0.02)
    assert far["l2_bytes"] - near["l2_bytes"] == pytest.approx(expr.inputs[0].nbytes, rel=0.01)


def test_streams_take_a_vector_per_thread():
    (batch,) = _batches(ops.elementwise("add", (4096, 512), other_shapes=((4096, 512),)), "v100")
    assert (batch.register.prod(axis=1) == LIBRARY.vector_bytes // 4).all()


def test_a_call_alone_costs_more_than_a_launch_of_a_graph():
    expr = ops.elementwise("relu", (64, 64))
    alone, graph = (roller.predict(expr, "a100", policy=p) for p in ("library", "library-graph"))
    launch_s = roller.load_spec("a100").execution.launch_s
    assert alone.seconds - graph.seconds == pytest.approx(LIBRARY.call_s - launch_s)


def test_a_call_that_keeps_moments_makes_more_tensors():
    extra_s = []
    for expr in (ops.softmax((64, 256)), ops.layer_norm((64, 256))):
        alone, graph = (roller.predict(expr, "a100", policy=p).seconds for p in ("library", "library-graph"))
        extra_s.append(alone - graph)
    assert extra_s[1] - extra_s[0] == pytest.approx(2 * LIBRARY.call_s)


def test_tiles_that_a_framework_calls_take_the_time_of_its_call_more():
    expr, tiles = ops.matmul(512, 512, 512), {"shared": {"i": 64, "j": 64, "k": 8}, "register": {"i": 8, "j": 8}}
    ours, called, graph = (
        roller.predict(expr, "p100", tiles, stages=2, policy=p).seconds for p in (None, "library", "library-graph")
    )
    assert called - ours == pytest.approx(LIBRARY.call_s - roller.load_spec("p100").execution.launch_s)
    assert graph == ours


def test_candidates_can_be_constructed_under_a_policy():
    options = roller.ConstructOptions(policy="library", top_k=3)
    found = roller.construct(ops.matmul(512, 512, 512), "v100", options=options)
    assert found and all(c.program.stages == LIBRARY.product_stages for c in found)


@every(
    ("arguments", "message"),
    [
        ({"policy": "cublas"}, "expected one of"),
        ({"policy": "roller"}, "expected one of"),
        ({}, "tiles: expected a mapping"),
        ({"policy": "library", "tiles": "gpu/tiled"}, "one of the two"),
        ({"policy": "cublas", "tiles": {"shared": {"i": 16}}}, "expected one of"),
        ({"policy": "library", "split_k": 2}, "Leave them out"),
    ],
)
def test_what_is_no_policy_is_refused(arguments, message):
    with pytest.raises(roller.errors.RollerError, match=message):
        roller.predict(ops.matmul(64, 64, 64), "v100", **arguments)


def test_a_cpu_has_no_policy_yet():
    expr = ops.matmul(64, 64, 64)
    with pytest.raises(roller.errors.RollerError, match="expected a GPU"):
        roller.predict(expr, "cpu-avx2", policy="library")
    with pytest.raises(roller.errors.RollerError, match="no GPU"):
        roller.construct(expr, "cpu-avx2", options=roller.ConstructOptions(policy="library"))
