"""Whole transactions: the formulas against brute force over offsets and addresses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller import ops
from roller.expr.canonical import fuse_axes
from roller.tile.geometry import Geometry
from roller.tile.transactions import row_alignment_bytes, tile_transaction_bytes, touched_bytes, transactions_per_row
from tests.tile.instructions import Box, Load, instructions
from tests.tile.programs import program


@given(row=st.integers(1, 700), alignment=st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128]),
       size=st.sampled_from([32, 64, 128]))  # fmt: skip
def test_expected_transactions_of_a_row(row, alignment, size):
    alignment = min(alignment, size)
    touched = [(start + row - 1) // size - start // size + 1 for start in range(0, size, alignment)]
    formula = transactions_per_row(np.array([row]), np.array([alignment]), size)[0]
    assert formula == pytest.approx(sum(touched) / len(touched), rel=1e-12)


def _runs(region: Box, shape):
    """Starts (elements) and lengths of the contiguous runs of the part of a box inside its tensor."""
    inside = [[x for x in range(*r) if 0 <= x < n] for r, n in zip(region.ranges, shape, strict=True)]
    grid = np.meshgrid(*inside, indexing="ij")
    flat = np.sort(np.ravel_multi_index(tuple(x.ravel() for x in grid), shape))
    breaks = np.flatnonzero(np.diff(flat) != 1) + 1
    return [(int(part[0]), len(part)) for part in np.split(flat, breaks)]


@given(
    which=st.sampled_from(["matmul", "transposed", "conv", "pool"]), size=st.integers(5, 24),
    tile=st.tuples(*[st.sampled_from([1, 2, 4, 8])] * 4), transaction=st.sampled_from([32, 64]),
)  # fmt: skip
def test_rows_and_their_alignment_by_enumeration(which, size, tile, transaction):
    """Every run of every tile starts at the promised alignment, and there are no more rows than promised."""
    a, b, c, d = tile
    expr, block = {
        "matmul": lambda: (ops.matmul(size, 24, 16), (a, b, c)),
        "transposed": lambda: (ops.matmul(16, size, 24, transpose_a=True, transpose_b=True), (a, b, c)),
        "conv": lambda: (ops.conv2d(1, 4, size, 12, 2, 3, 3), (1, 2, a, b, c, 3, 3)),
        "pool": lambda: (ops.pool2d("max", 1, 4, size, 16, 2, 2), (1, a, b, d, 2, 2)),
    }[which]()
    geometry, tiles = Geometry.of(expr), np.array([block])
    promised = {x.tensor.name: (x, int(row_alignment_bytes(x, tiles, transaction)[0])) for x in geometry.loads}
    for step in instructions(program(expr, block)):
        if not isinstance(step, Load):
            continue
        access, alignment = promised[step.tensor]
        rows, run = access.runs(tiles)
        found = _runs(step.region, access.tensor.shape)
        assert len(found) <= rows[0]
        assert all(start * 4 % alignment == 0 for start, _ in found)
        lines = {x * 4 // transaction for start, length in found for x in range(start, start + length)}
        worst = rows[0] * (1 + -(-(run[0] * 4 - 1) // transaction)) * transaction
        assert len(lines) * transaction <= worst


def test_an_aligned_tile_moves_exactly_its_bytes():
    g = Geometry.of(ops.matmul(256, 256, 256))
    tile = np.array([[64, 64, 32]])
    for access in g.loads:
        moved, alignment = tile_transaction_bytes(access, tile, 32)
        assert moved[0] == access.elements(tile)[0] * 4 and alignment[0] == 32


def test_a_prime_pitch_is_priced_in_real_transactions():
    """Rows of 32 elements of a matrix of pitch 67: any of 8 offsets; 5 - 1/8 transactions each on average."""
    a, _ = Geometry.of(ops.matmul(64, 64, 67)).loads
    moved, alignment = tile_transaction_bytes(a, np.array([[16, 64, 32]]), 32)
    assert alignment[0] == 4
    assert moved[0] == 16 * 32 * (5 - 1 / 8)


def test_a_halo_that_starts_before_the_row_is_not_aligned():
    conv = Geometry.of(ops.conv2d(1, 8, 32, 32, 8, 3, 3, padding=1)).loads[0]
    assert row_alignment_bytes(conv, np.array([[1, 8, 8, 8, 8, 3, 3]]), 32)[0] == 4


def test_gathered_rows_promise_single_elements():
    from roller.expr.canonical import group_axes

    grouped = group_axes(fuse_axes(ops.conv2d(2, 8, 7, 7, 8, 3, 3, padding=1)))
    image = Geometry.of(grouped).loads[0]
    assert image.gather
    assert row_alignment_bytes(image, np.array([[8, 16, 8]]), 32)[0] == 4


def test_strided_rows_skip_transactions_they_never_touch():
    """Every other row of 64 elements: half of the tensor; every other element of a row: all of it."""
    rows = Geometry.of(fuse_axes(ops.conv2d(1, 4, 64, 64, 4, 1, 1, stride=(2, 1)))).loads[0]
    columns = Geometry.of(fuse_axes(ops.conv2d(1, 4, 64, 64, 4, 1, 1, stride=(1, 2)))).loads[0]
    whole = 4 * 64 * 64 * 4
    assert touched_bytes(rows, 32) == whole / 2
    assert touched_bytes(columns, 32) == whole
