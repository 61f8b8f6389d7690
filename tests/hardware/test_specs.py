"""Every shipped specification: complete, sourced, and with the numbers the datasheets publish."""

from __future__ import annotations

import pickle

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from roller.errors import SpecError
from roller.hardware import list_specs, load_spec, spec_folder
from roller.hardware.sections import NOT_OF_KERNELS, UNVALIDATED_ERROR, present_numbers
from roller.hardware.spec import settable_fields
from tests.offenders import every

NAMES = list_specs()


def test_all_devices_of_the_issue_are_shipped():
    gpus = {
        "v100", "k80", "mi50", "a100", "h100", "h200", "mi250x", "mi300x", "p100", "t4", "l4", "a100-80", "h100-pcie",
        "gh200", "b200", "rtx2080ti", "rtx3090", "rtx4090", "titanxp", "p4000", "mi100", "mi210",
    }  # fmt: skip
    assert set(NAMES) == {*gpus, "ipu_mk2", "cpu-avx512", "cpu-avx2", "cpu-neon"}


@every("name", NAMES)
def test_spec_is_complete_and_every_number_has_a_source(name):
    spec = load_spec(name)
    assert spec.name == name
    assert tuple(x.name for x in spec.memory_layers) == spec.traits.layers
    assert set(spec.values()) == set(spec.sources)
    assert set(spec.sources.values()) <= {"datasheet", "derived", "measured", "assumed"}
    assert set(spec.values()) <= set(settable_fields(spec))


@every("name", NAMES)
def test_layers_get_larger_and_slower_away_from_the_arithmetic(name):
    spec = load_spec(name)
    bandwidths = [x.bandwidth_bytes_per_s for x in spec.memory_layers]
    assert bandwidths == sorted(bandwidths, reverse=True)
    assert spec.memory_layers[0].tiled
    assert not spec.memory_layers[-1].tiled
    tiled = {"gpu": ["register", "shared"], "cpu": ["register", "l1", "l2"], "bsp": ["register", "scratchpad"]}
    assert [x.name for x in spec.memory_layers if x.tiled] == tiled[spec.kind]


@every(
    ("name", "peak_flops_per_s", "datasheet_bandwidth_bytes_per_s"),
    [
        ("v100", 14.13e12, 9.0e11),
        ("k80", 4.11e12, 2.4e11),
        ("mi50", 13.25e12, 1.024e12),
        ("a100", 19.5e12, 1.555e12),
        ("h200", 66.9e12, 4.8e12),
        ("h100", 66.9e12, 3.35e12),
        ("mi250x", 47.87e12 / 2, 3.2768e12 / 2),  # one of two GCDs
        ("mi300x", 163.4e12, 5.3e12),
        ("p100", 9.34e12, 7.32e11),
        ("titanxp", 12.15e12, 5.476e11),
        ("p4000", 5.3e12, 2.43e11),
        ("t4", 8.14e12, 3.2e11),
        ("rtx2080ti", 13.45e12, 6.16e11),
        ("a100-80", 19.5e12, 2.039e12),
        ("rtx3090", 35.58e12, 9.362e11),
        ("rtx4090", 82.58e12, 1.008e12),
        ("l4", 30.29e12, 3.0e11),
        ("h100-pcie", 51.2e12, 2.039e12),
        ("gh200", 66.9e12, 4.0e12),
        ("b200", 74.4e12, 8.0e12),
        ("mi100", 23.07e12, 1.2288e12),
        ("mi210", 22.63e12, 1.6384e12),
    ],
)
def test_published_peaks(name, peak_flops_per_s, datasheet_bandwidth_bytes_per_s):
    spec = load_spec(name)
    data = yaml.safe_load((spec_folder() / f"{name}.yaml").read_text())
    fma = data["compute"]["ops_per_cycle_per_unit"]["fma"]["datasheet"]
    clock = data["clock_hz"]  # a data sheet's peak is that of its own clock, not of one that others' figures imply
    clock_hz = clock["datasheet"] if "derived" in clock else spec.clock_hz
    assert 2 * fma * clock_hz * spec.units == pytest.approx(peak_flops_per_s, rel=2e-3)
    assert data["memory_layers"][-1]["bandwidth_bytes_per_s"]["datasheet"] == datasheet_bandwidth_bytes_per_s


@every("name", [n for n in NAMES if load_spec(n).kind == "gpu"])
def test_derived_numbers_agree_with_the_ones_they_follow_from(name):
    spec = load_spec(name)
    register, shared = spec.layer("register"), spec.layer("shared")
    assert register.capacity_bytes == 4 * spec.limits.registers_per_thread
    assert register.usable_bytes == 4 * spec.limits.usable_registers_per_thread
    assert register.bandwidth_bytes_per_s == pytest.approx(12 * spec.ops_per_s("fma"), rel=1e-3)
    assert max(shared.usable_bytes, spec.limits.shared_bytes_per_block) <= shared.capacity_bytes
    assert all(f"{f.rate}.{f.operand}" in spec.compute.ops_per_cycle_per_unit for f in spec.fragments)
    row = shared.banks * shared.bank_width_bytes
    assert shared.transaction_bytes == row
    assert shared.bandwidth_bytes_per_s <= row * spec.units * spec.clock_hz * 1.001


@every("name", [n for n in NAMES if load_spec(n).target["language"] == "hip"])
def test_amd_devices_share_their_wavefront_and_scratchpad(name):
    spec = load_spec(name)
    shared = spec.layer("shared")
    assert (spec.teu.lanes, shared.banks, shared.bank_width_bytes) == (64, 32, 4)
    assert spec.limits.shared_bytes_per_block == 65536
    assert spec.limits.registers_per_unit % spec.limits.register_allocation_unit == 0
    assert spec.layer("global").transaction_bytes == 64


@pytest.mark.parametrize("name", [n for n in NAMES if load_spec(n).kind == "cpu"])
def test_cpu_profiles_are_consistent(name):
    spec = load_spec(name)
    vector_bytes = 4 * spec.teu.lanes
    assert spec.layer("register").capacity_bytes == spec.limits.vector_registers * vector_bytes
    assert spec.layer("register").usable_bytes == spec.limits.usable_vector_registers * vector_bytes
    assert spec.compute.ops_per_cycle_per_unit["fma"] == spec.teu.lanes * spec.teu.schedulers_per_unit
    assert spec.units == 2


def test_v100_separates_hard_limits_budgets_and_sources():
    spec = load_spec("v100")
    assert (spec.limits.registers_per_thread, spec.limits.usable_registers_per_thread) == (255, 96)
    assert spec.layer("global").bandwidth_bytes_per_s == 8.26e11
    assert spec.sources["memory_layers.global.bandwidth_bytes_per_s"] == "measured"
    assert spec.sources["units"] == "datasheet"
    assert spec.sources["execution.launch_s"] == "assumed"


def test_dtype_rate_wins_over_the_class():
    spec = load_spec("v100")
    assert spec.ops_per_s("fma", "float16") == 2 * spec.ops_per_s("fma")
    assert spec.ops_per_s("special", "float16") == spec.ops_per_s("special")
    with pytest.raises(SpecError, match=r"v100: no rate for 'fmaa' on float32; did you mean 'fma'\?"):
        spec.ops_per_s("fmaa")


def test_unknown_layer_of_a_spec():
    with pytest.raises(SpecError, match=r"v100: no memory layer 'share'; did you mean 'shared'\?"):
        load_spec("v100").layer("share")


def test_loading_twice_gives_the_same_object_and_an_edit_a_new_one(tmp_path):
    assert load_spec("v100") is load_spec("v100")
    path = tmp_path / "mine.yaml"
    text = (spec_folder() / "v100.yaml").read_text()
    path.write_text(text)
    first = load_spec(str(path))
    path.write_text(text.replace("units: {datasheet: 80}", "units: {datasheet: 40}"))
    assert load_spec(path).units == 40
    assert first.units == 80


def test_spec_survives_pickling_and_hashes_by_content():
    spec = load_spec("v100")
    copy = pickle.loads(pickle.dumps(spec))
    assert copy == spec
    assert hash(copy) == hash(spec)
    assert copy.content_key == spec.content_key


def test_content_key_ignores_sources_and_prose_and_sees_numbers():
    spec = load_spec("v100")
    assert spec.with_overrides({"units": 80}).content_key == spec.content_key
    assert spec.with_overrides({"units": 79}).content_key != spec.content_key


@every("name", NAMES)
def test_every_present_number_can_be_set_to_itself(name):
    spec = load_spec(name)
    same = spec.with_overrides(spec.values())
    assert same == spec and same.sources == spec.sources
    assert same.title == spec.title, "nothing was modified"


@every("name", NAMES)
def test_a_number_set_there_and_back_leaves_nothing_behind(name):
    spec = load_spec(name)
    there = spec.with_overrides({"units": 7, "accuracy.ranking_error": 1.5}).with_overrides({"clock_hz": 1e9})
    assert there.modified == {"units": 7, "clock_hz": 1e9} and there.accuracy.ranking_error == 1.5
    back = there.with_overrides({p: spec.values()[p] for p in ("units", "accuracy.ranking_error")})
    assert back.modified == {"clock_hz": 1e9} and back.accuracy.prediction_error >= 0.5
    back = back.with_overrides({"clock_hz": spec.clock_hz})
    assert back == spec and back.sources == spec.sources and back.title == spec.title and back.base is None


def test_an_error_set_by_hand_holds_whatever_is_set_beside_it():
    spec = load_spec("v100", {"accuracy.prediction_error": 0.2}).with_overrides({"units": 3})
    assert spec.accuracy.prediction_error == 0.2 and "errors assumed" not in spec.title
    own = load_spec("v100", {"units": 3}).with_overrides({"accuracy.prediction_error": 0.108})
    assert own.accuracy.prediction_error == 0.108, "as its file says, but of these numbers its user says so"


@every("name", NAMES)
def test_errors_nobody_measured_follow_one_rule(name):
    spec = load_spec(name)
    errors = ("prediction", "compute", "memory", "overhead", "matrix")
    for path in (f"accuracy.{n}_error" for n in errors):
        if spec.sources.get(path) == "assumed":
            assert spec.values()[path] == UNVALIDATED_ERROR
    changed = spec.with_overrides({"units": 7})
    assert changed.accuracy.prediction_error == UNVALIDATED_ERROR
    found = [path for path, source in spec.sources.items() if path.startswith("accuracy.") and source == "measured"]
    assert bool(changed.doubt) == bool(found)


@given(st.sampled_from(NAMES), st.data())
def test_an_override_changes_its_field_and_nothing_else(name, data):
    spec = load_spec(name)
    path = data.draw(st.sampled_from([p for p in spec.values() if p.endswith(("_bytes_per_s", "_hz", "_s"))]))
    value = spec.values()[path] * 0.5
    changed = spec.with_overrides({path: value})
    own = spec.accuracy if path in NOT_OF_KERNELS else spec.accuracy.for_unvalidated_numbers()
    errors = present_numbers(own).items()
    kept = {k: v for k, v in spec.values().items() if not k.startswith("accuracy.")}
    # A layer's bandwidth says what its memory is: those of single kinds of traffic go with it.
    layer = path.removesuffix(".bandwidth_bytes_per_s")
    along = {k: kept[k] * 0.5 for kind in ("read", "triad") if (k := f"{layer}.{kind}_bandwidth_bytes_per_s") in kept}
    along = along if path.endswith(".bandwidth_bytes_per_s") else {}
    assert changed.values() == kept | {path: value} | along | {f"accuracy.{k}": v for k, v in errors}
    assert {k for k, v in changed.sources.items() if v == "override"} == {path}


def test_an_absent_optional_number_can_be_added():
    spec = load_spec("v100", {"memory_layers.shared.line_bytes": 128})
    assert spec.layer("shared").line_bytes == 128
    assert spec.with_overrides({"compute.ops_per_cycle_per_unit.fma.int8": 64}).ops_per_s("fma", "int8") > 0


@every(
    ("path", "value", "message"),
    [
        (
            "memory_layers.global.bandwith_bytes_per_s",
            1e11,
            r"unknown field; did you mean 'memory_layers\.global\.band",
        ),
        ("memory_layers.l3.capacity_bytes", 1e6, r"v100: memory_layers\.l3\.capacity_bytes: unknown field"),
        ("limits.vector_registers", 32, r"limits\.vector_registers: unknown field"),
        ("units", -1, r"v100: units: expected a value of at least 1 units, got -1"),
        ("units", 1.5, r"v100: units: expected a whole number of units, got 1\.5"),
        ("memory_layers.global.bandwidth_bytes_per_s", 900, r"from 1e\+08 to 1e\+17 bytes/s, got 900.*check the unit"),
        ("memory_layers.global.bandwidth_bytes_per_s", float("nan"), r"expected a finite number, got nan"),
        ("limits.usable_registers_per_thread", 300, r"expected at most limits\.registers_per_thread = 255, got 300"),
    ],
)
def test_wrong_overrides(path, value, message):
    with pytest.raises(SpecError, match=message):
        load_spec("v100", {path: value})
