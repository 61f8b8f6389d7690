"""What construct() returns, over operators and devices: distinct, ranked, aligned or marked, within every limit."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import roller
from benchmarks.tables import read_table
from roller import ops
from roller.tile.alignment import RULES, broken_rules
from roller.tile.winograd_batched_product import tiled_product_of_program
from tests.construction import rules

ROOT = Path(__file__).resolve().parents[2]
ROWS = {r["id"]: r for r in read_table("operators.yaml")["operators"]}
DEVICES = ("v100", "k80", "mi50", "a100", "h200")
#: One of each kind: few blocks, tall, stride, halo, 1x1, odd shapes, dilation, depthwise, relu, pooling, row sums.
SAMPLE = ("M1", "M3", "C0", "C2", "C16", "C25", "D0", "D9", "E0", "P0", "R0", "R3")


def _walks(program: roller.RProgram, lanes: int) -> bool:
    """Whether threads walk windows, fill most of the last TEU, and say that they leave some of it idle."""
    filled = program.threads_per_block / (-(-program.threads_per_block // lanes) * lanes)
    return program.structure == "window" and filled >= 0.7 and "execution_unit" in program.relaxed


def _check_programs(expr: roller.TensorExpr, device: str) -> None:
    spec = roller.load_spec(device)
    found = roller.construct(expr, device=device)
    assert len(found) == 10
    assert len({str(c.program) for c in found}) == len({c.id for c in found}) == 10
    seconds = [c.estimate.seconds for c in found]
    assert seconds == sorted(seconds) and seconds[0] > 0 and seconds[-1] < float("inf")
    for c in found:
        assert c.status == "constructed" and c.reason is None and c.program.kind == spec.kind
        relaxed = broken_rules(c.program, spec)
        p = replace(tiled_product_of_program(c.program) or c.program, relaxed=c.program.relaxed)
        where = f"{expr.name} {device} {p}"
        assert set(p.relaxed) <= set(RULES) and p.relaxed == relaxed, where
        assert rules.fills_units(p, spec) or _walks(p, spec.teu.lanes), where  # nothing else relaxes it on a GPU
        assert "transaction" in p.relaxed or rules.whole_transactions(p, spec), where
        assert ("bank" not in p.relaxed) == rules.conflict_free(p, spec), where
        assert ("shape" in p.relaxed) == (rules.padded_waste(p) > 1.0), where
        assert rules.scratchpad_bytes(p) == c.estimate.terms["scratchpad_bytes"], where
        assert rules.scratchpad_bytes(p) <= spec.layer("shared").usable_bytes, where
        assert p.threads_per_block <= spec.limits.threads_per_block, where
        assert rules.operand_words(p) <= spec.limits.usable_registers_per_thread, where


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("row", SAMPLE)
def test_a_sample_of_the_operators(row, device):
    _check_programs(ops.from_spec(ROWS[row]), device)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("row", [r for r in ROWS if r not in SAMPLE])
def test_every_operator(row, device):
    _check_programs(ops.from_spec(ROWS[row]), device)


@pytest.mark.parametrize("device", ["cpu-avx512", "cpu-avx2", "cpu-neon"])
@pytest.mark.parametrize("row", ["M1", "C2", "D0", "E0", "P0", "R0"])
def test_cpu_programs_are_ranked_distinct_and_whole_vectors(row, device):
    spec = roller.load_spec(device)
    found = roller.construct(ops.from_spec(ROWS[row], batch=1), device=device)
    assert len(found) == len({str(c.program) for c in found}) == len({c.id for c in found})
    assert [c.estimate.seconds for c in found] == sorted(c.estimate.seconds for c in found)
    for c in found:
        assert c.program.kind == "cpu" and c.program.layers == ("register", "l1", "l2")
        assert c.program.relaxed == broken_rules(c.program, spec)
        assert rules.fills_units(c.program, spec)


def test_fewer_are_returned_only_where_fewer_exist():
    """A 1x1 matmul on a CPU: every task holds the one vector there is, so few programs are distinct."""
    found = roller.construct(ops.matmul(1, 1, 1), device="cpu-avx512", top_k=50)
    more = roller.construct(ops.matmul(1, 1, 1), device="cpu-avx512", top_k=500)
    assert 0 < len(found) < 50 and [c.program for c in found] == [c.program for c in more]
    assert len(roller.construct(ops.matmul(64, 64, 64), device="v100", top_k=50)) == 50


_PROBE = """
import sys, roller
from roller import ops
for device in ("v100", "mi50", "cpu-avx2"):
    for expr in (ops.matmul(512, 768, 1024), ops.conv2d(8, 64, 14, 14, 96, 3, 3, padding=1), ops.softmax((128, 1000))):
        for c in roller.construct(expr, device=device, top_k=5):
            print(device, c.id, c.program, c.estimate.seconds.hex())
roller.predict(ops.matmul(64, 64, 64), device="v100", tiles={"shared": (64, 64, 8), "register": (4, 4, 1)})
assert not [m for m in sys.modules if m.split(".")[0] in ("tvm", "tvm_ffi", "cupy")], "TVM or a device was loaded"
"""


def test_the_same_in_every_process_and_without_tvm():
    clean = {**os.environ, "PYTHONPATH": str(ROOT)}
    runs = [
        subprocess.run(
            [sys.executable, "-c", _PROBE], cwd=ROOT, env={**clean, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=False,
        )
        for seed in ("1", "4711")
    ]  # fmt: skip
    assert [r.returncode for r in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    assert runs[0].stdout == runs[1].stdout
    lines = runs[0].stdout.splitlines()
    assert len(lines) == 45
    assert len({line.split()[1] for line in lines}) == 45


def test_ids_tell_expression_device_options_and_program_apart():
    variants = [
        roller.construct(
            ops.matmul(m, 256, 256), device=device, options=roller.ConstructOptions(top_k=3, split_k=split)
        )
        for m, device, split in itertools.product((256, 512), ("v100", "a100"), (True, False))
    ]
    assert len({c.id for found in variants for c in found}) == 3 * len(variants)
    named = roller.construct(ops.matmul(256, 256, 256), device="v100", top_k=3)
    assert [c.id for c in named] == [c.id for c in variants[0]]


def test_the_same_computation_under_another_name_is_the_same_program():
    cube, line = ops.elementwise("relu", (64, 32, 8)), ops.elementwise("relu", (64 * 32 * 8,))
    assert cube.key == line.key
    one, other = (roller.construct(e, device="v100", top_k=3) for e in (cube, line))
    assert [c.program.tiles for c in one] == [c.program.tiles for c in other]
    assert [c.estimate for c in one] == [c.estimate for c in other]
