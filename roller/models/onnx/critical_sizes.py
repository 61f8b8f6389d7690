"""Finds the sizes at which values that a model computes from sizes are not what they are at the sample sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from roller.compiler.dynamic.dynamic_size_box import SizeBox, Sizes
from roller.core.formula_fitting import FormulaFitter
from roller.models.onnx.evaluate_constants import Evaluator
from roller.models.onnx.folded_nodes import MAX_RESULT, FoldedNode
from roller_runtime.plan.program_steps import Value

#: Maximum number of sizes at which values are evaluated, of elements per evaluation, and of sizes at which nodes are
#: evaluated one by one; number of samples from which the other sizes are taken.
_MAX_SIZES, _MAX_ELEMENTS, _MAX_SINGLE, _OTHERS = 1 << 16, 1 << 16, 1 << 10, 3


def find_critical_sizes(
    box: SizeBox, points: Sequence[Sizes], samples: Sequence[Mapping[str, FoldedNode]]
) -> tuple[list[list[dict[str, int]]], list[str]]:
    """Return classes of sizes at which small folded values differ from their formulas, and nodes without formulas."""
    # Dimensions are formulas of the sizes. What nodes compute from them is evaluated by these nodes, for all sizes at
    # once, and compared with the formulas that fit the samples. No list of deciding operators is needed: a comparison,
    # minimum, remainder or look-up is what makes a result differ. Values of several positions are not evaluated; the
    # check of constants compares them with the largest.
    if not any(node.reads_dimensions for node in samples[0].values()):
        return [], []
    swept = _swept_sizes(box, points, samples[0].values())
    at = {n: np.array([p[n] for p in (*swept, *points)], np.int64) for n in box.ends}
    for name, formula in box.derived.items():
        at[name] = formula.of_many(at)
    fitter = FormulaFitter(points)
    columns: dict[str, np.ndarray | None] = {}  # of values that depend on sizes; None: not known at all sizes
    known: dict[object, tuple[list[np.ndarray | None], bool]] = {}
    off: list[np.ndarray] = []
    unknown = []
    for key, node in samples[0].items():
        reads = [n for n, _ in node.inputs if n in columns]
        if not reads and not node.reads_dimensions:
            continue
        results = [_stacked([dict(s[key].outputs).get(n) if key in s else None for s in samples])
                   for n, _ in node.outputs]  # fmt: skip
        inputs = [columns.get(n, a) for n, a in node.inputs]
        alike = _identity(node, inputs, columns, results)
        if alike not in known:  # repeated layers compute the same lengths
            fits = [[] if r is None else _fitted_columns(r, fitter, at) for r in results]
            whole = not node.reads_dimensions and all(
                a is not None or not n for a, (n, _) in zip(inputs, node.inputs, strict=True)
            )
            made = _evaluate(node, inputs, [n in columns for n, _ in node.inputs], results) if whole else None
            if made is not None:
                off += [c for m, r, f in zip(made, results, fits, strict=True) if m is not None and r is not None
                        for c in _differences(m, f, len(swept))]  # fmt: skip
            known[alike] = (made or [None if r is None else _joined(f, r) for f, r in zip(fits, results, strict=True)],
                            made is None and not node.reads_dimensions)  # fmt: skip
        found, doubtful = known[alike]
        if doubtful and any(r is not None for r in results):
            unknown.append(key)
        for (name, _), column in zip(node.outputs, found, strict=True):
            if column is None or not (column == column[0]).all():
                columns[name] = column
    return _classes(swept, off), unknown


def _swept_sizes(box: SizeBox, points: Sequence[Sizes], nodes: Iterable[FoldedNode]) -> list[dict[str, int]]:
    """Return all sizes of the box or, if it is large, many of each size with the others at a few samples."""
    # Of a long range, these are its smallest sizes, others evenly spaced, and those next to small integers in the
    # model; a decision at another single size is missed.
    ranges = {n: range(low, high + 1) for n, (low, high) in box.ends.items()}
    if math.prod(map(len, ranges.values())) <= _MAX_SIZES:
        return [dict(zip(ranges, p, strict=True)) for p in itertools.product(*ranges.values())]
    literals = {int(x) + d for node in nodes for _, a in node.inputs if a is not None and a.dtype.kind in "iu"
                and a.size <= MAX_RESULT for x in a.reshape(-1) for d in (-1, 0, 1)}  # fmt: skip
    others = [{n: p[n] for n in ranges} for p in (box.low, box.high, *points[:_OTHERS])] if len(ranges) > 1 else [{}]
    most = _MAX_SIZES // len(others) // len(ranges) // 2
    each = {
        n: sorted({*r[:most], *r[:: -(-len(r) // most)], *itertools.islice((x for x in literals if x in r), most)})
        for n, r in ranges.items()
    }
    return [{**other, n: x} for n, several in each.items() for other in others for x in several]


def _stacked(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Return a value's arrays at the samples as one; ``None`` if they are large or differ in shape."""
    several = [a for a in arrays if a is not None]
    same = len(several) == len(arrays) and len({(a.shape, a.dtype) for a in several}) == 1
    return np.stack(several) if same else None


def _identity(
    node: FoldedNode, inputs: Sequence[np.ndarray | None], columns: Mapping[str, object],
    results: Sequence[np.ndarray | None],
) -> object:  # fmt: skip
    """Return a key that is equal for nodes that compute the same from the same; columns are compared by identity."""
    read: list[object] = [None if a is None else id(a) if n in columns else (a.dtype.str, a.shape, a.tobytes())
                          for a, (n, _) in zip(inputs, node.inputs, strict=True)]  # fmt: skip
    made = [None if r is None else (r.dtype.str, r.shape, r.tobytes()) for r in results]
    attributes = sorted(a.SerializeToString() for a in node.proto.attribute)
    return node.proto.op_type, node.proto.domain, tuple(attributes), tuple(read), tuple(made)


def _fitted_columns(result: np.ndarray, fitter: FormulaFitter, at: Mapping[str, np.ndarray]) -> list[np.ndarray | None]:
    """Return the values of each element's formula at all sizes, ``None`` where no formula fits."""
    found: list[np.ndarray | None] = []
    for element in result.reshape(len(result), -1).T:
        if (element == element[0]).all() or (element != element).all():
            found.append(np.full(len(next(iter(at.values()))), element[0]))
            continue
        whole = np.isfinite(element).all() and (element == np.round(element)).all() if element.dtype != bool else False
        formula = fitter.fit([int(x) for x in element]) if whole else None
        found.append(None if formula is None else formula.of_many(at).astype(element.dtype))
    return found


def _joined(fits: Sequence[np.ndarray | None], result: np.ndarray) -> np.ndarray | None:
    """Return the columns of a value's elements as one array."""
    several = [f for f in fits if f is not None]
    if len(several) < len(fits) or not several:
        return None
    return np.stack(several, axis=1).reshape(-1, *result.shape[1:]).astype(result.dtype)


def _differences(made: np.ndarray, fits: Sequence[np.ndarray | None], count: int) -> list[np.ndarray]:
    """Return for each element a code per size: 0 where it is as its formula gives; other real numbers get own codes."""
    found = []
    for column, fit in zip(made.reshape(len(made), -1).T, fits, strict=True):
        if fit is None:
            continue  # a program cannot contain it; what decisions make of it is evaluated
        near = np.isclose(column, fit, rtol=1e-6, atol=0, equal_nan=True) if column.dtype.kind == "f" else column == fit
        codes = np.where(near, 0, 1)[:count]
        if column.dtype.kind == "f":
            codes *= 1 + np.unique(column[:count], return_inverse=True)[1]
        if codes.any():
            found.append(codes)
    return found


def _classes(swept: Sequence[dict[str, int]], off: Sequence[np.ndarray]) -> list[list[dict[str, int]]]:
    """Return the sizes at which any value is off its formula, grouped by the values that are."""
    found: dict[tuple[int, ...], list[dict[str, int]]] = {}
    if off:
        codes = np.stack(off, axis=1)
        for row in np.flatnonzero(codes.any(axis=1)).tolist():
            found.setdefault(tuple(codes[row].tolist()), []).append(swept[row])
    return list(found.values())


def _evaluate(
    node: FoldedNode, inputs: Sequence[np.ndarray | None], varies: Sequence[bool], results: Sequence[np.ndarray | None]
) -> list[np.ndarray | None] | None:
    """Return a node's outputs at all sizes, or ``None`` if they cannot be computed or differ from the samples."""
    total = next(len(a) for a, v in zip(inputs, varies, strict=True) if v and a is not None)
    rank = max(a.ndim - v for a, v in zip(inputs, varies, strict=True) if a is not None)

    def first(a: np.ndarray, v: bool) -> np.ndarray:  # sizes as the first axis: elementwise operators
        return a.reshape(len(a), *(1,) * (rank + 1 - a.ndim), *a.shape[1:]) if v else a

    def last(a: np.ndarray, v: bool) -> np.ndarray:  # sizes as the last axis: selections from the first one
        return np.ascontiguousarray(np.moveaxis(a, 0, -1)) if v else a

    def joined(a: np.ndarray, v: bool) -> np.ndarray:  # the same for constants: concatenations
        return last(a, v) if v else np.repeat(a[..., None], count, axis=-1)

    def single(a: np.ndarray, v: bool) -> np.ndarray:
        return a[0] if v else a

    # Which of these is right for an operator is decided by the samples, which follow the sizes.
    for way in (first, last, joined, single):
        if way is single and total > _MAX_SINGLE:
            return None
        sizes = sum(math.prod(a.shape[1:]) for a, v in zip(inputs, varies, strict=True) if v and a is not None)
        step = 1 if way is single else max(1, _MAX_ELEMENTS // max(1, sizes))
        parts: list[list[np.ndarray]] = []
        for start in range(0, total, step):
            count = min(step, total - start)
            cut = [a[start : start + count] if v and a is not None else a for a, v in zip(inputs, varies, strict=True)]
            given = [None if a is None else way(a, v) for a, v in zip(cut, varies, strict=True)]
            axes = [() if r is None else r.shape[1:] for r in results]
            shapes = [x if way is single else (count, *x) if way is first else (*x, count) for x in axes]
            types = [None if r is None else Value("", shape, r.dtype.name)
                     for r, shape in zip(results, shapes, strict=True)]  # fmt: skip
            made = Evaluator(node.opsets)(node.proto, node.attributes, given, types)
            if made is None:
                break
            parts.append([m[None] if way is single else m if way is first else np.moveaxis(m, -1, 0) for m in made])
        else:
            whole = [
                None if r is None else np.concatenate(p) for r, p in zip(results, zip(*parts, strict=True), strict=True)
            ]
            if all(
                _equal(w[-len(r) :], r) for w, r in zip(whole, results, strict=True) if w is not None and r is not None
            ):
                return whole
    return None


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape:
        return False
    return (
        np.allclose(one, other, rtol=1e-6, atol=0, equal_nan=True)
        if one.dtype.kind == "f"
        else np.array_equal(one, other)
    )
