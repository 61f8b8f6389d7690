"""Tiles of libraries are laid out only where their bound allows it: the price is that of laying out all of them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from roller import load_spec, ops, perf
from roller.search import library
from roller.search.constructor import program_of
from roller.search.named_layouts import layouts
from roller.templates.common.options import ConstructOptions
from roller.templates.gpu.tiled.least import LeastLaidOut
from roller.templates.registry import programs_of
from roller.tile.geometry import Geometry
from roller.tile.structures import TILED
from roller.tile.transactions import counted_bytes, tile_transaction_bytes

OPTIONS = ConstructOptions(policy="library-graph")
#: Depthwise convolutions, and the products of their gradients; few enough programs to lay out all.
SMALL = {
    "depthwise": lambda t: ops.conv2d(2, 8, 7, 7, 8, 3, 3, (2, 2), (1, 1), (1, 1), 8, dtype=t),
    "weights": lambda t: ops.matmul(1, 9, 196, 8, False, True, dtype=t),
    "image": lambda t: ops.matmul(98, 1, 9, 16, dtype=t),
    "row": lambda t: ops.matmul(1, 100, 64, dtype=t),
}


def _batches(expr, spec):
    return [b for b in programs_of(expr, library.called(expr, spec, "library-graph"), OPTIONS) if len(b)]


def _all_laid_out(batches, spec):
    found = []
    for b in batches:
        if b.structure != TILED.name:
            found.append(perf.estimate_best(b, spec))
            continue
        programs = [p for n in range(len(b)) for p in layouts(program_of(b, n, spec), spec)]
        found.append(min(perf.estimate_programs(programs, spec), key=lambda e: e.seconds))
    return min(found, key=lambda e: e.seconds)


def _same(name, dtype, device):
    spec = load_spec(device)
    batches = _batches(SMALL[name](dtype), spec)
    assert library._fastest(batches, spec) == _all_laid_out(batches, spec)


def test_the_fastest_of_few_programs_is_that_of_all_layouts():
    _same("row", "float32", "t4")


@pytest.mark.parametrize("device", ["v100", "a100", "mi300x", "p100", "b200"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", list(SMALL))
def test_the_fastest_program_is_that_of_all_layouts(name, dtype, device):
    _same(name, dtype, device)


def test_no_layout_beats_its_bound():
    spec, rng = load_spec("mi300x"), random.Random(7)
    for batch in _batches(ops.matmul(98, 1, 9, 16), spec):
        bounds = LeastLaidOut(batch, spec)
        least = bounds.least_s(bounds.likely_s(), 0.0)  # a limit below all: nothing is looked at
        assert np.isinf(least).all()
        least = bounds.least_s(bounds.likely_s(), 1.0)
        for n in rng.sample(range(len(batch)), min(len(batch), 8)):
            for e in perf.estimate_programs(list(layouts(program_of(batch, n, spec), spec)), spec):
                assert e.seconds >= least[n]


def test_transactions_of_many_tiles_are_those_of_each():
    g = Geometry.of(ops.conv2d(2, 4, 9, 9, 4, 3, 3, (2, 2), (1, 1), (1, 1), 4))
    tiles = np.array([[1, 1, 2, 3, 1, 1, 3], [1, 1, 5, 5, 1, 3, 3], [2, 2, 5, 5, 1, 1, 1]], np.int64)
    assert tiles.shape[1] == len(g.names)
    for access in (*g.reads, g.store):
        together = counted_bytes(access, tiles, 32)
        assert np.array_equal(together, [counted_bytes(access, t[None], 32)[0] for t in tiles], equal_nan=True)
        moved, _ = tile_transaction_bytes(access, tiles, 32)
        assert (np.isnan(together) | (together >= 32)).all() and (moved > 0).all()
    gathered = Geometry.of(ops.matmul(64, 1, 9000)).reads[0]
    assert np.isnan(counted_bytes(gathered, np.ones((1, 3), np.int64), 32)).all()  # more rows than are counted
