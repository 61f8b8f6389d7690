"""Canonical forms: axis fusion, and axis grouping (implicit GEMM) as an alternative form (docs/design/construction.md).

Fusion merges axes that are adjacent, or both absent, in every tensor; grouping merges the spatial axes that the same
inputs read, and another input does not, into one axis with quasi-affine accesses (``n*ho*wo`` of a convolution).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from roller.expr.index_arithmetic import term_of_merged_axis
from roller.expr.reduction_trimming import trim_reductions
from roller.expr.scalar import Bound, Call, Cast, Index, IndexValue, Load, Scalar, Term, map_indices, transform_scalar
from roller.expr.split_commonly_divided_axes import axis_names, rename_reserved_axes, split_axes, unique_axis_name
from roller.expr.tensor_expr import SPATIAL, Axis, Stage, Tensor, TensorExpr


def fuse_axes(expr: TensorExpr) -> TensorExpr:
    """Return ``expr`` with unit axes dropped and adjacent axes merged into ``a*b``; element order is unchanged.

    Examples
    --------
    >>> import roller
    >>> [a.name for a in fuse_axes(roller.ops.elementwise(("relu",), (17, 11, 3))).axes]
    ['d0*d1*d2']
    """
    if "fused" not in expr._memo:
        expr._memo["fused"] = _fuse_until_stable(expr)
    fused: TensorExpr = expr._memo["fused"]
    return fused


def _fuse_until_stable(expr: TensorExpr) -> TensorExpr:
    expr = inline_unit_reduction(_drop_unit_axes(split_axes(trim_reductions(rename_reserved_axes(expr)))))
    while True:
        found = next((f for f in (_find_axis_fusion(expr, p) for p in _neighbouring_axis_pairs(expr)) if f), None)
        if found is None:
            return expr
        expr = _apply_axis_fusion(expr, found)


def group_axes(expr: TensorExpr, *, reductions: bool = True) -> TensorExpr | None:
    """Return the grouped form of ``expr``, or ``None`` if it has nothing to group or stages besides an epilogue."""
    s = expr.anchor
    if s.combiner is None or (len(expr.stages) > 1 and expr.epilogue is None):
        return None
    # Spatial axes are grouped if the same inputs read them and another input does not; at least one axis remains.
    seen = {a.name: frozenset(ld.tensor for ld in s.loads if any(a.name in i.axes for i in ld.index)) for a in s.axes}
    every = frozenset(ld.tensor for ld in s.loads)
    groups: dict[frozenset[str], list[Axis]] = {}
    for a in s.spatial_axes:
        if seen[a.name] != every:
            groups.setdefault(seen[a.name], []).append(a)
    wide = [g for g in groups.values() if len(g) > 1]
    if len(groups) < 2 or not wide:
        return None
    grouped: TensorExpr | None = expr
    for g in wide:
        grouped = merge_axes(grouped, tuple(g)) if grouped else None
    # Without grouped reductions, a window is stepped through point by point: addresses within a step differ by
    # constants.
    reduction = expr.anchor.reduction_axes
    if grouped and reductions and len(reduction) > 1 and len({seen[a.name] for a in reduction}) == 1:
        return merge_axes(grouped, reduction) or grouped
    return grouped


def _drop_unit_axes(expr: TensorExpr) -> TensorExpr:
    """Substitute 0 for axes of extent 1; each stage keeps one axis of each kind that it had."""
    unit = {a.name for s in expr.stages for a in s.axes if a.extent == 1}
    for s in expr.stages:
        for kind in {a.kind for a in s.axes}:
            mine = [a for a in s.axes if a.kind == kind]
            if all(a.name in unit for a in mine):
                unit.discard(mine[-1].name)
    if not unit:
        return expr

    def index(i: Index) -> Index:
        return Index(tuple(t for t in i.terms if t.axis not in unit), i.const)

    stages = tuple(
        replace(
            s,
            axes=tuple(a for a in s.axes if a.name not in unit),
            store=tuple(index(i) for i in s.store),
            body=map_indices(s.body, index),
        )
        for s in expr.stages
    )
    return _drop_unit_dims(replace(expr, stages=stages))


def inline_unit_reduction(expr: TensorExpr) -> TensorExpr:
    """Replace a reduction over one point (a 1x1 pooling) by its body, inlined into the epilogue if there is one."""
    s = expr.anchor
    if s.combiner is None or any(a.extent != 1 for a in s.reduction_axes) or not s.spatial_axes:
        return expr
    if len(expr.stages) > 1 and expr.epilogue is None:
        return expr
    gone = {a.name for a in s.reduction_axes}
    body = map_indices(s.body, lambda i: Index(tuple(t for t in i.terms if t.axis not in gone), i.const))
    if expr.epilogue is None:
        return _drop_unit_dims(replace(expr, stages=(replace(s, axes=s.spatial_axes, body=body, combiner=None),)))
    value: Scalar = body if s.output.dtype == s.acc_dtype else Cast(s.output.dtype, body)

    def leaf(n: Scalar) -> Scalar:
        return value if isinstance(n, Load) and n.tensor == s.name else n

    return _drop_unit_dims(
        replace(expr, stages=(replace(expr.epilogue, body=transform_scalar(expr.epilogue.body, leaf)),))
    )


def _drop_unit_dims(expr: TensorExpr) -> TensorExpr:
    """Drop tensor dimensions of extent 1 that every access indexes with constant 0."""
    fixed: dict[str, set[int]] = {n: {d for d, e in enumerate(t.shape) if e == 1} for n, t in expr.tensors.items()}
    for s in expr.stages:
        fixed[s.name] &= {d for d, i in enumerate(s.store) if i == Index()}
        for ld in s.loads:
            guarded = {b.index for b in ld.guard}
            fixed[ld.tensor] &= {d for d, i in enumerate(ld.index) if i == Index() and i not in guarded}
    return _merge_tensor_dims(
        expr, {n: [[d] for d in range(len(expr.tensors[n].shape)) if d not in fixed[n]] for n in fixed}
    )


def _merge_tensor_dims(expr: TensorExpr, dims: dict[str, list[list[int]]]) -> TensorExpr:
    """Merge the listed groups of dimensions of each tensor; a merged dimension keeps its first index."""

    def tensor(t: Tensor) -> Tensor:
        shape = []
        for group in dims[t.name]:
            n = 1
            for d in group:
                n *= t.shape[d]
            shape.append(n)
        return replace(t, shape=tuple(shape))

    def pick(name: str, index: tuple[Index, ...]) -> tuple[Index, ...]:
        return tuple(index[g[0]] for g in dims[name])

    def scalar(n: Scalar) -> Scalar:
        if isinstance(n, Load):
            return replace(n, index=pick(n.tensor, n.index))
        if isinstance(n, Call):
            return Call(n.fn, tuple(scalar(a) for a in n.args))
        return Cast(n.dtype, scalar(n.arg)) if isinstance(n, Cast) else n

    stages = tuple(
        replace(s, output=tensor(s.output), store=pick(s.name, s.store), body=scalar(s.body)) for s in expr.stages
    )
    return _assemble_unchecked(expr, tuple(tensor(t) for t in expr.inputs), stages)


def _assemble_unchecked(expr: TensorExpr, inputs: tuple[Tensor, ...], stages: tuple[Stage, ...]) -> TensorExpr:
    """Assemble an expression without its checks: intermediate states of a rewrite are not valid yet."""
    shell = object.__new__(TensorExpr)
    for key, value in (
        ("name", expr.name), ("inputs", inputs), ("stages", stages), ("outputs", expr.outputs),
        ("allow_padding", expr.allow_padding), ("propagate_nan", expr.propagate_nan), ("_memo", {}),
    ):  # fmt: skip
        object.__setattr__(shell, key, value)
    return shell


def _neighbouring_axis_pairs(expr: TensorExpr) -> list[tuple[Axis, Axis]]:
    out: dict[tuple[str, str], tuple[Axis, Axis]] = {}
    for s in expr.stages:
        for a, b in zip(s.axes, s.axes[1:], strict=False):
            if a.kind == b.kind:
                out.setdefault((a.name, b.name), (a, b))
    return list(out.values())


def _accesses_of_stage(s: Stage) -> list[tuple[str, tuple[Index, ...], tuple[Bound, ...]]]:
    return [(s.name, s.store, ()), *((ld.tensor, ld.index, ld.guard) for ld in s.loads)]


def _can_fuse_axes(expr: TensorExpr, a: Axis, b: Axis) -> bool:
    from roller.expr.scalar import walk_scalar_tree

    pair = {a.name, b.name}
    for s in expr.stages:
        mine = [x for x in s.axes if x.name in pair]
        if not mine:
            continue
        if len(mine) != 2 or mine[0].name != a.name or mine[0].kind != mine[1].kind:
            return False
        if s.axes.index(mine[1]) != s.axes.index(mine[0]) + 1:
            return False
        for n in walk_scalar_tree(s.body):
            if isinstance(n, IndexValue) and pair & set(n.index.axes):
                return False
        for name, index, guard in _accesses_of_stage(s):
            if any(pair & set(g.index.axes) for g in guard) or not _indexes_adjacent_dims(expr, name, index, a, b):
                return False
    return True


def _indexes_adjacent_dims(expr: TensorExpr, tensor: str, index: tuple[Index, ...], a: Axis, b: Axis) -> bool:
    pair = {a.name, b.name}
    where = [d for d, i in enumerate(index) if pair & set(i.axes)]
    if not where:
        return True
    shape = expr.tensors[tensor].shape
    return (
        len(where) == 2
        and where[1] == where[0] + 1
        and index[where[0]].is_axis(a.name)
        and index[where[1]].is_axis(b.name)
        and shape[where[0]] == a.extent
        and shape[where[1]] == b.extent
    )


@dataclass(frozen=True)
class _AxisFusion:
    """Pairs of axes that merge together, and the position of the first of the two merging dimensions in each tensor."""

    pairs: tuple[tuple[Axis, Axis], ...]
    dims: dict[str, int]


def _find_axis_fusion(expr: TensorExpr, pair: tuple[Axis, Axis]) -> _AxisFusion | None:
    """Return the axis pairs that must merge together with ``pair``, or ``None`` if one of them cannot."""
    # A tensor has one shape in all stages. If another stage indexes the same two dimensions by other axes (a sum over
    # ``k1 k2`` that is subtracted from the points ``d1 d2``), both pairs must merge.
    pairs, dims = [pair], dict[str, int]()
    for first, second in pairs:
        if not _can_fuse_axes(expr, first, second):
            return None
        for s in expr.stages:
            for name, index, _ in _accesses_of_stage(s):
                at = next((d for d, i in enumerate(index) if i.is_axis(first.name)), None)
                if at is not None and dims.setdefault(name, at) != at:
                    return None
        for s in expr.stages:
            others = _axis_pairs_of_dims(s, dims)
            if others is None:
                return None
            pairs += [p for p in others if p not in pairs]
    names = [a.name for p in pairs for a in p]
    return _AxisFusion(tuple(pairs), dims) if len(set(names)) == len(names) else None


def _axis_pairs_of_dims(s: Stage, dims: dict[str, int]) -> list[tuple[Axis, Axis]] | None:
    """Return the axis pairs that index the merging dimensions in a stage, or ``None`` if a pair is missing."""
    by_name = {a.name: a for a in s.axes}
    out = []
    for name, index, guard in _accesses_of_stage(s):
        at = dims.get(name)
        if at is None or (index[at] == index[at + 1] == Index() and not guard):
            continue
        one, two = index[at].axes, index[at + 1].axes
        if len(one) != 1 or len(two) != 1 or not (index[at].is_axis(one[0]) and index[at + 1].is_axis(two[0])):
            return None
        out.append((by_name[one[0]], by_name[two[0]]))
    return out


def _apply_axis_fusion(expr: TensorExpr, fusion: _AxisFusion) -> TensorExpr:
    fused, taken = dict[str, Axis](), axis_names(expr)
    for a, b in fusion.pairs:
        fused[a.name] = Axis(unique_axis_name(f"{a.name}*{b.name}", taken), a.extent * b.extent, a.kind)
        taken.add(fused[a.name].name)
    gone = {b.name for _, b in fusion.pairs}
    dims: dict[str, list[list[int]]] = {}
    for name, t in expr.tensors.items():
        at, rank = fusion.dims.get(name, -2), len(t.shape)
        dims[name] = [[d, d + 1] if d == at else [d] for d in range(rank) if d != at + 1]

    def rename(i: Index) -> Index:
        axis = i.axes[0] if len(i.terms) == 1 else ""
        return Index((Term(fused[axis].name),)) if axis in fused and i.is_axis(axis) else i

    stages = tuple(
        replace(
            s,
            axes=tuple(fused.get(x.name, x) for x in s.axes if x.name not in gone),
            store=tuple(rename(i) for i in s.store),
            body=map_indices(s.body, rename),
        )
        for s in expr.stages
    )
    # The merged dimension keeps the index of the outer axis, which `rename` has already replaced.
    return _merge_tensor_dims(_assemble_unchecked(expr, expr.inputs, stages), dims)


def merge_axes(expr: TensorExpr, axes: tuple[Axis, ...]) -> TensorExpr | None:
    """Replace ``axes`` by one axis with quasi-affine indices, or return ``None`` if an index does not allow it."""
    name = unique_axis_name("*".join(a.name for a in axes), axis_names(expr))
    run = unique_axis_name(f"run:{name}", axis_names(expr))  # temporarily marks a merged run of dimensions
    total = 1
    parts: dict[str, Term] = {}
    for a in reversed(axes):
        parts[a.name] = Term(name, 1, total, a.extent)
        total *= a.extent
    outer = parts[axes[0].name]
    parts[axes[0].name] = replace(outer, mod=0)  # the outermost part needs no remainder
    grouped = Axis(name, total, axes[0].kind)

    expr = _merge_whole_runs(expr, axes, run)
    refused = []  # dividing an inner axis of extent 5 by 2 does not yield a digit of the whole

    def term(t: Term) -> Term:
        found = term_of_merged_axis(parts[t.axis], t) if t.axis in parts else t
        refused.extend([t] if found is None else [])
        return found or t

    def index(i: Index) -> Index:
        if i.is_axis(run):
            return Index((Term(name),))
        return Index(tuple(term(t) for t in i.terms), i.const)

    def stage(s: Stage) -> Stage:
        if not any(a.name in parts for a in s.axes):
            return s
        rest = [a for a in s.axes if a.name not in parts]
        at = len([a for a in rest if a.kind == SPATIAL]) if grouped.kind == SPATIAL else len(rest)
        new = (*rest[:at], grouped, *rest[at:])
        return replace(s, axes=new, store=tuple(index(i) for i in s.store), body=map_indices(s.body, index))

    stages = tuple(stage(s) for s in expr.stages)
    return None if refused else replace(expr, stages=stages)


def _merge_whole_runs(expr: TensorExpr, axes: tuple[Axis, ...], run: str) -> TensorExpr:
    """Merge the tensor dimensions indexed everywhere by exactly ``axes`` in order; ``run`` becomes their index."""
    # These dimensions hold the grouped axis contiguously, so their access stays affine: the weights of a grouped
    # convolution are read as ``W[f, c*kh*kw]``, without divisions.
    names = tuple(a.name for a in axes)
    tensors = expr.tensors
    starts: dict[str, int | None] = {}
    for s in expr.stages:
        for tensor, index, guard in _accesses_of_stage(s):
            at = _first_dim_of_run(tensors[tensor], index, axes)
            if any(set(b.index.axes) & set(names) for b in guard):
                at = None
            starts[tensor] = at if starts.get(tensor, at) == at else None
    merged = {t: at for t, at in starts.items() if at is not None}
    if not merged:
        return expr
    marker = Index((Term(run),))
    dims = {}
    for n, t in tensors.items():
        rank, at = len(t.shape), merged.get(n)
        dims[n] = [[d] for d in range(rank)]
        if at is not None:
            end = at + len(axes)
            dims[n] = [*([d] for d in range(at)), list(range(at, end)), *([d] for d in range(end, rank))]

    def mark(tensor: str, index: tuple[Index, ...]) -> tuple[Index, ...]:
        at = merged.get(tensor)
        return index if at is None else (*index[:at], marker, *index[at + 1 :])

    def leaf(n: Scalar) -> Scalar:
        return replace(n, index=mark(n.tensor, n.index)) if isinstance(n, Load) else n

    stages = tuple(replace(s, store=mark(s.name, s.store), body=transform_scalar(s.body, leaf)) for s in expr.stages)
    return _merge_tensor_dims(_assemble_unchecked(expr, expr.inputs, stages), dims)


def _first_dim_of_run(tensor: Tensor, index: tuple[Index, ...], axes: tuple[Axis, ...]) -> int | None:
    """Return the first of the dimensions that exactly ``axes`` index in order, or ``None`` if there are none."""
    for at in range(len(index) - len(axes) + 1):
        run = zip(axes, index[at:], tensor.shape[at:], strict=False)
        if all(i.is_axis(a.name) and n == a.extent for a, i, n in run):
            return at
    return None
