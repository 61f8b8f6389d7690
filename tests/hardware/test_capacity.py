"""What fits a device is what its drivers report, not what its data sheet calls it; near the border that is said."""

from __future__ import annotations

import pytest

from roller.hardware import list_specs, load_spec
from roller.hardware.driver_reported_memory import device_memory_capacity
from roller.insight.memory.largest_batch import fit_uncertainty_note, memory_on_device
from roller.insight.trace.trace import AllocEvent, Trace
from tests.offenders import every

GIB, MIB = 1 << 30, 1 << 20
#: ``total_memory`` of PyTorch, as its messages print it.
REPORTED = {
    "a100-80": "79.15", "h100": "79.11", "a100": "39.56", "rtx3090": "23.69", "rtx4090": "23.65", "rtx2080ti": "10.75",
    "t4": "14.56", "v100": "15.75", "p100": "15.89", "b200": "178.35", "h200": "139.80", "l4": "22.03",
    "mi250x": "63.98", "h100-pcie": "79.11", "p4000": "7.92", "titanxp": "11.91", "k80": "11.17", "gh200": "94.50",
}  # fmt: skip
GPUS = [name for name in list_specs() if load_spec(name).traits.blocks]
FIELD = "memory_layers.global"


@every("name", list(REPORTED))
def test_the_capacity_of_a_device_is_what_pytorch_reports(name: str) -> None:
    assert f"{device_memory_capacity(load_spec(name)).bytes / GIB:.2f}" == REPORTED[name]


@every("name", GPUS)
def test_every_gpu_says_what_is_reported_where_that_is_from_and_in_which_range(name: str) -> None:
    spec = load_spec(name)
    found = device_memory_capacity(spec)
    assert found.source in ("measured", "derived"), name
    assert found.bytes <= found.most_bytes <= 1.02 * found.bytes
    # Marketing gigabytes are 10**9 bytes, or 2**30: what is left of them lies within.
    assert 0.9 * spec.home.capacity_bytes < found.bytes < 1.075 * spec.home.capacity_bytes


def test_no_kernel_depends_on_what_is_reported() -> None:
    spec = load_spec("a100")
    assert load_spec("a100", {f"{FIELD}.reported_bytes": 30 * GIB}).content_key == spec.content_key


def test_a_capacity_that_is_set_by_hand_holds() -> None:
    assert device_memory_capacity(load_spec("a100", {f"{FIELD}.capacity_bytes": 10**10})).bytes == 10**10
    assert device_memory_capacity(load_spec("a100", {f"{FIELD}.reported_bytes": 10**10})).bytes == 10**10


def _trace(size_bytes: int) -> Trace:
    return Trace((), (AllocEvent(0, size_bytes, 0),), {}, (0, 0), {})


@pytest.mark.parametrize(
    ("left_mib", "fits", "said"),
    [(2048, True, ""), (100, True, "it may not fit"), (-100, False, "it may fit"), (-2048, False, "")],
)
def test_near_the_border_what_decides_is_said(left_mib: int, fits: bool, said: str) -> None:
    spec = load_spec("rtx3090")
    assert spec.process_bytes is not None
    trace = _trace((device_memory_capacity(spec).bytes - spec.process_bytes - left_mib * MIB) // (2 * MIB) * 2 * MIB)
    memory = memory_on_device(trace, spec)
    assert memory.fits is fits
    words = fit_uncertainty_note(trace, spec, memory)
    assert (said in words) and bool(words) is bool(said)
    assert not said or "drivers report 23.69 to 23.7 GiB" in words


def test_a_device_of_which_nobody_reported_anything_says_so() -> None:
    from roller.hardware import parse_spec, spec_folder

    text = (spec_folder() / "l4.yaml").read_text()
    lines = [x for x in text.splitlines() if not x.strip().startswith("reported_")]
    spec = parse_spec("\n".join(lines), "mine.yaml")
    assert device_memory_capacity(spec).source == "datasheet"
    trace = _trace(int(0.92 * 24e9) - (spec.process_bytes or 0))
    assert "drivers report up to 9% less" in fit_uncertainty_note(trace, spec, memory_on_device(trace, spec))
