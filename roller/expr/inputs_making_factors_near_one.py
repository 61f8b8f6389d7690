"""Inputs on which multiplied functions (``exp(x)``, ``x * log(y)``) are near one, found by trial.

Normally distributed numbers around several centres, with several spreads, are tried on a sample of the factors. Among
the choices whose products stay within the dtype's range, the one whose factors differ most from one is taken.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from roller.expr.evaluate import evaluate_reduction_terms
from roller.expr.scalar import loads
from roller.expr.tensor_expr import Stage, TensorExpr
from roller_runtime.core.dtypes import is_float

#: Number of factors per trial, its minimum if each factor takes a reduction, and the maximum number of points that all
#: factors of a trial read.
_FACTORS, _LEAST_FACTORS, _MOST_POINTS = 96, 8, 1 << 19
#: Numbers tried as centres, and spreads around them.
_CENTRES = (-16.0, -8.0, -4.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_SPREADS = (1.0, 2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8)
#: Number of bisections of the interval between a centre with factors below one and a centre with factors above one.
_HALVINGS = 20
#: Maximum number of inputs with separate centres; more inputs share one centre.
_MOST_APART = 3
#: Number of standard deviations between a product and the end of its range.
_FROM_LIMIT = 3.0
#: Number of elements, a prime, in the block of random numbers that replaces each input during trials.
_PERIOD = 4099


@dataclass(frozen=True)
class NormalAroundCentre:
    """Normally distributed numbers with mean ``centre`` and standard deviation ``spread``."""

    centre: float = 0.0
    spread: float = 1.0
    density: ClassVar[float] = 1.0

    def of(self, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return numbers around the centre, derived from standard normal ``values``.

        Examples
        --------
        >>> NormalAroundCentre(1.0, 0.25).of(np.array([-1.0, 2.0]), np.random.default_rng(0)).tolist()
        [0.75, 1.5]
        """
        del rng
        return np.asarray((self.centre + self.spread * np.asarray(values, np.float64)).astype(values.dtype))


@functools.lru_cache(maxsize=64)
def inputs_near_one(expr: TensorExpr, stage: Stage, exponents: float) -> dict[str, NormalAroundCentre] | None:
    """Choose the float inputs of multiplied functions; ``None`` if the usual values suffice or no choice is found.

    Examples
    --------
    >>> import roller
    >>> from roller.expr import Axis, Call, Load, Tensor, axis_index
    >>> i, r, x = axis_index("i"), axis_index("r"), Tensor("x", (2, 1000))
    >>> body = Call("exp", (Load("x", (i, r)),))
    >>> s = Stage(Tensor("y", (2,)), (Axis("i", 2), Axis("r", 1000, "reduction")), (i,), body, "prod")
    >>> inputs_near_one(roller.expr.TensorExpr("e", (x,), (s,), ("y",)), s, 126.0)
    {'x': NormalAroundCentre(centre=0.0, spread=0.0625)}
    """
    if _LEAST_FACTORS * _count_points_per_factor(expr, stage) > _MOST_POINTS:
        return None  # a search would add seconds to every check
    trial = _FactorTrial(expr, stage)
    if not trial.floats:
        return None
    count = math.prod(a.extent for a in stage.reduction_axes)
    usual = dict.fromkeys(trial.floats, NormalAroundCentre())
    if _product_stays_in_range(trial(usual), count, exponents):
        return None
    best: tuple[float, dict[str, NormalAroundCentre]] = (0.0, {})
    for centres, spread in itertools.product(_candidate_centres(trial), _SPREADS):
        chosen = {n: NormalAroundCentre(c, spread) for n, c in centres.items()}
        found = trial(chosen)
        if _product_stays_in_range(found, count, exponents):
            shown = float(np.median(np.abs(found)))
            best = max(best, (shown, chosen), key=lambda x: x[0])
    return best[1] or None


def _product_stays_in_range(logarithms: np.ndarray, count: int, exponents: float) -> bool:
    """Return whether the products of the factors above one and of those below one, of ``count``, stay in range."""
    if not np.all(np.isfinite(logarithms)):
        return False
    sides = (np.maximum(logarithms, 0.0), np.maximum(-logarithms, 0.0))
    return all(count * x.mean() + _FROM_LIMIT * math.sqrt(count) * x.std() <= exponents for x in sides)


class _FactorTrial:
    """A function that maps a choice of inputs to the binary logarithms of a sample of one stage's factors."""

    def __init__(self, expr: TensorExpr, stage: Stage) -> None:
        self.expr, self.stage = expr, stage
        self.floats = _float_inputs_read(expr, stage)
        rng = np.random.default_rng(0)
        count = max(_LEAST_FACTORS, min(_FACTORS, _MOST_POINTS // _count_points_per_factor(expr, stage)))
        self._at = {a.name: rng.integers(0, a.extent, count) for a in stage.axes}
        self._normal = rng.standard_normal(_PERIOD)
        self._small = rng.integers(0, 2, _PERIOD), rng.integers(-8, 8, _PERIOD), rng.integers(0, 16, _PERIOD)

    def __call__(self, chosen: Mapping[str, NormalAroundCentre]) -> np.ndarray:
        """Return the logarithms of the factors: infinite for zeros and infinities, NaN for NaN."""
        values = {}
        for n, t in enumerate(self.expr.inputs):
            if is_float(t.dtype):
                drawn = chosen.get(t.name, NormalAroundCentre())
                block: np.ndarray = drawn.centre + drawn.spread * self._normal
            else:
                block = self._small[{"b": 0, "i": 1, "u": 2}[t.dtype[0]]]
            values[t.name] = _RepeatedBlock(np.roll(block, 101 * n), t.shape)
        with np.errstate(all="ignore"):
            return np.asarray(np.log2(np.abs(evaluate_reduction_terms(self.expr, values, self.stage, self._at))))


class _RepeatedBlock:
    """An input that repeats a block of numbers; indexed like an array."""

    def __init__(self, block: np.ndarray, shape: tuple[int, ...]) -> None:
        self._block, self._shape = block, shape

    def __getitem__(self, index: tuple[np.ndarray, ...]) -> np.ndarray:
        flat: Any = np.int64(0)
        for extent, i in zip(self._shape, index, strict=True):
            flat = flat * extent + np.asarray(i, np.int64)
        return np.asarray(self._block[flat % _PERIOD])


def _float_inputs_read(expr: TensorExpr, stage: Stage) -> list[str]:
    """Return the float inputs that a stage reads, directly or through other stages."""
    made = {s.name: s for s in expr.stages}
    left, seen = [stage], {stage.name}
    found: list[str] = []
    while left:
        for ld in loads(left.pop().body):
            if ld.tensor in seen:
                continue
            seen.add(ld.tensor)
            if ld.tensor in made:
                left.append(made[ld.tensor])
            elif is_float(expr.tensors[ld.tensor].dtype):
                found.append(ld.tensor)
    return found


def _count_points_per_factor(expr: TensorExpr, stage: Stage) -> int:
    """Return the approximate number of points in other stages that one factor depends on."""
    before = itertools.takewhile(lambda s: s is not stage, expr.stages)
    return math.prod(math.prod(a.extent for a in s.reduction_axes) for s in before)


def _candidate_centres(trial: _FactorTrial) -> Iterator[dict[str, float]]:
    """Yield the centres worth a trial: the listed centres, and points between them where the factors cross one."""
    names = trial.floats
    yield from _centres_along_path(trial, lambda c: dict.fromkeys(names, c))
    if 1 < len(names) <= _MOST_APART:
        for name, rest in itertools.product(names, (0.0, 1.0)):
            others = dict.fromkeys(names, rest)
            yield from _centres_along_path(trial, lambda c, name=name, others=others: {**others, name: c})  # type: ignore[misc]


def _centres_along_path(trial: _FactorTrial, path: Callable[[float], dict[str, float]]) -> Iterator[dict[str, float]]:
    """Yield the centres along a path that maps one number to the centres of all inputs."""

    def mean(c: float) -> float:
        with np.errstate(invalid="ignore"):  # infinities of both signs give no centre
            return float(np.mean(trial({n: NormalAroundCentre(x, 0.0) for n, x in path(c).items()})))

    found = [(c, mean(c)) for c in _CENTRES]
    for c, m in found:
        if math.isfinite(m):
            yield path(c)
    for (low, at_low), (high, at_high) in itertools.pairwise(found):
        if at_low * at_high < 0:
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                low, high = (middle, high) if mean(middle) * at_low > 0 else (low, middle)
            yield path(low)
