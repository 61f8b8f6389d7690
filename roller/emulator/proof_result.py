"""The result of a proof, and functions that compare outputs with the expression's reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from roller.emulator.emulate import ORDERS
from roller.emulator.outputs_to_write_and_compare import blocks_run_text
from roller.expr import TensorExpr
from roller.expr.reference_with_error_bounds import ReferenceWithBounds
from roller.expr.rounded_enclosures import error_to_bound_ratios
from roller.tile.winograd import kernels_only_reorder_sums

#: Function ``(expression, inputs, outputs) -> text`` that describes an error in outputs; ``""`` if there is none.
Comparator = Callable[[TensorExpr, Sequence[np.ndarray], Sequence[np.ndarray]], str]
#: The same for chosen elements of each output: coordinates, shape ``(P, rank)``, and values, shape ``(P,)``.
PointComparator = Callable[[TensorExpr, Sequence[np.ndarray], Sequence[np.ndarray], Sequence[np.ndarray]], str]

#: Scopes of a proof: every block ran, some blocks ran, or none ran.
WHOLE, BLOCKS, NOTHING = "whole", "blocks", "nothing"


@dataclass(frozen=True)
class Proof:
    """Outcome of :func:`roller.emulator.prove`.

    Parameters
    ----------
    ok
        Whether no error was found in the completed runs.
    failures
        ``(order, error)`` of each failed order.
    scope
        Part of the kernel that ran: :data:`WHOLE`, :data:`BLOCKS` or :data:`NOTHING`.
    orders
        Completed orders.
    run, blocks
        Number of completed blocks, and number of all blocks in the grids.
    points
        Number of output elements that were compared with the reference.
    note
        Reason why not everything ran; empty if everything did.
    seconds
        Wall time of the proof in seconds.
    spent_s
        Processor time in seconds that the runs were charged; 0 if not measured.
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
    spent_s: float = 0.0

    @property
    def proved(self) -> str:
        """Summary for records: never claims more than ran, and claims nothing for a wrong kernel.

        Examples
        --------
        >>> Proof(True, (), BLOCKS, ("forward", "reverse"), 8, 1024).proved
        'emulated: 8 of 1024 blocks, forward and reverse order only'
        >>> Proof(True, (), NOTHING, note="g++ is not installed").proved
        'not proved (g++ is not installed)'
        >>> Proof(False, (("reverse", "out of bounds"),), WHOLE, ("forward",)).proved
        'not proved (reverse order: out of bounds)'
        """
        if not self.ok:
            return "not proved (" + "; ".join(f"{order} order: {text}" for order, text in self.failures[:1]) + ")"
        if self.scope == NOTHING or not self.orders:
            return f"not proved ({self.note})"
        parts = [blocks_run_text(self.run, self.blocks)] if self.scope == BLOCKS else []
        if 0 < len(self.orders) < len(ORDERS):
            parts.append(f"{' and '.join(self.orders)} order only")
        return f"emulated: {', '.join(parts)}" if parts else "emulated"

    def __str__(self) -> str:
        """Return the failures, one per line."""
        return "\n".join(f"{order}: {text}" for order, text in self.failures) or "ok"


def describe_error_beyond_bound(
    expression: TensorExpr, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> str:
    """Compare outputs with the ranges of correct results (:mod:`roller.expr.reference_with_error_bounds`)."""
    return comparator_of_all_elements(describe_error_beyond_bound_at)(expression, arrays, outputs)


def comparator_of_all_elements(compare: PointComparator) -> Comparator:
    """Turn a comparator for chosen elements into one for all elements."""

    def whole(expression: TensorExpr, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> str:
        points = [
            np.indices(t.shape, dtype=np.int64).reshape(len(t.shape), -1).T if t.shape else np.zeros((1, 0), np.int64)
            for t in expression.output_tensors
        ]
        return compare(expression, arrays, points, [np.asarray(o).reshape(-1) for o in outputs])

    return whole


def describe_error_beyond_bound_at(
    expression: TensorExpr,
    arrays: Sequence[np.ndarray],
    points: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
) -> str:
    """Compare chosen elements of outputs as :func:`describe_error_beyond_bound` compares all elements."""
    known = {t.name: np.asarray(a) for t, a in zip(expression.inputs, arrays, strict=True)}
    run = ReferenceWithBounds(expression, known, reordered=kernels_only_reorder_sums(expression))
    for t, where, got in zip(expression.output_tensors, points, values, strict=True):
        if not len(where):
            continue
        with np.errstate(all="ignore"):
            expected = run.at(t.name, where)
            ratio = error_to_bound_ratios(got, expected)
        if (ratio > 1).any():
            n = int(np.flatnonzero(ratio > 1)[0])
            place = tuple(int(x) for x in where[n])
            return f"output '{t.name}'{list(place)}: {expected.wrong(n, got[n])}"
    return ""
