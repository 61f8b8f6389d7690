"""Values in a wrong unit: impossible ones are refused, unusual ones said, and peaks let a reader see the rest."""

from __future__ import annotations

import json
import re

import pytest

import roller
from roller.errors import SpecError
from roller.hardware import list_specs, load_spec, parse_spec, spec_folder
from roller.hardware.consistency import check_spec_file, spec_warnings
from roller.hardware.peak_rates import peak_flops_and_instruction_class
from roller.hardware.spec import settable_fields
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
    assert [s.partition(": ")[0] for s in spec_warnings(parse_spec(edited(old, new), "mine.yaml"))] == [path]


def test_a_matrix_unit_without_instructions_or_without_rates_is_said():
    start, end = H100.index("# Instructions of the matrix"), H100.index("memory_layers:")
    said = spec_warnings(parse_spec(H100[:start] + H100[end:], "mine.yaml"))
    assert len(said) == 3 and all(s.startswith("fragments: none") for s in said)


@every("name", list_specs())
def test_shipped_devices_are_not_suspicious(name):
    assert spec_warnings(load_spec(name)) == ()


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
    assert peak_flops_and_instruction_class(load_spec("k80"), "float16") is None


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


#: Units that a thousand may slip in.
MEASURES = ("bytes", "bytes/s", "s", "Hz", "W", "J", "operations/cycle/unit")
#: What devices do have a thousand times larger: huge pages.
LEFT_OUT = ("page_bytes",)


@pytest.mark.parametrize("factor", [1000.0, 1024.0, 1 / 1000])
@every("name", ["h100", "t4", "mi300x", "k80", "rtx4090", "b200", "cpu-avx2"])
def test_no_number_slips_by_a_thousand_without_a_word(name, factor):
    spec, silent = load_spec(name), []
    known = settable_fields(spec)
    for path, value in spec.values().items():
        if known[path].unit not in MEASURES or path.endswith(LEFT_OUT) or not value:
            continue
        try:
            other = spec.with_overrides({path: int(value * factor) if known[path].integer else value * factor})
            check_spec_file(name, other)
        except SpecError:
            continue
        if not spec_warnings(other):
            silent.append(path)
    assert silent == []


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (
            "l4", "matrix.float16: {datasheet: 512", "matrix.float16: {datasheet: 1024",
            "compute.ops_per_cycle_per_unit.matrix.float16: 1024 x 2 x 58 units x 2.04 GHz are 242.3 T operations/s, "
            "beside 121 of its own note",
        ),
        (
            "t4", "matrix.float16: {datasheet: 512", "matrix.float16: {datasheet: 496",
            "compute.ops_per_cycle_per_unit.matrix.float16: 496 beside 8 times 64 of its own note",
        ),
        (
            "l4", "global\n    scope: device\n    tiled: false\n    capacity_bytes: {datasheet: 24000000000}",
            "global\n    scope: device\n    tiled: false\n    capacity_bytes: {datasheet: 240000000000}",
            "memory_layers.global.reported_bytes: 22 GiB beside a capacity of 224 GiB: check both",
        ),
        (
            "v100", "{datasheet: 9.0e+11, measured: 8.26e+11", "{datasheet: 9.0e+11, measured: 8.26e+10",
            "memory_layers.global.bandwidth_bytes_per_s: measured 8.26e+10 is 11 times below datasheet 9e+11: check "
            "both units",
        ),
        (
            "v100", "latency_s: {measured: 1.4e-7", "latency_s: {measured: 1.4e-10",
            "memory_layers.l2.latency_s: 1.4e-10 s are 0.193 cycles of 1.38 GHz, where 5 to 20000 are usual: check the "
            "unit",
        ),
    ],
)  # fmt: skip
def test_what_looks_wrong_is_said_with_what_it_was_compared_with(name, old, new, said):
    text = (spec_folder() / f"{name}.yaml").read_text()
    assert text.count(old) == 1, "the edit of this test no longer applies"
    assert said in spec_warnings(parse_spec(text.replace(old, new), "mine.yaml"))


def test_a_file_that_looks_wrong_is_told_of_wherever_it_is_used(cli, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(edited("derived: 2.8e+12,", "derived: 2.8e+9,"))
    for verb in ("predict", "construct"):
        more = ("--policy", "library") if verb == "predict" else ("-k", "1")
        code, _, err = cli(verb, "matmul(512, 512, 512)", "-d", str(mine), *more)
        assert code == 0
        assert "mine.yaml: memory_layers.global.bandwidth_bytes_per_s: 2.8 GB/s is 3554 times below the 9950" in err
    assert cli("devices", "--show", str(mine))[2] == "", "there it stands below the table"


def test_devices_names_the_file_that_a_device_is_from(cli, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(H100)
    for name, path in (("h100", spec_folder() / "h100.yaml"), (str(mine), mine)):
        out = cli("devices", "--show", name)[1]
        assert f"from {path}" in out and "drivers report 79.11 to 79.22 GiB" in out
    assert json.loads(cli("devices", "--show", "null:h100", "--json")[1])["files"] == [str(spec_folder() / "h100.yaml")]
    assert cli("devices", "--show", "cpu")[1].count(f"from {spec_folder()}") == 1
