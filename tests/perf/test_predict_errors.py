"""predict(): tiles a person names, and one clear error for each way of naming them wrongly."""

from __future__ import annotations

import pytest

import roller
from roller import ops
from roller.errors import SpecError, TileError
from tests.offenders import every

EXPR = ops.matmul(256, 256, 256)


def _predict(tiles, device="v100"):
    return roller.predict(EXPR, device=device, tiles=tiles)


@every(
    ("tiles", "message"),
    [
        ({"sharde": {"i": 64}}, "'sharde' is no tiled layer of v100; did you mean 'shared'"),
        (None, "tiles: expected a mapping from layer to extents, got NoneType"),
        ([64, 64], "tiles: expected a mapping from layer to extents, got list"),
        ({"shared": 64}, "layer 'shared': expected extents by axis name or a sequence, got 64"),
        ({"shared": "ijk"}, "layer 'shared': expected extents by axis name or a sequence, got 'ijk'"),
        ({"l2": {"i": 64}}, "'l2' is no tiled layer of v100"),
        ({"shared": {"ii": 64}}, "layer 'shared': unknown axis 'ii'; did you mean 'i'"),
        ({"shared": {"x": 64}}, r"layer 'shared': unknown axis 'x'\. Use \('i', 'j', 'k'\)"),
        ({"shared": (64, 64)}, r"layer 'shared': expected 3 extents for \('i', 'j', 'k'\), got 2"),
        ({"shared": {"i": 0}}, "axis 'i': expected a positive integer, got 0"),
        ({"shared": {"i": -4}}, "axis 'i': expected a positive integer, got -4"),
        ({"shared": {"i": 2.0}}, r"axis 'i': expected a positive integer, got 2\.0"),
        ({"shared": {"i": True}}, "axis 'i': expected a positive integer, got True"),
        ({"register": {"i": 8}, "shared": {"i": 6}}, r"axis 'i': expected at least .* the layer above \(8\), got 6"),
        ({"shared": {"i": 64}, "smem": {"j": 64}}, "'smem' names layer 'shared' a second time"),
        ({"thread": {"i": 2}, "reg": {"j": 2}}, "'reg' names layer 'register' a second time"),
        ({"shared": {"i": 64, "j": 64}}, "the block has 4096 threads .* v100 allows 1024"),
        ({"register": {"i": 16, "j": 16}, "shared": {"i": 64, "j": 64}}, "needs .* registers per thread, v100 has 255"),
        (
            {"register": {"i": 8, "j": 8}, "shared": {"i": 128, "j": 128, "k": 256}},
            "scratchpad, v100 has 98304",
        ),
    ],
)
def test_each_mistake_is_named_with_its_place(tiles, message):
    with pytest.raises(TileError, match=message):
        _predict(tiles)


def test_a_device_that_does_not_exist():
    with pytest.raises(SpecError, match="did you mean 'v100'"):
        _predict({}, device="v10")


def test_a_micro_kernel_larger_than_the_vector_registers():
    with pytest.raises(TileError, match="vector registers"):
        _predict({"register": {"i": 16, "j": 64}}, device="cpu-avx2")


def test_what_is_left_out_is_1_in_registers_and_the_register_extent_in_scratchpad():
    short = _predict({"register": {"i": 4, "j": 4}, "shared": {"i": 32, "j": 32}})
    full = _predict({"register": {"i": 4, "j": 4, "k": 1}, "shared": {"i": 32, "j": 32, "k": 1}})
    rows = _predict({"register": (4, 4, 1), "shared": [32, 32, 1]})
    assert short == full == rows


def test_tiles_larger_than_the_extent_are_padding_and_cost():
    tiles = {"register": (4, 4, 1), "shared": (64, 64, 8)}
    exact = roller.predict(ops.matmul(64, 64, 64), device="v100", tiles=tiles)
    padded = roller.predict(ops.matmul(33, 64, 64), device="v100", tiles=tiles)
    third = roller.predict(ops.matmul(65, 64, 64), device="v100", tiles=tiles)
    # Padded points are computed; only copying them is saved.
    assert 0.98 * exact.terms["compute_s"] < padded.terms["compute_s"] <= exact.terms["compute_s"]
    assert third.terms["l2_bytes"] > exact.terms["l2_bytes"] > padded.terms["l2_bytes"]


def test_named_tiles_may_use_more_than_the_usual_budget():
    """96 registers and 48 KiB are budgets of the constructor; the hardware allows more."""
    estimate = _predict({"register": (8, 16, 1), "shared": (64, 128, 8)})
    assert estimate.terms["registers"] > 96
    assert 49152 < _predict({"register": (8, 8, 1), "shared": (128, 128, 64)}).terms["scratchpad_bytes"] <= 98304
