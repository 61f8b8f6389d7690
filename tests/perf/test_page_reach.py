"""Rows on more pages than the last TLB holds make tiles come from memory; where it is not known nothing changes."""

from __future__ import annotations

import pytest

import roller
from roller import ops

P100 = roller.load_spec("p100")
TILES = {"shared": {"i": 128, "j": 32, "k": 8}, "register": {"i": 4, "j": 4}}
ENTRIES = "memory_layers.global.tlb_entries"


def linear(rows: int, columns: int, steps: int) -> roller.TensorExpr:
    return ops.matmul(rows, columns, steps, transpose_b=True)


def priced(expr, spec=P100):
    return roller.predict(expr, spec, TILES, stages=2, policy="library")


def test_long_rows_of_a_wave_load_more_from_memory():
    expr = linear(8192, 2048, 32768)
    held, free = priced(expr), priced(expr, P100.with_overrides({ENTRIES: 1 << 20}))
    held_bytes, free_bytes = (dict(e.term_items)["dram_bytes"] for e in (held, free))
    assert held_bytes > 10 * free_bytes
    assert held.seconds > 1.2 * free.seconds
    # No more than every tile by itself, in bursts of 64 bytes for the 32 of a step.
    alone = 2 * 4 * 32768 * 8192 * 2048 * (1 / 32 + 1 / 128)
    assert held_bytes < alone + 4 * 8192 * 2048 * 2


@pytest.mark.parametrize("shape", [(8192, 2048, 1024), (256, 256, 32768)])
def test_rows_within_reach_change_nothing(shape):
    expr = linear(*shape)
    assert priced(expr).seconds == priced(expr, P100.with_overrides({ENTRIES: 1 << 20})).seconds


def test_more_entries_never_make_a_kernel_slower():
    expr = linear(8192, 2048, 32768)
    seconds = [priced(expr, P100.with_overrides({ENTRIES: n})).seconds for n in (16, 64, 128, 256, 1024)]
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > seconds[-1]


def test_operands_whose_steps_are_rows_apart_are_not_asked():
    other = ops.matmul(64, 65536, 8192)  # B's rows run along columns: a step reads whole rows
    assert priced(other).seconds == priced(other, P100.with_overrides({ENTRIES: 1024})).seconds


def test_the_bound_stays_below_the_price():
    for shape in ((8192, 2048, 32768), (4096, 512, 36000)):
        best = roller.construct(linear(*shape), P100, top_k=1)[0].estimate
        assert best.seconds <= priced(linear(*shape)).seconds * 1.0001
