"""Random inputs on which sums are exact in every order, so that no error bound hides a missing term.

Sums are exact if the positive and the negative terms each total at most ``1 / eps`` units. The first option that fits
is used: odd multiples of 1/4 close to normally distributed numbers; values of +-1; or values of +-1 with zeros at
random positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from roller.expr.random_inputs_for_products import FactorsNearOne, InputDrawing, choose_product_inputs
from roller.expr.rounded_enclosures import EPS, computation_dtype
from roller.expr.scalar import Call, Cast, Const, Load, Scalar
from roller.expr.tensor_expr import Stage, TensorExpr
from roller_runtime.core.dtypes import is_float

#: Relative error bound of a sum above which the bound may hide single terms. The bound of K terms is 4 eps sqrt(K)
#: sum|b|: in single precision, it exceeds one term from a few hundred terms on, and in half precision from the first
#: term on. From 1 / (4 eps) terms on, it exceeds the whole sum, so that a result of all zeros would pass.
_HIDING = 2.0**-8
#: Mean and root mean square of the magnitudes of normally distributed numbers after :func:`round_to_odd_quarters`.
_COARSE_MEAN, _COARSE_RMS = 0.82, 1.03
#: Number of standard deviations between a sum and zero, and between its parts and their limit.
_FROM_ZERO, _FROM_LIMIT = 4.0, 3.0
#: Maximum excess of positive over negative terms, as a fraction of all terms.
_MOST_BIAS = 0.5
#: Functions that do not round if their operands have few digits.
_EXACT = frozenset(("add", "sub", "mul", "max", "min", "neg", "abs"))
#: Magnitudes of the small integers used as inputs of integer dtypes, by the first letter of the dtype.
_INTEGERS = {"u": 9.0, "i": 5.0, "b": 1.0}


@dataclass(frozen=True)
class FewDigitsDrawing:
    """The way in which the random float values of one input are drawn.

    Parameters
    ----------
    ones
        Whether values are ones of either sign; otherwise they are odd multiples of a quarter.
    density
        Fraction of values that are not zero.
    bias
        Excess of positive over negative values, as a fraction of all values.
    spread
        Dimensions along which zeros alternate with other values, so that no slice along them contains only zeros.
    """

    ones: bool = False
    density: float = 1.0
    bias: float = 0.0
    spread: tuple[int, ...] = ()

    def of(self, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the values drawn for standard normal ``values``; ``spread`` applies only if they have its dimensions.

        Examples
        --------
        >>> x = np.array([0.01, -0.6, 1.9], np.float32)
        >>> FewDigitsDrawing().of(x, np.random.default_rng(0)).tolist()
        [0.25, -0.75, 1.75]
        >>> FewDigitsDrawing(ones=True, bias=0.5).of(x, np.random.default_rng(0)).tolist()
        [1.0, 1.0, 1.0]
        >>> FewDigitsDrawing(True, 0.5, 0.0, (0,)).of(np.ones((4, 5)), np.random.default_rng(0)).sum(axis=0).tolist()
        [2.0, 2.0, 2.0, 2.0, 2.0]
        """
        out = np.asarray(np.copysign(1, values).astype(values.dtype) if self.ones else round_to_odd_quarters(values))
        if self.bias:  # negative normal numbers near zero become positive
            np.abs(out, out=out, where=values > -NormalDist().inv_cdf((1 + self.bias) / 2))
        if self.density < 1:
            out = np.where(self._drawn(values.shape, rng) < self.density, out, 0).astype(values.dtype)
        return out

    def _drawn(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        """Return uniform numbers in [0, 1); along ``spread``, those below ``density`` are evenly spaced."""
        if not self.spread or len(shape) <= max(self.spread):
            return rng.random(shape)
        along = [n if i in self.spread else 1 for i, n in enumerate(shape)]
        first = rng.random([1 if i in self.spread else n for i, n in enumerate(shape)])
        return np.asarray((first + np.arange(math.prod(along)).reshape(along) * self.density) % 1)


def round_to_odd_quarters(values: np.ndarray) -> np.ndarray:
    """Return odd multiples of a quarter near ``values``; sums of 10**5 products of two of them are exact.

    Examples
    --------
    >>> round_to_odd_quarters(np.array([0.01, -0.6, 1.9], np.float32)).tolist()
    [0.25, -0.75, 1.75]
    """
    out: np.ndarray = ((np.floor(values * 2) + 0.5) / 2).astype(values.dtype)
    return out


def choose_exact_inputs(expr: TensorExpr) -> dict[str, InputDrawing]:
    """Choose the values of inputs whose usual random values would hide a term of a sum or a factor of a product.

    Examples
    --------
    >>> import roller
    >>> choose_exact_inputs(roller.ops.matmul(8, 8, 64))
    {}
    >>> choose_exact_inputs(roller.ops.matmul(8, 8, 4096))["A"].density
    1.0
    >>> half = roller.ops.matmul(8, 8, 4096, dtype="float16", acc_dtype="float16")
    >>> 0.5 < choose_exact_inputs(half)["A"].density < 0.7
    True
    """
    sums, factors = _choose_inputs_of_sums(expr), choose_product_inputs(expr)
    # Powers of two and ones are exact in sums too.
    exact = {n: d.exact() for n, d in factors.items() if n in sums and isinstance(d, FactorsNearOne)}
    return {**sums, **factors, **exact}


def _choose_inputs_of_sums(expr: TensorExpr) -> dict[str, FewDigitsDrawing]:
    sums = [x for s in expr.stages if s.combiner == "sum" and (x := _ExactSum.of(expr, s)) is not None]
    chosen: dict[str, FewDigitsDrawing] = {}
    for x in (x for x in sums if x.hides):
        for name, d in x.digits().items():
            chosen[name] = _pick_sparser(chosen.get(name, d), d)
    if not chosen:
        return {}
    elsewhere = _tensors_read_outside_sums(expr, {x.stage.name for x in sums})
    floats = [t.name for t in expr.inputs if is_float(t.dtype)]
    # An input that is also read outside of sums (as a divisor, say) keeps its usual values, with fewer digits.
    return {n: FewDigitsDrawing() if n in elsewhere else chosen.get(n, FewDigitsDrawing()) for n in floats}


def _pick_sparser(one: FewDigitsDrawing, other: FewDigitsDrawing) -> FewDigitsDrawing:
    """Return the sparser of two choices, which is exact in the sums of both."""
    return max(one, other, key=lambda d: (d.ones, -d.density))


def _tensors_read_outside_sums(expr: TensorExpr, sums: set[str]) -> set[str]:
    """Return the tensors that stages other than ``sums`` read, directly or through element-wise stages."""
    found: set[str] = set()
    for s in reversed(expr.stages):
        only_summed = s.name in sums or (s.combiner is None and s.name not in found and s.name not in expr.outputs)
        if not only_summed:
            found |= {ld.tensor for ld in s.loads}
    return found


@dataclass(frozen=True)
class _FloatInput:
    """The load of a float input in a term; each position of the reduction uses ``width`` of its elements."""

    load: Load
    width: int
    spread: tuple[int, ...]


@dataclass(frozen=True)
class _ExactSum:
    """A sum of exact terms, with the inputs of its terms."""

    expr: TensorExpr
    stage: Stage
    leaves: tuple[_FloatInput, ...]

    @classmethod
    def of(cls, expr: TensorExpr, stage: Stage) -> _ExactSum | None:
        """Return the sum that a stage computes, or ``None`` if its terms are rounded themselves."""
        if not is_float(stage.acc_dtype):
            return None
        leaves: list[_FloatInput] = []
        found = cls(expr, stage, ())
        extents = {a.name: a.extent for a in stage.spatial_axes}
        if not found._collect(stage.body, extents, None, leaves) or not leaves:
            return None
        return replace(found, leaves=tuple(leaves))

    def _collect(self, node: Scalar, extents: dict[str, int], width: int | None, out: list[_FloatInput]) -> bool:
        """Append the float inputs of a tree; return whether the tree is exact on values with few digits."""
        if isinstance(node, Const):
            return float(node.value).is_integer()
        if isinstance(node, Cast):
            return is_float(node.dtype) and self._collect(node.arg, extents, width, out)
        if isinstance(node, Call):
            return node.fn in _EXACT and all(self._collect(a, extents, width, out) for a in node.args)
        if not isinstance(node, Load) or not float(node.outside).is_integer():
            return False
        axes = [{t.axis for t in i.terms} & set(extents) for i in node.index]
        if width is None:
            width = math.prod(extents[a] for a in set[str]().union(*axes))
        made = next((s for s in self.expr.stages if s.name == node.tensor), None)
        if made is not None:
            return made.combiner is None and self._collect(made.body, extents, width, out)
        if is_float(self.expr.tensors[node.tensor].dtype):
            out.append(_FloatInput(node, width, tuple(n for n, found in enumerate(axes) if found)))
        return True

    @property
    def terms(self) -> int:
        """Number of terms."""
        return math.prod(a.extent for a in self.stage.reduction_axes)

    @property
    def hides(self) -> bool:
        """Whether the error bound on a sum of the usual random terms exceeds a small term."""
        dtypes = {name: t.dtype for name, t in self.expr.tensors.items()}
        each = EPS.get(computation_dtype(self.stage.body, dtypes), 0.0)
        return bool(max(4 * EPS[self.stage.acc_dtype] * self.terms**1.5, each * self.terms) >= _HIDING)

    def digits(self) -> dict[str, FewDigitsDrawing]:
        """Return each input's choice of values, keyed by the input's name."""
        names = {x.load.tensor for x in self.leaves}
        unit = 4.0 ** self._multiplied_input_count(self.stage.body)
        mean, rms = (unit * self._size(self.stage.body, x) for x in (_COARSE_MEAN, _COARSE_RMS))
        if self._fits(self.terms, mean, rms):
            return dict.fromkeys(names, FewDigitsDrawing(bias=self._excess_of_positive_values(self.terms)))
        size = self._size(self.stage.body, 1.0)
        terms = float(self.terms)
        while terms > 1 and not self._fits(terms, size, size):
            terms *= 0.97
        bias = self._excess_of_positive_values(terms)
        if terms == self.terms:
            return dict.fromkeys(names, FewDigitsDrawing(True, 1.0, bias))
        distinct = {x.load: x for x in self.leaves}
        widths = [x.width for x in distinct.values()]
        # An operand with few elements per reduction position gets fewer zeros, because each position should count.
        share = terms / self.terms
        shares = _shares_with_product(widths, share) if self._product(self.stage.body) else [share] * len(widths)
        out: dict[str, FewDigitsDrawing] = {}
        for x, p in zip(distinct.values(), shares, strict=True):
            d = FewDigitsDrawing(True, p, bias, x.spread)
            out[x.load.tensor] = _pick_sparser(out.get(x.load.tensor, d), d)
        return out

    def _fits(self, terms: float, mean: float, rms: float) -> bool:
        """Return whether the positive ones among ``terms`` terms total few enough units to be summed exactly."""
        share = (1 + self._excess_of_positive_terms(terms)) / 2
        return terms * mean * share + _FROM_LIMIT * math.sqrt(terms) * rms <= 1 / EPS[self.stage.acc_dtype]

    def _excess_of_positive_terms(self, terms: float) -> float:
        """Return the excess of positive over negative terms, as a fraction of all: 1 if all may have one sign."""
        of_one_sign = len({x.load for x in self.leaves}) < len(self.leaves) or not self._product(self.stage.body)
        return 1.0 if of_one_sign else min(_MOST_BIAS, _FROM_ZERO / math.sqrt(terms))

    def _excess_of_positive_values(self, terms: float) -> float:
        """Return the excess of positive over negative values in each multiplied input, as a fraction of its values."""
        return float(
            min(_MOST_BIAS, _FROM_ZERO / math.sqrt(terms))
            ** (1 / max(1, self._multiplied_input_count(self.stage.body)))
        )

    def _product(self, node: Scalar) -> bool:
        """Return whether a term is zero whenever an input is zero, and may have either sign."""
        if isinstance(node, Call):
            return node.fn in ("mul", "neg") and all(map(self._product, node.args))
        if isinstance(node, Load) and (made := self._made(node)) is not None:
            return self._product(made)
        return self._product(node.arg) if isinstance(node, Cast) else True

    def _multiplied_input_count(self, node: Scalar) -> int:
        """Return the largest number of float inputs that are multiplied together."""
        if isinstance(node, Call):
            found = [self._multiplied_input_count(a) for a in node.args]
            return sum(found) if node.fn == "mul" else max(found)
        if isinstance(node, Load):
            made = self._made(node)
            return (
                self._multiplied_input_count(made)
                if made is not None
                else int(is_float(self.expr.tensors[node.tensor].dtype))
            )
        return self._multiplied_input_count(node.arg) if isinstance(node, Cast) else 0

    def _size(self, node: Scalar, leaf: float) -> float:
        """Return the usual magnitude of a term whose float inputs have magnitude ``leaf``."""
        if isinstance(node, Const):
            return abs(float(node.value))
        if isinstance(node, Call):
            found = [self._size(a, leaf) for a in node.args]
            return math.prod(found) if node.fn == "mul" else sum(found)
        if isinstance(node, Load):
            made, dtype = self._made(node), self.expr.tensors[node.tensor].dtype
            if made is not None:
                return self._size(made, leaf)
            return leaf if is_float(dtype) else _INTEGERS[dtype[0]]
        return self._size(node.arg, leaf) if isinstance(node, Cast) else 1.0

    def _made(self, node: Load) -> Scalar | None:
        """Return the body of the stage that a load reads, or ``None`` if it reads an input."""
        return next((s.body for s in self.expr.stages if s.name == node.tensor), None)


def _shares_with_product(widths: Sequence[int], product: float) -> list[float]:
    """Return shares with the given product, inversely proportional to ``widths`` where the shares are below one.

    Examples
    --------
    >>> _shares_with_product([1, 64], 0.25), _shares_with_product([8, 8], 0.25)
    ([1.0, 0.25], [0.5, 0.5])
    """
    out = [1.0] * len(widths)
    free = list(range(len(widths)))
    while free:
        level = (product * math.prod(widths[i] for i in free)) ** (1 / len(free))
        full = [i for i in free if level >= widths[i]]
        if not full or len(full) == len(free):
            for i in free:
                out[i] = min(1.0, level / widths[i])
            break
        free = [i for i in free if i not in full]
    return out
