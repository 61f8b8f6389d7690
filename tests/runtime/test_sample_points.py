"""A large output is compared where its pieces begin and end."""

import numpy as np

import roller
from benchmarks.check_quality.kernels import _gather
from roller import ops
from roller.expr import Axis, Bound, Call, Index, Load, Stage, Tensor, TensorExpr, Term
from roller.runtime.check import Oracle
from roller.runtime.output_elements_to_compare import sample_output_points, sample_tile_boundaries
from roller.runtime.random_inputs import random_inputs


def along(e, axis=0):
    return set(sample_output_points(e, np.random.default_rng(0))[e.outputs[0]][:, axis].tolist())


def test_a_kernel_wrong_at_the_jumps_of_a_quotient_is_found():
    """18 of 200,000 outputs were wrong, and a kernel with them was measured."""
    e = _gather(200_000, 3, 60_000, 60_003)
    arrays = random_inputs(e)
    right = e.evaluate(arrays)[0].astype(np.float32)
    oracle = Oracle(e, arrays)
    assert oracle.check([right]).ok
    wrong = right.copy()
    for k in (1, 2, 3):
        wrong[60_000 * k : 60_003 * k] += 1
    assert np.sum(wrong != right) == 18
    assert not oracle.check([wrong]).ok
    assert {60_000 * k - d for k in (1, 2, 3) for d in (0, 1)} <= along(e)
    assert {60_003 * k - d for k in (1, 2, 3) for d in (0, 1)} <= along(e)


def test_edges_of_guards_and_periods_of_remainders_are_compared():
    n, a = 3_000_000, Axis("a", 3_000_000)
    place = Index((Term("a"),), -7)
    load = Load("X", (place,), (Bound(place, 0, n - 20),))
    other = Load("Z", (Index((Term("a", 1, 1, 1_000_003),)),))
    store = (Index((Term("a"),)),)
    e = TensorExpr("padded", (Tensor("X", (n - 20,)), Tensor("Z", (1_000_003,))),
                   (Stage(Tensor("Y", (n,)), (a,), store, Call("add", (load, other))),), ("Y",))  # fmt: skip
    wanted = {6, 7, n - 14, n - 13, 1_000_002, 1_000_003, 2_000_005, 2_000_006, 0, n - 1}
    assert wanted <= along(e)


def test_what_an_intermediate_stage_cuts_its_reader_sees():
    e = ops.conv2d(4, 16, 64, 64, 64, 3, 3, padding=1)
    for axis in (2, 3):
        assert {0, 1, 62, 63} <= along(e, axis)


def test_ends_of_the_tiles_of_a_program_are_compared():
    e = ops.matmul(999, 1001, 64)
    program = roller.construct(e, "v100", top_k=1)[0].program
    (points,) = sample_tile_boundaries(program, e, np.random.default_rng(0)).values()
    block = program.block_tile
    for d, (axis, extent) in enumerate((a.name, a.extent) for a in program.expr.anchor.spatial_axes):
        last = (extent - 1) // block[axis] * block[axis]
        assert {0, last, extent - 1} <= set(points[:, d].tolist())
    arrays = random_inputs(e)
    oracle = Oracle(e, arrays)
    before = len(oracle.points[0])
    oracle.cover([program], arrays)
    after = oracle.points[0]
    assert before < len(after) <= before + 160
    assert len(np.unique(after, axis=0)) == len(after)
    assert oracle.check([arrays[0] @ arrays[1]]).ok
    oracle.cover([program], arrays)
    assert len(oracle.points[0]) == len(after)


def test_the_cost_of_a_sample_is_bounded():
    for e in (ops.matmul(4096, 4096, 64), ops.conv2d(8, 512, 28, 28, 512, 3, 3), ops.elementwise("relu", (1 << 24,))):
        for points in sample_output_points(e, np.random.default_rng(0)).values():
            depth = e.stages[0].points // e.output_tensors[0].elements
            assert len(points) * depth <= max(1 << 21, 330 * depth)
            assert len(points) <= 896
