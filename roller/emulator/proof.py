"""What a proof says, and how results are compared with the expression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from roller.emulator.coverage import summary
from roller.emulator.emulate import ORDERS
from roller.expr import TensorExpr
from roller.expr.evaluate import _Evaluation as Evaluation

#: Says what is wrong with outputs, or returns an empty text: ``(expression, inputs, outputs) -> text``.
Comparator = Callable[[TensorExpr, Sequence[np.ndarray], Sequence[np.ndarray]], str]
#: The same for some elements of the outputs: coordinates ``(P, rank)`` and values ``(P,)`` per output.
PointComparator = Callable[[TensorExpr, Sequence[np.ndarray], Sequence[np.ndarray], Sequence[np.ndarray]], str]
#: Unit roundoff of a result, doubled.
_EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

#: Every block ran; some blocks did; none.
WHOLE, BLOCKS, NOTHING = "whole", "blocks", "nothing"


@dataclass(frozen=True)
class Proof:
    """Outcome of :func:`roller.emulator.prove`.

    Parameters
    ----------
    ok
        Whether nothing was found wrong in what was run.
    failures
        Per order that failed, what was wrong.
    scope
        What was run: :data:`WHOLE`, :data:`BLOCKS` or :data:`NOTHING`.
    orders
        Orders that were run to their end.
    run, blocks
        Blocks that were run, and blocks of the grids.
    points
        Outputs that were compared with the reference.
    note
        Why not more was run; empty where all was.
    seconds
        What it took.
    """

    ok: bool
    failures: tuple[tuple[str, str], ...]
    scope: str = WHOLE
    orders: tuple[str, ...] = ()
    run: int = 0
    blocks: int = 0
    points: int = 0
    note: str = ""
    seconds: float = 0.0

    @property
    def proved(self) -> str:
        """Say in one line what is known, as records do.

        Examples
        --------
        >>> Proof(True, (), BLOCKS, ("forward", "reverse"), 8, 1024).proved
        'emulated: 8 of 1024 blocks, forward and reverse order only'
        >>> Proof(True, (), NOTHING, note="g++ is not installed").proved
        'not proved (g++ is not installed)'
        """
        if self.scope == NOTHING:
            return f"not proved ({self.note})"
        parts = [summary(self.run, self.blocks)] if self.scope == BLOCKS else []
        if 0 < len(self.orders) < len(ORDERS):
            parts.append(f"{' and '.join(self.orders)} order only")
        return f"emulated: {', '.join(parts)}" if parts else "emulated"

    def __str__(self) -> str:
        """Return the failures, one a line."""
        return "\n".join(f"{order}: {text}" for order, text in self.failures) or "ok"


def within_bound(expression: TensorExpr, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> str:
    """Compare outputs with ``expression.evaluate``; see :func:`roller.emulator.prove` for the bound."""
    reference = expression.evaluate(arrays)
    magnitude = expression.evaluate(arrays, magnitude=True)
    for t, got, ref, size in zip(expression.output_tensors, outputs, reference, magnitude, strict=True):
        wrong, bound = _beyond(expression, t.dtype, got, ref, size)
        if wrong.any():
            at = tuple(int(x) for x in np.argwhere(wrong)[0])
            return _text(t.name, at, ref[at], got[at], bound[at])
    return ""


def within_bound_at(
    expression: TensorExpr,
    arrays: Sequence[np.ndarray],
    points: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
) -> str:
    """Compare some elements of outputs as :func:`within_bound` does all."""
    known = {t.name: np.asarray(a) for t, a in zip(expression.inputs, arrays, strict=True)}
    exact, sizes = Evaluation(expression, known, False), Evaluation(expression, known, True)
    for t, where, got in zip(expression.output_tensors, points, values, strict=True):
        if not len(where):
            continue
        with np.errstate(all="ignore"):
            reference, size = np.asarray(exact.at(t.name, where)), np.asarray(sizes.at(t.name, where))
            wrong, bound = _beyond(expression, t.dtype, got, reference, size)
        if wrong.any():
            n = int(np.flatnonzero(wrong)[0])
            return _text(t.name, tuple(int(x) for x in where[n]), reference[n], got[n], bound[n])
    return ""


def _beyond(
    expression: TensorExpr, dtype: str, got: np.ndarray, reference: np.ndarray, size: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return where the error is above its bound, and the bound."""
    terms = max(int(np.prod([a.extent for a in s.reduction_axes], dtype=np.int64)) for s in expression.stages)
    factor = 4.0 * float(np.sqrt(terms)) * (1 if len(expression.stages) == 1 else 10)
    accumulate = max((_EPS.get(s.acc_dtype, 0.0) for s in expression.stages), default=0.0)
    # What grows beyond all bounds where signs are dropped (exp) leaves its own size.
    size = np.where(np.isfinite(size), np.abs(size.astype(np.float64)), np.abs(reference))
    bound = factor * accumulate * size + _EPS.get(dtype, 0.0) * np.abs(reference)
    error = np.abs(got.astype(np.float64) - reference.astype(np.float64))
    same = got.astype(np.float64) == reference.astype(np.float64)  # of infinities there is no difference
    undefined = np.isnan(got.astype(np.float64)) & np.isnan(reference.astype(np.float64))
    return ~(same | undefined | (error <= bound)), bound


def _text(name: str, at: tuple[int, ...], expected: object, got: object, bound: float) -> str:
    return f"output '{name}'{list(at)}: expected {expected!r}, got {got!r}, error bound {bound:.3g}"
