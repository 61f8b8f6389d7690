"""Joins two axes that are digits of one dimension (channels in blocks); the inverse of splitting.

Weights ``W[f, fi, c, ci, kh, kw]`` hold all channels in order, but blocked images hold them in two separate dimensions.
Algorithms over channels need the whole axis: ``W[f, c, kh, kw]``, and images read at ``c // 16`` and ``c % 16``.
"""

from __future__ import annotations

from roller.expr.canonical import merge_axes
from roller.expr.scalar import Index
from roller.expr.tensor_expr import Axis, TensorExpr


def join_channel_digits(expr: TensorExpr) -> TensorExpr | None:
    """Return ``expr`` with each pair of blocked-channel axes joined, or ``None`` if there is no such pair.

    Examples
    --------
    >>> import roller
    >>> blocked = roller.ops.conv2d(1, 32, 9, 9, 64, 3, 3, padding=1, layout="NCHW16c")
    >>> join_channel_digits(blocked) is None  # its weights are plain already
    True
    """
    anchor = expr.anchor
    if anchor.combiner is None or (len(expr.stages) > 1 and expr.epilogue is None):
        return None
    places = [(expr.tensors[n].shape, i) for n, i in ((anchor.name, anchor.store), *_accesses_of_anchor(expr))]
    # A pair is two adjacent whole dimensions of one tensor of the anchor; in another tensor the second is the last
    # dimension and the first is not adjacent to it.
    by_name = {a.name: a for a in anchor.axes}
    found = None
    for shape, index in places:
        for d in range(len(index) - 1):
            pair = tuple(by_name[i.terms[0].axis] for i in index[d : d + 2] if _axis_equal_to_index(i) is not None)
            if (
                len(pair) == 2
                and shape[d : d + 2] == tuple(a.extent for a in pair)
                and _are_separate_dims(places, *pair)
            ):
                found = merge_axes(found or expr, pair) or found
    return found


def _accesses_of_anchor(expr: TensorExpr) -> list[tuple[str, tuple[Index, ...]]]:
    return [(ld.tensor, ld.index) for ld in expr.anchor.loads]


def _axis_equal_to_index(index: Index) -> str | None:
    """Return the name of the axis that an index equals, or ``None`` if there is none."""
    only = index.terms[0].axis if len(index.terms) == 1 else None
    return only if only is not None and index.is_axis(only) else None


def _are_separate_dims(places: list[tuple[tuple[int, ...], tuple[Index, ...]]], outer: Axis, inner: Axis) -> bool:
    """Return whether some tensor has ``inner`` as its last dimension and ``outer`` as a non-adjacent one."""
    alone = all(
        _axis_equal_to_index(i) is not None
        for _, index in places
        for i in index
        if {outer.name, inner.name} & set(i.axes)
    )
    return outer.kind == inner.kind and alone and any(
        _axis_equal_to_index(index[-1]) == inner.name
        and outer.name in [_axis_equal_to_index(i) for i in index[:-2]]
        for _, index in places
        if index
    )  # fmt: skip
