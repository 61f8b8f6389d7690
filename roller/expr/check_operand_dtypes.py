"""Checks that arithmetic is defined on the dtypes of its operands, before anything is constructed."""

from __future__ import annotations

from roller.errors import ExprError
from roller.expr.combiners import COMBINERS
from roller.expr.scalar import Call, Cast, Const, IndexValue, Load, Scalar
from roller.expr.tensor_expr import Stage, TensorExpr

#: Functions defined on truth values: ordering, bit operations and choice.
_OF_TRUTH_VALUES = frozenset({"max", "min", "eq", "lt", "le", "select", "bitand", "bitor", "bitxor"})
_OF_INTEGERS = frozenset({"idiv", "imod", "bitand", "bitor", "bitxor", "shl", "shr"})
_OF_FLOATS = frozenset({"fmod"})
_TO_TRUTH = frozenset({"eq", "lt", "le", "isnan"})
#: Kinds of dtypes; an operation on operands of several kinds has the highest of these kinds.
_BOOL, _INTEGER, _FLOAT = range(3)


def check_arithmetic(expr: TensorExpr) -> None:
    """Raise an error if ``expr`` contains arithmetic that is undefined on the dtypes of its operands.

    Examples
    --------
    >>> from roller.expr import Axis, Tensor, axis_index
    >>> at, x = axis_index("i"), Tensor("X", (4,), "bool")
    >>> body = Call("add", (Load("X", (at,)), Load("X", (at,))))
    >>> sums = Stage(Tensor("Y", (4,), "bool"), (Axis("i", 4),), (at,), body)
    >>> check_arithmetic(TensorExpr("e", (x,), (sums,), ("Y",)))
    Traceback (most recent call last):
    roller.errors.ExprError: e: stage 'Y': 'add': expected numbers, got bool. Cast the operands to int32.
    """
    dtypes = {name: t.dtype for name, t in expr.tensors.items()}
    for stage in expr.stages:
        where = f"{expr.name}: stage '{stage.name}'"
        _check_and_get_kind(stage.body, dtypes, where, {})
        _check_combiner_dtype(stage, where)


def _check_combiner_dtype(stage: Stage, where: str) -> None:
    if stage.combiner is not None and stage.acc_dtype == "bool" and not COMBINERS[stage.combiner].selects:
        raise ExprError(
            f"{where}: a {stage.combiner} of truth values: expected an accumulator of numbers, got bool. "
            "Accumulate in int32, or take the maximum (any) or the minimum (all)."
        )


def _check_and_get_kind(node: Scalar, dtypes: dict[str, str], where: str, known: dict[int, int]) -> int:
    """Return the dtype kind of a scalar and check each call below it once."""
    found = known.get(id(node))
    if found is None:
        found = known[id(node)] = _kind_of_call(node, dtypes, where, known) if isinstance(node, Call) else (
            _kind_of_leaf(node, dtypes, where, known)
        )  # fmt: skip
    return found


def _kind_of_leaf(node: Scalar, dtypes: dict[str, str], where: str, known: dict[int, int]) -> int:
    if isinstance(node, Cast):
        _check_and_get_kind(node.arg, dtypes, where, known)
    if isinstance(node, Load):
        return _kind_of_dtype(dtypes[node.tensor])
    assert isinstance(node, (Cast, Const, IndexValue))
    return _kind_of_dtype(node.dtype)


def _kind_of_call(node: Call, dtypes: dict[str, str], where: str, known: dict[int, int]) -> int:
    kinds = [_check_and_get_kind(a, dtypes, where, known) for a in node.args]
    kind = max(kinds[1:] if node.fn == "select" else kinds)
    if kind == _BOOL and node.fn not in _OF_TRUTH_VALUES:
        raise ExprError(f"{where}: '{node.fn}': expected numbers, got bool. Cast the operands to int32.")
    if kind == _FLOAT and node.fn in _OF_INTEGERS:
        raise ExprError(f"{where}: '{node.fn}': expected integers, got floating point. Cast the operands to int32.")
    if kind == _INTEGER and node.fn in _OF_FLOATS:
        raise ExprError(f"{where}: '{node.fn}': expected floating point, got integers. Cast the operands to float32.")
    return _BOOL if node.fn in _TO_TRUTH else kind


def _kind_of_dtype(dtype: str) -> int:
    return _BOOL if dtype == "bool" else _FLOAT if "float" in dtype else _INTEGER
