"""Tiles of libraries are laid out only where their bound allows it: the price is that of laying out all of them."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from roller import load_spec, ops
from roller.construction import library_pricing
from roller.construction.constructor import program_from_row
from roller.construction.layouts_for_named_tiles import scratchpad_layouts
from roller.perf.tile_batch import TileBatch
from roller.templates import price_with_templates
from roller.templates.common.options import ConstructOptions
from roller.templates.gpu.tiled.layout_time_lower_bounds import LayoutBounds
from roller.templates.registry import programs_of
from roller.tile.geometry import Geometry
from roller.tile.staged_tile_layout import lane_reads
from roller.tile.structures import TILED
from roller.tile.transactions import counted_transaction_bytes, tile_transaction_bytes

OPTIONS = ConstructOptions(policy="library-graph")
#: Depthwise convolutions, and the products of their gradients; few enough programs to lay out all.
SMALL = {
    "depthwise": lambda t: ops.conv2d(2, 8, 7, 7, 8, 3, 3, (2, 2), (1, 1), (1, 1), 8, dtype=t),
    "weights": lambda t: ops.matmul(1, 9, 196, 8, False, True, dtype=t),
    "image": lambda t: ops.matmul(98, 1, 9, 16, dtype=t),
    "row": lambda t: ops.matmul(1, 100, 64, dtype=t),
}


def _batches(expr, spec):
    return [
        b
        for b in programs_of(expr, library_pricing.spec_with_call_overhead(expr, spec, "library-graph"), OPTIONS)
        if len(b)
    ]


def _all_laid_out(batches, spec):
    found = []
    for b in batches:
        if b.structure != TILED.name:
            found.append(price_with_templates.estimate_best(b, spec))
            continue
        programs = [p for n in range(len(b)) for p in scratchpad_layouts(program_from_row(b, n, spec), spec)]
        found.append(min(price_with_templates.estimate_programs(programs, spec), key=lambda e: e.seconds))
    return min(found, key=lambda e: e.seconds)


def _same(name, dtype, device):
    spec = load_spec(device)
    batches = _batches(SMALL[name](dtype), spec)
    assert library_pricing._fastest_estimate(batches, spec) == _all_laid_out(batches, spec)


def test_the_fastest_of_few_programs_is_that_of_all_layouts():
    _same("row", "float32", "t4")


@pytest.mark.parametrize(
    "device", ["v100", "mi300x", *(pytest.param(d, marks=pytest.mark.exhaustive) for d in ("a100", "p100", "b200"))]
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", list(SMALL))
def test_the_fastest_program_is_that_of_all_layouts(name, dtype, device):
    _same(name, dtype, device)


def test_no_layout_beats_its_bound():
    spec, rng = load_spec("mi50"), random.Random(7)
    tiled = [b for b in _batches(ops.matmul(98, 1, 9, 16), spec) if b.structure == TILED.name]
    assert tiled
    for batch in tiled:
        bounds = LayoutBounds(batch, spec)
        least = bounds.least_s(bounds.bounds_without_padding_s(), 0.0)  # a limit below all: nothing is looked at
        assert np.isinf(least).all()
        least = bounds.least_s(bounds.bounds_without_padding_s(), 1.0)
        for n in rng.sample(range(len(batch)), min(len(batch), 8)):
            for e in price_with_templates.estimate_programs(
                list(scratchpad_layouts(program_from_row(batch, n, spec), spec)), spec
            ):
                assert e.seconds >= least[n]


def test_transactions_of_many_tiles_are_those_of_each():
    g = Geometry.of(ops.conv2d(2, 4, 9, 9, 4, 3, 3, (2, 2), (1, 1), (1, 1), 4))
    tiles = np.array([[1, 1, 2, 3, 1, 1, 3], [1, 1, 5, 5, 1, 3, 3], [2, 2, 5, 5, 1, 1, 1]], np.int64)
    assert tiles.shape[1] == len(g.names)
    for access in (*g.reads, g.store):
        together = counted_transaction_bytes(access, tiles, 32)
        assert np.array_equal(
            together, [counted_transaction_bytes(access, t[None], 32)[0] for t in tiles], equal_nan=True
        )
        moved, _ = tile_transaction_bytes(access, tiles, 32)
        assert (np.isnan(together) | (together >= 32)).all() and (moved > 0).all()
    gathered = Geometry.of(ops.matmul(64, 1, 9000)).reads[0]
    assert np.isnan(
        counted_transaction_bytes(gathered, np.ones((1, 3), np.int64), 32)
    ).all()  # more rows than are counted


def test_rows_too_many_to_be_counted_are_not_enumerated(monkeypatch):
    access, looked = Geometry.of(ops.matmul(10_000_000, 64, 8)).reads[0], []
    pieces = type(access).pieces
    monkeypatch.setattr(type(access), "pieces", lambda *x: looked.append(x[3].tolist()) or pieces(*x))
    tiles = np.array([[64, 64, 8], [1_000_000, 64, 8]], np.int64)  # 156,250 positions of the first, 10 of the second
    few = counted_transaction_bytes(access, tiles, 32)
    assert np.isnan(few[0]) and few[1] == access.tensor.nbytes
    assert looked and all(tile[0] == 1_000_000 for tile in looked)


def test_tiles_of_other_extents_are_read_alike_where_their_loads_are():
    spec = load_spec("h100")

    def reads(expr, tile):
        program = program_from_row(_tiles(expr, tile), 0, spec)
        return lane_reads(replace(program), spec.teu.lanes)

    one, other = ops.matmul(512, 64, 9, 3), ops.matmul(1024, 64, 25, 7)
    assert reads(one, 32) is reads(other, 32)
    assert reads(one, 32) != reads(one, 64)
    turned = ops.matmul(512, 64, 9, 3, True)
    assert reads(turned, 32) != reads(one, 32)


def _tiles(expr, side):
    g = Geometry.of(expr)
    block = np.array([[1, side, side, 1]], np.int64)
    register = np.array([[1, 2, 2, 1]], np.int64)
    return TileBatch(g, TILED.name, register, block, np.ones(1, np.int64), g.load_names)


def test_what_a_batch_knows_of_its_tiles_all_parts_of_it_know():
    spec, calls = load_spec("h100"), []
    batch = next(b for b in _batches(ops.matmul(98, 1, 9, 16), spec) if len(b) > 8)

    def compute():
        calls.append(1)
        return (np.arange(len(batch)),)

    (found,) = batch.cached_arrays(spec, "key", compute)
    part = batch.take(np.array([1, 3, 5, 7])).take(np.array([2, 0]))
    assert part.cached_arrays(spec, "key", compute)[0].tolist() == [found[5], found[1]] and calls == [1]
    assert len(part.cached_arrays(replace(spec), "key", compute)) == 1 and calls == [
        1,
        1,
    ]  # another device knows nothing
