"""Values in a wrong unit: impossible ones are refused, unusual ones said, and peaks let a reader see the rest."""

from __future__ import annotations

import re

import pytest

import roller
from roller.errors import SpecError
from roller.hardware import list_specs, load_spec, parse_spec, spec_folder
from roller.hardware.consistency import suspicions
from roller.hardware.peaks import peak_flops_per_s
from tests.offenders import every

H100 = (spec_folder() / "h100.yaml").read_text()


def edited(old: str, new: str) -> str:
    assert H100.count(old) == 1, "the edit of this test no longer applies"
    return H100.replace(old, new)


@every(
    ("old", "new", "said"),
    [
        ("lanes: {datasheet: 32}", "lanes: {datasheet: 30}", "teu.lanes: expected a power of two, got 30"),
        ("52428800", "96", "memory_layers.l2.capacity_bytes: expected at least the 233472 bytes of shared, got 96"),
        ("boost: {datasheet: 1.98e+9", "boost: {datasheet: 2.52e+10", "clock_hz.datasheet: expected a value"),
        ("boost: {datasheet: 1.98e+9", "boost: {datasheet: 1.2e+9", "clock_hz.sustained: expected at most"),
        ("    group_matrix.float16: {datasheet: 2048}\n", "", "missing: fragment 'wgmma.m64n64k16.f16.f32' needs it"),
        ("{datasheet: 232448,", "{datasheet: 300000,", "memory_layers.shared.usable_bytes: expected at most"),
    ],
)
def test_what_cannot_be_is_refused(old, new, said):
    with pytest.raises(SpecError, match=re.escape(said)):
        parse_spec(edited(old, new), "mine.yaml")


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("{datasheet: 232448,", "{datasheet: 227,", "memory_layers.shared.usable_bytes"),
        ("derived: 2.8e+12,", "derived: 8.64e+9,", "memory_layers.global.bandwidth_bytes_per_s"),
        ("    fma: {datasheet: 128}", "    fma: {datasheet: 91.6}", "compute.ops_per_cycle_per_unit.fma"),
        ("arch: sm_90}", "arch: sm_999}", "target.arch"),
    ],
)
def test_what_hardly_is_so_is_said(old, new, path):
    assert [s.partition(": ")[0] for s in suspicions(parse_spec(edited(old, new), "mine.yaml"))] == [path]


def test_a_matrix_unit_without_instructions_or_without_rates_is_said():
    start, end = H100.index("# Instructions of the matrix"), H100.index("memory_layers:")
    said = suspicions(parse_spec(H100[:start] + H100[end:], "mine.yaml"))
    assert len(said) == 3 and all(s.startswith("fragments: none") for s in said)


@every("name", list_specs())
def test_shipped_devices_are_not_suspicious(name):
    assert suspicions(load_spec(name)) == ()


def test_devices_ends_with_what_follows_and_a_verdict(cli, tmp_path):
    code, out, err = cli("devices", "--show", "h100")
    assert code == 0, err
    assert "float16: 1071 TFLOP/s (group_matrix, at 1.98 GHz)" in out
    assert "shared: 228 KiB a unit" in out
    assert out.rstrip().endswith("h100: valid")
    mine = tmp_path / "mine.yaml"
    mine.write_text(edited("derived: 2.8e+12,", "derived: 8.64e+9,"))
    out = cli("devices", "--show", str(mine))[1]
    assert "global: 74.5 GiB, 8.64 GB/s" in out and "suspicious: memory_layers.global" in out
    assert out.rstrip().endswith("h100: valid, with 1 suspicion")


def test_the_list_has_the_peak_of_the_matrix_unit_and_its_clock(cli):
    out = cli("devices")[1]
    (row,) = [line.split() for line in out.splitlines() if line.strip().startswith("h200 ")]
    assert {"1.98", "66.9", "1.07e+03"} <= set(row)
    assert peak_flops_per_s(load_spec("k80"), "float16") is None


@every("lanes", [1, 2, 256, 1024])
@every("name", ["k80", "mi50"])
def test_lanes_that_no_gpu_has_are_refused(name, lanes):
    with pytest.raises(SpecError, match=f"teu.lanes: expected from 4 to 128, as GPUs have, got {lanes}"):
        load_spec(name, {"teu.lanes": lanes})


@every("field", ["l2.transaction_bytes", "l2.line_bytes", "shared.banks", "shared.bank_width_bytes"])
@every("value", [33, 48])
def test_sizes_that_are_no_powers_of_two_are_refused(field, value):
    with pytest.raises(SpecError, match=rf"memory_layers.{field}: expected a power of two, got {value}"):
        load_spec("v100", {f"memory_layers.{field}": value})


@pytest.mark.parametrize(("name", "layer"), [("v100", "l2"), ("v100", "global"), ("cpu-avx512", "dram")])
def test_a_transaction_smaller_than_an_element_is_refused(name, layer):
    with pytest.raises(SpecError, match="transaction_bytes: expected at least the 8 bytes of one element, got 4"):
        load_spec(name, {f"memory_layers.{layer}.transaction_bytes": 4})


@pytest.mark.parametrize("threads", [33, 65, 100, 127])
def test_blocks_too_small_for_a_group_of_warps_leave_other_programs(threads):
    spec = load_spec("h200", {"limits.threads_per_block": threads})
    best = roller.construct(roller.ops.matmul(512, 512, 512, dtype="float16"), spec, top_k=1)[0]
    assert best.estimate.seconds > 0 and "wgmma" not in str(best.program)
