"""Canonical form: an axis that every access divides by the same number becomes two axes.

Filters of a grouped convolution read ``X[channels * (f // filters) + c]``. Once the filter axis is split into a group
and a filter within the group, the sum is a batch of products, which is tiled and priced like any other; element order
is unchanged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Mapping
from dataclasses import replace

from roller.expr.scalar import Index, IndexValue, Load, Scalar, Term, map_indices, transform_scalar, walk_scalar_tree
from roller.expr.tensor_expr import Axis, Stage, Tensor, TensorExpr

#: Extents of the two dimensions into which a dimension is split, by tensor and dimension.
_Dimensions = Mapping[tuple[str, int], tuple[int, ...]]


def split_axes(expr: TensorExpr) -> TensorExpr:
    """Return ``expr`` with each axis ``f`` that is read only as ``f`` or ``f // d`` split into ``f/d`` and ``f%d``.

    Examples
    --------
    >>> import roller
    >>> grouped = roller.ops.conv2d(1, 8, 5, 5, 12, 3, 3, groups=4)
    >>> [(a.name, a.extent) for a in split_axes(grouped).axes][1:3]
    [('f/3', 4), ('f%3', 3)]
    """
    for axis in expr.axes:
        by = _common_divisor(expr, axis)
        split = _split_axis(expr, axis, by) if by else None
        if split is not None:
            return split_axes(split)
    return expr


#: Markers in the names that code generation creates: coordinates within a tile, lanes, digits of an axis.
_MARKS = re.compile(r"[.@]|//")


def rename_reserved_axes(expr: TensorExpr) -> TensorExpr:
    """Rename axes whose names code generation would derive from another axis (``i.inner`` next to ``i``).

    Examples
    --------
    >>> from roller.expr import Axis, Load, Stage, Tensor, TensorExpr, axis_index
    >>> at, axes = (axis_index("i"), axis_index("i.inner")), (Axis("i", 2), Axis("i.inner", 3))
    >>> copy = Stage(Tensor("Y", (2, 3)), axes, at, Load("X", at))
    >>> [a.name for a in rename_reserved_axes(TensorExpr("copy", (Tensor("X", (2, 3)),), (copy,), ("Y",))).axes]
    ['i', 'i_inner']
    """
    taken, names = axis_names(expr), dict[str, str]()
    for name in sorted(n for n in taken if _MARKS.search(n)):
        names[name] = unique_axis_name(_MARKS.sub("_", name), taken)
        taken.add(names[name])
    if not names:
        return expr

    def index(i: Index) -> Index:
        return Index(tuple(replace(t, axis=names.get(t.axis, t.axis)) for t in i.terms), i.const)

    def stage(s: Stage) -> Stage:
        axes = tuple(replace(a, name=names.get(a.name, a.name)) for a in s.axes)
        return replace(s, axes=axes, store=tuple(index(i) for i in s.store), body=map_indices(s.body, index))

    return replace(expr, stages=tuple(stage(s) for s in expr.stages))


def axis_names(expr: TensorExpr) -> set[str]:
    """Return the names of the axes of all stages."""
    return {a.name for s in expr.stages for a in s.axes}


def unique_axis_name(name: str, taken: Container[str]) -> str:
    """Return a name for a new axis: ``name``, with primes appended while it is taken.

    Examples
    --------
    >>> unique_axis_name("i*j", {"i", "j", "k"}), unique_axis_name("i*j", {"i", "j", "i*j"})
    ('i*j', "i*j'")
    """
    while name in taken:
        name += "'"
    return name


def _common_divisor(expr: TensorExpr, axis: Axis) -> int:
    """Return the single divisor of an axis in all accesses, or 0 if the axis cannot be split by it."""
    indices = [i for s in expr.stages for i in (*s.store, *(i for ld in s.loads for i in ld.index))]
    terms = [t for i in indices for t in i.terms if t.axis == axis.name and not t.is_affine]
    found = {t.div for t in terms}
    if len(found) != 1 or any(t.mod for t in terms):
        return 0
    (by,) = found
    alike = all(a == axis for s in expr.stages for a in s.axes if a.name == axis.name)
    return by if axis.extent % by == 0 and 1 < by < axis.extent and alike else 0


def _split_axis(expr: TensorExpr, axis: Axis, by: int) -> TensorExpr | None:
    """Return the expression with one axis split, or ``None`` if an index value or guard reads the axis."""
    outer = Axis(unique_axis_name(f"{axis.name}/{by}", axis_names(expr)), axis.extent // by, axis.kind)
    inner = Axis(unique_axis_name(f"{axis.name}%{by}", axis_names(expr)), by, axis.kind)
    if any(
        isinstance(n, IndexValue) and axis.name in n.index.axes for s in expr.stages for n in walk_scalar_tree(s.body)
    ):
        return None
    if any(axis.name in b.index.axes for s in expr.stages for ld in s.loads for b in ld.guard):
        return None  # a bound names the index of a dimension

    def terms(t: Term) -> tuple[Term, ...]:
        if t.axis != axis.name:
            return (t,)
        if t.is_affine:
            return (Term(outer.name, t.coef * by), Term(inner.name, t.coef))
        return (Term(outer.name, t.coef),)

    def index(i: Index) -> Index:
        return Index(tuple(x for t in i.terms for x in terms(t)), i.const)

    def stage(s: Stage) -> Stage:
        axes = tuple(x for a in s.axes for x in ((outer, inner) if a.name == axis.name else (a,)))
        return replace(s, axes=axes, store=tuple(index(i) for i in s.store), body=map_indices(s.body, index))

    stages = tuple(stage(s) for s in expr.stages)
    return _split_tensor_dims(expr, stages, _splittable_dims(expr, stages, outer.name), outer.name)


def _splittable_dims(expr: TensorExpr, stages: tuple[Stage, ...], outer: str) -> _Dimensions:
    """Return the dimensions that every access reads as ``rest + pitch * outer`` with ``rest < pitch``."""
    found: dict[tuple[str, int], tuple[int, ...] | None] = {}
    for s in stages:
        extents = {a.name: a.extent for a in s.axes}
        for name, at, guarded in ((s.name, s.store, set[Index]()), *(_tensor_index_and_guards(ld) for ld in s.loads)):
            for d, i in enumerate(at):
                size = (
                    None
                    if i in guarded
                    else _split_extents_of_dimension(i, outer, extents, expr.tensors[name].shape[d])
                )
                if found.setdefault((name, d), size) != size:
                    found[name, d] = None
    return {place: size for place, size in found.items() if size is not None}


def _tensor_index_and_guards(load: Load) -> tuple[str, tuple[Index, ...], set[Index]]:
    return load.tensor, load.index, {b.index for b in load.guard}


def _split_extents_of_dimension(
    index: Index, outer: str, extents: Mapping[str, int], size: int
) -> tuple[int, int] | None:
    """Return the extents into which an index splits a dimension of ``size`` elements, or ``None`` if it does not."""
    pitch = sum(t.coef for t in index.terms if t.axis == outer)
    rest = [t for t in index.terms if t.axis != outer]
    if pitch < 2 or index.const or any(not t.is_affine or t.coef < 0 for t in rest):
        return None
    reach = sum(t.coef * (extents[t.axis] - 1) for t in rest)
    return (size // pitch, pitch) if reach < pitch and size == extents[outer] * pitch else None


def _split_tensor_dims(expr: TensorExpr, stages: tuple[Stage, ...], dims: _Dimensions, outer: str) -> TensorExpr:
    """Return the expression made of ``stages``, with the dimensions ``dims`` of its tensors split."""

    def tensor(t: Tensor) -> Tensor:
        shape = tuple(x for d, e in enumerate(t.shape) for x in dims.get((t.name, d), (e,)))
        assert math.prod(shape) == t.elements
        return replace(t, shape=shape)

    def place(name: str, at: tuple[Index, ...]) -> tuple[Index, ...]:
        out: list[Index] = []
        for d, i in enumerate(at):
            if (name, d) in dims:
                out.append(Index((Term(outer),)))
                i = Index(tuple(t for t in i.terms if t.axis != outer))
            out.append(i)
        return tuple(out)

    def leaf(n: Scalar) -> Scalar:
        return replace(n, index=place(n.tensor, n.index)) if isinstance(n, Load) else n

    moved = tuple(
        replace(s, output=tensor(s.output), store=place(s.name, s.store), body=transform_scalar(s.body, leaf))
        for s in stages
    )
    return replace(expr, inputs=tuple(tensor(t) for t in expr.inputs), stages=moved)
