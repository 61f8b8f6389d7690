"""What a library holds besides its kernel: who looks at the arrays of a call."""

from __future__ import annotations

import numpy as np
import pytest

import roller
from roller.backends.cpu.launcher import CpuKernel
from roller.errors import LaunchError
from roller.hardware import load_spec
from roller.pipeline import construct
from roller.templates.cpu.emit.library import build_library
from roller.templates.cpu.emit.llvm import lower_for, lower_module

SIZE = 16


def test_the_launcher_looks_at_arrays_and_the_kernel_does_not() -> None:
    expression, spec = roller.ops.matmul(SIZE, SIZE, SIZE), load_spec("cpu").share(1)
    program = construct(expression, spec, top_k=1)[0].program
    artifact = lower_for(program, expression, spec)
    module, _, _ = lower_module(program, 1)
    checked = build_library(module, spec.target["mcpu"], 1)
    assert artifact.binary is not None and len(artifact.binary) < len(checked)
    a, b = (np.random.default_rng(n).standard_normal((SIZE, SIZE), np.float32) for n in (0, 1))
    for binary in (artifact.binary, checked):
        kernel = CpuKernel(artifact.with_binary(binary))
        assert np.allclose(kernel(a, b), a @ b, atol=1e-5)
        for wrong in (a[:-1], a.astype(np.float64)):
            with pytest.raises(LaunchError, match="expected"):
                kernel(wrong, b)
