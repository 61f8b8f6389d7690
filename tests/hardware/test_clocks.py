"""Boost and sustained clock, limit of power, bandwidth by kind of traffic: as files say them, and as they are kept."""

from __future__ import annotations

import pytest

from roller.errors import SpecError
from roller.hardware import list_specs, load_spec, parse_spec, spec_folder
from roller.probing.robust_window_statistics import MeasuredValue
from roller.probing.write_measured_spec_yaml import insert_measured_values, spec_to_yaml
from tests.offenders import every

BOTH = "clock_hz:\n  boost: {datasheet: 1.53e+9}\n  sustained: {measured: 1.38e+9}\n"


def text_of(name):
    return (spec_folder() / f"{name}.yaml").read_text()


def v100(clock):
    text = text_of("v100")
    line = next(x for x in text.splitlines(keepends=True) if x.startswith("clock_hz:"))
    return text.replace(line, clock)


def test_a_plain_clock_is_the_boost_clock():
    spec = parse_spec(v100("clock_hz: {datasheet: 1.53e+9}\n"), "mine.yaml")
    assert (spec.clock_hz, spec.sustained_clock_hz) == (1.53e9, None)
    assert spec.sustained is spec


def test_both_clocks_have_values_and_sources():
    spec = parse_spec(v100(BOTH), "mine.yaml")
    assert (spec.clock_hz, spec.sustained_clock_hz) == (1.53e9, 1.38e9)
    assert (spec.sources["clock_hz"], spec.sources["sustained_clock_hz"]) == ("datasheet", "measured")
    assert spec.content_key != parse_spec(v100("clock_hz: {datasheet: 1.53e+9}\n"), "mine.yaml").content_key


def test_at_the_sustained_clock_cycles_take_longer_and_memory_does_not():
    spec = parse_spec(v100(BOTH), "mine.yaml")
    slow, ratio = spec.sustained, 1.38 / 1.53
    assert slow.clock_hz == 1.38e9
    assert slow.sustained is slow
    assert slow.execution.step_latency_s == pytest.approx(spec.execution.step_latency_s / ratio)
    assert slow.layer("shared").latency_s == pytest.approx(spec.layer("shared").latency_s / ratio)
    moved, before = (s.layer("shared").bandwidth_bytes_per_s for s in (slow, spec))
    assert moved == pytest.approx(ratio * before)
    assert slow.memory_layers[-2:] == spec.memory_layers[-2:]


@every(
    ("old", "new", "said"),
    [
        (BOTH, BOTH.replace("  sustained: {measured: 1.38e+9}\n", ""), "clock_hz.sustained: missing"),
        (BOTH, BOTH.replace("1.38e+9", "1.6e+9"), r"clock_hz.sustained: expected at most clock_hz.boost = 1.53e\+09"),
        (BOTH, BOTH + "power_w: {datasheet: 300}\n", "power_w: expected beside execution.busy_cycle_j"),
        ("launch_s:", "standing_w: {measured: 30}\n  launch_s:", "execution.standing_w: expected less than power_w"),
        (BOTH, BOTH + "power_kw: {datasheet: 0.3}\n", "power_kw: wrong unit; expected 'power_w'"),
        ("    triad_bandwidth", "    # triad_bandwidth", "triad_bandwidth_bytes_per_s: expected read_bandwidth"),
    ],
)
def test_what_does_not_go_together_is_refused(old, new, said):
    with pytest.raises(SpecError, match=said):
        parse_spec(v100(BOTH).replace(old, new), "mine.yaml")


@pytest.mark.parametrize("name", ["h200", "l4", "a100-80", "mi300x"])
def test_a_written_specification_reads_back_with_all_of_it(name):
    spec = load_spec(name)
    again = parse_spec(spec_to_yaml(spec), "mine.yaml")
    assert again.values() == spec.values()
    assert again.sources == spec.sources


def test_a_measured_clock_takes_the_place_of_the_boost_clock():
    text = insert_measured_values(
        text_of("h200"), {"clock_hz": MeasuredValue(1.9e9, 0.01, 9)}, "probed 2026-05-01 by roller probe"
    )
    spec = parse_spec(text, "mine.yaml")
    assert (spec.clock_hz, spec.sources["clock_hz"], spec.sustained_clock_hz) == (1.9e9, "measured", 1.83e9)


def test_what_is_derived_says_from_what():
    """A value carried over from another device is no measurement of this one: its note names the device."""
    for name in list_specs():
        for line in text_of(name).splitlines():
            if "derived:" in line.partition("note:")[0]:
                assert "note:" in line, f"{name}: {line.strip()}"


def test_a_bandwidth_that_is_set_holds_for_all_kinds_of_traffic_nobody_set():
    v100, path = load_spec("v100"), "memory_layers.global"
    half = v100.with_overrides({f"{path}.bandwidth_bytes_per_s": v100.layer("global").bandwidth_bytes_per_s / 2})
    for kind in ("read_bandwidth_bytes_per_s", "triad_bandwidth_bytes_per_s"):
        assert getattr(half.layer("global"), kind) == getattr(v100.layer("global"), kind) / 2
    back = half.with_overrides({f"{path}.bandwidth_bytes_per_s": v100.layer("global").bandwidth_bytes_per_s})
    assert back.values() == v100.values() and back.title == v100.title
    read = half.with_overrides({f"{path}.read_bandwidth_bytes_per_s": 9e11}).layer("global")
    assert read.read_bandwidth_bytes_per_s == 9e11
