"""Random inputs on which products of many factors stay within their dtype, and show each factor.

A hundred standard normal factors come to ``2**-90``: products of more of them vanish, and a kernel that returns zeros
is as good as any. So magnitudes of the inputs of such stages are drawn such that those above one, multiplied alone, do
not overflow, nor those below one vanish: no order of the factors does then either. The first that fits:

* products of inputs themselves: either sign, magnitudes spread evenly around one, as far as exponents allow;
* where rounding of so many factors would hide one of those: powers of two, whose products are exact in every order, as
  many as exponents allow, and ones;
* products of functions: normal numbers around where the function is near one (:mod:`roller.expr.near_one`);
* integers: odd ones, of either sign; few but ones where products may not wrap around.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np

from roller.core.dtypes import is_float
from roller.expr.exact_sums import different
from roller.expr.near_one import Near, inputs_near_one
from roller.expr.rounding import EPS, NORMAL
from roller.expr.scalar import Call, Cast, Const, Load, Scalar
from roller.expr.tensor_expr import Stage, TensorExpr

#: Functions that keep a product of inputs one, up to its sign.
_PRODUCTS = frozenset(("mul", "neg", "abs"))
#: Binary digits by which standard normal factors shrink a product in the mean, and their standard deviation.
_SHRINK, _DEVIATION = 1.1, 1.6
#: Standard deviations that the number of factors on one side of one is kept from its limit.
_FROM_LIMIT = 3.0
#: Mean and standard deviation of the positive part of a standard normal number.
_HALF_MEAN, _HALF_DEVIATION = 0.40, 0.58
#: Share of powers of two, or of threes, that is not exceeded.
_MOST = 2 / 3
#: Times the bound by which a usual factor should differ from one to be seen.
_SEEN = 4.0


class Drawing(Protocol):
    """How the elements of one input are chosen, from usual random ones."""

    @property
    def density(self) -> float:
        """Share that is not zero."""

    def __hash__(self) -> int:
        """Return the hash: equal ones make the same numbers."""

    def of(self, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return what is made of ``values``, standard normal or small integers."""


@dataclass(frozen=True)
class Factors:
    """Floats of either sign around one.

    Parameters
    ----------
    spread
        Standard deviation of their binary logarithm.
    share
        Of those that are not one: a half or two. ``None`` where logarithms are normal.
    """

    spread: float = 1.0
    share: float | None = None
    density: ClassVar[float] = 1.0

    def exact(self) -> Factors:
        """Return powers of two with the same deviation, for inputs that are added up elsewhere.

        Examples
        --------
        >>> Factors(spread=0.25).exact()
        Factors(spread=0.25, share=0.0625)
        """
        return self if self.share is not None else replace(self, share=min(_MOST, self.spread**2))

    def of(self, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return factors with the signs of ``values``.

        Examples
        --------
        >>> x = Factors(share=1.0).of(np.array([-3.0, 0.1, 2.0, 9.0]), np.random.default_rng(0))
        >>> np.sign(x).tolist(), sorted(set(np.abs(x).tolist()))
        ([-1.0, 1.0, 1.0, 1.0], [0.5, 2.0])
        """
        if self.share is None:
            exponents = self.spread * rng.standard_normal(values.shape)
        else:
            drawn = rng.random(values.shape)
            exponents = np.where(drawn < self.share, np.where(drawn < self.share / 2, 1.0, -1.0), 0.0)
        return np.copysign(np.exp2(exponents), np.asarray(values, np.float64)).astype(values.dtype)


@dataclass(frozen=True)
class Odd:
    """Odd integers, whose products are never zero: a ``share`` of threes and ones of either sign.

    Products of unsigned ones may wrap around, so that these are any.
    """

    share: float
    density: ClassVar[float] = 1.0

    def of(self, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return odd numbers with the signs of ``values``.

        Examples
        --------
        >>> Odd(0.0).of(np.array([-3, 0, 2], np.int8), np.random.default_rng(0)).tolist()
        [-1, 1, 1]
        """
        if values.dtype.kind == "u":
            return np.asarray(values | values.dtype.type(1))
        size = np.where(rng.random(values.shape) < self.share, 3, 1)
        return np.where(values < 0, -size, size).astype(values.dtype)


def factors_of_inputs(expr: TensorExpr) -> dict[str, Drawing]:
    """Return how inputs of products are chosen, by input, where usual ones leave the range of the product.

    Examples
    --------
    >>> import roller
    >>> factors_of_inputs(roller.ops.reduce("prod", (4, 8), axes=(1,)))
    {}
    >>> x = factors_of_inputs(roller.ops.reduce("prod", (4, 1000), axes=(1,)))["X"]
    >>> 0.2 < x.spread < 0.3, x.share is None
    (True, True)
    """
    out: dict[str, Drawing] = {}
    for s in expr.stages:
        if s.combiner != "prod":
            continue
        found: Mapping[str, Drawing]
        leaves = _Leaves.of(expr, s)
        if leaves is None:
            near = inputs_near_one(expr, s, exponents(s)) if is_float(s.acc_dtype) else None
            found = near or {}
        else:
            found = leaves.drawings() if leaves.leave_range else {}
        for name, drawing in found.items():
            out[name] = _nearer_one(out[name], drawing) if name in out else drawing
    return out


def exponents(s: Stage) -> float:
    """Return the binary digits by which a product and its parts may differ from one, up or down.

    Examples
    --------
    >>> import roller
    >>> exponents(roller.ops.reduce("prod", (8,), dtype="float16", acc_dtype="float16").stages[0])
    14.0
    """
    return min(_range_of(s.acc_dtype), _range_of(s.output.dtype))


def _range_of(dtype: str) -> float:
    if is_float(dtype):
        return -math.log2(NORMAL[dtype])
    return float(np.iinfo(dtype).bits - (not dtype.startswith("u"))) if dtype != "bool" else 0.0


def _nearer_one(a: Drawing, b: Drawing) -> Drawing:
    """Return what suits two products; what functions need goes before what is chosen for exactness."""

    def order(d: Drawing) -> tuple[bool, float]:
        if isinstance(d, Factors):
            return True, d.spread if d.share is None else d.share
        return not isinstance(d, Near), d.share if isinstance(d, Odd) else 0.0

    return min(a, b, key=order)


@dataclass(frozen=True)
class _Leaves:
    """A product of inputs: each load of the body, and how often a factor has it."""

    expr: TensorExpr
    stage: Stage
    times: Mapping[Load, int]

    @classmethod
    def of(cls, expr: TensorExpr, stage: Stage) -> _Leaves | None:
        """Return the product a stage is, or ``None`` where its factors are more than inputs of its kind."""
        times: Counter[Load] = Counter()
        found = cls(expr, stage, times)
        return found if found._collect(stage.body, stage.body, times) and times else None

    def _collect(self, node: Scalar, read_as: Scalar, out: Counter[Load]) -> bool:
        """Count the inputs that a tree multiplies; whether it does nothing else. ``read_as``: by which load it is."""
        kind = is_float(self.stage.acc_dtype)
        if isinstance(node, Const):
            return abs(float(node.value)) == 1
        if isinstance(node, Cast):
            return is_float(node.dtype) == kind and self._collect(node.arg, read_as, out)
        if isinstance(node, Call):
            return node.fn in _PRODUCTS and all(self._collect(a, read_as, out) for a in node.args)
        if not isinstance(node, Load) or self.expr.tensors[node.tensor].dtype == "bool":
            return False
        made = next((s for s in self.expr.stages if s.name == node.tensor), None)
        if made is not None:
            through = read_as if isinstance(read_as, Load) else node
            return made.combiner is None and self._collect(made.body, through, out)
        if is_float(self.expr.tensors[node.tensor].dtype) != kind:
            return False
        # Positions along the reduction are those of the load in the stage itself.
        shown = read_as if isinstance(read_as, Load) else node
        out[Load(node.tensor, shown.index)] += 1
        return True

    @property
    def terms(self) -> int:
        """Number of factors."""
        return math.prod(a.extent for a in self.stage.reduction_axes)

    def _distinct(self, load: Load) -> int:
        """Return how many elements of one load a product has, at most."""
        alone = Stage(self.stage.output, self.stage.axes, self.stage.store, load, "prod", self.stage.acc_dtype)
        return math.prod(different(alone, a.name, a.extent) for a in self.stage.reduction_axes)

    @property
    def leave_range(self) -> bool:
        """Whether products of usual inputs vanish, overflow, or come near it."""
        if not is_float(self.stage.acc_dtype):
            return True  # a zero among small integers is enough
        factors = self.terms * sum(self.times.values())
        return factors * _SHRINK + _FROM_LIMIT * _DEVIATION * math.sqrt(factors) > exponents(self.stage)

    def drawings(self) -> dict[str, Drawing]:
        """Return how the inputs are chosen."""
        room = exponents(self.stage) / len(self.times)
        out: dict[str, Drawing] = {}
        for load, times in self.times.items():
            distinct = self._distinct(load)
            drawing = self._drawing(room / (times * self.terms / distinct), distinct)
            name = load.tensor
            out[name] = _nearer_one(out[name], drawing) if name in out else drawing
        return out

    def _drawing(self, room: float, distinct: int) -> Drawing:
        """Return factors of which ``distinct`` stay within ``room`` binary digits."""
        if not is_float(self.stage.acc_dtype):
            return Odd(_share(room / math.log2(3), distinct, sides=1))
        away = distinct * _HALF_MEAN + _FROM_LIMIT * math.sqrt(distinct) * _HALF_DEVIATION
        spread = min(1.0, room / away)
        bound = 8 * math.sqrt(self.terms) * EPS[self.stage.acc_dtype] + 4 * EPS.get(self.stage.output.dtype, 0.0)
        if spread / 2 >= _SEEN * bound:
            return Factors(spread)
        return Factors(share=_share(room, distinct, sides=2))


def _share(room: float, distinct: int, sides: int) -> float:
    """Return the share of factors that differ from one, such that those on each side of one take ``room`` steps.

    Examples
    --------
    >>> round(_share(126, 1000, 2), 2), _share(126, 3, 2) == _MOST
    (0.19, True)
    """
    count = ((math.sqrt(_FROM_LIMIT**2 + 4 * room) - _FROM_LIMIT) / 2) ** 2
    return min(_MOST, sides * count / distinct)
