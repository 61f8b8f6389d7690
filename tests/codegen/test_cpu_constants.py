"""Constant operands of CPU kernels: packed by a function of their own, never in a call."""

import concurrent.futures
from dataclasses import replace

import numpy as np
import pytest

from roller import ops
from roller.backends.cpu import CpuKernel
from roller.errors import LaunchError
from roller.expr import Load, transform_scalar
from roller.runtime.check import check
from roller.runtime.random_inputs import random_inputs
from roller.templates.cpu.emit.lower_cpu_program import lower
from tests.codegen.cpu_programs import canonical, host_mcpu, program


def lowered(expression, prog, *constants):
    return lower(replace(prog, constants=constants), expression, host_mcpu(), 2, "test", 64)


def loaded(artifact, arrays):
    """Return the kernel that holds the constants of ``arrays``, and the arrays a call takes."""
    held = tuple(replace(c, values=arrays[c.position].tobytes()) for c in artifact.constants)
    fixed = {c.position for c in held}
    return CpuKernel(replace(artifact, constants=held)), [a for n, a in enumerate(arrays) if n not in fixed]


def assert_right(expression, prog, *constants, seed=0):
    """Check the kernel; return its artifact."""
    artifact = lowered(expression, prog, *constants)
    arrays = random_inputs(expression, seed)
    kernel, free = loaded(artifact, arrays)
    result = check(expression, arrays, kernel(*free))
    assert result.ok, f"{prog}: {result.message}"
    return artifact


_TRANSPOSES = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize(
    "vector, ta, tb, constants",
    [*((v, ta, tb, "B") for v in "ij" for ta, tb in _TRANSPOSES), ("j", True, True, "A"), ("i", False, False, "AB")],
)
def test_matmul_takes_panels_in_place_of_constants(vector, ta, tb, constants):
    e = ops.matmul(37, 53, 29, transpose_a=ta, transpose_b=tb)
    tiles = ({"i": 16, "j": 3}, {"i": 16, "j": 9}) if vector == "i" else ({"i": 4, "j": 32}, {"i": 8, "j": 32})
    a = assert_right(e, program(canonical(e), "tiled", *tiles, vector, staged=("A", "B")), *constants)
    packed = [f"{n}_packed{'AB'.index(n)}" for n in constants]
    assert a.launches[0].arguments == (*(n for n in "AB" if n not in constants), "C", *packed)
    assert a.prepare.arguments == (*constants, *packed)
    assert ("pack_" in a.source) == (len(constants) == 1)  # what is not constant is packed in the call
    assert all(f"{n} = T.alloc_buffer" not in a.source for n in packed)


def test_what_each_call_would_not_pack_may_be_packed_ahead():
    e = ops.matmul(1, 300, 64)  # the matrix is read once: packing it in a call could not pay
    p = program(canonical(e), "tiled", {"j": 64}, {"j": 128}, "j", staged=("B",))
    assert "pack_" not in lowered(e, p).source
    a = assert_right(e, p, "B")
    assert a.launches[0].arguments[-1] == "B_packed1" and "pack_" not in a.source and "pack_" in a.prepare.source


@pytest.mark.parametrize(
    "shape",
    [
        {"kh": 3, "kw": 3, "padding": 1},
        {"kh": 1, "kw": 1},
        {"kh": 3, "kw": 3, "stride": 2, "padding": 1},
        {"kh": 3, "kw": 3, "dilation": 2, "groups": 2},
    ],
    ids=["3x3", "1x1", "strided", "groups"],
)
@pytest.mark.parametrize("vector", ["f", "wo"])
def test_convolution_with_constant_weights(shape, vector):
    e = ops.conv2d(2, 6, 13, 15, 20, epilogue=("bias", "relu"), **shape)
    form = canonical(e)
    names = form.anchor.extents
    axis = next((n for n in names if vector in n.split("*")), next(iter(names)))
    register = {axis: 16, **({"f": 4} if "f" in names and axis != "f" else {})}
    p = program(form, "tiled", register, {axis: 16}, axis, staged=("X", "W"))
    bias = e.inputs[2].name
    a = assert_right(e, p, "W", bias)
    assert a.launches[0].arguments == ("X", "Y", bias, "W_packed1")  # a bias is bound as it is


@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_convolution_with_constant_weights(stride):
    e = ops.depthwise_conv2d(2, 10, 14, 17, 3, 3, stride=stride, padding=1)
    p = program(canonical(e), "tiled", {"ho": 2, "wo": 8}, {"c": 5}, "wo", staged=("X", "W"))
    a = assert_right(e, p, "W")
    assert a.launches[0].arguments[-1] == "W_packed1"


def test_boxes_of_constants_are_copied_in_the_call():
    e = ops.conv2d(1, 3, 9, 11, 8, 3, 3, padding=1)
    p = program(canonical(e), "tiled", {"f": 4, "wo": 8}, {}, "wo", staged=("X", "W"))
    a = assert_right(e, p, "X", "W")  # the input's box belongs to a task
    assert a.launches[0].arguments == ("Y", "X", "W_packed1")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8"])
def test_other_dtypes(dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    e = ops.matmul(19, 40, 21, dtype=dtype)
    assert_right(e, program(canonical(e), "tiled", {"i": 4, "j": 16}, {}, "j", staged=("A", "B")), "B")


def test_other_structures_hold_constants_as_they_are():
    norm = ops.layer_norm((13, 40))
    p = program(canonical(norm), "rows", {"d1": 1}, {}, norm.axes[-1].name)
    names = [t.name for t in norm.inputs[1:]]
    assert assert_right(norm, p, *names).launches[0].arguments[-len(names) :] == tuple(names)
    add = ops.elementwise("add", (7, 33))
    form = canonical(add)
    last = form.axes[-1].name
    a = assert_right(add, program(form, "streaming", {last: 16}, {last: 32}, last), add.inputs[0].name)
    assert a.prepare is None


def test_an_input_named_like_a_panel_is_no_panel():
    e = ops.matmul(9, 32, 8, epilogue=("bias",))
    bias = e.inputs[2].name

    def renamed(n):
        return replace(n, tensor="B_packed1") if isinstance(n, Load) and n.tensor == bias else n

    stages = tuple(replace(s, body=transform_scalar(s.body, renamed)) for s in e.stages)
    inputs = tuple(replace(t, name="B_packed1") if t.name == bias else t for t in e.inputs)
    e = replace(e, inputs=inputs, stages=stages)
    assert_right(e, program(canonical(e), "tiled", {"i": 3, "j": 16}, {}, "j", staged=("B",)), "B")
    assert_right(e, program(canonical(e), "tiled", {"i": 3, "j": 16}, {}, "j", staged=("B",)))


def test_eight_threads_call_one_kernel():
    e = ops.matmul(40, 64, 32)
    a = lowered(e, program(canonical(e), "tiled", {"i": 4, "j": 32}, {"i": 8}, "j", staged=("B",)), "B")
    b = random_inputs(e, 0)[1]
    kernel, _ = loaded(a, [None, b])

    def run(seed):
        x = random_inputs(e, seed)[0]
        return all(check(e, [x, b], kernel(x)).ok for _ in range(20))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(8)))


def test_a_kernel_without_the_values_of_its_constants_says_so():
    e = ops.matmul(8, 16, 4)
    a = lowered(e, program(canonical(e), "tiled", {"j": 16}, {}, "j", staged=("B",)), "B")
    with pytest.raises(LaunchError, match="matmul: constant 'B': expected its values in the artifact"):
        CpuKernel(a)
    short = replace(a, constants=(replace(a.constants[0], values=bytes(12)),))
    with pytest.raises(LaunchError, match=r"constant 'B': expected 256 bytes for float32 of shape \(4, 16\), got 12"):
        CpuKernel(short)
    kernel, (x,) = loaded(a, random_inputs(e))
    with pytest.raises(LaunchError, match=r"expected 1 array \(A\), got 2"):
        kernel(x, np.ones((4, 16), np.float32))
