"""Is a kernel's result correct? Compared with the float64 reference against a proven bound.

One sum over ``K`` terms: ``|y - ref| <= 4 eps(acc) sqrt(K) sum|a||b| + eps(out) |ref|`` (design.md,
section 7). Several stages or special functions: every stage's own rounding is bounded as above, and
carried through its consumers by finite differences (each value it reads is moved by its error, up
and down). A stage that casts to a coarser dtype on its way has that dtype's rounding. Integers must
be equal. Large outputs are compared at corners, edges and random points.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roller.backends.periodic import PeriodicInput
from roller.errors import ExprError, counted
from roller.expr import FUNCTIONS, Call, Cast, Load, Scalar, Stage, TensorExpr, walk
from roller.expr.compose import dtype_of
from roller.expr.evaluate import _Evaluation as Evaluation

#: Stage points (spatial x reduction) up to which every output element is compared.
_WHOLE_POINTS = 1 << 19
#: Random points of an output that is sampled.
_RANDOM_POINTS = 256
#: Units in the last place a special function may be off.
_SPECIAL_ULPS = 8.0
_EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_TINY = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}
_LARGEST = {"float64": 1.7976931348623157e308, "float32": 3.4028234663852886e38, "float16": 65504.0,
            "bfloat16": 3.3895313892515355e38}  # fmt: skip


@dataclass(frozen=True)
class CheckResult:
    """Outcome of a comparison.

    Parameters
    ----------
    ok
        Whether every compared element is within its bound.
    max_ratio
        Largest error divided by its bound (at most 1 where ``ok``; infinite for NaN).
    points
        Elements compared, over all outputs.
    message
        Empty, or the worst element: *output[index]: expected, got, bound*.
    """

    ok: bool
    max_ratio: float
    points: int
    message: str = ""


@dataclass(frozen=True)
class _Expected:
    """Reference and bound of one output at its compared points."""

    name: str
    points: np.ndarray
    reference: np.ndarray
    bound: np.ndarray
    largest: float


class Oracle:
    """The reference of one expression on given inputs, computed once and used for many candidates.

    Parameters
    ----------
    expression
        The user's expression.
    arrays
        Its inputs, in call order: arrays, or :class:`PeriodicInput` where the arrays are on a device.
    seed
        Seed of the sampled points.
    """

    def __init__(self, expression: TensorExpr, arrays: Sequence[np.ndarray | PeriodicInput], seed: int = 0) -> None:
        self.expression = expression
        # An input that only answers at points stays what it is: the whole of it may not fit into memory.
        values: dict[str, Any] = {
            t.name: a if isinstance(a, PeriodicInput) else np.asarray(a)
            for t, a in zip(expression.inputs, arrays, strict=True)
        }
        rng = np.random.default_rng(seed)
        errors = _Errors(expression, values)
        self._expected: list[_Expected] = []
        whole = sum(s.points for s in expression.stages) <= _WHOLE_POINTS
        for t in expression.output_tensors:
            points = every_point(t.shape) if whole or not t.shape else sample_points(t.shape, rng)
            with np.errstate(all="ignore"):
                reference = np.asarray(errors.exact.at(t.name, points))
                bound = errors.at(t.name, points)
            self._expected.append(_Expected(t.name, points, reference, bound, errors.largest(t.name)))

    def check(self, outputs: Sequence[np.ndarray]) -> CheckResult:
        """Compare one candidate's outputs with the reference.

        Raises
        ------
        ExprError
            Where the number or shape of the outputs differs from the expression.
        """
        tensors = self.expression.output_tensors
        if len(outputs) != len(tensors):
            raise ExprError(f"{self.expression.name}: expected {counted(len(tensors), 'output')}, got {len(outputs)}.")
        values = []
        for t, points, array in zip(tensors, self.points, outputs, strict=True):
            if tuple(array.shape) != t.shape:
                raise ExprError(f"output '{t.name}': expected shape {t.shape}, got {tuple(array.shape)}.")
            values.append(np.asarray(array)[tuple(points.T)] if t.shape else np.asarray(array).reshape(1))
        return self.check_values(values)

    @property
    def points(self) -> list[np.ndarray]:
        """Coordinates ``(P, rank)`` that are compared, per output."""
        return [e.points for e in self._expected]

    def check_values(self, values: Sequence[np.ndarray]) -> CheckResult:
        """Compare the elements at :attr:`points`, one array ``(P,)`` per output, with the reference."""
        worst, message, count = 0.0, "", 0
        for expected, got in zip(self._expected, values, strict=True):
            ratio = _ratios(got, expected)
            count += len(ratio)
            i = int(np.argmax(ratio))
            if ratio[i] > worst:
                worst = float(ratio[i])
                where = f"output '{expected.name}'{[int(x) for x in expected.points[i]]}"
                message = (
                    f"{where}: expected {expected.reference[i]!r}, got {got[i]!r}, error bound {expected.bound[i]:.3g}"
                )
        return CheckResult(worst <= 1.0, worst, count, "" if worst <= 1.0 else message)


def check(
    expression: TensorExpr, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | np.ndarray, seed: int = 0
) -> CheckResult:
    """Compare the outputs of a kernel with the float64 reference of its expression.

    Parameters
    ----------
    expression
        The user's expression.
    arrays, outputs
        Inputs in call order, and the output (or one array per output).
    seed
        Seed of the sampled points of large outputs.

    Examples
    --------
    >>> import numpy as np, roller
    >>> e, a, b = roller.ops.matmul(2, 2, 2), np.eye(2, dtype="f"), np.ones((2, 2), "f")
    >>> check(e, [a, b], a @ b).ok, check(e, [a, b], a @ b + 1e-3).ok
    (True, False)
    """
    given = [outputs] if isinstance(outputs, np.ndarray) else list(outputs)
    return Oracle(expression, arrays, seed).check(given)


def every_point(shape: tuple[int, ...]) -> np.ndarray:
    """Return all coordinates of ``shape`` as ``(points, rank)``."""
    return np.indices(shape, dtype=np.int64).reshape(len(shape), -1).T if shape else np.zeros((1, 0), np.int64)


def sample_points(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return corners, points next to every boundary, and random points of ``shape``, each once."""
    ends = [sorted({0, e - 1}) for e in shape]
    corners = list(itertools.islice(itertools.product(*ends), 64))
    scattered = np.stack([rng.integers(0, e, _RANDOM_POINTS) for e in shape], axis=1)
    edges = []
    for d, e in enumerate(shape):
        for x in sorted({0, e // 2, e - 1}):
            some = scattered[rng.integers(0, _RANDOM_POINTS, 8)].copy()
            some[:, d] = x
            edges.append(some)
    return np.unique(np.concatenate([np.array(corners, np.int64), *edges, scattered]), axis=0)


def _ratios(got: np.ndarray, expected: _Expected) -> np.ndarray:
    """Error over bound per element; equal values (infinities included) give 0."""
    reference = expected.reference
    if np.issubdtype(got.dtype, np.integer) or got.dtype == np.bool_:
        return np.where(got.astype(np.int64) == reference.astype(np.int64), 0.0, np.inf)
    value = got.astype(np.float64)
    with np.errstate(all="ignore"):
        error = np.abs(value - reference)
        ratio = np.where(error == 0, 0.0, error / expected.bound)
        same = (value == reference) | (np.isnan(value) & np.isnan(reference))
        # A result beyond the dtype's range, or within its bound of it, may be stored as infinity.
        overflow = np.isinf(value) & (np.sign(value) * reference + expected.bound >= expected.largest)
    ratio = np.where(same | overflow, 0.0, ratio)
    return np.where(np.isnan(ratio), np.inf, ratio)


class _Moved(Evaluation):
    """Evaluates one stage on exact values, with one tensor moved by a given error."""

    def __init__(self, exact: Evaluation, expr: TensorExpr, magnitude: bool = False) -> None:
        super().__init__(expr, {}, magnitude)
        self.exact = exact
        self.moved = ""
        self.move: Any = None

    def at(self, tensor: str, points: np.ndarray) -> np.ndarray:
        """Elements of ``tensor``, moved where it is the chosen one."""
        value = np.asarray(self.exact.at(tensor, points))
        return value + self.move(tensor, points, value) if tensor == self.moved else value


class _Errors:
    """Error bounds of tensors at points, stage by stage."""

    def __init__(self, expr: TensorExpr, values: dict[str, np.ndarray]) -> None:
        self.expr = expr
        self.values = values
        self.stages = {s.name: s for s in expr.stages}
        self.dtypes = {name: t.dtype for name, t in expr.tensors.items()}
        self.exact = Evaluation(expr, values, False)
        self.sizes = Evaluation(expr, values, True)

    def at(self, tensor: str, points: np.ndarray) -> np.ndarray:
        """Bound of the absolute error of ``tensor`` at ``points`` ``(P, rank)``."""
        s = self.stages.get(tensor)
        if s is None or "float" not in s.output.dtype:
            return np.zeros(len(points))
        distinct, inverse = np.unique(points, axis=0, return_inverse=True) if points.shape[1] else (points[:1], None)
        reference = np.abs(np.asarray(self.exact.at(tensor, distinct)).astype(np.float64))
        bound = self._stage(s, distinct) + _EPS[s.output.dtype] * reference + _TINY[self._coarsest(s)]
        return bound[inverse.ravel()] if inverse is not None else np.repeat(bound, len(points))

    def largest(self, tensor: str) -> float:
        """Largest number that does not overflow on the way to ``tensor`` or in it."""
        s = self.stages.get(tensor)
        floats = s is not None and s.output.dtype in _EPS
        return _LARGEST[self._coarsest(s)] if s is not None and floats else np.inf

    def _coarsest(self, s: Stage) -> str:
        """Return the coarsest float dtype that a stage's result, its casts and what they convert are rounded to."""
        seen = {s.output.dtype}
        for n in walk(s.body):
            if isinstance(n, Cast):
                computed = dtype_of(n.arg, self.dtypes) if isinstance(n.arg, Call) else None
                seen.update(d for d in (n.dtype, computed) if d is not None and d in _EPS)
        return max(seen, key=_EPS.__getitem__)

    def _stage(self, s: Stage, points: np.ndarray) -> np.ndarray:
        coarse = _EPS[self._coarsest(s)]
        rounded = coarse > _EPS[s.output.dtype]
        eps = _EPS.get(s.acc_dtype, 0.0) if s.combiner else _EPS[s.output.dtype]
        terms = int(np.prod([a.extent for a in s.reduction_axes], dtype=np.int64))
        sizes = self.sizes if all(ld.tensor in self.values for ld in s.loads) else _Moved(self.exact, self.expr, True)
        magnitude = np.abs(np.asarray(sizes._stage_at(s, points), dtype=np.float64))
        total = np.zeros(len(points))
        if s.combiner == "sum":
            total = total + 4 * eps * np.sqrt(terms) * magnitude
        elif s.combiner == "prod":
            total = total + 2 * eps * terms * np.abs(np.asarray(self.exact.at(s.name, points)))
        eps = max(eps, coarse) if rounded else eps
        if rounded or not _is_multilinear(s.body) or any(ld.tensor in self.stages for ld in s.loads):
            total = total + (self._operations(s.body) + rounded) * eps * (
                magnitude if s.combiner in (None, "sum") else 0.0
            )
            for name in dict.fromkeys(ld.tensor for ld in s.loads):
                total = total + self._carried(s, name, points, eps)
        return total

    def _operations(self, body: Scalar) -> float:
        """Units in the last place that the body's own operations may lose."""
        kinds = [FUNCTIONS[n.fn].instruction_class for n in walk(body) if isinstance(n, Call)]
        return sum(_SPECIAL_ULPS if k == "special" else 1.0 for k in kinds)

    def _carried(self, s: Stage, name: str, points: np.ndarray, eps: float) -> np.ndarray:
        """How far the stage moves when ``name`` moves by its error (an input: by one rounding)."""
        if "float" not in self.expr.tensors[name].dtype:
            return np.zeros(len(points))
        still = np.asarray(_Moved(self.exact, self.expr)._stage_at(s, points), dtype=np.float64)
        out = np.zeros(len(points))
        for sign in (1.0, -1.0):
            run = _Moved(self.exact, self.expr)
            run.moved = name
            run.move = lambda tensor, at, value, sign=sign: sign * self._step(tensor, at, value, eps)
            out = np.fmax(out, np.abs(np.asarray(run._stage_at(s, points), dtype=np.float64) - still))
        return out

    def _step(self, tensor: str, at: np.ndarray, value: np.ndarray, eps: float) -> np.ndarray:
        return self.at(tensor, at) if tensor in self.stages else 2 * eps * np.abs(value)


def _is_multilinear(body: Scalar) -> bool:
    """Whether the body is a product of loads and constants, as the plain bound assumes."""
    return all(isinstance(n, Load) or not isinstance(n, Call) or n.fn == "mul" for n in walk(body))
