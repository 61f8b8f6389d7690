"""Programs on smaller extents: remainders, steps and tensors stay what they were, or nothing shrinks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller import construct, ops
from roller.expr import SPATIAL, Axis, Index, Load, Stage, Tensor, TensorExpr, Term, axis_index
from roller.expr.canonical import fuse_axes
from roller.expr.scalar import Bound
from roller.tile import RProgram
from roller.tile.shrink_program import shrink_program

matrix = st.tuples(*3 * [st.integers(1, 3000)])
blocks = st.tuples(*3 * [st.sampled_from([1, 2, 3, 8, 12, 32, 64])])


@settings(max_examples=60)
@given(matrix, blocks, st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))
def test_remainders_and_steps_are_kept(shape, block, split, stages, raster):
    expr = fuse_axes(ops.matmul(*shape))
    block = block[: len(expr.axes)]
    tiles = (("register", tuple(1 for _ in block)), ("shared", block))
    program = RProgram(expr, "gpu", "tiled", tiles, split_k=split, stages=stages, raster=raster)
    found = shrink_program(program)
    if found is None:
        return
    assert found.tiles == program.tiles
    for old, new, tile in zip(program.axes, found.axes, block, strict=True):
        assert new.extent <= old.extent
        assert (old.extent - new.extent) % tile == 0
        if new.extent < old.extent:
            steps = -(-new.extent // tile)
            assert steps >= (3 if old.kind == SPATIAL else split * (stages + 2))
            if old.kind != SPATIAL:
                assert (-(-old.extent // tile) - steps) % split == 0


@pytest.mark.parametrize("device", ["v100", "h200"])
@pytest.mark.parametrize("expression", [
    ops.conv2d(128, 256, 56, 56, 256, 3, 3, padding=1), ops.conv2d(64, 128, 28, 28, 128, 1, 1, stride=2),
    ops.softmax((65536, 1024)), ops.pool2d("max", 64, 128, 56, 56, 3, 3), ops.elementwise(("relu",), (100, 1000, 1000)),
    ops.layer_norm((8192, 4096)), ops.reduce("sum", (4096, 4096), axes=(1,)),
], ids=lambda e: e.name)  # fmt: skip
def test_large_operators_shrink(expression, device):
    for candidate in construct(expression, device, 3):
        found = shrink_program(candidate.program)
        assert found is not None
        assert found.expr.anchor.points * 2 <= candidate.program.expr.anchor.points
        assert (found.structure, found.tiles, found.staged) == (
            candidate.program.structure, candidate.program.tiles, candidate.program.staged)  # fmt: skip


def program(index: Index, extent: int, shape: int, guard: tuple[Bound, ...] = ()) -> RProgram:
    """A copy ``Y[i] = X[index]`` in tiles of 4."""
    stage = Stage(Tensor("Y", (extent,)), (Axis("i", extent),), (axis_index("i"),), Load("X", (index,), guard))
    expr = TensorExpr("copy", (Tensor("X", (shape,)),), (stage,), ("Y",))
    return RProgram(expr, "gpu", "streaming", (("register", (1,)), ("shared", (4,))))


def shape_of(made: RProgram | None) -> tuple[int, ...]:
    assert made is not None
    return made.expr.inputs[0].shape


def test_tensors_shrink_with_what_reads_them():
    assert shape_of(shrink_program(program(axis_index("i", 2, 1), 4000, 8000))) < (8000,)
    third = shrink_program(program(Index((Term("i", 1, 3),)), 3000, 1000))
    assert third is not None and third.axes[0].extent % 12 == 0 and shape_of(third) == (third.axes[0].extent // 3,)
    assert shape_of(shrink_program(program(Index((Term("i", 1, 1, 6),)), 3000, 6))) == (6,)


def test_what_reads_backwards_or_is_bounded_by_a_position_stays():
    assert shrink_program(program(axis_index("i", -1, 3999), 4000, 4000)) is None
    bound = Bound(axis_index("i"), 0, 3990)
    assert shape_of(shrink_program(program(axis_index("i"), 4000, 3990, (bound,)))) < (3990,)
    assert shrink_program(program(axis_index("i"), 4000, 4000, (bound,))) is None
