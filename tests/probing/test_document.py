"""Measured values in YAML: beside the other sources, comments and order kept, refused where they do not belong."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from roller.errors import SpecError
from roller.hardware import list_specs, load_spec, parse_spec, spec_folder
from roller.probing import MeasuredValue, check_and_write_spec, insert_measured_values, spec_to_yaml
from tests.offenders import every

STAMP = "probed 2026-05-01 by roller probe"


def text_of(name):
    return (spec_folder() / f"{name}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", list_specs())
def test_values_of_every_shipped_spec_become_measured_and_nothing_else_changes(name):
    spec = load_spec(name)
    numbers = {p: v for p, v in spec.values().items() if not p.startswith("accuracy.")}
    found = {p: MeasuredValue(v * 1.001, 0.03, 40) for p, v in numbers.items() if isinstance(v, float)}
    text = insert_measured_values(text_of(name), found, STAMP)
    after = parse_spec(text, name)
    for path, value in after.values().items():
        if path in found:
            assert value == pytest.approx(found[path].value, rel=1e-3)
            assert after.sources[path] == "measured"
        elif path in numbers:
            assert value == spec.values()[path]
            assert after.sources[path] == spec.sources[path]
        else:  # errors of predictions that were found with the numbers before
            assert value >= spec.values()[path]
    before, lines = text_of(name).splitlines(), text.splitlines()
    assert len(before) == len(lines)
    assert [x for x in before if x.startswith("#")] == [x for x in lines if x.startswith("#")]


def _entries(node, path=""):
    if isinstance(node, dict) and {"measured", "derived", "datasheet", "assumed"} & set(node):
        yield path, node
    elif isinstance(node, (dict, list)):
        items = node.items() if isinstance(node, dict) else ((x["name"], x) for x in node)
        for key, value in items:
            yield from _entries(value, f"{path}.{key}" if path else str(key))


def test_other_sources_and_notes_stay():
    found = {"clock_hz": MeasuredValue(1.4e9, 0.02, 9), "memory_layers.l2.latency_s": MeasuredValue(1.5e-7, 0.02, 9)}
    before = dict(_entries(yaml.safe_load(text_of("v100"))))
    after = dict(_entries(yaml.safe_load(insert_measured_values(text_of("v100"), found, STAMP))))
    clock = after["clock_hz"]
    assert (clock["measured"], clock["datasheet"], clock["spread"]) == (1.4e9, 1.53e9, 0.02)
    assert clock["note"].startswith(before["clock_hz"]["note"] + "; probed 2026-05-01")
    assert {k: v for k, v in after.items() if k not in found} == {k: v for k, v in before.items() if k not in found}


def test_a_second_run_replaces_the_first():
    one = insert_measured_values(text_of("v100"), {"clock_hz": MeasuredValue(1.4e9, 0.02, 9)}, STAMP)
    two = insert_measured_values(one, {"clock_hz": MeasuredValue(1.3e9, 0.01, 9)}, "probed 2026-06-01 by roller probe")
    entry = yaml.safe_load(two)["clock_hz"]
    assert (entry["measured"], entry["spread"]) == (1.3e9, 0.01)
    assert entry["note"].count("probed") == 1
    assert insert_measured_values(two, {"clock_hz": MeasuredValue(1.4e9, 0.02, 9)}, STAMP) == one


def test_fields_the_file_lacks_are_added_to_their_section():
    found = {
        "memory_layers.l3.bandwidth_per_teu_bytes_per_s": MeasuredValue(9.9e10, 0.05, 20),
        "memory_layers.l3.saturation_exponent": MeasuredValue(4.0, 0.05, 20),
        "compute.ops_per_cycle_per_unit.add.float16": MeasuredValue(64.0, 0.0, 20),
        "execution.overlap_blocks": MeasuredValue(2, 0.0, 20),
    }
    spec = parse_spec(insert_measured_values(text_of("cpu-avx512"), found, STAMP), "x")
    assert spec.layer("l3").bandwidth_per_teu_bytes_per_s == 9.9e10
    assert spec.layer("dram").saturation_exponent == 4
    assert spec.compute.ops_per_cycle_per_unit["add.float16"] == 64
    assert spec.sources["execution.overlap_blocks"] == "measured"


@pytest.mark.parametrize("style", ["block", "flow"])
def test_any_style_of_yaml_is_edited(style):
    data = yaml.safe_load(text_of("cpu-neon"))
    text = "# head\n" + yaml.safe_dump(data, sort_keys=False, default_flow_style=style == "flow")
    found = {
        "units": MeasuredValue(4, 0.0, 3),
        "memory_layers.dram.latency_s": MeasuredValue(8e-8, 0.1, 30),
        "memory_layers.l1.banks": MeasuredValue(8, 0.0, 3),
        "memory_layers.l1.bank_width_bytes": MeasuredValue(8, 0.0, 3),
        "limits.usable_vector_registers": MeasuredValue(24, 0.0, 3),
    }
    spec = parse_spec(insert_measured_values(text, found, STAMP), "x")
    assert {p: spec.values()[p] for p in found} == {p: m.value for p, m in found.items()}
    assert spec.units == 4
    assert spec.execution == load_spec("cpu-neon").execution


@given(value=st.floats(1e8, 1e17), spread=st.floats(0, 1))
def test_numbers_read_back(value, spread):
    path = "memory_layers.l1.bandwidth_bytes_per_s"
    spec = parse_spec(insert_measured_values(text_of("cpu-avx2"), {path: MeasuredValue(value, spread, 5)}, STAMP), "x")
    assert spec.layer("l1").bandwidth_bytes_per_s == pytest.approx(value, rel=1e-3)


def test_wrong_values_are_refused():
    with pytest.raises(SpecError, match=r"v100.yaml: memory_layers.l9.latency_s: unknown field"):
        insert_measured_values(
            text_of("v100"), {"memory_layers.l9.latency_s": MeasuredValue(1e-9, 0, 3)}, STAMP, "v100.yaml"
        )
    with pytest.raises(SpecError, match=r"clock_hz\.measured: expected a value from"):
        insert_measured_values(text_of("v100"), {"clock_hz": MeasuredValue(1.4, 0, 3)}, STAMP)


@every("name", [*list_specs(), "cpu"])
def test_a_spec_becomes_a_file_and_comes_back(name, tmp_path):
    spec = load_spec(name)
    path = tmp_path / "copy.yaml"
    check_and_write_spec(path, spec_to_yaml(spec, "copy"))
    copy = load_spec(path)
    assert copy.values() == spec.values()
    assert (copy.kind, copy.target, copy.teu) == (spec.kind, spec.target, spec.teu)
    assert {p for p, s in copy.sources.items() if s == "measured"} == {
        p for p, s in spec.sources.items() if s == "measured"
    }


def test_what_was_detected_is_not_called_a_datasheet():
    detected = load_spec("v100").with_overrides({"clock_hz": 1.4e9}, "detected")
    number = yaml.safe_load(spec_to_yaml(detected, "copy"))["clock_hz"]
    assert number == {"assumed": 1.4e9, "note": "detected: the operating system's own value"}


def test_the_name_of_this_machine_is_reserved():
    with pytest.raises(SpecError, match="stands for the detected machine"):
        spec_to_yaml(load_spec("cpu"))


def test_nothing_is_written_where_the_text_is_wrong(tmp_path):
    path = tmp_path / "x.yaml"
    check_and_write_spec(path, text_of("v100"))
    with pytest.raises(SpecError):
        check_and_write_spec(path, "name: x\n")
    assert path.read_text() == text_of("v100")
    assert [p.name for p in tmp_path.iterdir()] == ["x.yaml"]
    with pytest.raises(SpecError, match="cannot write the specification"):
        check_and_write_spec(tmp_path / "no" / "x.yaml", text_of("v100"))
