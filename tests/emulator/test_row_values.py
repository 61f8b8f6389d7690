"""What a row kernel computes once: reciprocals of a row's values, exponentials that two stages share."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from benchmarks import ptx
from roller import ops
from roller.backends.cuda import toolchain
from roller.emulator import prove
from roller.expr import REDUCTION, Axis, Call, Const, Load, Stage, Tensor, TensorExpr, axis_index
from roller.expr.canonical import fuse_axes
from roller.expr.scalar import walk_scalar_tree
from roller.runtime.check import check
from roller.templates.gpu.emit.cuda import lower
from roller.tile import RProgram
from roller.tile.row_kernel_shared_values import (
    InstructionFrequency,
    extra_registers_of_shared_values,
    row_form,
    row_instruction_mix,
    shared_values,
)
from roller.tile.row_stages_and_shared_loads import row_stages


def normalised(rows, columns, divisor, dtype="float32", value=None, term=None):
    """``Y = value / divisor(S)`` where ``S`` is the sum of ``term(X)`` over a row."""
    i, k = axis_index("i"), axis_index("k")
    x, s = Load("X", (i, k)), Load("S", (i,))
    term = term or (lambda v: Call("abs", (v,)))
    wide = (Axis("i", rows), Axis("k", columns))
    reduced = (Axis("i", rows), Axis("k", columns, REDUCTION))
    y = (value or (lambda v: v))(x)
    stages = (
        Stage(Tensor("S", (rows,), dtype), reduced, (i,), term(x), "sum", dtype),
        Stage(Tensor("Y", (rows, columns), dtype), wide, (i, k), Call("div", (y, divisor(s))), None, dtype),
    )
    return TensorExpr("normalised", (Tensor("X", (rows, columns), dtype),), stages, ("Y",))


def exp(v):
    return Call("exp", (v,))


BARE = normalised(7, 45, lambda s: s)
GUARDED = normalised(7, 45, lambda s: Call("add", (s, Const(1e-6))))
DOUBLE = normalised(7, 45, lambda s: Call("max", (s, Const(1e-6, "float64"))), "float64")
ROOT = normalised(7, 45, lambda s: Call("sqrt", (Call("add", (s, Const(1e-12))),)), term=lambda v: Call("mul", (v, v)))
UNSHIFTED = normalised(7, 45, lambda s: s, value=exp, term=exp)
JUMPS = TensorExpr(
    "jumps", GUARDED.inputs,
    (GUARDED.stages[0], Stage(GUARDED.stages[1].output, GUARDED.stages[1].axes, GUARDED.stages[1].store,
                              Call("floor", (GUARDED.stages[1].body,)), None, "float32")), ("Y",),
)  # fmt: skip


def bodies(expr):
    return [row_form(expr, s.stage, s.columns) for s in row_stages(expr)]


def divides_elements(expr):
    """Whether the last stage divides once per element."""
    form = bodies(expr)[-1]
    inside = {n for v in form.row for n in walk_scalar_tree(v)}
    return any(isinstance(n, Call) and n.fn == "div" and n not in inside for n in walk_scalar_tree(form.body))


@pytest.mark.parametrize("expr", [ops.softmax((7, 45)), ops.softmax((7, 45), dtype="float16"), GUARDED, DOUBLE, ROOT])
def test_a_divisor_that_is_certainly_normal_becomes_a_reciprocal_of_its_row(expr):
    assert not divides_elements(expr)
    assert any(s is InstructionFrequency.ROW and fn == "special" for s, _, fn, _ in row_instruction_mix(expr))


@pytest.mark.parametrize("expr", [BARE, UNSHIFTED, JUMPS])
def test_a_divisor_that_may_be_subnormal_or_a_quotient_that_is_rounded_stays(expr):
    assert divides_elements(expr)


def test_tiny_sums_divide_as_ieee_says(built):
    """Rows of 1e-41: the reciprocal would be infinite, the quotient is not."""
    tiles = (("register", (1, 2)), ("shared", (2, 64)))
    artifact = lower(RProgram(BARE, "gpu", "rows", tiles), BARE, "sm_80", "test")
    x = np.full((7, 45), 1e-41, np.float32)

    def compare(expr, _, outputs):
        return check(expr, [x], outputs).message

    proof = prove(artifact, [x], compare=compare, cache_dir=built)
    assert proof.ok, str(proof)


def test_a_shared_exponential_takes_the_place_of_its_input():
    expr = ops.softmax((7, 45), dtype="float16")
    (value,) = shared_values(expr)
    assert value.fn == "exp" and extra_registers_of_shared_values(expr) == 0
    assert (
        sum(n for s, _, fn, n in row_instruction_mix(expr) if s is InstructionFrequency.ELEMENT and fn == "special")
        == 1
    )
    assert shared_values(UNSHIFTED) and not shared_values(ops.layer_norm((7, 45)))


#: Expression, register and block tile, vector elements along the row.
PROGRAMS = {
    "half precision": (ops.softmax((5, 301), dtype="float16"), (1, 4), (2, 512), 1),
    "half precision, vectors, two rows a thread": (ops.softmax((13, 200), dtype="float16"), (2, 8), (4, 256), 8),
    "half precision, read again": (ops.softmax((5, 301), dtype="float16"), (2, 4), (2, 64), 1),
    "odd row": (ops.softmax((7, 45)), (1, 2), (4, 64), 1),
    "an epilogue": (ops.softmax((7, 48), epilogue=("relu",)), (1, 4), (4, 64), 4),
    "exponentials alone": (UNSHIFTED, (1, 2), (2, 64), 1),
    "guarded divisor": (GUARDED, (1, 3), (2, 48), 1),
    "guarded divisor, read again": (GUARDED, (1, 1), (2, 16), 1),
    "double precision": (DOUBLE, (1, 2), (2, 64), 1),
    "root": (ROOT, (2, 2), (4, 64), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_row_that_computes_values_once_is_right_in_every_order(built, name):
    expr, register, block, vector = PROGRAMS[name]
    form = fuse_axes(expr)
    tiles = (("register", register), ("shared", block))
    axis = form.axes[1].name if vector > 1 else None
    artifact = lower(RProgram(form, "gpu", "rows", tiles, vector_axis=axis, vector_elements=vector), expr, "sm_80", "t")
    proof = prove(artifact, compare=lambda *a: check(*a).message, cache_dir=built)
    assert proof.ok, str(proof)


@pytest.mark.skipif(toolchain.available() is not None, reason="needs the CUDA wheels")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_90"])
def test_a_kept_softmax_has_one_exponential_per_element_and_one_division_per_row(dtype, arch):
    expr = ops.softmax((64, 2048), dtype=dtype)
    tiles = (("register", (1, 16)), ("shared", (1, 2048)))
    program = RProgram(expr, "gpu", "rows", tiles, vector_axis="k", vector_elements=4, interleaved=True)
    artifact = lower(program, expr, arch, "test")
    (kernel,) = ptx.kernels(toolchain.compile_to_ptx(artifact.source, arch)).values()
    opcodes = [line.split()[0] for line in kernel.lines]
    assert sum(o.startswith("ex2") for o in opcodes) == 16
    assert sum(o.startswith(("div.rn", "rcp")) for o in opcodes) == 1
    assert kernel.counts["special"] == 17
    assert toolchain.build(artifact).build["spill_bytes"] == 0
