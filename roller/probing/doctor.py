"""Which number of a device's spec looks wrong: measured times against predictions, explained one field at a time.

Every record says by how much its prediction was off, and the model says how its prediction follows each field. A field
that is wrong leaves residuals in proportion to that; the one that explains most of them, on operators it was not
fitted to, is named. Where none does, or several do equally well, that is the answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roller.core.display import one_line
from roller.errors import SpecError
from roller.hardware import DeviceSpec
from roller.perf.sensitivity import FieldStep, elasticity, field_step, field_steps
from roller.templates.pricing import log_prices
from roller.tile.geometry import Floats, Ints
from roller.tile.program import RProgram

#: Records and operators below which nothing can be told.
RECORDS, OPERATORS = 12, 5
#: Typical residual (median, relative) below which there is nothing to explain.
AGREES = 0.03
#: Of the operators that depend on a field: the share of their residuals it must explain, each left out of the fit, and
#: how sure that must be (deviations of the mean gain; more where they are few).
EXPLAINED, SURE = 0.3, 3.0
#: Deviations by which a field must explain more than a rival, of operators on which the two differ.
APART = 2.0
#: Change of a field below which it counts as right (relative); records and operators it must matter to.
LARGE, EVIDENCE, DEPENDENT = 0.04, 6, 3
#: Elasticity from which on a record is evidence for a field.
MATTERS = 0.2
#: Factor beyond which no number of a spec is believed to be wrong: such times were disturbed, or are of something else.
PLAUSIBLE = 4.0
#: Rounds of fitting with prices at the fitted value; fields that get them.
_ROUNDS, _FITTED = 3, 4
#: Change of the logarithm of a field beyond which nothing is believed.
_FURTHEST = 3.0


@dataclass(frozen=True)
class Observation:
    """One measured program.

    Parameters
    ----------
    operator
        What identifies its expression: records of one operator err together.
    program, measured_s
        The program and its median seconds.
    """

    operator: str
    program: RProgram
    measured_s: float


@dataclass(frozen=True)
class Explanation:
    """One field, changed so that predictions fit best.

    Parameters
    ----------
    field, value, fitted
        Dotted path, what the spec says, and what the records suggest.
    records, operators
        How many it matters to (an elasticity of at least :data:`MATTERS`).
    residual
        Mean absolute residual (of ``ln``) that is left on operators left out of the fit.
    """

    field: str
    value: float
    fitted: float
    records: int
    operators: int
    residual: float

    @property
    def too_high(self) -> float:
        """By how much the spec's value is above the fitted one, relative; negative where it is below."""
        return self.value / self.fitted - 1

    def __str__(self) -> str:
        """Say in one line what looks wrong."""
        side = "high" if self.too_high > 0 else "low"
        return (
            f"{self.field} looks {abs(self.too_high):.0%} {side}: {self.value:.4g} in the spec, {self.fitted:.4g} fits "
            f"best ({self.records} records of {self.operators} operators depend on it)"
        )


@dataclass(frozen=True)
class Diagnosis:
    """What the records say of a spec.

    Parameters
    ----------
    device, records, operators
        Name of the spec, and how much there was to judge by.
    bias
        Median of measured over predicted.
    residual
        Mean absolute residual of ``ln``, operators counting alike.
    finding
        The field that explains it, or ``None``.
    reason
        Why none is named, or an empty string.
    tried
        The best explanations, best first; they are no findings where ``finding`` is ``None``.
    """

    device: str
    records: int
    operators: int
    bias: float
    residual: float
    finding: Explanation | None
    reason: str
    tried: tuple[Explanation, ...] = ()

    def __repr__(self) -> str:
        """Device and finding on one line."""
        return one_line("Diagnosis", f"{self.device}: {self.finding or self.reason}")

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; ``None`` where there was too little to tell."""

        def plain(e: Explanation) -> dict[str, Any]:
            return {"field": e.field, "value": e.value, "fitted": e.fitted, "too_high": e.too_high,
                    "records": e.records, "operators": e.operators, "residual": e.residual}  # fmt: skip

        def known(value: float) -> float | None:
            return value if math.isfinite(value) else None

        return {
            "device": self.device, "records": self.records, "operators": self.operators, "bias": known(self.bias),
            "residual": known(self.residual), "finding": None if self.finding is None else plain(self.finding),
            "reason": self.reason, "tried": [plain(e) for e in self.tried],
        }  # fmt: skip


@dataclass(frozen=True)
class _Data:
    """Observations as arrays: programs, ``ln`` measured, operators, and weights that sum to 1 per operator."""

    programs: tuple[RProgram, ...]
    measured: Floats
    group: Ints
    weight: Floats

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> _Data:
        names = {name: n for n, name in enumerate(dict.fromkeys(o.operator for o in observations))}
        group = np.array([names[o.operator] for o in observations], np.int64)
        return cls(
            tuple(o.program for o in observations),
            np.log([o.measured_s for o in observations]),
            group,
            1.0 / np.bincount(group)[group],
        )

    def residuals(self, spec: DeviceSpec) -> Floats:
        return np.asarray(self.measured - log_prices(self.programs, spec))

    def per_operator(self, values: Floats) -> Floats:
        """Return the mean over the records of each operator."""
        return np.asarray(np.bincount(self.group, self.weight * values), np.float64)


@dataclass(frozen=True)
class _Fit:
    """A field, the fitted change of its ``ln``, and what is left per operator where that is left out of the fit."""

    step: FieldStep
    change: float
    slope: Floats
    left: Floats
    depends: Floats  # mean elasticity per operator, without its sign


def diagnose(observations: Sequence[Observation], spec: DeviceSpec) -> Diagnosis:
    """Return which field of a spec explains the residuals of its predictions, or why none can be named.

    Notes
    -----
    Residuals ``r = ln(measured / predicted)`` are explained as ``r = e * d`` with the elasticity ``e`` of the field and
    a change ``d`` of its logarithm: the weighted median of ``r / e``, which minimises the sum of absolute residuals and
    does not mind outliers. Fields are compared by what is left on each operator when it is left out of the fit.
    """
    data = _fitting(observations, spec)
    count, operators = len(data.programs), len(set(data.group.tolist()))
    if count < RECORDS or operators < OPERATORS:
        reason = (
            f"cannot tell: expected at least {RECORDS} measured programs of {OPERATORS} operators, got {count} of "
            f"{operators}. Compile more operators for this device."
        )
        return Diagnosis(spec.name, count, operators, math.nan, math.nan, None, reason)
    r = data.residuals(spec)
    before = data.per_operator(np.abs(r))
    fits = _fits(data, spec, r)
    tried = tuple(_explanation(f, data) for f in fits[:5])
    finding, reason = _verdict(fits, before, tried, r)
    tried = tuple(e for e in tried if _is_plausible(e))
    return Diagnosis(
        spec.name, count, operators, math.exp(float(np.median(r))), float(before.mean()), finding, reason, tried
    )


def _fitting(observations: Sequence[Observation], spec: DeviceSpec) -> _Data:
    data = _Data.of(observations)
    if not observations:
        return data
    fits = np.isfinite(log_prices(data.programs, spec))
    return data if fits.all() else _Data.of([o for o, ok in zip(observations, fits, strict=True) if ok])


def _fits(data: _Data, spec: DeviceSpec, r: Floats) -> list[_Fit]:
    """Return the fields with what each leaves unexplained, least first."""
    base = data.measured - r
    found = []
    for step in field_steps(spec):
        slope = elasticity(step, lambda other: log_prices(data.programs, other), base)
        if (np.abs(slope) >= MATTERS).sum() >= EVIDENCE:
            found.append(_fitted(data, step, 0.0, slope, r))
    found.sort(key=lambda f: (float(f.left.mean()), f.step.field))
    best = [_refined(data, spec, f) for f in found[:_FITTED]]
    return sorted(best, key=lambda f: (float(f.left.mean()), f.step.field)) + found[_FITTED:]


def _fitted(data: _Data, step: FieldStep, change: float, slope: Floats, r: Floats) -> _Fit:
    """Return the fit of residuals ``r`` that are left after ``change``, each operator left out in turn."""
    strength = data.weight * np.abs(slope)
    ratio = r / np.where(np.abs(slope) > 1e-9, slope, np.inf)
    order = np.argsort(ratio, kind="stable")
    more = _median(ratio[order], strength[order])
    left = np.zeros(len(set(data.group.tolist())))
    for g in range(len(left)):
        out = data.group == g
        kept = ~out[order]
        without = _median(ratio[order][kept], strength[order][kept])
        left[g] = (data.weight * np.abs(r - slope * without))[out].sum()
    return _Fit(step, change + more, slope, left, data.per_operator(np.abs(slope)))


def _median(sorted_values: Floats, weights: Floats) -> float:
    """Return the weighted median of values in order; 0 where nothing has weight."""
    total = np.cumsum(weights)
    if not len(total) or total[-1] <= 0:
        return 0.0
    return float(np.clip(sorted_values[np.searchsorted(total, total[-1] / 2)], -_FURTHEST, _FURTHEST))


def _refined(data: _Data, spec: DeviceSpec, fit: _Fit) -> _Fit:
    """Fit again with prices at the fitted value: predictions follow large changes in curves."""
    for _ in range(_ROUNDS):
        value = fit.step.value * math.exp(fit.change)
        try:
            there = spec.with_overrides({fit.step.field: round(value) if fit.step.quantity.integer else value})
        except SpecError:  # beyond what the field can be: the straight line is all there is
            return fit
        base = log_prices(data.programs, there)
        step = field_step(there, fit.step.field, fit.step.quantity)
        if step is None or not np.isfinite(base).all():
            return fit
        slope = elasticity(step, lambda other: log_prices(data.programs, other), base)
        moved = math.log(step.value / fit.step.value)
        again = _fitted(data, fit.step, moved, slope, data.measured - base)
        if again.left.mean() >= fit.left.mean():
            return fit
        fit = again
    return fit


def _explanation(fit: _Fit, data: _Data) -> Explanation:
    depends = np.abs(fit.slope) >= MATTERS
    fitted = fit.step.value * math.exp(fit.change)
    operators = len(set(data.group[depends].tolist()))
    return Explanation(fit.step.field, fit.step.value, fitted, int(depends.sum()), operators, float(fit.left.mean()))


def _verdict(
    fits: Sequence[_Fit], before: Floats, tried: Sequence[Explanation], r: Floats
) -> tuple[Explanation | None, str]:
    """Return the field to name, or why there is none."""
    if fits and abs(tried[0].too_high) >= LARGE and _explains(fits[0], before):
        if not _is_plausible(tried[0]):
            return None, _beyond_belief(r)
        rivals = [f.step.field for f in fits[1:] if _rivals(fits[0], f, before)]
        if not rivals:
            return tried[0], ""
        names = ", ".join([tried[0].field, *rivals[:3]]) + (" and others" if len(rivals) > 3 else "")
        return None, (
            f"cannot tell: {names} explain the residuals equally well. Measure operators that depend on one of them "
            "and not on the others."
        )
    typical = float(np.median(np.abs(r)))
    if typical < AGREES:
        return None, f"nothing to explain: predictions are within {typical:.1%} in the median."
    if float(np.median(r)) > math.log(PLAUSIBLE):
        return None, _beyond_belief(r)
    best = f"none matters to {EVIDENCE} records"
    tried = [e for e in tried if _is_plausible(e)]
    if tried:
        n = tried[0].operators
        few = f", but only {n} operators depend on it" if n < DEPENDENT else ""
        best = f"{tried[0].field} would come nearest{few}"
    return None, (
        f"cannot tell: measured times are {math.expm1(float(np.median(r))):+.0%} off in the median and "
        f"{before.mean():.0%} around predictions, and no field explains that; {best}."
    )


def _beyond_belief(r: Floats) -> str:
    """Return what is said of times that no wrong number explains."""
    return (
        f"cannot tell: measured times are {math.exp(float(np.median(r))):.3g} times the predicted ones in the median, "
        f"and no number of the spec within a factor of {PLAUSIBLE:g} explains that. They look disturbed, or measured "
        "on another device: measure again on a quiet machine (roller compile --remeasure)."
    )


def _is_plausible(e: Explanation) -> bool:
    return 1 / PLAUSIBLE <= e.value / e.fitted <= PLAUSIBLE


def _explains(fit: _Fit, before: Floats) -> bool:
    """Whether a field explains, surely, much of the residuals of the operators that depend on it."""
    mine = fit.depends >= MATTERS
    if mine.sum() < DEPENDENT:
        return False
    gain = before[mine] - fit.left[mine]
    return bool(gain.sum() >= EXPLAINED * before[mine].sum() and _deviations(gain) >= SURE * (1 + 2 / mine.sum()))


def _rivals(best: _Fit, other: _Fit, before: Floats) -> bool:
    """Whether ``other`` explains what ``best`` does, as far as the records can tell the two apart."""
    if not _explains(other, before):
        return False
    gain = other.left - best.left
    differ = np.abs(gain) > AGREES / 3
    return bool(differ.sum() < DEPENDENT or _deviations(gain[differ]) < APART)


def _deviations(gains: Floats) -> float:
    """Return the mean of per-operator gains in standard deviations of that mean."""
    deviation = float(gains.std(ddof=1)) / math.sqrt(len(gains))
    mean = float(gains.mean())
    if deviation <= 1e-12:
        return math.inf if mean > 1e-9 else 0.0
    return mean / deviation
