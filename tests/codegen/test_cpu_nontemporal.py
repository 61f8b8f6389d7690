"""Non-temporal stores: right on every alignment and extent, and really there on every processor."""

from dataclasses import replace

import numpy as np
import pytest

from roller import ops
from roller.te.compat import tvm
from roller.templates.cpu.emit.lower_cpu_program import lower_module
from roller.tile import RProgram
from tests.codegen.cpu_programs import assert_right, canonical, kernel, program


def _program(expr, axis=None, tile=32, task=128, lanes=16):
    form = canonical(expr)
    axis = axis or form.anchor.spatial_axes[-1].name
    made = program(form, "streaming", {axis: tile}, {axis: task}, axis, lanes)
    return replace(made, nontemporal=True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8"])
@pytest.mark.parametrize("extent", [128, 129, 1000, 4099])
def test_results_at_any_address_are_whole_and_nothing_else_is_touched(extent, dtype):
    expr = ops.elementwise(("add", "relu"), (extent,), dtype=dtype)
    a, b = (np.random.default_rng(n).integers(-60, 60, extent).astype(dtype) for n in range(2))
    run = kernel(expr, _program(expr, lanes=8 if dtype == "float64" else 16))
    line = 64 // np.dtype(dtype).itemsize
    memory = np.empty(extent + 3 * line, dtype)
    for offset in range(line):  # tiles of 32 int8 are half a line: the next line can be more than a tile away
        start = (-memory.ctypes.data % 64) // memory.itemsize + offset
        memory[:] = 7
        run(a, b, out=memory[start : start + extent])
        np.testing.assert_array_equal(memory[start : start + extent], np.maximum(a + b, 0))
        assert (memory[:start] == 7).all() and (memory[start + extent :] == 7).all()


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16", "int8", "int32"])
def test_other_dtypes(dtype):
    expr = ops.elementwise("add", (5, 1003), dtype=dtype)
    assert_right(expr, _program(expr, lanes=8 if dtype == "float64" else 16))


@pytest.mark.parametrize("shape", [(3, 5, 333), (2, 7, 61), (1, 1, 2000), (4, 3, 17)])
def test_rows_that_start_anywhere_in_a_line(shape):
    expr = ops.elementwise("add", shape, [(shape[1], 1)])
    assert_right(expr, _program(expr))


def test_a_single_task_is_fenced_too():
    expr = ops.elementwise("relu", (1000,))
    module, _, _ = lower_module(_program(expr, task=1024), 1)
    assert module["main"].script().count("roller_fence") >= 1
    assert_right(expr, _program(expr, task=1024), cores=1)


@pytest.mark.parametrize(
    ("target", "lanes", "instruction"),
    [
        ({"mcpu": "skylake-avx512"}, 16, r"vmovntps\t%zmm"),
        ({"mcpu": "haswell"}, 8, r"vmovntps\t%ymm"),
        ({"mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu"}, 4, "stnp\t"),
    ],
)
def test_every_processor_gets_its_instruction(target, lanes, instruction):
    import re

    expr = ops.elementwise("relu", (1 << 16,))
    streamed = _program(expr, lanes=lanes, task=4096)
    for prog, wanted in ((streamed, True), (replace(streamed, nontemporal=False), False)):
        module, _, _ = lower_module(prog, 2)
        built = tvm.tirx.build(module, target=tvm.target.Target({"kind": "llvm", "num-cores": 2, **target}))
        assert bool(re.search(instruction, built.inspect_source("asm"))) == wanted


def test_the_choice_is_kept_in_files():
    prog = _program(ops.elementwise("relu", (1000,)))
    again = RProgram.from_dict(prog.to_dict())
    assert again == prog and again.nontemporal
    plain = replace(prog, nontemporal=False)
    assert str(plain) != str(prog) and plain.digest != prog.digest
    old = {k: v for k, v in prog.to_dict().items() if k != "nontemporal"}
    assert not RProgram.from_dict(old).nontemporal
