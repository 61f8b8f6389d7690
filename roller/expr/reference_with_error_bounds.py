"""The float64 reference with bounds on correct results, from a running error analysis by stage (docs/design/check.md).

Every node carries its exact value and the bounds on a correct kernel's value (:mod:`roller.expr.rounded_enclosures`,
:mod:`roller.expr.interval_rules`); reductions add the bound for their order of summation (:class:`_ReductionBounds`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from roller.expr.combiners import COMBINERS
from roller.expr.evaluate import CHUNK, axis_values_at_outputs, constant_in_dtype, guard_mask, wrap_integers
from roller.expr.interval_rules import enclose_call, enclosure_of_ends, reduce_extremum
from roller.expr.rounded_enclosures import (
    EPS,
    FLUSHED,
    NARROW,
    NORMAL,
    EnclosedValues,
    as_reference_dtype,
    computation_dtype,
    convert_to_narrow_float,
    enclosure_with_nan,
    integers_represent,
    round_enclosure,
)
from roller.expr.scalar import Call, Cast, Const, IndexValue, Load, Scalar, walk_scalar_tree
from roller.expr.sum_rounding_properties import (
    count_equal_pairs,
    distinct_elements_read,
    power_of_two_to_integers,
    sums_input_products,
)
from roller.expr.tensor_expr import Stage, TensorExpr
from roller_runtime.core.dtypes import is_float, round_to_dtype

#: Product of the number of terms and ``eps`` above which terms may vanish when they are added to their sum.
_VANISHING = 1.0 / 8.0
#: Number of elements of intermediate tensors to cache for stages that read the same elements.
_KEPT = 1 << 22

Env = dict[str, np.ndarray]


class ReferenceWithBounds:
    """Values of one expression's tensors at given points, with bounds on the values that a correct kernel may compute.

    ``values`` are the inputs by name: arrays, or objects that can be indexed by index arrays. ``reordered`` says
    whether kernels only reorder the terms of a sum; Winograd's algorithm, in contrast, adds different terms.

    Examples
    --------
    >>> import roller
    >>> e = roller.ops.elementwise("add", (2,))
    >>> inputs = {t.name: np.array(v, "f") for t, v in zip(e.inputs, ([1, 0.1], [1, 0.2]))}
    >>> x = ReferenceWithBounds(e, inputs).at("Y", np.array([[0], [1]]))
    >>> (x.high - x.low).tolist()[0], bool(0 < (x.high - x.low)[1] < 2**-24)
    (0.0, True)
    """

    def __init__(self, expr: TensorExpr, values: Mapping[str, Any], *, reordered: bool = True) -> None:
        self.expr, self.values, self.reordered = expr, values, reordered
        self.stages = {s.name: s for s in expr.stages}
        self.dtypes = {name: t.dtype for name, t in expr.tensors.items()}
        self._known: dict[tuple[str, bytes], EnclosedValues] = {}

    def at(self, tensor: str, points: np.ndarray) -> EnclosedValues:
        """Return the elements of ``tensor`` at ``points``, shape ``(P, rank)``."""
        known = self.values.get(tensor)
        if known is not None:
            found = known[tuple(points.T)] if points.shape[1] else np.broadcast_to(known, (len(points),))
            return EnclosedValues.point(as_reference_dtype(found))
        shape = self.expr.tensors[tensor].shape
        if not shape:
            return self._evaluate_cached(tensor, points[:1]).map(lambda a: np.broadcast_to(a, (len(points),)))
        flat = np.ravel_multi_index(tuple(points.T), shape)
        unique, inverse = np.unique(flat, return_inverse=True)
        found = self._evaluate_cached(tensor, np.stack(np.unravel_index(unique, shape), axis=1))
        return found.map(lambda a: a[inverse])

    def _evaluate_cached(self, tensor: str, points: np.ndarray) -> EnclosedValues:
        """Return elements at distinct points, cached because stages in a chain read the same elements."""
        key = (tensor, points.tobytes())
        if key not in self._known:
            if sum(len(k[1]) for k in self._known) > 8 * _KEPT:
                self._known.clear()
            self._known[key] = self._stage(self.stages[tensor], points)
        return self._known[key]

    def _stage(self, s: Stage, points: np.ndarray) -> EnclosedValues:
        env = axis_values_at_outputs(s, points)
        extents = [a.extent for a in s.reduction_axes]
        step = max(1, CHUNK // max(1, math.prod(extents)))
        parts = [
            self._stored(s, self._rows(s, {k: v[i : i + step] for k, v in env.items()}, min(step, len(points) - i)))
            for i in range(0, len(points), step)
        ]
        if len(parts) == 1:
            return parts[0]
        if all(p.is_point for p in parts):
            return EnclosedValues.point(np.concatenate([p.value for p in parts]))
        return EnclosedValues(*(np.concatenate([getattr(p, end) for p in parts]) for end in ("value", "low", "high")))

    def _stored(self, s: Stage, e: EnclosedValues) -> EnclosedValues:
        """Return the bounds on a stage's result after its conversion to the dtype of its output."""
        dtype = s.output.dtype
        if is_float(dtype):
            return _round_bounds_to(e, dtype)
        return convert_bounds(e, s.acc_dtype if s.combiner else computation_dtype(s.body, self.dtypes), dtype)

    def _rows(self, s: Stage, env: Env, rows: int) -> EnclosedValues:
        if s.combiner is None:
            return self.scalar(s.body, env, {}).map(lambda a: np.broadcast_to(a, (rows,)))
        extents = [a.extent for a in s.reduction_axes]
        grid = np.indices(extents, dtype=np.int64).reshape(len(extents), -1)
        wide = {k: v[:, None] for k, v in env.items()}
        eps_of_terms = EPS.get(computation_dtype(s.body, self.dtypes), 0.0)
        total = _ReductionBounds(
            s, self._relative_sum_rounding(s), eps_of_terms, self.expr.propagate_nan, exact=self.reordered
        )
        step = max(1, CHUNK // max(1, rows))
        for i in range(0, grid.shape[1], step):  # a single very long reduction is processed in pieces
            wide.update({a.name: g[None, i : i + step] for a, g in zip(s.reduction_axes, grid, strict=True)})
            shape = (rows, min(step, grid.shape[1] - i))
            if self._is_sum_of_input_products(s):
                body = EnclosedValues.point(self._product(s.body, wide))
            else:
                body = self._bounds_of_arg_extremum(s, wide) or self.scalar(s.body, wide, {})
            if not is_float(s.acc_dtype):
                body = convert_bounds(body, computation_dtype(s.body, self.dtypes), s.acc_dtype)
            total.add(body.map(lambda a, shape=shape: np.broadcast_to(a, shape)))
        return total.result()

    def _relative_sum_rounding(self, s: Stage) -> tuple[float, float]:
        """Return the usual and the worst relative rounding error of a sum, including the rounding of its products."""
        # Roundings of different terms have random directions, unless terms vanish (`_ReductionBounds.vanishing`).
        # Repeated terms round alike: along an axis that reads no other element, only the distinct terms count under the
        # square root.
        eps = EPS.get(s.acc_dtype, 0.0)
        terms = math.prod(a.extent for a in s.reduction_axes)
        distinct = math.prod(distinct_elements_read(s, a.name, a.extent) for a in s.reduction_axes)
        worst = max(float(terms), 4 * math.sqrt(terms))
        vanishing = s.combiner != "sum" and terms * eps > _VANISHING
        sum_ = worst if vanishing else min(worst, 4 * math.sqrt(distinct) * (terms / distinct))
        calls = sum(isinstance(n, Call) for n in walk_scalar_tree(s.body))
        products = calls if self._is_sum_of_input_products(s) else 0
        of_products = products * EPS.get(computation_dtype(s.body, self.dtypes), 0.0)
        return sum_ * eps + of_products, worst * eps + of_products

    def _is_sum_of_input_products(self, s: Stage) -> bool:
        return sums_input_products(s, self.values, self.dtypes)

    def _product(self, node: Scalar, env: Env) -> Any:
        if isinstance(node, Call):
            return self._product(node.args[0], env) * self._product(node.args[1], env)
        return self._product(node.arg, env) if isinstance(node, Cast) else self._load(node, env).value  # type: ignore[arg-type]

    def scalar(self, node: Scalar, env: Env, seen: dict[Scalar, EnclosedValues]) -> EnclosedValues:
        """Evaluate a scalar tree at the axis values of ``env``; equal subtrees are evaluated once."""
        if node not in seen:
            seen[node] = self._scalar(node, env, seen)
        return seen[node]

    def _scalar(self, node: Scalar, env: Env, seen: dict[Scalar, EnclosedValues]) -> EnclosedValues:
        if isinstance(node, Const):
            if not is_float(node.dtype):
                return EnclosedValues.point(constant_in_dtype(node.value, node.dtype))
            return _round_bounds_to(EnclosedValues.point(np.asarray(node.value, np.float64)), node.dtype)
        if isinstance(node, IndexValue):
            return convert_bounds(EnclosedValues.point(np.asarray(node.index(env))), "int64", node.dtype)
        if isinstance(node, Load):
            return self._load(node, env)
        if isinstance(node, Cast):
            return convert_bounds(
                self.scalar(node.arg, env, seen), computation_dtype(node.arg, self.dtypes), node.dtype
            )
        dtype = computation_dtype(node, self.dtypes)
        args = [self.scalar(a, env, seen) for a in node.args]
        if is_float(dtype) and node.fn != "select":
            kinds = [computation_dtype(a, self.dtypes) for a in node.args]
            args = [a if is_float(k) else _round_bounds_to(a, dtype) for a, k in zip(args, kinds, strict=True)]
        return enclose_call(node.fn, args, dtype, propagate_nan=self.expr.propagate_nan)

    def _load(self, node: Load, env: Env) -> EnclosedValues:
        within: Any = True
        for b in node.guard:
            within = within & guard_mask(b, env)
        shape = self.expr.tensors[node.tensor].shape
        index = [np.asarray(i(env)) for i in node.index]
        index = [np.clip(i, 0, n - 1) if node.guard else i for i, n in zip(index, shape, strict=True)]
        if not index:
            out = self.at(node.tensor, np.zeros((1, 0), np.int64)).map(lambda a: a[0])
        elif node.tensor in self.values:
            out = EnclosedValues.point(as_reference_dtype(self.values[node.tensor][tuple(index)]))
        else:
            full = np.broadcast_arrays(*index)
            out = self.at(node.tensor, np.stack([i.ravel() for i in full], axis=1)).map(
                lambda a: a.reshape(full[0].shape)
            )
        outside = constant_in_dtype(node.outside, self.dtypes[node.tensor])
        return out.map(lambda a: np.where(within, a, outside)) if node.guard else out

    def _bounds_of_arg_extremum(self, s: Stage, env: Env) -> EnclosedValues | None:
        """Return bounds on an arg-extremum, or ``None`` if the body is not an arg-extremum."""
        # The form is ``select(x == extremum of all x, position, larger than any position)`` under ``min``. Every value
        # that may equal the extremum may be the hit, and one of them is.
        b = s.body
        if not (s.combiner == "min" and isinstance(b, Call) and b.fn == "select" and isinstance(b.args[2], Const)):
            return None
        hit = b.args[0]
        if not (isinstance(hit, Call) and hit.fn == "eq" and isinstance(hit.args[1], Load)):
            return None
        best = self.stages.get(hit.args[1].tensor)
        if best is None or best.combiner is None or not COMBINERS[best.combiner].selects or best.body != hit.args[0]:
            return None
        if math.prod(a.extent for a in s.reduction_axes) > CHUNK:
            return None  # the reduction is evaluated in pieces, and the hit may be in any of them
        found, position = self.scalar(hit, env, {}), self.scalar(b.args[1], env, {})
        if found.is_point or not position.is_point:
            return None
        value = np.where(np.asarray(found.value).astype(bool), position.value, np.int64(b.args[2].value))
        may = np.asarray(found.high).astype(bool)
        first = np.where(may, position.value, value)
        # One of the possible hits is the hit, so the last of them is the upper bound.
        last = np.max(np.where(may, position.value, -np.inf), axis=-1, keepdims=True)
        x = self.scalar(hit.args[0], env, {})
        nan = np.any(np.isnan(x.value) | x.unknown, axis=-1, keepdims=True)  # NaN equals no value
        last = np.where(np.isfinite(last) & ~nan, last, np.inf)
        return EnclosedValues(value, first, np.broadcast_to(last, first.shape))


class _ReductionBounds:
    """Bounds on one reduction, accumulated piece by piece."""

    def __init__(
        self, s: Stage, rounding: tuple[float, float], eps_of_terms: float, propagate_nan: bool, *, exact: bool
    ) -> None:
        self.combiner, self.dtype, (self.rounding, self.worst) = s.combiner, s.acc_dtype, rounding
        self.propagate_nan = propagate_nan
        self.row = COMBINERS[s.combiner or "sum"]
        self.terms = math.prod(a.extent for a in s.reduction_axes)
        self.eps, self.eps_of_terms = EPS.get(s.acc_dtype, 0.0), eps_of_terms
        self.unit = 0.0 if exact else np.inf  # smallest power of four that makes all terms integers, or infinity
        self.vanishing = s.combiner == "sum" and self.terms * self.eps > _VANISHING
        self.parts: list[EnclosedValues] = []
        self.sizes: list[Any] = []
        self.largest, self.squares, self.reach, self.until, self.equal = 0.0, 0.0, 0.0, 0.0, 0.0

    def add(self, body: EnclosedValues) -> None:
        """Add a piece of the terms, shape ``(rows, terms)``."""
        if self.row.selects:
            self.parts.append(reduce_extremum(self.row.step, body, propagate_nan=self.propagate_nan))
            return
        size = np.abs(body.value) if body.is_point else np.maximum(np.abs(body.low), np.abs(body.high))
        if self.combiner == "sum":
            self.parts.append(body.map(lambda a: np.sum(a, axis=1)))
            self.sizes.append(np.sum(size, axis=1))
            if is_float(self.dtype):
                self._seen(body, size)
            return
        value = self.row.step.reduce(body.value, axis=1)
        exact = not is_float(self.dtype) and body.is_point
        assert exact or self.combiner == "prod", f"no bound is known of {self.combiner}"
        self.parts.append(EnclosedValues.point(value) if exact else self._product(value, body, size))

    def _seen(self, body: EnclosedValues, size: Any) -> None:
        """Record the units and magnitudes of the terms and the range of the partial sums."""
        exact = body.is_point and self.unit < np.inf
        self.unit = max(self.unit, power_of_two_to_integers(body.value)) if exact else np.inf
        self.equal = self.equal + np.sqrt(count_equal_pairs(body.value))  # as though pieces had the same values
        if exact:
            self.largest = np.maximum(self.largest, np.max(size, axis=1))
        if self.vanishing:
            partial = self.until + np.cumsum(body.value, axis=1).T
            self.until = partial[-1]
            self.reach = np.maximum(self.reach, np.max(np.abs(partial), axis=0))
            self.squares = self.squares + np.sum(np.square(size), axis=1)

    def _product(self, value: Any, body: EnclosedValues, size: Any) -> EnclosedValues:
        """Return the bounds on the product ``value`` of a piece's factors, whose largest magnitudes are ``size``."""
        crossing = (body.low < 0) & (body.high > 0)
        nearest = np.where(body.low * body.high <= 0, 0.0, np.minimum(np.abs(body.low), np.abs(body.high)))
        great, small = np.prod(size, axis=1), np.prod(nearest, axis=1)
        negative = np.prod(np.where(body.low + body.high < 0, -1.0, 1.0), axis=1) < 0
        either = np.any(crossing, axis=1)
        low = np.where(either | negative, -great, small)
        high = np.where(either | ~negative, great, -small)
        most, least = np.prod(np.maximum(size, 1.0), axis=1), np.prod(np.minimum(nearest, 1.0), axis=1)
        # Powers of two multiply exactly.
        exact = body.is_point and np.all(np.frexp(size)[0] == 0.5)
        error = np.zeros_like(great) if exact else self.rounding * 2 * great
        if is_float(self.dtype):
            # Products of some of the factors may leave the range of the whole product and lose digits.
            error = error + np.where(least < NORMAL[self.dtype], self.terms * FLUSHED[self.dtype] * most, 0.0)
            error = np.where(np.isfinite(round_to_dtype(most, self.dtype)), error, np.inf)
        out = enclosure_with_nan(value, np.minimum(low, value) - error, np.maximum(high, value) + error)
        sure = ~np.any(False if body.is_point else body.unknown, axis=-1)
        return EnclosedValues(value, np.where(sure, out.low, -np.inf), np.where(sure, out.high, np.inf))

    def result(self) -> EnclosedValues:
        """Return the bounds on the whole reduction."""
        combine = self.row.step
        total = self.parts[0]
        for p in self.parts[1:]:
            if (self.combiner == "prod" or self.row.selects) and not (p.is_point and total.is_point):
                fn = "min" if self.combiner == "min" else "max" if self.row.selects else "mul"
                total = enclose_call(fn, [total, p], self.dtype, propagate_nan=self.propagate_nan)
            else:
                point = p.is_point and total.is_point
                value = combine(total.value, p.value)
                total = EnclosedValues.point(value) if point else EnclosedValues(
                    value, combine(total.low, p.low), combine(total.high, p.high)
                )  # fmt: skip
        if self.combiner == "sum" and is_float(self.dtype):
            return self._add_sum_rounding(total)
        if is_float(self.dtype):
            return _round_bounds_to(total, self.dtype)
        value = wrap_integers(total.value, self.dtype)
        return EnclosedValues.point(value) if total.is_point else bounds_in_integer_range(self.dtype, value, total)

    def _add_sum_rounding(self, total: EnclosedValues) -> EnclosedValues:
        # A sum of K terms b with spacing eps is off by at most 4 eps sqrt(K) sum|b| in any order
        # (docs/design/check.md), because different terms round in different directions. For groups of n equal terms,
        # sqrt(K) becomes sqrt(sum n^2). The bound never exceeds eps K sum|b|, the worst of all orders.
        size = sum(self.sizes)
        alike = 4 * (np.sqrt(self.terms + np.square(self.equal)) - math.sqrt(self.terms)) * self.eps
        error = np.fmin(self.rounding + alike, self.worst) * size
        if self.vanishing:
            # Partial sums of terms with random signs, and their roundings, stay within a few standard deviations;
            # larger partial sums swallow terms, always in the same direction.
            swallowed = self.eps * self.terms * np.fmin(size, 2 * self.reach)
            error = np.where(self.reach <= 4 * np.sqrt(self.squares), error, np.fmax(error, swallowed))
        if self.unit < np.inf:  # one bit of margin, for units that keep one bit less
            one_sign = (size + np.abs(total.value)) / 2  # no partial sum is larger, whatever the order
            steps = np.maximum(one_sign * self.eps, self.largest * self.eps_of_terms) * self.unit
            error = np.where(steps <= 1, 0.0, error)
        error = np.where(error > 0, error + self.terms * FLUSHED[self.dtype], 0.0)
        if self.dtype == "float64":
            error = 2 * error  # the reference's own
        low, high = total.low - error, total.high + error
        # A partial sum lies between the sum of all negative terms and the sum of all positive terms.
        most, least = (size + total.value) / 2 + error, (total.value - size) / 2 - error
        low = np.where(np.isinf(round_to_dtype(least, self.dtype)), -np.inf, low)
        return _round_bounds_to(
            enclosure_with_nan(total.value, low, np.where(np.isinf(round_to_dtype(most, self.dtype)), np.inf, high)),
            self.dtype,
        )


def convert_bounds(e: EnclosedValues, source: str, to: str) -> EnclosedValues:
    """Return the bounds on a ``source`` value after its conversion to ``to``."""
    value = np.asarray(e.value)
    if to == "bool":
        hit = e.map(lambda a: np.asarray(a) != 0)
        if e.is_point:
            return hit.map(lambda a: a.astype(np.int64))
        through = (e.low <= 0) & (e.high >= 0)
        sure = through & (e.low == e.high)
        return EnclosedValues(hit.value.astype(np.int64), (~through).astype(np.int64), (~sure).astype(np.int64))
    if to in NARROW:
        return convert_to_narrow_float(e, source, to)
    if is_float(to):
        out = _round_bounds_to(e, to)
        if to != "float32":
            return out
        single = round_to_dtype(value, to)  # the reference rounds here, because later nodes may depend on it
        same = out.is_point and np.array_equal(single, value, equal_nan=True)
        bounds = [np.asarray(out.low, np.float64), np.asarray(out.high, np.float64)]
        return out if same else enclosure_of_ends(single, bounds)
    with np.errstate(invalid="ignore"):
        value = wrap_integers(value.astype(np.int64), to)
    if not is_float(source):
        return EnclosedValues.point(value) if e.is_point else bounds_in_integer_range(to, value, e)
    ends = EnclosedValues(e.value, np.trunc(e.low), np.trunc(e.high))
    if e.is_point and np.all(integers_represent(to, ends)):
        return EnclosedValues.point(value)
    return bounds_in_integer_range(
        to, value, ends
    )  # out-of-range conversions are undefined and differ between processors


def bounds_in_integer_range(dtype: str, value: Any, e: EnclosedValues) -> EnclosedValues:
    """Return ``value`` with the bounds of ``e`` where ``dtype`` represents them, and without bounds elsewhere."""
    fits = integers_represent(dtype, e)
    return EnclosedValues(value, np.where(fits, e.low, -np.inf), np.where(fits, e.high, np.inf))


def _round_bounds_to(e: EnclosedValues, dtype: str) -> EnclosedValues:
    """Return the bounds on ``e`` after it is stored in ``dtype``; a representable point stays a point."""
    if not is_float(dtype):
        return e
    if e.is_point:
        value = np.asarray(e.value, np.float64)
        if dtype == "float64" or np.array_equal(round_to_dtype(value, dtype), value, equal_nan=True):
            return EnclosedValues.point(value)
    return round_enclosure(e, dtype)
