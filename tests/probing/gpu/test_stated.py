"""The specification a device starts from has only what its architecture has; properties as drivers state them."""

from dataclasses import replace

import pytest

from roller.backends.parse_device_names import DeviceProperties
from roller.hardware import list_specs, load_spec
from roller.probing.gpu.correct_spec_by_driver_values import choose_base_spec, correct_by_driver_numbers
from tests.offenders import every

SPECS = [s for s in map(load_spec, list_specs()) if s.kind == "gpu"]


def device(arch, unit=65536, block=None, static=49152, units=40):
    """A device whose units have, and whose blocks may opt in to, so many bytes of scratchpad."""
    stated = {"units": units, "limits.shared_bytes_per_block": static, "memory_layers.shared.capacity_bytes": unit}
    if block:
        stated["memory_layers.shared.usable_bytes"] = block
    return DeviceProperties("A GPU", arch, units, 16_000_000_000, 4 << 20, (), tuple(stated.items()))


def started(properties, specs=SPECS):
    return correct_by_driver_numbers(choose_base_spec(properties, specs), properties)


@every(
    ("arch", "older"),
    [("sm_52", "k80"), ("sm_72", "v100"), ("sm_87", "rtx3090"), ("sm_103", "b200"), ("sm_120", "b200"),
     ("gfx907", "mi50"), ("gfx940", "mi210"), ("gfx950", "mi300x")],
)  # fmt: skip
def test_a_base_is_older_even_where_a_newer_one_is_as_near(arch, older):
    spec = choose_base_spec(device(arch), SPECS)
    assert spec.description.endswith(f"starting from {older}")
    assert spec.target["arch"] == arch


def test_between_two_architectures_nothing_of_the_newer_is_taken():
    spec = started(device("sm_75", 65536, 65536))
    assert {f.family for f in spec.fragments} == {"wmma"}
    assert spec.execution.async_copy_bytes is None
    ada = started(device("sm_89", 102400, 101376))
    assert {f.family for f in ada.fragments} == {"mma"}
    assert ada.execution.async_copy_bytes == 16


@pytest.mark.parametrize("arch", ["sm_100", "sm_120"])
def test_instructions_of_one_architecture_stay_there(arch):
    spec = started(device(arch, 233472, 232448))
    assert spec.fragments
    assert not [f for f in spec.fragments if f.arch]
    h100 = choose_base_spec(device("sm_90", 233472, 232448, units=132), SPECS)
    assert "sm_90a" in {f.arch for f in h100.fragments}


def test_an_only_newer_base_loses_what_the_device_may_not_have():
    newer = [s for s in SPECS if s.name in ("a100", "h100")]
    spec = started(device("sm_75", 65536, 65536), newer)
    assert spec.description.endswith("starting from a100")
    assert spec.fragments == ()
    assert spec.execution.async_copy_bytes is None


@every(
    ("arch", "unit", "block", "budget"),
    [("sm_89", 102400, 101376, 101376), ("sm_75", 65536, 65536, 65536), ("sm_120", 102400, 101376, 101376),
     ("sm_100", 233472, 232448, 232448), ("sm_87", 102400, None, 49152)],
)  # fmt: skip
def test_a_block_may_use_what_the_driver_states_not_what_a_unit_has(arch, unit, block, budget):
    shared = started(device(arch, unit, block)).layer("shared")
    assert (shared.capacity_bytes, shared.usable_bytes) == (unit, budget)


def test_a_budget_chosen_smaller_stays():
    v100 = device("sm_70", 98304, 98304, units=80)
    assert started(v100).layer("shared").usable_bytes == load_spec("v100").layer("shared").usable_bytes == 49152
    near = device("gfx907", 65536, None, static=65536)
    assert started(near).layer("shared").usable_bytes == load_spec("mi50").layer("shared").usable_bytes
    less = replace(v100, stated=(("memory_layers.shared.usable_bytes", 40960),))
    spec = started(less)
    assert spec.layer("shared").usable_bytes == 40960
    assert spec.sources["memory_layers.shared.usable_bytes"] == "detected"
