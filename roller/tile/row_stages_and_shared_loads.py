"""Row expressions: the stages over the columns of a row, and the input elements that the stages share.

Rows are the points of the anchor's spatial axes. The columns of a stage are its other axes; stages whose columns have
the anchor's extents are spread over threads alike, so a thread can keep an input element in a register for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from roller.expr import Call, Index, Load, Scalar, Stage, Tensor, TensorExpr, map_indices, transform_scalar
from roller.expr.index_arithmetic import compose_index
from roller.tile.memory_strides import mean_stride_elements

#: Functions with a bool result, even if it is stored as a float.
_LOGICAL = ("eq", "lt", "le")


@dataclass(frozen=True)
class RowStage:
    """A stage of a row expression.

    Parameters
    ----------
    stage
        The stage with element-wise producers inlined; its columns have the anchor's names if ``aligned``.
    columns
        Names of the stage's axes that are not rows, in order; empty if it has one result per row.
    aligned
        Whether the columns have the anchor's extents.
    """

    stage: Stage
    columns: tuple[str, ...]
    aligned: bool


def row_stages(expr: TensorExpr) -> tuple[RowStage, ...]:
    """Return the stages of a row kernel in order; element-wise intermediates are inlined into their readers."""
    if "row_stages" not in expr._memo:
        rows = {a.name for a in expr.anchor.spatial_axes}
        wide: dict[str, Stage] = {}
        found = []
        for s in expr.stages:
            columns = tuple(a.name for a in s.axes if a.name not in rows)
            whole = replace(s, body=_inline_producers(s.body, wide))
            if columns and s.combiner is None:
                wide[s.name] = whole
                if s.name not in expr.outputs:
                    continue
            found.append(_with_anchor_names(expr, whole, columns))
        expr._memo["row_stages"] = tuple(found)
    stages: tuple[RowStage, ...] = expr._memo["row_stages"]
    return stages


def loads_kept_in_registers(expr: TensorExpr) -> tuple[Load, ...]:
    """Return the loads, with the anchor's names, that a thread with all columns of a row issues once for all stages."""
    # These are the loads of inputs along the columns that several stages, or a reduction, read.
    if "kept_loads" not in expr._memo:
        inputs, columns = {t.name for t in expr.inputs}, {a.name for a in expr.anchor.reduction_axes}
        uses: dict[Load, int] = {}
        for s in row_stages(expr):
            for ld in s.stage.loads if s.aligned else ():
                moves = any(a in columns for i in ld.index for a in i.axes)
                if ld.tensor in inputs and moves and not ld.guard:
                    uses[ld] = uses.get(ld, 0) + (2 if s.stage.combiner is not None else 1)
        expr._memo["kept_loads"] = tuple(ld for ld, n in uses.items() if n > 1)
    kept: tuple[Load, ...] = expr._memo["kept_loads"]
    return kept


def rows_are_independent(expr: TensorExpr) -> bool:
    """Return whether all stages run over the rows of the anchor, each row independently."""
    if "rows_fuse" not in expr._memo:
        expr._memo["rows_fuse"] = _check_row_independence(expr)
    return bool(expr._memo["rows_fuse"])


def _check_row_independence(expr: TensorExpr) -> bool:
    rows = {a.name: a.extent for a in expr.anchor.spatial_axes}
    done: dict[str, Stage] = {}
    for s in expr.stages:
        mine = {a.name: a.extent for a in s.spatial_axes}
        if any(mine.get(a) != n for a, n in rows.items()) or (s.combiner is not None and mine != rows):
            return False
        for ld in s.loads:
            producer = done.get(ld.tensor)
            if producer is not None and not _stays_in_row(producer, ld.index, rows, bool(ld.guard)):
                return False
        done[s.name] = s
    return True


def _stays_in_row(producer: Stage, index: tuple[Index, ...], rows: dict[str, int], is_guarded: bool) -> bool:
    """Return whether a load of ``producer`` stays within the reader's own row."""
    if is_guarded:
        return False
    for where, i in zip(producer.store, index, strict=True):
        if any(a in rows for a in where.axes) and where != i:
            return False
    return True


def most_contiguous_axis(stage: Stage, tensors: Mapping[str, Tensor]) -> str:
    """Return the axis along which the largest load of a stage is closest to contiguous."""
    candidates = [
        (
            -tensors[ld.tensor].elements,
            mean_stride_elements(ld.index, tensors[ld.tensor].shape, a.name, a.extent),
            n,
            a.name,
        )
        for ld in stage.loads
        for n, a in enumerate(reversed(stage.axes))
        if any(a.name in i.axes for i in ld.index)
    ]
    return min(candidates)[3] if candidates else stage.axes[-1].name


def _inline_producers(body: Scalar, producers: Mapping[str, Stage]) -> Scalar:
    """Replace each load of an element-wise result by the result's arithmetic if that is a plain float computation."""

    def swap(n: Scalar) -> Scalar:
        s = producers.get(n.tensor) if isinstance(n, Load) and not n.guard else None
        if s is None or not isinstance(n, Load):
            return n
        logical = isinstance(s.body, Call) and s.body.fn in _LOGICAL
        simple = all(len(i.terms) == 1 and i.is_axis(i.terms[0].axis) for i in s.store)
        if logical or not simple or "float" not in s.output.dtype:
            return n
        at = {i.terms[0].axis: index for i, index in zip(s.store, n.index, strict=True)}
        possible = True

        def compose(i: Index) -> Index:
            nonlocal possible
            new = compose_index(i, at)
            possible &= new is not None
            return i if new is None else new

        value = map_indices(s.body, compose)
        return value if possible else n

    return transform_scalar(body, swap)


def _with_anchor_names(expr: TensorExpr, s: Stage, columns: tuple[str, ...]) -> RowStage:
    """Return the stage as a row stage, in which columns with the anchor's extents have the anchor's names."""
    own = {a.name: a.extent for a in s.axes}
    theirs = expr.anchor.reduction_axes
    aligned = [own[c] for c in columns] == [a.extent for a in theirs] and bool(columns)
    if not aligned:
        return RowStage(s, columns, False)
    names = dict(zip(columns, (a.name for a in theirs), strict=True))

    def rename(i: Index) -> Index:
        return replace(i, terms=tuple(replace(t, axis=names.get(t.axis, t.axis)) for t in i.terms))

    axes = tuple(replace(a, name=names.get(a.name, a.name)) for a in s.axes)
    stage = replace(s, axes=axes, store=tuple(rename(i) for i in s.store), body=map_indices(s.body, rename))
    return RowStage(stage, tuple(names.values()), True)
