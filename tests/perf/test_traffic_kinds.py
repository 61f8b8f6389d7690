"""DRAM by kind of traffic: reading alone, two reads for a write, and copies each meet their own bandwidth."""

from __future__ import annotations

import pytest

import roller
from roller import ops
from roller.hardware import load_spec

ROWS = (16384, 16384)
BYTES = 4.0 * ROWS[0] * ROWS[1]
KINDS = {
    "read": (ops.reduce("sum", ROWS, (1,)), BYTES, "read_bandwidth_bytes_per_s"),
    "triad": (ops.elementwise("add", ROWS), 3 * BYTES, "triad_bandwidth_bytes_per_s"),
    "copy": (ops.elementwise("relu", ROWS), 2 * BYTES, "bandwidth_bytes_per_s"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_large_kernels_reach_the_bandwidth_of_their_kind(kind):
    expr, moved, field = KINDS[kind]
    spec = load_spec("a100")
    seconds = roller.construct(expr, spec, top_k=1)[0].estimate.seconds
    assert moved / seconds == pytest.approx(getattr(spec.layer("global"), field), rel=0.03)


def test_traffic_is_all_alike_where_nothing_is_said_of_kinds():
    far = load_spec("k80").layer("global")
    assert far.read_bandwidth_bytes_per_s is None and far.peak_bytes_per_s == far.bandwidth_bytes_per_s


def test_a_share_of_a_device_shares_all_kinds():
    spec = load_spec("a100")
    part = spec.layer("global").with_bandwidth_factor(0.5)
    assert part.read_bandwidth_bytes_per_s == 0.5 * spec.layer("global").read_bandwidth_bytes_per_s
    assert part.triad_bandwidth_bytes_per_s == 0.5 * spec.layer("global").triad_bandwidth_bytes_per_s


def test_a_result_is_stored_in_its_own_dtype_whatever_follows_the_product_on_the_chip():
    def dram_bytes(epilogue, dtype="float16"):
        expr = ops.matmul(8192, 2048, 512, dtype=dtype, epilogue=epilogue)
        return roller.predict(expr, load_spec("rtx4090"), policy="library-graph").terms["dram_bytes"]

    bias = 2 * 2048
    assert dram_bytes(("bias",)) == pytest.approx(dram_bytes(()) + bias, rel=1e-3)
    assert dram_bytes(("bias",), "float32") == pytest.approx(dram_bytes((), "float32") + 2 * bias, rel=1e-3)
