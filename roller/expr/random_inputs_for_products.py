"""Random inputs on which products of many factors stay within the range of their dtype, yet depend on each factor.

A hundred standard normal factors multiply to about ``2**-90``, so longer products vanish, and a kernel that returns
zeros would pass. The chosen factors neither overflow nor vanish in any order of multiplication.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np

from roller.expr.inputs_making_factors_near_one import NormalAroundCentre, inputs_near_one
from roller.expr.rounded_enclosures import EPS, NORMAL
from roller.expr.scalar import Call, Cast, Const, Load, Scalar
from roller.expr.sum_rounding_properties import distinct_elements_read
from roller.expr.tensor_expr import Stage, TensorExpr
from roller_runtime.core.dtypes import is_float

#: Functions under which a product of inputs remains a product, up to its sign.
_PRODUCTS = frozenset(("mul", "neg", "abs"))
#: Mean and standard deviation of the number of binary digits by which one standard normal factor shrinks a product.
_SHRINK, _DEVIATION = 1.1, 1.6
#: Number of standard deviations between the product of the factors above (or below) one and its limit.
_FROM_LIMIT = 3.0
#: Mean and standard deviation of the positive part of a standard normal number.
_HALF_MEAN, _HALF_DEVIATION = 0.40, 0.58
#: Maximum share of factors that are a half or two, or of threes among integers.
_MOST = 2 / 3
#: Multiple of the error bound by which a typical factor should differ from one.
_SEEN = 4.0


class InputDrawing(Protocol):
    """Random choice of the elements of one input, derived from its usual random elements."""

    @property
    def density(self) -> float:
        """Fraction of elements that are not zero."""

    def __hash__(self) -> int:
        """Return the hash; equal drawings give equal numbers."""

    def of(self, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the chosen elements, made from ``values``, which are standard normal numbers or small integers."""


@dataclass(frozen=True)
class FactorsNearOne:
    """Floats of either sign with magnitudes around one.

    Parameters
    ----------
    spread
        Standard deviation of the binary logarithm of the magnitudes.
    share
        Share of factors that are a half or two; the others are one. If ``None``, logarithms are normally distributed.
    """

    spread: float = 1.0
    share: float | None = None
    density: ClassVar[float] = 1.0

    def exact(self) -> FactorsNearOne:
        """Return a drawing of powers of two with the same standard deviation, for inputs that also occur in sums.

        Examples
        --------
        >>> FactorsNearOne(spread=0.25).exact()
        FactorsNearOne(spread=0.25, share=0.0625)
        """
        return self if self.share is not None else replace(self, share=min(_MOST, self.spread**2))

    def of(self, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return factors with the signs of ``values``.

        Examples
        --------
        >>> x = FactorsNearOne(share=1.0).of(np.array([-3.0, 0.1, 2.0, 9.0]), np.random.default_rng(0))
        >>> np.sign(x).tolist(), sorted(set(np.abs(x).tolist()))
        ([-1.0, 1.0, 1.0, 1.0], [0.5, 2.0])
        """
        if self.share is None:
            exponent_room_of_product = self.spread * rng.standard_normal(values.shape)
        else:
            drawn = rng.random(values.shape)
            exponent_room_of_product = np.where(drawn < self.share, np.where(drawn < self.share / 2, 1.0, -1.0), 0.0)
        return np.copysign(np.exp2(exponent_room_of_product), np.asarray(values, np.float64)).astype(values.dtype)


@dataclass(frozen=True)
class OddIntegers:
    """Odd integers, whose products are never zero: if signed, ones and a ``share`` of threes, of either sign."""

    share: float
    density: ClassVar[float] = 1.0

    def of(self, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return odd numbers with the signs of ``values``.

        Examples
        --------
        >>> OddIntegers(0.0).of(np.array([-3, 0, 2], np.int8), np.random.default_rng(0)).tolist()
        [-1, 1, 1]
        """
        if values.dtype.kind == "u":  # products of unsigned integers may wrap around
            return np.asarray(values | values.dtype.type(1))
        size = np.where(rng.random(values.shape) < self.share, 3, 1)
        return np.where(values < 0, -size, size).astype(values.dtype)


def choose_product_inputs(expr: TensorExpr) -> dict[str, InputDrawing]:
    """Choose distributions for the inputs whose usual values would take a product out of its dtype's range.

    Examples
    --------
    >>> import roller
    >>> choose_product_inputs(roller.ops.reduce("prod", (4, 8), axes=(1,)))
    {}
    >>> x = choose_product_inputs(roller.ops.reduce("prod", (4, 1000), axes=(1,)))["X"]
    >>> 0.2 < x.spread < 0.3, x.share is None
    (True, True)
    """
    out: dict[str, InputDrawing] = {}
    for s in expr.stages:
        if s.combiner != "prod":
            continue
        found: Mapping[str, InputDrawing]
        leaves = _InputProduct.of(expr, s)
        if leaves is None:
            near = inputs_near_one(expr, s, exponent_room_of_product(s)) if is_float(s.acc_dtype) else None
            found = near or {}
        else:
            found = leaves.choose_distributions() if leaves.usual_product_leaves_range else {}
        for name, drawing in found.items():
            out[name] = _drawing_for_both_products(out[name], drawing) if name in out else drawing
    return out


def exponent_room_of_product(s: Stage) -> float:
    """Return the number of binary digits by which a product and its partial products may differ from one.

    Examples
    --------
    >>> import roller
    >>> exponent_room_of_product(roller.ops.reduce("prod", (8,), dtype="float16", acc_dtype="float16").stages[0])
    14.0
    """
    return min(_exponent_range_of_dtype(s.acc_dtype), _exponent_range_of_dtype(s.output.dtype))


def _exponent_range_of_dtype(dtype: str) -> float:
    if is_float(dtype):
        return -math.log2(NORMAL[dtype])
    return float(np.iinfo(dtype).bits - (not dtype.startswith("u"))) if dtype != "bool" else 0.0


def _drawing_for_both_products(a: InputDrawing, b: InputDrawing) -> InputDrawing:
    """Return the drawing that suits two products; drawings for functions take precedence over exact drawings."""

    def order(d: InputDrawing) -> tuple[bool, float]:
        if isinstance(d, FactorsNearOne):
            return True, d.spread if d.share is None else d.share
        return not isinstance(d, NormalAroundCentre), d.share if isinstance(d, OddIntegers) else 0.0

    return min(a, b, key=order)


@dataclass(frozen=True)
class _InputProduct:
    """A product of inputs, with the number of times that each load occurs in a factor."""

    expr: TensorExpr
    stage: Stage
    times: Mapping[Load, int]

    @classmethod
    def of(cls, expr: TensorExpr, stage: Stage) -> _InputProduct | None:
        """Return the product that a stage computes, or ``None`` if its factors are not inputs of one kind."""
        times: Counter[Load] = Counter()
        found = cls(expr, stage, times)
        return found if found._collect(stage.body, stage.body, times) and times else None

    def _collect(self, node: Scalar, read_as: Scalar, out: Counter[Load]) -> bool:
        """Count the inputs that a tree multiplies, at the index of ``read_as``; return whether it does nothing else."""
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
        # The load in the stage itself gives the positions along the reduction.
        shown = read_as if isinstance(read_as, Load) else node
        out[Load(node.tensor, shown.index)] += 1
        return True

    @property
    def terms(self) -> int:
        """Number of factors."""
        return math.prod(a.extent for a in self.stage.reduction_axes)

    def _count_distinct_elements(self, load: Load) -> int:
        """Return the largest number of distinct elements of one load in a product."""
        alone = Stage(self.stage.output, self.stage.axes, self.stage.store, load, "prod", self.stage.acc_dtype)
        return math.prod(distinct_elements_read(alone, a.name, a.extent) for a in self.stage.reduction_axes)

    @property
    def usual_product_leaves_range(self) -> bool:
        """Whether products of usual inputs vanish, overflow, or come close to either."""
        if not is_float(self.stage.acc_dtype):
            return True  # one zero among small integers makes the product zero
        factors = self.terms * sum(self.times.values())
        return factors * _SHRINK + _FROM_LIMIT * _DEVIATION * math.sqrt(factors) > exponent_room_of_product(self.stage)

    def choose_distributions(self) -> dict[str, InputDrawing]:
        """Choose a drawing for each input."""
        room = exponent_room_of_product(self.stage) / len(self.times)
        out: dict[str, InputDrawing] = {}
        for load, times in self.times.items():
            distinct = self._count_distinct_elements(load)
            drawing = self._drawing_within_room(room / (times * self.terms / distinct), distinct)
            name = load.tensor
            out[name] = _drawing_for_both_products(out[name], drawing) if name in out else drawing
        return out

    def _drawing_within_room(self, room: float, distinct: int) -> InputDrawing:
        """Return a drawing such that the product of ``distinct`` factors stays within ``room`` binary digits."""
        if not is_float(self.stage.acc_dtype):
            return OddIntegers(_share_other_than_one(room / math.log2(3), distinct, sides=1))
        away = distinct * _HALF_MEAN + _FROM_LIMIT * math.sqrt(distinct) * _HALF_DEVIATION
        spread = min(1.0, room / away)
        bound = 8 * math.sqrt(self.terms) * EPS[self.stage.acc_dtype] + 4 * EPS.get(self.stage.output.dtype, 0.0)
        # If rounding would hide one of so many factors, they become powers of two, whose products are exact.
        if spread / 2 >= _SEEN * bound:
            return FactorsNearOne(spread)
        return FactorsNearOne(share=_share_other_than_one(room, distinct, sides=2))


def _share_other_than_one(room: float, distinct: int, sides: int) -> float:
    """Return the share of factors that differ from one such that the product on each side stays within ``room``.

    Examples
    --------
    >>> round(_share_other_than_one(126, 1000, 2), 2), _share_other_than_one(126, 3, 2) == _MOST
    (0.19, True)
    """
    count = ((math.sqrt(_FROM_LIMIT**2 + 4 * room) - _FROM_LIMIT) / 2) ** 2
    return min(_MOST, sides * count / distinct)
