"""A specification somebody typed wrongly gets one error: file, path, expected, got, remedy."""

from __future__ import annotations

import re

import pytest

from roller.errors import SpecError
from roller.hardware import list_specs, load_spec, parse_spec, spec_folder
from tests.offenders import every

WHERE = "hardware_specs/v100.yaml"
UNITS = "units: {datasheet: 80}"
V100 = (spec_folder() / "v100.yaml").read_text()
CPU = (spec_folder() / "cpu-avx2.yaml").read_text()


def edited(old: str, new: str, text: str = V100) -> str:
    assert old in text, "the edit of this test no longer applies"
    return text.replace(old, new, 1)


def error_of(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_spec(text, WHERE)
    return str(caught.value)


def test_unknown_key_in_the_exact_form_of_the_house():
    text = edited("bandwidth_bytes_per_s: {datasheet: 1.413e+13", "bandwith_bytes_per_s: {datasheet: 1.413e+13")
    assert error_of(text) == (
        "hardware_specs/v100.yaml: memory_layers.shared.bandwith_bytes_per_s: unknown key; "
        "did you mean 'bandwidth_bytes_per_s'?"
    )


def test_number_that_yaml_reads_as_text():
    message = error_of(edited("datasheet: 9.0e+11", "datasheet: 9e11"))
    assert message.startswith(f"{WHERE}: memory_layers.global.bandwidth_bytes_per_s.datasheet: expected a number, got ")
    assert "'9e11'" in message
    assert "PyYAML" in message
    assert message.endswith("Write 9.0e+11.")


@every(
    ("old", "new", "message"),
    [
        (UNITS, "unit: {datasheet: 80}", "unit: unknown key; did you mean 'units'?"),
        ("units: {datasheet: 80}\n", "", "units: missing. Add it with its source, e.g. {datasheet: ...}."),
        (UNITS, "units: 80", "units: expected a mapping with the source, e.g. {datasheet: 80}, got 80."),
        (UNITS, "units: {datasheet: eighty}", "units.datasheet: expected a number, got the text 'eighty'"),
        (UNITS, "units: {datasheet: true}", "units.datasheet: expected a number in units, got True"),
        (UNITS, "units: {datasheet: -80}", "units.datasheet: expected a value of at least 1 units, got -80"),
        (UNITS, "units: {datasheet: 80.5}", "units.datasheet: expected a whole number of units, got 80.5"),
        (UNITS, "units: {datasheet: 0}", "units.datasheet: expected a value from 1 to 65536 units, got 0"),
        (UNITS, "units: {}", "units: expected a value from one of ['measured', 'derived', 'datasheet', 'assumed']"),
        (UNITS, "units: {data_sheet: 80}", "units.data_sheet: unknown key; did you mean 'datasheet'?"),
        (UNITS, "units: {datasheet: 80, note: 3}", "units.note: expected text, got 3. Quote it."),
        (UNITS, "units: {datasheet: 1e400}", "units.datasheet: expected a finite number, got the text '1e400'"),
        (UNITS, "units: {datasheet: nan}", "units.datasheet: expected a finite number, got the text 'nan'"),
        (UNITS, "units: {datasheet: 0x" + "f" * 5000 + "}", "expected a finite number, got an integer of 20000 bits"),
        (UNITS, "units: {datasheet: " + "9" * 5000 + "}", "not valid YAML: a number, a date or its nesting"),
        (UNITS, "units: {datasheet: 2020-13-45}", "not valid YAML: a number, a date or its nesting"),
        ("measured: 1.38e+9", "measured: .inf", "clock_hz.measured: expected a finite number, got inf"),
        ("measured: 1.38e+9", "measured: 1380", "clock_hz.measured: expected a value from 1e+07 to 1e+10 Hz, got 1380"),
        ("clock_hz:", "clock_mhz:", "clock_mhz: wrong unit; expected 'clock_hz' (SI base units), got 'clock_mhz'."),
        (
            "    bandwidth_bytes_per_s: {datasheet: 9.0e+11",
            "    bandwidth_gb_per_s: {datasheet: 9.0e+11",
            "memory_layers.global.bandwidth_gb_per_s: wrong unit; expected 'bandwidth_bytes_per_s'",
        ),
        ("launch_s:", "launch_us:", "execution.launch_us: wrong unit; expected 'launch_s' (SI base units)"),
        ("kind: gpu", "kind: gpus", "kind: expected one of ['bsp', 'cpu', 'gpu'], got 'gpus'"),
        ("kind: gpu", "kind: cpu", "target.language: expected a language of a cpu, got 'cuda'. Correct 'kind'."),
        ("language: cuda", "language: cudaa", "expected one of ['cuda', 'hip', 'llvm', 'poplar'], got 'cudaa'"),
        ("arch: sm_70", "mcpu: sm_70", "target.mcpu: unknown key"),
        (", arch: sm_70", "", "target.arch: missing"),
        ("  name: warp\n", "", "teu.name: missing"),
        ("name: warp", "name: 3", "teu.name: expected text, got 3"),
        ("    fma: {datasheet: 64}\n", "", "compute.ops_per_cycle_per_unit.fma: missing"),
        ("    special:", "    specials:", "per_unit.specials: unknown key; did you mean 'special'?"),
        ("fma.float16:", "fma.flaot16:", "unknown dtype 'flaot16'; did you mean 'float16'?"),
        ("  blocks_per_unit: {datasheet: 32}\n", "", "limits.blocks_per_unit: missing"),
        ("scope: unit", "scope: sm", "shared.scope: expected one of ['thread', 'unit', 'device'], got 'sm'"),
        ("tiled: true", "tiled: 1", "memory_layers.register.tiled: expected true or false, got 1"),
        ("- name: l2", "- name: l1", "memory_layers.l1: unknown layer"),
        ("- name: global", "- name: globl", "memory_layers.globl: unknown layer; did you mean 'global'?"),
        ("    banks: {datasheet: 32}\n", "", "shared.banks: expected banks and bank_width_bytes together"),
        (
            "    saturation_exponent: {measured: 1.4, note: \"fit to v100_glbmem_small.csv\"}\n",
            "",
            "memory_layers.global.saturation_exponent: expected bandwidth_per_teu_bytes_per_s and saturation_exponent",
        ),
        (
            "usable_registers_per_thread: {assumed: 96",
            "usable_registers_per_thread: {assumed: 256",
            "usable_registers_per_thread: expected at most limits.registers_per_thread = 255, got 256. Lower it.",
        ),
        (UNITS, "units: {datasheet: 80}\nunits: {datasheet: 81}", "key 'units' is given twice"),
        (UNITS, "units: {datasheet: 80", "not valid YAML at line"),
    ],
)  # fmt: skip
def test_each_mistake_is_named(old, new, message):
    found = error_of(edited(old, new))
    assert found.startswith(f"{WHERE}: ")
    assert message in found


def without_layer(text: str, name: str) -> str:
    return re.sub(rf"  - name: {name}\n(?:    .*\n)+", "", text)


@pytest.mark.parametrize("name", ["register", "shared", "l2", "global"])
def test_missing_layer_of_a_gpu(name):
    message = error_of(without_layer(V100, name))
    assert f"memory_layers.{name}: missing layer; a gpu has ['register', 'shared', 'l2', 'global']. Add it." in message


def test_missing_layer_of_a_cpu():
    assert "memory_layers.l3: missing layer; a cpu has" in error_of(without_layer(CPU, "l3"))


def test_layers_in_the_wrong_order():
    layer = re.search(r"  - name: global\n(?:    .*\n)+", V100)
    assert layer is not None
    text = edited("memory_layers:\n", "memory_layers:\n" + layer.group(), V100.replace(layer.group(), ""))
    assert "expected the order ['register', 'shared', 'l2', 'global'], fastest first" in error_of(text)


def test_a_cpu_limit_in_a_gpu_is_still_a_known_key_but_a_misspelt_one_is_not():
    text = edited("  registers_per_unit:", "  vector_register: {datasheet: 32}\n  registers_per_unit:")
    assert "limits.vector_register: unknown key; did you mean 'vector_registers'?" in error_of(text)


@pytest.mark.parametrize("text", ["", "- 1\n- 2\n", "just words"])
def test_not_a_mapping(text):
    assert "expected a mapping of sections" in error_of(text)


@every("section", ["teu", "compute", "execution", "limits", "memory_layers", "target"])
def test_section_of_the_wrong_type(section):
    text = re.sub(rf"^{section}:.*\n(?:[ ].*\n|\n)*", f"{section}: 3\n", V100, flags=re.MULTILINE)
    assert error_of(text).startswith(f"{WHERE}: {section}: expected ")


def test_unknown_device_suggests_and_lists():
    with pytest.raises(SpecError) as caught:
        load_spec("v10")
    message = str(caught.value)
    assert message.startswith("device 'v10': unknown; did you mean 'v100'? Known: ")
    for name in (*list_specs(), "cpu"):
        assert name in message


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("memory_layers.globl.bandwidth_bytes_per_s", "memory_layers.global.bandwidth_bytes_per_s"),
        ("memory_layers.globl.bandwith_bytes_per_s", "memory_layers.global.bandwidth_bytes_per_s"),
        ("memory_layers.globl.zzz", "memory_layers.global"),
        ("memory_layer.globl.capacity_bytes", "memory_layers.global.capacity_bytes"),
    ],
)
def test_a_misspelt_layer_is_suggested_before_its_field(path, meant):
    with pytest.raises(SpecError, match=rf"unknown field; did you mean '{meant}'\?"):
        load_spec("v100").with_overrides({path: 1e9})


@pytest.mark.parametrize(("name", "got"), [("v100", "sm_70"), ("mi250x", "gfx90a"), ("cpu-avx512", "cpu")])
def test_asynchronous_copies_need_a_target_that_has_them(name, got):
    path = "execution.async_copy_bytes"
    with pytest.raises(SpecError, match=rf"{path}: expected a target with .*sm_80 or later.*got '{got}'"):
        load_spec(name, {path: 4})
    assert load_spec("a100", {path: 4}).execution.async_copy_bytes == 4


def test_device_in_capitals_is_the_device():
    assert load_spec("H200") is load_spec("h200")
    with pytest.raises(SpecError, match="did you mean 'h200'"):
        load_spec("H20O")


def test_missing_file(tmp_path):
    with pytest.raises(SpecError, match=r"mine\.yaml: cannot read the specification \(No such file.*Check the path"):
        load_spec(tmp_path / "mine.yaml")


def test_file_that_is_not_text(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="cannot read the specification"):
        load_spec(path)


def test_yaml_cannot_run_code():
    assert "not valid YAML" in error_of("name: !!python/object/apply:os.getcwd []\n")
