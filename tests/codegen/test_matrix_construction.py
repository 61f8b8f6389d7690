"""Programs construction makes for matrix units, lowered: right on the emulator, and built without spills."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("tvm")

import roller
from roller import ops
from roller.backends.cuda import toolchain
from roller.compiler.pipeline import lower
from roller.emulator import prove
from roller.runtime.check import check

F16 = {"dtype": "float16"}
#: Odd extents of all operators, layouts and types a matrix unit takes; the devices whose fragments take them.
SMALL = {
    "ragged": (ops.matmul(37, 21, 43, **F16), ("a100", "v100")),
    "whole": (ops.matmul(64, 48, 96, **F16), ("a100", "v100")),
    "transposed": (ops.matmul(33, 41, 72, None, True, True, epilogue=("bias", "relu"), **F16), ("a100", "v100")),
    "batched": (ops.matmul(24, 40, 48, 3, transpose_b=True, dtype="bfloat16"), ("a100",)),
    "half sums": (ops.matmul(48, 24, 33, acc_dtype="float16", **F16), ("a100", "v100")),
    "bytes": (ops.matmul(40, 24, 70, dtype="int8"), ("a100",)),
    "split": (ops.matmul(17, 9, 1500, **F16), ("a100",)),
    "conv2d": (ops.conv2d(2, 5, 9, 9, 7, 3, 3, padding=1, epilogue=("bias",), **F16), ("a100", "v100")),
    "conv2d 1x1": (ops.conv2d(2, 16, 7, 7, 24, 1, 1, **F16), ("a100",)),
    "conv2d strided": (ops.conv2d(1, 16, 9, 9, 24, 1, 1, stride=2, **F16), ("a100",)),
    "conv2d NHWC": (ops.conv2d(1, 16, 8, 8, 24, 3, 3, layout="NHWC", padding=1, dtype="bfloat16"), ("a100",)),
}
CASES = [(name, device) for name, (_, devices) in SMALL.items() for device in devices]
#: The tensor-core set, two more types, a convolution.
LARGE = {
    "TC_M3": ops.matmul(65536, 4096, 1024, **F16),
    "TC_M4": ops.matmul(65536, 1024, 1024, **F16),
    "TC_M5": ops.matmul(65536, 1024, 4096, **F16),
    "TC_M6": ops.matmul(65536, 1024, 16384, **F16),
    "half sums": ops.matmul(4096, 4096, 4096, acc_dtype="float16", **F16),
    "ragged": ops.matmul(4001, 1003, 1001, transpose_a=True, epilogue=("bias", "relu"), **F16),
    "conv2d": ops.conv2d(128, 128, 28, 28, 128, 3, 3, padding=1, **F16),
}
#: Operands whose rows no vector fits, so that they come through registers element by element.
ODD = {
    "k": (ops.matmul(4096, 4096, 4095, **F16), ("v100", "a100", "h200")),
    "n": (ops.matmul(4096, 4095, 4096, **F16), ("v100", "h200")),
    "all": (ops.matmul(1000, 1001, 1003, **F16), ("a100",)),
    "transposed": (ops.matmul(4095, 4095, 4095, None, True, True, **F16), ("a100",)),
    "batched": (ops.matmul(513, 513, 65, 64, dtype="bfloat16"), ("h200",)),
    "half sums": (ops.matmul(4096, 4095, 4095, acc_dtype="float16", **F16), ("v100",)),
    "bytes": (ops.matmul(4096, 4097, 4095, dtype="int8"), ("a100",)),
    "conv2d 3x3": (ops.conv2d(32, 3, 224, 224, 64, 3, 3, padding=1, dtype="bfloat16"), ("h200",)),
    "conv2d 7x7": (ops.conv2d(128, 3, 224, 224, 64, 7, 7, stride=2, padding=3, **F16), ("v100", "a100")),
}
ODD_CASES = [(name, device) for name, (_, devices) in ODD.items() for device in devices]
needs_nvrtc = pytest.mark.skipif(toolchain.available() is not None, reason="no NVRTC")


def programs(expr, device, most):
    found = roller.construct(expr, device=device)
    return [c.program for c in found if c.program.structure == "matrix"][:most]


@pytest.mark.parametrize(("name", "device"), CASES)
def test_constructed_programs_are_right(name, device):
    expr, _ = SMALL[name]
    made = programs(expr, device, 2)
    assert made
    for p in made:
        artifact = lower(p, expr, roller.load_spec(device))
        verdict = prove(artifact, compare=lambda *a: check(*a).message, orders=("reverse",))
        assert verdict.ok, f"{p}: {verdict}"


def built(expr, device, most):
    made = programs(expr, device, most)
    assert len(made) == most, "too few programs for the matrix unit: nothing would be built"
    for p in made:
        artifact = toolchain.build(lower(p, expr, roller.load_spec(device)))
        assert artifact.build["spill_bytes"] == 0, str(p)
        assert "0 bytes stack frame" in artifact.build["log"], str(p)


@needs_nvrtc
@pytest.mark.parametrize("device", ["v100", "a100", "h200"])
def test_the_best_program_builds_without_spills(device):
    built(LARGE["TC_M4"], device, 1)


@needs_nvrtc
@pytest.mark.parametrize(("name", "device"), ODD_CASES)
def test_copies_through_registers_do_not_spill(name, device):
    expr, _ = ODD[name]
    (best,) = roller.construct(expr, device=device, top_k=1)
    assert best.program.structure == "matrix"
    artifact = lower(best.program, expr, roller.load_spec(device))
    built = toolchain.build(replace(artifact, estimate=best.estimate.to_dict()))
    assert built.build["spill_bytes"] == 0, best.program


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("device", ["v100", "a100", "h200"])
@pytest.mark.parametrize("name", LARGE)
def test_the_three_best_programs_build_without_spills(name, device):
    built(LARGE[name], device, 3)
