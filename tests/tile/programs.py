"""Hand-made and random block-layer programs for the tests of tiles: no constructor involved."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from roller.expr import TensorExpr
from roller.expr.canonical import fuse_axes, group_axes
from roller.tile import RProgram
from roller.tile.geometry import Geometry
from roller.tile.structures import structure_of
from tests.tile.interpreter import Counts, interpret


def program(expr: TensorExpr, block: Sequence[int], kind: str = "gpu", split_k: int = 1) -> RProgram:
    """Return a program whose block tile is ``block``; the register tile is one point."""
    one = (1,) * len(block)
    tiles: tuple[tuple[str, tuple[int, ...]], ...] = (("register", one), ("shared", tuple(block)))
    if kind == "cpu":
        tiles = (("register", one), ("l1", one), ("l2", tuple(block)))
    structure = structure_of(Geometry.of(expr))
    return RProgram(expr, kind, structure.name, tiles, split_k=split_k if structure.reuses else 1)


def forms(expr: TensorExpr) -> list[TensorExpr]:
    """Return the expression as written, fused, and grouped where that exists."""
    fused = fuse_axes(expr)
    grouped = group_axes(fused)
    return [expr, fused] + ([grouped] if grouped is not None else [])


def random_block(expr: TensorExpr, rng: random.Random, most_tiles: int = 200) -> tuple[int, ...]:
    """Return a block that divides some axes, leaves a rest on others, and exceeds some."""
    block = []
    for a in expr.axes:
        n = a.extent
        block.append(rng.choice(sorted({1, 2, 3, min(4, n), max(1, n - 1), n, n + 2, -(-n // 2)})))
    while np.prod([-(-a.extent // b) for a, b in zip(expr.axes, block, strict=True)]) > most_tiles:
        block = [2 * b for b in block]
    return tuple(block)


def traffic_bytes(geometry: Geometry, tiles: np.ndarray) -> np.ndarray:
    """Q(T): bytes loaded by all tiles of the launch plus bytes stored once, ``(N,)``."""
    loaded = sum(
        (a.elements_loaded_per_launch(tiles) * a.tensor.itemsize_bytes for a in geometry.loads), np.zeros(len(tiles))
    )
    return loaded + float(geometry.store.tensor.nbytes)


def assert_counts(prog: RProgram, counts: Counts) -> None:
    """Hold what was counted against F, Q and the operands of the epilogue in the model."""
    geometry = Geometry.of(prog.expr)
    tile = np.array([tuple(prog.block_tile.values())])
    assert counts.footprint_bytes == int(geometry.footprint_bytes(tile)[0])
    assert counts.traffic_bytes == float(traffic_bytes(geometry, tile)[0])
    if prog.expr.epilogue is not None:
        extras = sum(float(a.elements_loaded_per_launch(tile)[0]) * a.tensor.itemsize_bytes for a in geometry.extras)
        assert counts.epilogue_bytes == extras


def assert_interprets(prog: RProgram, arrays: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> Counts:
    """Execute the stream, hold results against the reference and counts against the model."""
    outputs, counts = interpret(prog, arrays)
    for got, ref in zip(outputs, want, strict=True):
        np.testing.assert_allclose(got.reshape(ref.shape), ref, rtol=1e-9, atol=1e-9, err_msg=str(prog))
    assert_counts(prog, counts)
    return counts
