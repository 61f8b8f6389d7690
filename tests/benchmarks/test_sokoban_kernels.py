"""Sokoban's programs become kernels through the same code generation: CPU kernels run, CUDA ones on the emulator."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tvm")

import roller
from benchmarks.sokoban.construct import Best, search, sokoban_candidates
from roller import ops
from roller.compiler.pipeline import lower
from roller.construction.constructor import program_from_row
from roller.emulator import prove
from roller.runtime.check import check
from roller.runtime.random_inputs import random_inputs
from roller.templates.common.options import ConstructOptions

OPTIONS = ConstructOptions(top_k=4)
EXPRESSIONS = {
    "matmul": ops.matmul(37, 45, 64, epilogue=("bias", "relu")),
    "deep": ops.matmul(6, 5, 700),
    "conv": ops.conv2d(n=1, c=5, h=9, w=11, f=12, kh=3, kw=3, padding=1),
    "depthwise": ops.depthwise_conv2d(n=1, c=6, h=11, w=11, kh=3, kw=3, stride=2, padding=1),
    "relu": ops.elementwise("relu", (13, 77)),
    "softmax": ops.softmax((9, 50)),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_its_best_programs_are_right_on_this_cpu(name):
    from roller.backends.cpu import CpuKernel

    expr, spec = EXPRESSIONS[name], roller.load_spec("cpu")
    arrays = random_inputs(expr, 3)
    found, _ = sokoban_candidates(expr, spec, OPTIONS)
    assert len(found) == 4
    for c in found:
        result = check(expr, arrays, CpuKernel(lower(c.program, expr, spec))(*arrays))
        assert result.ok, f"{c.program}: {result.message}"


class _Sample(Best):
    """Keeps a few programs of the space, whatever they cost, to see that code generation takes all kinds."""

    def __init__(self, spec):
        super().__init__(spec, 1, prune=False)
        self.rng, self.programs_seen = np.random.default_rng(1), []

    def offer(self, batch, seconds):
        fits = np.flatnonzero(np.isfinite(seconds))
        for i in self.rng.choice(fits, min(len(fits), 20), replace=False):
            self.programs_seen.append(program_from_row(batch, int(i), self.spec))


def sample(name, device, count):
    """A few programs from all over the space of an expression."""
    found = _Sample(roller.load_spec(device))
    search(EXPRESSIONS[name], found.spec, OPTIONS, found)
    picked = found.rng.choice(len(found.programs_seen), count, replace=False)
    return [found.programs_seen[int(n)] for n in picked], found.spec


@pytest.mark.parametrize("name", ["matmul", "depthwise", "relu", "softmax"])
def test_programs_of_all_kinds_compute_the_right_thing_on_this_cpu(name):
    from roller.backends.cpu import CpuKernel

    expr, arrays = EXPRESSIONS[name], random_inputs(EXPRESSIONS[name], 5)
    programs, spec = sample(name, "cpu", 4)
    for p in programs:
        result = check(expr, arrays, CpuKernel(lower(p, expr, spec))(*arrays))
        assert result.ok, f"{p}: {result.message}"


@pytest.mark.parametrize("name", ["matmul", "depthwise", "softmax"])
def test_programs_of_all_kinds_run_on_the_emulator(name):
    expr = EXPRESSIONS[name]
    programs, spec = sample(name, "v100", 2)
    best = sokoban_candidates(expr, spec, replace(OPTIONS, top_k=1))[0][0].program
    for p in (best, *programs):
        verdict = prove(lower(p, expr, spec), compare=lambda *a: check(*a).message)
        assert verdict.ok, f"{p}: {verdict}"


def test_blocks_that_fill_no_whole_warps_run_on_the_emulator():
    expr = EXPRESSIONS["matmul"]
    programs, spec = sample("matmul", "v100", 60)
    odd = next(p for p in programs if p.threads_per_block % spec.teu.lanes and p.threads_per_block > spec.teu.lanes)
    verdict = prove(lower(odd, expr, spec), compare=lambda *a: check(*a).message)
    assert verdict.ok, f"{odd}: {verdict}"
