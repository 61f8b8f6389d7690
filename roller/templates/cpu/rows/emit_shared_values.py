"""Stages for the values that a row kernel computes once: values of a row, and values that two stages share.

:mod:`roller.tile.row_kernel_shared_values` finds them; their stages store them in small buffers of the task, so a
softmax computes the exponential once per element instead of twice, and the reciprocal once per row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from roller.expr import (
    SPATIAL,
    Axis,
    Load,
    Scalar,
    Stage,
    Tensor,
    TensorExpr,
    axis_index,
    map_indices,
    walk_scalar_tree,
)
from roller.expr.scalar import Index
from roller.tile.row_kernel_shared_values import replace_scalar_subtrees, row_form, shared_values
from roller.tile.row_stages_and_shared_loads import RowStage, row_stages

#: Maximum length (elements) of rows whose shared values are kept; values of longer rows would leave L2 and are
#: recomputed.
_ROW_ELEMENTS = 1 << 16


def add_stages_for_shared_values(expr: TensorExpr) -> TensorExpr:
    """Return ``expr`` with stages for values that several elements or stages need, or ``expr`` if there are none.

    Examples
    --------
    >>> from roller import ops
    >>> [s.name for s in add_stages_for_shared_values(ops.softmax((8, 100))).stages]
    ['X_max', 'X_sum@0', 'X_sum', 'Y@0', 'Y']
    """
    found = row_stages(expr)
    columns = math.prod(a.extent for a in expr.anchor.reduction_axes)
    known = {t.name for t in expr.inputs} | {r.stage.name for r in found}
    if columns > _ROW_ELEMENTS or any(ld.tensor not in known for r in found for ld in r.stage.loads):
        return expr
    made: list[Stage] = []
    held: dict[Scalar, Load] = {}
    for r in found:
        made += _stages_computing_values(expr, r, shared_values(expr), held)
    return expr if len(made) == len(found) else replace(expr, stages=tuple(made))


def _stages_computing_values(
    expr: TensorExpr, r: RowStage, again: tuple[Scalar, ...], held: dict[Scalar, Load]
) -> list[Stage]:
    """Return the stages of the values that a stage needs, then the stage; ``held`` maps values to their loads."""
    s, form = r.stage, row_form(expr, r.stage, r.columns)
    out: list[Stage] = []

    def stage(value: Scalar, axes: tuple[Axis, ...], here: Mapping[Scalar, Scalar]) -> Load:
        at = tuple(axis_index(a.name) for a in axes)
        made = Tensor(f"{s.name}@{len(out)}", tuple(a.extent for a in axes), s.acc_dtype)
        spatial = tuple(replace(a, kind=SPATIAL) for a in axes)
        out.append(Stage(made, spatial, at, replace_scalar_subtrees(value, here), None, s.acc_dtype))
        return Load(made.name, at)

    rows = tuple(a for a in s.axes if a.name not in r.columns)
    local: dict[Scalar, Scalar] = {v: stage(v, rows, {}) for v in form.row} if rows else {}
    for v in again if r.aligned else ():
        if v in held or v not in set(walk_scalar_tree(form.body)):
            continue
        held[v] = stage(v, s.axes, local)
    body = replace_scalar_subtrees(form.body, {**local, **(held if r.aligned else {})})
    return [*(_restore_axis_names(expr, r, x) for x in (*out, replace(s, body=body)))]


def _restore_axis_names(expr: TensorExpr, r: RowStage, s: Stage) -> Stage:
    """Return a stage with the axis names of its original stage instead of the anchor's."""
    before = next(x for x in expr.stages if x.name == r.stage.name)
    names = {a.name: b.name for a, b in zip(r.stage.axes, before.axes, strict=True)}

    def index(i: Index) -> Index:
        return replace(i, terms=tuple(replace(t, axis=names.get(t.axis, t.axis)) for t in i.terms))

    kinds = {b.name: b for b in before.axes}
    axes = tuple(kinds[names[a.name]] if s.name == before.name else replace(a, name=names[a.name]) for a in s.axes)
    return replace(s, axes=axes, store=tuple(index(i) for i in s.store), body=map_indices(s.body, index))
