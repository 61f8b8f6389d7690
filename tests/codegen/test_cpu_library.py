"""What a library holds besides its kernel: who looks at the arrays of a call."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest

import roller
from roller.backends.cpu.launcher import CpuKernel
from roller.compiler.pipeline import construct
from roller.core.c_compiler import require_compiler
from roller.errors import LaunchError
from roller.hardware import load_spec
from roller.templates.cpu.emit.build_library import build_library, link_library
from roller.templates.cpu.emit.lower_cpu_program import lower_for, lower_module

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


@pytest.mark.parametrize(("code", "expected"), [("x + 1.0f", 1.5), ("erff(x)", 0.5204999)])
def test_libraries_of_c_are_linked_where_a_kernel_calls_them(tmp_path, code, expected) -> None:
    source, compiled, library = (tmp_path / f"kernel.{end}" for end in ("c", "o", "so"))
    source.write_text(f"#include <math.h>\nfloat f(float x) {{ return {code}; }}\n")
    subprocess.run([require_compiler("a test"), "-fPIC", "-c", str(source), "-o", str(compiled)], check=True)
    link_library(compiled, library)
    f = ctypes.CDLL(str(library)).f
    f.argtypes, f.restype = [ctypes.c_float], ctypes.c_float
    assert f(0.5) == pytest.approx(expected, rel=1e-5)
