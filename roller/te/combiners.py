"""Combiners in TVM: the expression of one step, and the node that identifies a TVM reduction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from roller.te.compat import dtype_of, tirx

Expr = Any


@dataclass(frozen=True)
class TvmCombiner:
    """TVM's node for a combiner of :mod:`roller.expr.combiners`, and one step on two expressions."""

    node: Any
    step: Callable[[Expr, Expr], Expr]


def with_bool_variant(
    fn: Callable[[Expr, Expr], Expr], truth: Callable[[Expr, Expr], Expr]
) -> Callable[[Expr, Expr], Expr]:
    """Return a function of two operands with a separate definition for bools, which TVM does not order."""
    return lambda a, b: truth(a, b) if dtype_of(a) == dtype_of(b) == "bool" else fn(a, b)


def _extremum_step(node: Any, plain: Callable[[Expr, Expr], Expr], neutral: float) -> Callable[[Expr, Expr], Expr]:
    """Return an extremum that folds no literal but its neutral value: TVM folds the other infinity even against NaN."""

    def step(a: Expr, b: Expr) -> Expr:
        literals = [x for x in (a, b) if isinstance(x, tirx.FloatImm)]
        as_is = bool(literals) and dtype_of(a) == dtype_of(b) and all(x.value != neutral for x in literals)
        return node(a, b) if as_is else plain(a, b)

    return step


# Bit operations on bools: TVM simplifies the last operand of ``and`` as if the others held, yet evaluates both sides.
MAX = with_bool_variant(_extremum_step(tirx.Max, tirx.max, -math.inf), lambda a, b: a | b)
MIN = with_bool_variant(_extremum_step(tirx.Min, tirx.min, math.inf), lambda a, b: a & b)

#: TVM's combiners by the name of the combiner.
TVM_COMBINERS = {
    "sum": TvmCombiner(tirx.Add, lambda x, y: x + y),
    "prod": TvmCombiner(tirx.Mul, lambda x, y: x * y),
    "max": TvmCombiner(tirx.Max, MAX),
    "min": TvmCombiner(tirx.Min, MIN),
}
