"""Devices of 64-lane wavefronts get full sets of programs, from their numbers alone."""

import pytest

import roller
from benchmarks.tables import read_table
from roller.hardware import list_specs, load_spec

DEVICES = [n for n in list_specs() if load_spec(n).teu.lanes == 64]


def rows():
    return read_table("operators.yaml")["operators"]


def test_all_amd_devices_are_here():
    assert {"mi50", "mi250x", "mi300x"} <= set(DEVICES)


@pytest.mark.parametrize("device", DEVICES)
def test_ten_programs_of_whole_wavefronts_within_the_limits(device):
    spec = load_spec(device)
    for row in rows()[::5]:
        found = roller.construct(roller.ops.from_spec(row), spec, top_k=10)
        assert len({str(c.program) for c in found}) == 10, row["id"]
        for c in found:
            threads = c.program.threads_per_block
            walks = c.program.structure == "window"  # part of the last wavefront may idle, and is priced
            assert threads >= 0.7 * (-(-threads // 64) * 64) if walks else threads % 64 == 0, (
                row["id"],
                str(c.program),
            )
            assert c.program.threads_per_block <= spec.limits.threads_per_block
            assert c.estimate.terms["scratchpad_bytes"] <= spec.limits.shared_bytes_per_block
            assert c.estimate.terms["blocks_per_unit"] >= 1
        assert [c.estimate.seconds for c in found] == sorted(c.estimate.seconds for c in found)
