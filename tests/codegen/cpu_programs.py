"""Hand-made CPU programs for the tests: tiles written down, no constructor involved."""

import functools

from roller.expr import SPATIAL
from roller.expr.canonical import fuse_axes
from roller.tile import RProgram


@functools.cache
def host_mcpu():
    """Return the processor that roller compiles for here, which knows of masked features what LLVM does not."""
    from roller.hardware.detect_cpu_spec import detect_cpu_without_probe

    return detect_cpu_without_probe().target["mcpu"]


def up(n, step):
    return -(-n // step) * step


def program(expr, structure, register=None, task=None, vector=None, lanes=16, chunk=None, staged=(), split_k=1):
    """Return a program of the canonical ``expr``; tiles by axis name, 1 (or the whole reduction) where not given."""
    register, task, chunk = register or {}, task or {}, chunk or {}
    r = tuple(register.get(a.name, 1) for a in expr.axes)
    l1 = tuple(
        e if a.kind == SPATIAL else up(chunk.get(a.name, a.extent), e) for a, e in zip(expr.axes, r, strict=True)
    )
    l2 = tuple(
        up(task.get(a.name, e), e) if a.kind == SPATIAL else up(a.extent, e) for a, e in zip(expr.axes, l1, strict=True)
    )
    tiles = ("register", r), ("l1", l1), ("l2", l2)
    return RProgram(expr, "cpu", structure, tiles, (), tuple(staged), vector, lanes, split_k=split_k)


def kernel(expression, prog, cores=2):
    from roller.backends.cpu import CpuKernel
    from roller.templates.cpu.emit.lower_cpu_program import lower

    return CpuKernel(lower(prog, expression, host_mcpu(), cores, "test", 64))


def assert_right(expression, prog, cores=2, seed=0):
    from roller.runtime.check import check
    from roller.runtime.random_inputs import random_inputs

    arrays = random_inputs(expression, seed)
    outputs = kernel(expression, prog, cores)(*arrays)
    result = check(expression, arrays, outputs)
    assert result.ok, f"{prog}: {result.message}"


canonical = fuse_axes
