"""Anti-unification: turns data for some sizes into data for all sizes; numbers that differ become formulas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roller.core.formula_fitting import FormulaFitter
from roller.errors import RollerError, shown
from roller_runtime.core.generalized_data import GeneralizedData, SizeIndependent
from roller_runtime.core.size_formulas import Formula, Inverse


class MismatchError(RollerError):
    """The data for two sizes differ in more than numbers, or no known formula yields the numbers."""


def general(several: Sequence[Any], fitter: FormulaFitter) -> GeneralizedData:
    """Return one nested structure with formulas that represents the structures for several sizes."""
    return GeneralizedData(_anti_unify_nodes(list(several), fitter, ""))


def _anti_unify_nodes(nodes: list[Any], fitter: FormulaFitter, path: str) -> Any:
    first = nodes[0]
    if isinstance(first, dict):
        if any(not isinstance(n, dict) or list(n) != list(first) for n in nodes):
            raise MismatchError(f"{path or 'the data'}: expected the same entries for all sizes, got others for some.")
        made: Any = {k: _anti_unify_nodes([n[k] for n in nodes], fitter, f"{path}.{k}") for k in first}
        return SizeIndependent(first) if all(_is_number_or_text(v) for v in made.values()) else made
    if isinstance(first, (list, tuple)):
        if any(not isinstance(n, (list, tuple)) or len(n) != len(first) for n in nodes):
            counts = sorted({len(n) if isinstance(n, (list, tuple)) else 0 for n in nodes})
            raise MismatchError(
                f"{path or 'the data'}: expected as many entries for all sizes, got {shown(counts)}: some are there at "
                "some sizes only."
            )
        made = [_anti_unify_nodes([n[k] for n in nodes], fitter, f"{path}[{k}]") for k in range(len(first))]
        return SizeIndependent(list(first)) if all(_is_number_or_text(v) for v in made) else made
    if all(type(n) is type(first) and (n == first or (n != n and first != first)) for n in nodes):
        return first
    inverses = [Inverse.of(n) if isinstance(n, float) else None for n in nodes]
    if None not in inverses:
        below = fitter.fit([n for n in inverses if n is not None])
        if below is not None:
            return Inverse(below)
    if not all(isinstance(n, int) and not isinstance(n, bool) for n in nodes):
        raise MismatchError(f"{path}: expected the same for all sizes, got {first!r} and others.")
    formula = fitter.fit(nodes)
    if formula is None:
        some = ", ".join(f"{n} at {p}" for n, p in zip(nodes[:3], fitter.points, strict=False))
        raise MismatchError(f"{path}: expected a known function of the sizes, got {some}.")
    return formula


def _is_number_or_text(made: Any) -> bool:
    return not isinstance(made, (Formula, Inverse, dict, list))
