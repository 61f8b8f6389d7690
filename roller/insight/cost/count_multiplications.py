"""The number of multiplications in an expression's products."""

from __future__ import annotations

import math

from roller.expr import TensorExpr
from roller.expr.dtype_conversion_rates import dtypes_by_tensor
from roller.expr.scalar import Load, walk_scalar_tree
from roller.expr.sum_rounding_properties import sums_input_products
from roller.expr.tensor_expr import Stage


def multiplication_count(expr: TensorExpr) -> int:
    """Return the number of multiplications in the stages that sum products of two tensors."""
    inputs, dtypes = {t.name for t in expr.inputs}, dtypes_by_tensor(expr)
    products = [
        s for s in expr.stages if sums_input_products(s, inputs, dtypes) and len(_names_of_tensors_read(s)) == 2
    ]
    return sum(math.prod(axis.extent for axis in s.axes) for s in products)


def _names_of_tensors_read(stage: Stage) -> set[str]:
    return {n.tensor for n in walk_scalar_tree(stage.body) if isinstance(n, Load)}
