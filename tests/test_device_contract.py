"""The device contract is what the model does: nothing is read that it does not list, and nothing is missing in vain."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import roller
from roller.hardware import load_spec
from roller.hardware.sections import OPERATION_CLASSES
from roller.hardware.spec import settable_fields

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("device_contract", DOCS / "device_contract.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_document_is_up_to_date(generator):
    assert generator.PATH.read_text() == generator.contract(), "run `python docs/device_contract.py`"


@pytest.mark.parametrize(("kind", "name"), [("gpu", "h200"), ("gpu", "mi50"), ("cpu", "cpu-avx2"), ("cpu", "cpu-neon")])
def test_nothing_is_read_on_any_device_that_the_contract_does_not_list(generator, kind, name):
    text = generator.PATH.read_text().partition("## CPU")[0 if kind == "gpu" else 2]
    read = generator.read_by_the_model(kind, load_spec(name))
    assert len(read) > 20
    assert [p for p in sorted(read) if f"| `{p}` |" not in text] == []


def test_the_recording_sees_what_is_read_and_only_that(generator):
    seen = set()
    spec = generator.recorded(load_spec("v100"), seen)
    assert spec.ops_per_s("fma") > 0
    assert {"units", "clock_hz", "compute.ops_per_cycle_per_unit.fma"} <= seen
    seen.clear()
    assert spec.layer("l2").latency_s == load_spec("v100").layer("l2").latency_s
    assert seen == {"memory_layers.l2.latency_s"}


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_the_workload_covers_double_precision_and_what_is_chosen_by_the_accuracy(generator, kind):
    read = generator.read_by_the_model(kind)
    assert {"accuracy.ranking_error", "accuracy.same_kernel_error"} <= read
    assert "compute.ops_per_cycle_per_unit.fma.float64" in read


def optional(kind):
    spec = load_spec({"gpu": "v100", "cpu": "cpu-avx512"}[kind])
    for path, quantity in settable_fields(spec).items():
        rate = path.removeprefix("compute.ops_per_cycle_per_unit.")
        required = kind in quantity.kinds if rate == path else rate in OPERATION_CLASSES
        if not required and path in spec.values():
            yield path


@pytest.mark.parametrize(("kind", "path"), [(k, p) for k in ("gpu", "cpu") for p in optional(k)])
def test_the_model_prices_without_any_optional_number(generator, kind, path):
    spec = generator.without(load_spec(generator.SPECS[kind]), path)
    assert path not in spec.values()
    name = path.rpartition(".")[2]
    assert name in generator.UNKNOWN or path.startswith("compute."), f"{path}: say in UNKNOWN what holds without it"
    for expr in (roller.ops.matmul(130, 70, 64), roller.ops.elementwise("exp", (64, 64))):
        assert roller.construct(expr, spec, top_k=1)[0].estimate.seconds > 0
