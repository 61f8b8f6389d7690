"""What users hold shows itself on one short line, and says in a notebook what they would ask next."""

from __future__ import annotations

import numpy as np

import roller
from roller.expr.expression_text import scalar_text
from roller.expr.scalar import Call, Const, Load
from roller.models.options import ModelOptions
from roller.runtime.candidate_records import Record
from roller_runtime.core.display import MOST_CHARACTERS, exact_repr, html_table
from roller_runtime.plan.execution_plan import Plan
from roller_runtime.plan.program_steps import KernelSource, Program
from tests.offenders import every

EXPR = roller.ops.matmul(64, 96, 32, epilogue=("bias", "gelu_tanh"))


def objects():
    spec, best = roller.load_spec("v100"), roller.construct(EXPR, device="v100", top_k=1)[0]
    kernel = roller.compile(EXPR, device="v100")
    weights = np.zeros((32, 96), np.float32)
    held = roller.compile(EXPR, device="v100", constants={"B": weights})
    program = Program("m", ("x",), ("y",), {}, {}, (), {"k": KernelSource(EXPR)})
    yield from (*EXPR.stages, *roller.ops.layer_norm((4, 8)).stages)
    yield from (EXPR, spec, *spec.memory_layers, spec.limits, spec.compute, spec.execution, spec.accuracy, spec.teu)
    yield from (best, best.program, best.estimate, kernel, kernel.artifact, *kernel.artifact.launches, held.artifact)
    yield from (*held.artifact.constants, *kernel.artifact.arguments, program, Plan(program), ModelOptions())
    yield from (roller.ConstructOptions(), roller.ConstructOptions(top_k="auto", units=3), Record("a", "built"))
    yield from (roller.sensitivity(EXPR, "v100"), roller.load_spec("cpu"))


def test_every_repr_is_one_short_line():
    for value in objects():
        text = repr(value)
        assert "\n" not in text and len(text) <= MOST_CHARACTERS < 120, (type(value), len(text), text)
        assert type(value).__name__ in text


@every(
    ("expr", "text"),
    [
        (roller.ops.matmul(4, 5, 6), "matmul[i=4 j=5 k=6] float32"),
        (roller.ops.matmul(4, 5, 6, dtype="float16"), "matmul[i=4 j=5 k=6] float16 (sum in float32)"),
        (roller.ops.matmul(4, 5, 6, dtype="int8"), "matmul[i=4 j=5 k=6] int8 -> int32"),
        (
            roller.ops.matmul(4, 5, 6, epilogue=("bias", "clip(0, 6)")),
            "matmul[i=4 j=5 k=6] float32, epilogue min(relu(C_acc + bias), 6)",
        ),
        (
            roller.ops.softmax((4, 8), epilogue=("sigmoid",)),
            "softmax[d0=4 k=8] float32, then sigmoid(exp(X - X_max) / X_sum)",
        ),
    ],
)
def test_an_expression_names_its_dtypes_and_epilogue(expr, text):
    assert str(expr) == text


def test_parentheses_stand_where_they_change_the_value():
    a, b, c = (Load(n, ()) for n in "abc")
    assert scalar_text(Call("sub", (a, Call("sub", (b, c))))) == "a - (b - c)"
    assert scalar_text(Call("sub", (Call("sub", (a, b)), c))) == "a - b - c"
    assert scalar_text(Call("div", (a, Call("mul", (b, c))))) == "a / (b * c)"
    assert scalar_text(Call("mul", (Call("add", (a, Const(1.0))), c))) == "(a + 1) * c"


def test_a_notebook_shows_tables_and_nothing_that_is_not_text():
    kernel = roller.compile(EXPR, device="v100")
    for value in (kernel, kernel.estimate, kernel.program, roller.load_spec("v100")):
        shown = value._repr_html_()
        assert shown.startswith("<table>") and shown.count("<tr>") > 2
    assert "<script>" not in html_table("<script>", ("<script>",), [["<script>"]])


def test_structure_tells_what_equality_does_not():
    one, other = Const(0.0), Const(-0.0)
    assert one == other and exact_repr(one) != exact_repr(other)
    assert exact_repr(Const(1)) != exact_repr(Const(1.0))
    assert exact_repr(EXPR) == exact_repr(roller.ops.matmul(64, 96, 32, epilogue=("bias", "gelu_tanh")))
    assert exact_repr(EXPR) != exact_repr(roller.ops.matmul(64, 96, 32, epilogue=("bias", "gelu")))
