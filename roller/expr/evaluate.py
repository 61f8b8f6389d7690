"""The float64 reference evaluation of an expression, at all points or at a sample of them.

A stage is computed at a set of output points over its whole reduction domain, and a load of an intermediate tensor
evaluates that tensor at the points that it reads, so the cost of a sample does not depend on the size of the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from roller.errors import ExprError, counted
from roller.expr.combiners import COMBINERS
from roller.expr.rounded_enclosures import dtype_of_call
from roller.expr.scalar import FUNCTIONS, Bound, Cast, Const, IndexValue, Load, Scalar, loads
from roller.expr.tensor_expr import Stage, TensorExpr
from roller_runtime.core.dtypes import is_float, round_to_dtype

#: Maximum number of points times reduction elements evaluated at once; limits memory to about 100 MB per live
#: temporary.
CHUNK = 1 << 21

#: Integer functions whose result may overflow the dtype in which they are computed.
_GROWING = frozenset(("add", "sub", "mul", "neg", "abs", "shl", "idiv"))


def evaluate(
    expr: TensorExpr, arrays: Sequence[np.ndarray], points: np.ndarray | None = None, *, magnitude: bool = False
) -> tuple[np.ndarray, ...]:
    """Compute the outputs of ``expr`` in float64; integer operations wrap in their dtype, and sums in ``acc_dtype``.

    Examples
    --------
    >>> import numpy as np, roller
    >>> e = roller.ops.matmul(2, 2, 3)
    >>> a, b = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    >>> float(e.evaluate([a, b])[0][1, 1])
    3.0
    """
    # Floats stored as integers are truncated as in C; beyond the integer range the result is undefined.
    if len(arrays) != len(expr.inputs):
        raise ExprError(f"{expr.name}: expected {counted(len(expr.inputs), 'array')}, got {len(arrays)}.")
    for t, a in zip(expr.inputs, arrays, strict=True):
        if tuple(a.shape) != t.shape:
            raise ExprError(f"{expr.name}: input '{t.name}': expected shape {t.shape}, got {tuple(a.shape)}.")
    values = {t.name: np.asarray(a) for t, a in zip(expr.inputs, arrays, strict=True)}
    run = _Evaluation(expr, values, magnitude)
    if points is not None:
        where = np.asarray(points, dtype=np.int64)
        return tuple(run.at(name, where) for name in expr.outputs)
    for s in expr.stages:
        values[s.name] = run.whole(s)
    return tuple(values[name] for name in expr.outputs)


def evaluate_reduction_terms(
    expr: TensorExpr, values: Mapping[str, Any], stage: Stage, at: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Return the terms that a stage reduces, at the given positions of all its axes."""
    found = _Evaluation(expr, dict(values), False)._scalar(stage.body, at)
    return np.broadcast_to(found, next(iter(at.values())).shape)


class _Evaluation:
    """One evaluation: the tensors known so far, and the recursion over stages."""

    def __init__(self, expr: TensorExpr, values: dict[str, np.ndarray], magnitude: bool) -> None:
        self.values = values
        self.magnitude = magnitude
        self.stages = {s.name: s for s in expr.stages}
        self.tensors = expr.tensors

    def whole(self, s: Stage) -> np.ndarray:
        """Return all elements of the stage's output."""
        shape = s.output.shape
        grid = np.indices(shape, dtype=np.int64).reshape(len(shape), -1).T if shape else np.zeros((1, 0), np.int64)
        return self._evaluate_stage_at(s, grid).reshape(shape)

    def at(self, tensor: str, points: np.ndarray) -> np.ndarray:
        """Return the elements of ``tensor`` at ``points``, shape ``(P, rank)``."""
        known = self.values.get(tensor)
        if known is not None:
            return known[tuple(points.T)] if points.shape[1] else np.broadcast_to(known, (len(points),))
        shape = self.tensors[tensor].shape
        if not shape:
            return np.broadcast_to(self._evaluate_stage_at(self.stages[tensor], points[:1]), (len(points),))
        flat = np.ravel_multi_index(tuple(points.T), shape)
        unique, inverse = np.unique(flat, return_inverse=True)
        coords = np.stack(np.unravel_index(unique, shape), axis=1)
        return self._evaluate_stage_at(self.stages[tensor], coords)[inverse]

    def _evaluate_stage_at(self, s: Stage, points: np.ndarray) -> np.ndarray:
        env = axis_values_at_outputs(s, points)
        extents = [a.extent for a in s.reduction_axes]
        width = int(np.prod(extents, dtype=np.int64)) if extents else 1
        step = max(1, CHUNK // width)
        parts = [
            self._evaluate_chunk(s, {k: v[i : i + step] for k, v in env.items()}, min(step, len(points) - i), extents)
            for i in range(0, len(points), step)
        ]
        out = np.concatenate(parts) if parts else np.zeros(0)
        return out if self.magnitude else convert_values(out, s.output.dtype)

    def _evaluate_chunk(self, s: Stage, env: dict[str, np.ndarray], rows: int, extents: list[int]) -> np.ndarray:
        if s.combiner is None:
            out = np.broadcast_to(self._scalar(s.body, env), (rows,))
            return np.abs(out) if self.magnitude else out
        grid = np.indices(extents, dtype=np.int64).reshape(len(extents), -1)
        wide = {k: v[:, None] for k, v in env.items()}
        combine = COMBINERS["sum" if self.magnitude else s.combiner].step
        total: Any = None
        step = max(1, CHUNK // max(1, rows))
        for i in range(0, grid.shape[1], step):  # a very long reduction is evaluated in pieces
            wide.update({a.name: g[None, i : i + step] for a, g in zip(s.reduction_axes, grid, strict=True)})
            n = min(step, grid.shape[1] - i)
            body = np.broadcast_to(self._scalar(s.body, wide), (rows, n))
            if not is_float(s.acc_dtype) and not self.magnitude:
                body = convert_values(body, s.acc_dtype)
            part = combine.reduce(np.abs(body) if self.magnitude else body, axis=1)
            total = part if total is None else combine(total, part)
        return np.asarray(total) if self.magnitude else wrap_integers(np.asarray(total), s.acc_dtype)

    def _scalar(self, node: Scalar, env: Mapping[str, np.ndarray]) -> Any:
        return self._evaluate_with_dtype(node, env)[0]

    def _evaluate_with_dtype(self, node: Scalar, env: Mapping[str, np.ndarray]) -> tuple[Any, str]:
        """Return the value of a scalar tree and the dtype in which it is computed."""
        if isinstance(node, Const):
            return constant_in_dtype(node.value, node.dtype), node.dtype
        if isinstance(node, IndexValue):
            return _convert_and_round(np.asarray(node.index(env)), node.dtype), node.dtype
        if isinstance(node, Load):
            return self._load(node, env), self.tensors[node.tensor].dtype
        if isinstance(node, Cast):
            return _convert_and_round(np.asarray(self._scalar(node.arg, env)), node.dtype), node.dtype
        args, kinds = zip(*(self._evaluate_with_dtype(a, env) for a in node.args), strict=True)
        dtype = dtype_of_call(node.fn, kinds)
        if self.magnitude and node.fn in ("add", "sub") and loads(node):  # index arithmetic keeps its signs
            return np.abs(args[0]) + np.abs(args[1]), dtype
        value = FUNCTIONS[node.fn].numpy(*args)
        return (wrap_integers(np.asarray(value), dtype) if node.fn in _GROWING and not self.magnitude else value), dtype

    def _load(self, node: Load, env: Mapping[str, np.ndarray]) -> Any:
        within: Any = True
        for b in node.guard:
            within = within & guard_mask(b, env)
        shape = self.tensors[node.tensor].shape
        index = [np.asarray(i(env)) for i in node.index]
        index = [np.clip(i, 0, n - 1) if node.guard else i for i, n in zip(index, shape, strict=True)]
        if not index:
            out: Any = self.at(node.tensor, np.zeros((1, 0), np.int64))[0]
        elif node.tensor in self.values:
            out = self.values[node.tensor][tuple(index)]
        else:
            full = np.broadcast_arrays(*index)
            out = self.at(node.tensor, np.stack([i.ravel() for i in full], axis=1)).reshape(full[0].shape)
        out = out.astype(np.int64) if np.issubdtype(out.dtype, np.integer) else out.astype(np.float64)
        return (
            np.where(within, out, constant_in_dtype(node.outside, self.tensors[node.tensor].dtype))
            if node.guard
            else out
        )


def constant_in_dtype(value: float, dtype: str) -> Any:
    """Return a constant in the dtype in which it is evaluated, float64 or int64; integers saturate to ``dtype``.

    Examples
    --------
    >>> (int(constant_in_dtype(float("-inf"), "int8")), int(constant_in_dtype(300, "uint8")),
    ...  float(constant_in_dtype(1, "float32")))
    (-128, 255, 1.0)
    """
    if is_float(dtype):
        return np.float64(value)
    if dtype == "bool":
        return np.int64(value not in (0.0, float("-inf")))
    info = np.iinfo(dtype)
    return np.int64(info.min if value <= info.min else info.max if value >= info.max else int(value))


def convert_values(value: np.ndarray, dtype: str) -> np.ndarray:
    """Convert values to ``dtype`` as C does; floats are not rounded.

    Examples
    --------
    >>> [convert_values(np.array([-1.75, 0.5]), dtype).tolist() for dtype in ("int8", "bool", "float32")]
    [[-1, 0], [1, 1], [-1.75, 0.5]]
    """
    if is_float(dtype):
        return value.astype(np.float64)
    if dtype == "bool":
        return np.asarray(value != 0).astype(np.int64)
    if value.dtype == np.int64:
        return wrap_integers(value, dtype)
    with np.errstate(invalid="ignore"):  # beyond the range the result is undefined
        return wrap_integers(value.astype(np.int64), dtype)


def _convert_and_round(value: np.ndarray, dtype: str) -> Any:
    """Convert values to ``dtype``: integers wrap, and floats are rounded, as later nodes may depend on rounding."""
    made = convert_values(value, dtype)
    return round_to_dtype(made, dtype) if is_float(dtype) else made


def wrap_integers(value: np.ndarray, dtype: str) -> np.ndarray:
    """Wrap integers to the range of ``dtype``."""
    narrow = "int" in dtype and dtype != "int64" and np.issubdtype(value.dtype, np.integer)
    return value.astype(dtype).astype(np.int64) if narrow else value


def guard_mask(b: Bound, env: Mapping[str, np.ndarray]) -> Any:
    """Return the mask of positions where a guard holds."""
    value = b.index(env)
    return (value >= b.low) & (value < b.high)


def axis_values_at_outputs(s: Stage, points: np.ndarray) -> dict[str, np.ndarray]:
    """Invert the store map of a stage: return its axis values at output points."""
    # A grouped axis sums ``index * div``; axes that share a dimension (``16 * block + inner``) are its digits, most
    # significant first.
    env = {a.name: np.zeros(len(points), np.int64) for a in s.spatial_axes}
    for d, index in enumerate(s.store):
        left = points[:, d] - index.const
        for t in sorted(index.terms, key=lambda t: -t.coef):
            if not t.is_affine:
                env[t.axis] = env[t.axis] + left * t.div
                continue
            env[t.axis] = left // t.coef
            left = left % t.coef
    return env


def neutral_value_of_combiner(combiner: str) -> float:
    """Return the neutral value of a combiner, with which padding may be filled."""
    return COMBINERS[combiner].neutral
