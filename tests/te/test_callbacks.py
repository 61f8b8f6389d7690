"""Exceptions of callbacks never cross TVM's traversals, which do not unwind."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import roller
from roller.compiler.pipeline import lower
from roller.emulator import emulate
from roller.runtime.check import check
from roller.runtime.random_inputs import random_inputs
from roller.te.compat import structural_map, structural_walk, tirx


def _sum(length=50):
    x = tirx.Var("x", "int32")
    e = x
    for n in range(length):
        e = e + tirx.IntImm("int32", n + 3)
    return e


@pytest.mark.parametrize("error", [ValueError, AssertionError, KeyboardInterrupt])
def test_what_a_callback_raises_is_raised_after_the_traversal(error):
    seen = []

    def fails(node):
        seen.append(node)
        raise error("here")

    with pytest.raises(error, match="here"):
        structural_map(_sum(), (tirx.Add, fails))
    with pytest.raises(error, match="here"):
        structural_walk(_sum(), [(tirx.Var, fails)])
    assert len(seen) == 2  # the first ends it


def test_callbacks_map_and_visit_as_they_are_given():
    found = []
    structural_walk(_sum(3), ((tirx.Var, found.append), ((tirx.Add, tirx.Sub), found.append)))
    assert len(found) == 4
    one = tirx.IntImm("int32", 1)
    assert str(structural_map(_sum(0), (tirx.Var, lambda v: one))) == str(one)
    structural_walk(_sum(1), lambda node: found.append(node))
    assert len(found) > 6


def test_nobody_else_gives_a_traversal_a_callback():
    package = Path(roller.__file__).parent
    given = [p for p in package.rglob("*.py") if re.search(r"tvm_ffi\.structural_(map|walk)", p.read_text())]
    assert [p.relative_to(package).as_posix() for p in given] == ["te/compat.py"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ not found")
@pytest.mark.parametrize("make", [
    lambda: roller.ops.reduce("sum", (8, 8), 1, dtype="float8_e5m2", acc_dtype="float8_e5m2"),
    lambda: roller.ops.matmul(16, 16, 16, dtype="float8_e4m3fn", acc_dtype="float8_e4m3fn"),
])  # fmt: skip
def test_sums_in_floats_of_8_bits_are_taken_in_float32(make):
    expr, spec = make(), roller.load_spec("v100")
    (best,) = roller.construct(expr, spec, top_k=1)
    arrays = random_inputs(expr)
    assert check(expr, arrays, emulate(lower(best.program, expr, spec), arrays)).ok
