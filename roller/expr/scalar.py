"""The scalar expression tree that one point of a stage computes; nodes are frozen, hashable and independent of TVM.

The float64 reference evaluates the tree, the performance model counts its instruction classes, and code generation
prints it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from roller.errors import ExprError
from roller.expr.combiners import COMBINERS


@dataclass(frozen=True)
class Term:
    """``coef * ((axis // div) % mod)``; ``mod == 0`` means no modulo, and ``div == 1`` no division."""

    axis: str
    coef: int = 1
    div: int = 1
    mod: int = 0

    @property
    def is_affine(self) -> bool:
        """Whether the term is ``coef * axis``."""
        return self.div == 1 and self.mod == 0


@dataclass(frozen=True)
class Index:
    """A (quasi-)affine integer expression of the axes: ``sum(terms) + const``."""

    terms: tuple[Term, ...] = ()
    const: int = 0

    @property
    def is_affine(self) -> bool:
        """Whether no term divides or takes a remainder."""
        return all(t.is_affine for t in self.terms)

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes in the index, each once, in the order of the terms."""
        return tuple(dict.fromkeys(t.axis for t in self.terms))

    def is_axis(self, name: str) -> bool:
        """Return whether the index is exactly the axis ``name``."""
        return self.const == 0 and self.terms == (Term(name),)

    def is_digits(self, extents: Mapping[str, int]) -> bool:
        """Return whether the axes are digits of the index, so that no two points share a position."""
        # True for ``16 * block + inner`` with 16 inner elements; false for a sliding window ``out + kernel``.
        reach = 0
        for t in sorted(self.terms, key=lambda t: abs(t.coef)):
            if not t.is_affine or t.axis not in extents or t.coef <= reach:
                return False
            reach += t.coef * (extents[t.axis] - 1)
        return True

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Evaluate the index; each ``values[axis]`` is an int or an integer array."""
        total: Any = self.const
        for t in self.terms:
            v = values[t.axis]
            if t.div != 1:
                v = v // t.div
            if t.mod:
                v = v % t.mod
            total = total + (v if t.coef == 1 else t.coef * v)
        return total

    def range(self, extents: Mapping[str, int]) -> tuple[int, int]:
        """Return conservative bounds, both inclusive, on the values over the box ``0 <= axis < extents[axis]``."""
        low = high = self.const
        for t in self.terms:
            top = (extents[t.axis] - 1) // t.div
            if t.mod:
                top = min(top, t.mod - 1)
            low += min(0, t.coef * top)
            high += max(0, t.coef * top)
        return low, high


def axis_index(name: str, coef: int = 1, const: int = 0) -> Index:
    """Return the index ``coef * name + const``."""
    return Index((Term(name, coef),), const)


@dataclass(frozen=True)
class Bound:
    """The guard ``low <= index < high`` of a load."""

    index: Index
    low: int
    high: int


@dataclass(frozen=True)
class Const:
    """A literal."""

    value: float
    dtype: str = "float32"


@dataclass(frozen=True)
class Load:
    """One element of ``tensor``, or ``outside`` (the padding value) if a guard fails."""

    tensor: str
    index: tuple[Index, ...]
    guard: tuple[Bound, ...] = ()
    outside: float = 0.0


@dataclass(frozen=True)
class IndexValue:
    """The value of an index as data, for arg-reductions."""

    index: Index
    dtype: str = "int32"


@dataclass(frozen=True)
class Cast:
    """Conversion of ``arg`` to ``dtype``."""

    dtype: str
    arg: Scalar


@dataclass(frozen=True)
class Call:
    """A function of :data:`FUNCTIONS` applied to scalars."""

    fn: str
    args: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        """Reject unknown functions and wrong argument counts at construction."""
        known = FUNCTIONS.get(self.fn)
        if known is None:
            raise ExprError(f"scalar expression: unknown function '{self.fn}'. Use one of {sorted(FUNCTIONS)}.")
        if len(self.args) != known.arity:
            raise ExprError(f"scalar expression: {self.fn} takes {known.arity} arguments, got {len(self.args)}.")


Scalar: TypeAlias = Const | Load | IndexValue | Cast | Call


def _erf(x: np.ndarray) -> np.ndarray:
    """Return the error function, which NumPy lacks, in float64."""
    flat = np.asarray(x, dtype=np.float64)
    return np.array([math.erf(v) for v in flat.ravel()], dtype=np.float64).reshape(flat.shape)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    """Return the logistic function without overflow for large negative arguments."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0 / (1.0 + e), e / (1.0 + e)))


def _truncated_quotient(a: Any, b: Any) -> Any:
    """Return the integer quotient rounded towards zero, as in C, and 0 for division by zero, where hardware traps."""
    a, b = np.asarray(a), np.asarray(b)
    divisor = np.where(b == 0, 1, b)
    with np.errstate(over="ignore"):  # the smallest integer divided by -1 wraps around
        down = a // divisor
        # The floor is one too low if signs differ and the remainder is not zero; the smallest integer has no positive
        # counterpart.
        up = (down * divisor != a) & ((a < 0) != (divisor < 0))
    return np.where(b == 0, 0, down + up)


def _truncated_remainder(a: Any, b: Any) -> Any:
    """Return the remainder of :func:`_truncated_quotient`, or 0 for division by zero."""
    return np.where(np.asarray(b) == 0, 0, a - _truncated_quotient(a, b) * b)


def _on_int64(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fn`` with its operands converted to int64."""
    return lambda *args: fn(*(np.asarray(a).astype(np.int64) for a in args))


class ScalarFunction(NamedTuple):
    """Arity, NumPy implementation and instruction class of a scalar function."""

    arity: int
    numpy: Callable[..., Any]
    instruction_class: str


#: Instruction classes: ``fma`` (add, multiply and fused), ``add`` (compare, max, select),
#: ``special`` (special-function unit; division and roots).
FUNCTIONS: dict[str, ScalarFunction] = {
    "add": ScalarFunction(2, np.add, "fma"),
    "sub": ScalarFunction(2, np.subtract, "fma"),
    "mul": ScalarFunction(2, np.multiply, "fma"),
    "div": ScalarFunction(2, np.divide, "special"),
    "max": ScalarFunction(2, np.maximum, "add"),
    "min": ScalarFunction(2, np.minimum, "add"),
    "neg": ScalarFunction(1, np.negative, "add"),
    "abs": ScalarFunction(1, np.abs, "add"),
    "exp": ScalarFunction(1, np.exp, "special"),
    "log": ScalarFunction(1, np.log, "special"),
    "log1p": ScalarFunction(1, np.log1p, "special"),
    "expm1": ScalarFunction(1, np.expm1, "special"),
    "sqrt": ScalarFunction(1, np.sqrt, "special"),
    "rsqrt": ScalarFunction(1, lambda x: 1.0 / np.sqrt(x), "special"),
    "tanh": ScalarFunction(1, np.tanh, "special"),
    "erf": ScalarFunction(1, _erf, "special"),
    "sigmoid": ScalarFunction(1, _sigmoid, "special"),
    "pow": ScalarFunction(2, np.power, "special"),
    "floor": ScalarFunction(1, np.floor, "add"),
    "ceil": ScalarFunction(1, np.ceil, "add"),
    "eq": ScalarFunction(2, np.equal, "add"),
    "lt": ScalarFunction(2, np.less, "add"),
    "le": ScalarFunction(2, np.less_equal, "add"),
    "select": ScalarFunction(3, np.where, "add"),
    "isnan": ScalarFunction(1, np.isnan, "add"),
    "trunc": ScalarFunction(1, np.trunc, "add"),
    "round": ScalarFunction(1, np.rint, "add"),  # half to even
    **{n: ScalarFunction(1, getattr(np, n), "special") for n in ("sin", "cos", "tan", "sinh", "cosh")},
    "asin": ScalarFunction(1, np.arcsin, "special"),
    "acos": ScalarFunction(1, np.arccos, "special"),
    "atan": ScalarFunction(1, np.arctan, "special"),
    "asinh": ScalarFunction(1, np.arcsinh, "special"),
    "acosh": ScalarFunction(1, np.arccosh, "special"),
    "atanh": ScalarFunction(1, np.arctanh, "special"),
    "fmod": ScalarFunction(2, np.fmod, "special"),  # the sign of the dividend; floating point
    # On integers only:
    "idiv": ScalarFunction(2, _truncated_quotient, "special"),  # towards zero
    "imod": ScalarFunction(2, _truncated_remainder, "special"),  # the sign of the dividend; 0 for division by zero
    "bitand": ScalarFunction(2, _on_int64(np.bitwise_and), "add"),
    "bitor": ScalarFunction(2, _on_int64(np.bitwise_or), "add"),
    "bitxor": ScalarFunction(2, _on_int64(np.bitwise_xor), "add"),
    "shl": ScalarFunction(2, _on_int64(np.left_shift), "add"),
    "shr": ScalarFunction(2, _on_int64(np.right_shift), "add"),
}


def walk_scalar_tree(node: Scalar) -> Iterator[Scalar]:
    """Yield ``node`` and all nodes below it, parents first."""
    left = [node]
    while left:
        node = left.pop()
        yield node
        if isinstance(node, Call):
            left.extend(reversed(node.args))
        elif isinstance(node, Cast):
            left.append(node.arg)


def loads(node: Scalar) -> tuple[Load, ...]:
    """Return the distinct loads of the tree, in order of first appearance."""
    return tuple(dict.fromkeys(n for n in walk_scalar_tree(node) if isinstance(n, Load)))


def transform_scalar(node: Scalar, fn: Callable[[Scalar], Scalar]) -> Scalar:
    """Rebuild the tree bottom-up, replacing each node by ``fn(node)``."""
    if isinstance(node, Call):
        node = Call(node.fn, tuple(transform_scalar(a, fn) for a in node.args))
    elif isinstance(node, Cast):
        node = Cast(node.dtype, transform_scalar(node.arg, fn))
    return fn(node)


def map_indices(node: Scalar, fn: Callable[[Index], Index]) -> Scalar:
    """Rebuild the tree with each index (of loads, guards and index values) replaced by ``fn(index)``."""

    def leaf(n: Scalar) -> Scalar:
        if isinstance(n, Load):
            guard = tuple(Bound(fn(b.index), b.low, b.high) for b in n.guard)
            return Load(n.tensor, tuple(fn(i) for i in n.index), guard, n.outside)
        return IndexValue(fn(n.index), n.dtype) if isinstance(n, IndexValue) else n

    return transform_scalar(node, leaf)


def instruction_mix(node: Scalar, combiner: str | None) -> dict[str, float]:
    """Count the instructions for one point by class, including the combiner's step; a summed product is one fma.

    Examples
    --------
    >>> a, b = Load("A", ()), Load("B", ())
    >>> instruction_mix(Call("mul", (a, b)), "sum")
    {'fma': 1.0}
    >>> instruction_mix(a, "max")
    {'add': 1.0}
    """
    mix: dict[str, float] = {}
    for n in walk_scalar_tree(node):
        if isinstance(n, Call):
            kind = FUNCTIONS[n.fn].instruction_class
            mix[kind] = mix.get(kind, 0.0) + 1.0
        elif isinstance(n, Cast):
            mix["convert"] = mix.get("convert", 0.0) + 1.0
    if combiner == "sum" and isinstance(node, Call) and node.fn == "mul":
        return mix
    if combiner is not None:
        kind = COMBINERS[combiner].instruction
        mix[kind] = mix.get(kind, 0.0) + 1.0
    return mix
