"""Tensor expressions: stages, scalar trees, access maps, canonical forms, and reference evaluation."""

from roller.core.dtypes import DTYPE_BYTES
from roller.expr.combiners import COMBINERS
from roller.expr.runs import Run, lane_stride, run_along
from roller.expr.scalar import (
    FUNCTIONS,
    Bound,
    Call,
    Cast,
    Const,
    Index,
    IndexValue,
    Load,
    Scalar,
    Term,
    axis_index,
    instruction_mix,
    loads,
    map_indices,
    transform,
    walk,
)
from roller.expr.tensor_expr import (
    OFFSET_ELEMENTS,
    REDUCTION,
    SPATIAL,
    Axis,
    Stage,
    Tensor,
    TensorExpr,
)

__all__ = [
    "COMBINERS", "DTYPE_BYTES", "FUNCTIONS", "OFFSET_ELEMENTS", "REDUCTION", "SPATIAL", "Axis", "Bound", "Call",
    "Cast", "Const", "Index", "IndexValue", "Load", "Run", "Scalar", "Stage", "Tensor", "TensorExpr", "Term",
    "axis_index", "instruction_mix", "lane_stride", "loads", "map_indices", "run_along", "transform", "walk",
]  # fmt: skip
