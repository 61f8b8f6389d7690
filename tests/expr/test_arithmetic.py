"""Arithmetic that has no meaning on its operands is refused once, before anything is constructed."""

import re

import pytest

import roller
from roller.errors import ExprError
from roller.expr import FUNCTIONS, Axis, Call, Cast, Load, Stage, Tensor, TensorExpr, axis_index
from roller.expr.check_operand_dtypes import check_arithmetic
from tests.offenders import every

AT = (axis_index("i"),)


def expression(fn, dtype, wrap=lambda x: x):
    body = Call(fn, (wrap(Load("X", AT)),) * FUNCTIONS[fn].arity)
    stage = Stage(Tensor("Y", (4,), dtype), (Axis("i", 4),), AT, body, None, dtype)
    return TensorExpr("e", (Tensor("X", (4,), dtype),), (stage,), ("Y",))


@every(
    ("fn", "dtype", "wanted"),
    [(fn, "bool", "numbers") for fn in ("add", "sub", "mul", "neg", "abs", "div", "isnan", "sigmoid", "idiv", "shl")]
    + [(fn, "float16", "integers") for fn in ("idiv", "imod", "bitand", "bitor", "bitxor", "shl", "shr")]
    + [("fmod", "int32", "floating point")],
)  # fmt: skip
def test_what_has_no_meaning_is_refused(fn, dtype, wanted):
    message = re.escape(f"e: stage 'Y': '{fn}': expected {wanted}, got ")
    with pytest.raises(ExprError, match=message):
        check_arithmetic(expression(fn, dtype))
    with pytest.raises(ExprError, match=message):  # also below a cast, and by whoever compiles
        roller.construct(expression(fn, dtype, lambda x: Cast(dtype, Cast(dtype, x))), device="v100")


@every(("fn", "dtype"), [("max", "bool"), ("eq", "bool"), ("select", "bool"), ("bitxor", "bool"),
                                           ("fmod", "float16"), ("shl", "uint8"), ("sigmoid", "int32")])  # fmt: skip
def test_what_has_a_meaning_passes(fn, dtype):
    check_arithmetic(expression(fn, dtype))


@pytest.mark.parametrize("kind", ["sum", "prod"])
def test_truth_values_are_not_added_up(kind):
    with pytest.raises(ExprError, match=f"a {kind} of truth values: expected an accumulator of numbers, got bool"):
        roller.construct(roller.ops.reduce(kind, (4, 8), axes=1, dtype="bool"), device="v100")
