"""Fuses a reduction with its reader row by row (for example, a normalization written as separate operators).

As separate nodes, mean, difference, mean of squares, root and quotient are five kernels. Row by row, they are one
kernel, in which each stage has its own columns and all share the row axes.
"""

from __future__ import annotations

from dataclasses import replace

from roller.expr import Axis, Index, Load, Scalar, Stage, Term, map_indices, transform_scalar
from roller.expr.compose_stages import inline_producer
from roller.expr.scalar import FUNCTIONS, Call, walk_scalar_tree
from roller.models.graph import fusion_rewrites
from roller.models.graph.lowered_parts import ComputedPart

#: Maximum number of function calls in an element-wise stage that its readers may recompute.
_CHEAP = 4


def fuse_rows(rows: ComputedPart, reader: ComputedPart) -> ComputedPart | None:
    """Return one part that computes ``rows`` and its reader row by row; ``None`` if rows do not match."""
    # Rows are the axes of the result that all loads of it index in the same way; the other axes are columns.
    marked = fusion_rewrites.rename_conflicting_reads(rows, reader)
    last = marked.stages[-1]
    shape = reader.shapes[last.name]
    seen = marked if shape == last.output.shape else fusion_rewrites.reshape_tensor(marked, last.name, shape)
    if seen is None:
        return None
    last = seen.stages[-1]
    shared = _reader_names_of_shared_rows(last, reader)
    if not shared:
        return None
    taken = {a.name for s in reader.stages for a in s.axes}
    stages = [_rename_axes(s, shared, taken) for s in seen.stages]
    out = fusion_rewrites.make_part_like((*reader.reads, *seen.reads), [*stages, *reader.stages], reader,
                           fusion_rewrites.merge_node_names(rows, reader))  # fmt: skip
    found = fusion_rewrites.merge_renamed_reads(out)
    if found is None:
        return None
    # All reductions must have the same rows: no template computes one reduction for several rows of another.
    rows_of = {frozenset(a.name for a in s.spatial_axes if a.extent > 1) for s in found.stages if s.combiner}
    return _inline_cheap_stages(found) if len(rows_of) <= 1 else None


def _reader_names_of_shared_rows(last: Stage, reader: ComputedPart) -> dict[str, str]:
    """Return, for each axis of a result that is a row axis of the reader, the reader's name for it."""
    found: dict[str, str] = {}
    uses = [(s, ld) for s in reader.stages for ld in s.loads if ld.tensor == last.name]
    for d, stored in enumerate(last.store):
        if len(stored.terms) != 1 or not stored.is_axis(stored.terms[0].axis):
            continue
        names = {ld.index[d] for _, ld in uses}
        only: Index = next(iter(names))
        if len(names) != 1 or len(only.terms) != 1 or not only.is_axis(only.terms[0].axis):
            continue
        axis, row = stored.terms[0].axis, only.terms[0].axis
        # The axis must be a spatial axis of equal extent in every stage that reads the result.
        if all(any(a.name == row and a.extent == last.extents[axis] for a in s.spatial_axes) for s, _ in uses):
            found[axis] = row
    return found if len(set(found.values())) == len(found) else {}


def _rename_axes(s: Stage, rows: dict[str, str], taken: set[str]) -> Stage:
    """Return a stage with the reader's names for rows and unused names for its other axes."""
    names = dict(rows)
    for a in s.axes:
        name = a.name
        while a.name not in rows and name in taken:
            name += "'"
        names.setdefault(a.name, name)

    def index(i: Index) -> Index:
        return replace(i, terms=tuple(Term(names[t.axis], t.coef, t.div, t.mod) for t in i.terms))

    axes = tuple(Axis(names[a.name], a.extent, a.kind) for a in s.axes)
    return replace(s, axes=axes, store=tuple(index(i) for i in s.store), body=map_indices(s.body, index))


def _inline_cheap_stages(part: ComputedPart) -> ComputedPart:
    """Return a part whose cheap element-wise stages are inlined into their readers."""
    for s in part.stages[:-1]:
        if s.name in part.outputs or s.combiner is not None or not _is_cheap(s):
            continue
        stages = _inline_stage(part, s)
        if stages is not None:
            part = fusion_rewrites.make_part_like(part.reads, stages, part, part.nodes)
    return part


def _is_cheap(s: Stage) -> bool:
    calls = [n for n in walk_scalar_tree(s.body) if isinstance(n, Call)]
    return len(calls) <= _CHEAP and all(FUNCTIONS[c.fn].instruction_class != "special" for c in calls)


def _inline_stage(part: ComputedPart, s: Stage) -> list[Stage] | None:
    """Return the stages with ``s`` inlined into its readers; ``None`` if an access does not compose."""
    current = next(t for t in part.stages if t.name == s.name)
    possible = True

    def swap(t: Stage) -> Stage:
        def leaf(n: Scalar) -> Scalar:
            nonlocal possible
            if not isinstance(n, Load) or n.tensor != s.name:
                return n
            value = inline_producer(n, current.output.shape, t.extents, current, part.dtypes)
            possible &= value is not None
            return n if value is None else value

        return replace(t, body=transform_scalar(t.body, leaf))

    stages = [swap(t) for t in part.stages if t.name != s.name]
    return stages if possible else None
