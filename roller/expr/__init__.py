"""Tensor expressions: stages, scalar trees, access maps, canonical forms, and reference evaluation."""

from roller.expr.combiners import COMBINERS
from roller.expr.constant_stride_runs import StridedRun, stride_between_neighbours, strided_run_along
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
    transform_scalar,
    walk_scalar_tree,
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
from roller_runtime.core.dtypes import DTYPE_BYTES

__all__ = [
    "COMBINERS", "DTYPE_BYTES", "FUNCTIONS", "OFFSET_ELEMENTS", "REDUCTION", "SPATIAL", "Axis", "Bound", "Call",
    "Cast", "Const", "Index", "IndexValue", "Load", "StridedRun", "Scalar", "Stage", "Tensor", "TensorExpr", "Term",
    "axis_index", "instruction_mix", "stride_between_neighbours", "loads", "map_indices", "strided_run_along",
    "transform_scalar", "walk_scalar_tree",
]  # fmt: skip
