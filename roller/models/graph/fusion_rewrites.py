"""Rewrites that combine two parts: inlining into loads, and appending or merging element-wise stages.

Each rewrite returns an equivalent new part, or ``None`` if positions do not compose.
:mod:`roller.models.graph.fuse_parts` decides whether a rewrite pays off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from roller.expr import Axis, Cast, Index, Load, Scalar, Stage, Tensor, map_indices, transform_scalar
from roller.expr.compose_stages import inline_producer, may_overflow_integers, substitute_axes
from roller.expr.index_arithmetic import (
    AxisSplit,
    axis_splits_to_affine,
    compose_index,
    invert_store_map,
    reshape_access,
    simplify_index,
)
from roller.expr.scalar import walk_scalar_tree
from roller.models.graph.lowered_parts import ComputedPart

#: Suffix of the name of a tensor that is read in a second shape while two parts are combined.
_OTHER = "\0other"


def pure_copy_load(s: Stage) -> Load | None:
    """Return the load of a stage that only moves (and possibly converts) elements; ``None`` for other stages."""
    body = s.body
    while isinstance(body, Cast):
        body = body.arg
    return body if s.combiner is None and isinstance(body, Load) else None


def only_elementwise_stage(part: ComputedPart) -> Stage | None:
    """Return the stage of a single-stage part without a reduction; ``None`` for other parts."""
    return part.stages[0] if part.is_element_wise else None


def count_scalar_nodes(body: Scalar) -> int:
    """Return the number of nodes in a scalar expression."""
    return sum(1 for _ in walk_scalar_tree(body))


def make_part_like(
    reads: Sequence[Tensor], stages: Sequence[Stage], like: ComputedPart, nodes: tuple[str, ...]
) -> ComputedPart:
    """Return a part of new stages with the outputs of ``like`` and without unused reads."""
    used = dict.fromkeys(ld.tensor for s in stages for ld in s.loads)
    own = {s.name for s in stages}
    known = {t.name: t for t in reads if t.name not in own}
    return ComputedPart(tuple(known[n] for n in used if n in known), tuple(stages), like.outputs, nodes)


def merge_node_names(first: ComputedPart, second: ComputedPart) -> tuple[str, ...]:
    """Return the names of the nodes of two parts, without duplicates."""
    return tuple(dict.fromkeys((*first.nodes, *second.nodes)))


def inline_elementwise_into_loads(producer: ComputedPart, reader: ComputedPart) -> ComputedPart | None:
    """Return ``reader`` with an element-wise part's arithmetic in place of loads of its result, or ``None``."""
    made = only_elementwise_stage(producer)
    if made is None:
        return None
    other = rename_conflicting_reads(producer, reader)
    stage = other.stages[0]
    possible = True

    def swap(s: Stage) -> Stage:
        def leaf(n: Scalar) -> Scalar:
            nonlocal possible
            if not isinstance(n, Load) or n.tensor != stage.name:
                return n
            value = inline_producer(n, reader.shapes[stage.name], s.extents, stage, other.dtypes)
            possible &= value is not None
            return n if value is None else value

        return replace(s, body=transform_scalar(s.body, leaf))

    stages = [swap(s) if any(ld.tensor == stage.name for ld in s.loads) else s for s in reader.stages]
    if not possible:
        return None
    out = make_part_like((*reader.reads, *other.reads), stages, reader, merge_node_names(producer, reader))
    return merge_renamed_reads(out)


def append_elementwise(anchor: ComputedPart, reader: ComputedPart) -> ComputedPart | None:
    """Return ``anchor`` followed by an element-wise part that reads its result point by point, or ``None``."""
    # The result is stored where the reader stores it: a reduction gets one more stage, which reads it in place, and an
    # element-wise last stage is extended.
    last, after = anchor.stages[-1], only_elementwise_stage(reader)
    if after is None or anchor.outputs != (last.name,):
        return None
    other = rename_conflicting_reads(reader, anchor)
    after = other.stages[0]
    own = {ld.index for ld in after.loads if ld.tensor == last.name}
    if len(own) != 1 or any(ld.guard for ld in after.loads if ld.tensor == last.name):
        return None
    spatial = {a.name: a.extent for a in last.spatial_axes}
    if math.prod(spatial.values()) != after.points:
        return None
    place = reshape_access(last.store, last.output.shape, other.shapes[last.name], spatial)
    at = None if place is None else invert_store_map(next(iter(own)), after.extents, place, spatial)
    if at is None:
        return None
    store = tuple(compose_index(i, at, spatial) for i in after.store)
    body = substitute_axes(after.body, at, spatial)
    if body is None or any(i is None for i in store):
        return None
    stages = _append_stage(anchor, after, tuple(i for i in store if i is not None), body)
    if stages is None:
        return None
    return merge_renamed_reads(
        make_part_like((*anchor.reads, *other.reads), stages, reader, merge_node_names(anchor, reader))
    )


def merge_elementwise(first: ComputedPart, reader: ComputedPart) -> ComputedPart | None:
    """Return one part for two element-wise parts if the second reads the first in place; otherwise ``None``."""
    one, two = only_elementwise_stage(first), only_elementwise_stage(reader)
    if one is None or two is None or may_overflow_integers(one.body, one.output.dtype):
        return None
    other = rename_conflicting_reads(reader, first)
    two = other.stages[0]
    own = {(ld.index, ld.guard) for ld in two.loads if ld.tensor == one.name}
    if len(own) != 1 or two.points != one.points:
        return None
    index, guard = next(iter(own))
    place = reshape_access(one.store, one.output.shape, other.shapes[one.name], one.extents)
    at = None if place is None or guard else invert_store_map(index, two.extents, place, one.extents)
    body = None if at is None else substitute_axes(two.body, at, one.extents)
    store = () if at is None else tuple(compose_index(i, at, one.extents) for i in two.store)
    if body is None or any(i is None for i in store):
        return None
    second = Stage(two.output, one.axes, tuple(i for i in store if i is not None),
                   _replace_load_index(body, one.name, one.store), None, two.acc_dtype)  # fmt: skip
    both = replace(reader, outputs=(one.name, two.name))
    out = merge_renamed_reads(
        make_part_like((*first.reads, *other.reads), [one, second], both, merge_node_names(first, reader))
    )
    out = None if out is None else split_axes_to_affine(out) or out
    # Axes of the first part that a transpose cuts are split; no loop can store at digits of an axis.
    return split_dimensions_by_axes(out) if out is not None and _has_affine_stores(out) else None


def _append_stage(anchor: ComputedPart, after: Stage, store: tuple[Index, ...], body: Scalar) -> list[Stage] | None:
    """Return the anchor's stages with ``body`` appended at ``store``; ``None`` if the stored result may wrap around."""
    last = anchor.stages[-1]
    if last.combiner is not None:
        # The intermediate keeps the accumulator's precision, so that the result is converted once.
        wide = "float" in last.acc_dtype and "float" in last.output.dtype
        kind = last.acc_dtype if wide else last.output.dtype
        between = Tensor(f"{after.name}/acc", after.output.shape, kind)
        total: Scalar = Load(between.name, store)
        rest = [*anchor.stages[:-1], replace(last, output=between, store=store)]
    else:
        same = last.output.dtype == last.acc_dtype or "float" in last.output.dtype
        if may_overflow_integers(last.body, last.output.dtype):
            return None
        total = last.body if same else Cast(last.output.dtype, last.body)
        rest = list(anchor.stages[:-1])
        if anchor.expr.epilogue is not None:  # the reduction is stored in the layout in which the epilogue reads it
            (first,) = rest
            rest = [replace(first, output=replace(first.output, shape=after.output.shape), store=store)]
            total = _replace_load_index(total, first.name, store)
    value = transform_scalar(body, lambda n: total if isinstance(n, Load) and n.tensor == last.name else n)
    return [*rest, Stage(after.output, last.spatial_axes, store, value, None, after.acc_dtype)]


def _replace_load_index(body: Scalar, name: str, index: tuple[Index, ...]) -> Scalar:
    """Return ``body`` with all loads of a tensor moved to ``index``."""
    return transform_scalar(body, lambda n: replace(n, index=index) if isinstance(n, Load) and n.tensor == name else n)


# --- one shape per tensor -----------------------------------------------------------------------


def rename_conflicting_reads(part: ComputedPart, other: ComputedPart) -> ComputedPart:
    """Return ``part`` with new names for those of its tensors that ``other`` reads in a different shape."""
    names = {t.name: t.name + _OTHER for t in part.reads if t.name in other.inputs and other.shapes[t.name] != t.shape}
    return _rename_tensors(part, names) if names else part


def _rename_tensors(part: ComputedPart, names: dict[str, str]) -> ComputedPart:
    def leaf(n: Scalar) -> Scalar:
        return replace(n, tensor=names[n.tensor]) if isinstance(n, Load) and n.tensor in names else n

    reads = tuple(replace(t, name=names.get(t.name, t.name)) for t in part.reads)
    return replace(
        part, reads=reads, stages=tuple(replace(s, body=transform_scalar(s.body, leaf)) for s in part.stages)
    )


def merge_renamed_reads(part: ComputedPart) -> ComputedPart | None:
    """Return a part that reads every tensor in one shape; ``None`` if two shapes are incompatible."""
    for t in part.reads:
        if not t.name.endswith(_OTHER):
            continue
        name = t.name.removesuffix(_OTHER)
        found = part
        if name in part.inputs:
            shape = part.shapes[name]
            one = reshape_tensor(part, t.name, shape)
            if one is None:
                shape, one = t.shape, reshape_tensor(part, name, t.shape)
            if one is None:
                return None
            found = one
        found = _rename_tensors(found, {t.name: name})
        part = replace(found, reads=tuple({r.name: r for r in found.reads}.values()))
    return part


def reshape_tensor(part: ComputedPart, name: str, shape: Sequence[int]) -> ComputedPart | None:
    """Return a part that accesses a tensor in a different shape of as many elements; ``None`` if that is impossible."""
    old, possible = part.shapes[name], True

    def place(index: tuple[Index, ...], s: Stage) -> tuple[Index, ...]:
        nonlocal possible
        found = reshape_access(index, old, shape, s.extents)
        possible &= found is not None
        return index if found is None else found

    def change(s: Stage) -> Stage:
        def leaf(n: Scalar) -> Scalar:
            return replace(n, index=place(n.index, s)) if isinstance(n, Load) and n.tensor == name else n

        body = transform_scalar(s.body, leaf)
        if s.name != name:
            return replace(s, body=body)
        return replace(s, output=replace(s.output, shape=tuple(shape)), store=place(s.store, s), body=body)

    reads = tuple(replace(t, shape=tuple(shape)) if t.name == name else t for t in part.reads)
    out = replace(part, reads=reads, stages=tuple(change(s) for s in part.stages))
    return out if possible else None


# --- axes ---------------------------------------------------------------------------------------


def all_indices_of_part(part: ComputedPart) -> list[Index]:
    """Return all indices in a part: those of stores, loads and guards."""
    return [i for s in part.stages for i in all_indices_of_stage(s)]


def all_indices_of_stage(s: Stage) -> list[Index]:
    """Return all indices in a stage."""
    return [*s.store, *(i for ld in s.loads for i in (*ld.index, *(b.index for b in ld.guard)))]


def has_affine_accesses(part: ComputedPart) -> bool:
    """Return whether no access uses a division or a remainder."""
    return all(i.is_affine for i in all_indices_of_part(part))


def _has_affine_stores(part: ComputedPart) -> bool:
    return all(i.is_affine for s in part.stages for i in s.store)


def split_axes_to_affine(part: ComputedPart) -> ComputedPart | None:
    """Return a part whose axes are split into digits until every access is affine; ``None`` if that fails."""
    if has_affine_accesses(part):
        return part
    extents = {a.name: a.extent for s in part.stages for a in s.axes}
    cuts = axis_splits_to_affine(all_indices_of_part(part), extents)
    if not cuts:
        return None
    out = _split_axes(part, {c.axis: c for c in cuts})
    return out if out is not None and has_affine_accesses(out) else None


def _split_axes(part: ComputedPart, cuts: dict[str, AxisSplit]) -> ComputedPart | None:
    stages = []
    for s in part.stages:
        axes: list[Axis] = []
        for a in s.axes:
            parts = cuts[a.name].parts if a.name in cuts else ((a.name, a.extent),)
            axes += [Axis(name, n, a.kind) for name, n in parts]
        extents = {a.name: a.extent for a in axes}
        at = {a.name: cuts[a.name].index for a in s.axes if a.name in cuts}
        body = substitute_axes(s.body, at, extents)
        store = [compose_index(i, at, extents) for i in s.store]
        if body is None or any(i is None for i in store):
            return None
        stages.append(replace(s, axes=tuple(axes), store=tuple(i for i in store if i is not None), body=body))
    return replace(part, stages=tuple(stages))


def split_dimensions_by_axes(part: ComputedPart) -> ComputedPart:
    """Return a part whose tensors have one dimension per axis if several axes index one dimension as digits."""
    # For example ``64 * h + d`` in a dimension of 768 becomes ``h, d``: the same memory with simpler accesses.
    for name in [*part.inputs, *(s.name for s in part.stages)]:
        shape: list[int] = []
        for d, n in enumerate(part.shapes[name]):
            digits = {
                _digit_axis_extents(index[d], guards, s.extents, n)
                for s, index, guards in _stages_accessing_tensor(part, name)
            }
            only = next(iter(digits)) if len(digits) == 1 else None
            shape += only or (n,)
        if tuple(shape) != part.shapes[name]:
            part = reshape_tensor(part, name, shape) or part
    return part


def _stages_accessing_tensor(part: ComputedPart, name: str) -> list[tuple[Stage, tuple[Index, ...], set[Index]]]:
    found = [(s, s.store, set[Index]()) for s in part.stages if s.name == name]
    loads = ((s, ld) for s in part.stages for ld in s.loads if ld.tensor == name)
    return found + [(s, ld.index, {b.index for b in ld.guard}) for s, ld in loads]


def _digit_axis_extents(index: Index, guards: set[Index], extents: dict[str, int], size: int) -> tuple[int, ...] | None:
    """Return the extents of the axes that are a dimension's digits, most significant first; ``None`` if no axes are."""
    if index.const or len(index.terms) < 2 or index in guards:
        return None
    reach, out = 1, []
    for t in sorted(index.terms, key=lambda t: t.coef):
        if not t.is_affine or t.coef != reach:
            return None
        reach *= extents[t.axis]
        out.append(extents[t.axis])
    return tuple(out[::-1]) if reach == size else None


def simplify_accesses(part: ComputedPart) -> ComputedPart:
    """Return a part with simplified accesses and with dimensions split wherever axes are split."""
    if any(_may_simplify(i, s.extents) for s in part.stages for i in all_indices_of_stage(s)):
        part = split_dimensions_by_axes(replace(part, stages=tuple(_simplify_stage(s) for s in part.stages)))
    # Fewer axes let an element-wise part follow more anchors; an anchor keeps its axes so that later movement matches.
    return part if only_elementwise_stage(part) is None else part.canonical


def _simplify_stage(s: Stage) -> Stage:
    fewer: Callable[[Index], Index] = lambda i: simplify_index(i, s.extents)  # noqa: E731
    return replace(s, store=tuple(fewer(i) for i in s.store), body=map_indices(s.body, fewer))


def _may_simplify(index: Index, extents: dict[str, int]) -> bool:
    """Return whether an index may be simplified, or its dimension split into several."""
    return len(index.terms) > 1 or any(t.mod or t.div > 1 or extents[t.axis] == 1 for t in index.terms)


def read_source_instead_of_view(part: ComputedPart, name: str, source: str) -> ComputedPart | None:
    """Return a part that reads ``source`` as ``name`` (the same memory); ``None`` if shapes are incompatible."""
    if source in part.inputs and part.shapes[source] != part.shapes[name]:
        return merge_renamed_reads(_rename_tensors(part, {name: source + _OTHER}))
    out = _rename_tensors(part, {name: source})
    return replace(out, reads=tuple({t.name: t for t in out.reads}.values()))
