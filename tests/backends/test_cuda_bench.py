"""The timing of probes on a GPU: buffers, checks, steps, fresh places, graphs; on a stand-in for CuPy."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace

import numpy as np
import pytest

import roller
from roller.backends.cuda.profiling_device import CudaDevice
from roller.backends.cuda.time_probe_cases import TARGET_S, WINDOWS
from roller.errors import LaunchError
from roller.probing.gpu.compute import control_plan
from roller.probing.gpu.gpu_probe_timings import TimedCase
from roller.probing.gpu.memory import dram_plan
from roller.runtime.probe_plan_format import CHECK_STEPS
from tests.backends import fake_cupy

SPEC = roller.load_spec("h200").with_overrides(
    {"units": 2, "memory_layers.l2.capacity_bytes": 1 << 16, "memory_layers.global.capacity_bytes": 1 << 24}
)
STEP_S = 3e-6


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    monkeypatch.setattr("roller.backends.cuda.profiling_device._WAKE_S", 0.001)
    monkeypatch.setattr("roller.backends.cuda.profiling_device._STAY_AWAKE_S", 0.001)
    device = CudaDevice(0, {})
    device.asked = []

    def kernel(entry):
        def run(p, source, out):
            steps, first = (int(x) for x in fake_cupy.view(p, (2,), np.int32))
            device._stream.clock += steps * STEP_S
            device.asked.append((entry, steps, int(fake_cupy.view(p, (4,), np.int32)[3])))
            threads = CASES[entry].threads
            values = fake_cupy.view(out, (threads,), np.int32)
            for word, value in CASES[entry].checks:
                values[word] = value if steps == CHECK_STEPS else -1
            if entry == "barrier" and device.spoil:
                fake_cupy.view(out, (PLAN.output_words + 4,), np.int32)[-1] = first

        return run

    device.spoil = False
    monkeypatch.setattr(fake_cupy, "KERNELS", {entry: kernel(entry) for entry in CASES})
    return device


PLAN, WALKS = control_plan(SPEC), dram_plan(SPEC)
CASES = {"barrier": PLAN.cases[1], "empty": PLAN.cases[0], "walk_1": WALKS.cases[0]}


def load(device, plan):
    device.probe_load(b"image", [(c.words, c.block()) for c in plan.inputs], plan.output_words)


def test_steps_are_timed_and_results_read(device):
    load(device, PLAN)
    case = PLAN.cases[1]
    got = device.probe_run(asdict(case), CHECK_STEPS)
    assert got["values"] == [v for _, v in case.checks] and got["overrun"] is None
    assert len(got["once"]) == len(got["twice"]) == WINDOWS
    assert min(got["once"]) >= 0.5 * TARGET_S
    timed = TimedCase(case, got["steps"], tuple(got["once"]), tuple(got["twice"]))
    assert timed.step.value == pytest.approx(STEP_S, rel=1e-6), "the start, 20 us here, cancels"


def test_a_first_guess_that_is_far_off_is_corrected(device):
    load(device, PLAN)
    for factor in (1e-4, 1e4):
        case = replace(PLAN.cases[1], seconds=STEP_S * factor)
        got = device.probe_run(asdict(case), CHECK_STEPS)
        assert 0.4 * TARGET_S <= min(got["once"]) <= 4 * TARGET_S, factor


def test_launches_are_replayed_as_graphs(device):
    load(device, PLAN)
    case = PLAN.cases[0]
    device._stream.cost = 2e-6
    got = device.probe_run(asdict(case), 1)
    timed = TimedCase(case, got["steps"], tuple(got["once"]), tuple(got["twice"]))
    assert timed.step.value == pytest.approx(2e-6 + STEP_S, rel=1e-6)
    assert all(steps == 1 for _, steps, _ in device.asked)


def test_every_run_reads_fresh_memory(device):
    load(device, WALKS)
    case = WALKS.cases[0]
    device.probe_run(asdict(case), CHECK_STEPS)
    words, threads, _ = case.parameters
    at = 0
    for _, steps, first in device.asked:
        assert first == at
        at = (at + steps * threads) % words
    assert len(device.asked) > 2 * WINDOWS


def test_inputs_are_what_the_plan_says(device):
    load(device, WALKS)
    ones, copied = device._bench._inputs
    assert fake_cupy.view(ones.ptr, (WALKS.inputs[0].words,), np.int32).min() == 1
    words = WALKS.inputs[1].words
    stored = fake_cupy.view(copied.ptr, (words,), np.int32)
    np.testing.assert_array_equal(stored, WALKS.inputs[1].at(np.arange(words)))


def test_a_write_out_of_bounds_is_reported(device):
    device.spoil = True
    load(device, PLAN)
    got = device.probe_run(asdict(PLAN.cases[1]), CHECK_STEPS)
    assert got["overrun"].endswith("past its end")


def test_a_kernel_that_the_target_lacks_is_refused(device, monkeypatch):
    load(device, PLAN)

    def missing(self, name):
        raise RuntimeError("CUDA_ERROR_NOT_FOUND: named symbol not found")

    monkeypatch.setattr(fake_cupy.Module, "get_function", missing)
    with pytest.raises(LaunchError, match="no kernel 'barrier' for this target"):
        device.probe_run(asdict(PLAN.cases[1]), CHECK_STEPS)


def test_an_image_of_another_device_is_refused(device):
    with pytest.raises(LaunchError, match="the device refuses the image"):
        device.probe_load(b"\x7fELF", [], 64)
