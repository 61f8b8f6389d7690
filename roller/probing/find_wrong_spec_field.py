"""Finds the field of a device's spec that best explains the errors of predictions.

A field with a wrong value leaves residuals proportional to the predictions' elasticity with respect to it. The field
that best explains operators left out of the fit is named; if no field explains them, or several do equally well, the
diagnosis says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roller.errors import SpecError
from roller.hardware import DeviceSpec
from roller.perf.sensitivity import FieldStep, elasticity, finite_difference_step, finite_difference_steps
from roller.templates.price_with_templates import log_prices
from roller.tile.geometry import Floats, Ints
from roller.tile.program import RProgram
from roller_runtime.core.display import one_line_repr

#: Minimum numbers of records and operators for a diagnosis.
RECORDS, OPERATORS = 12, 5
#: Median relative residual below which predictions agree.
AGREES = 0.03
#: Share of the residuals of dependent operators, each left out of the fit, that a field must explain, and
#: required significance (standard errors of the mean gain; more for few operators).
EXPLAINED, SURE = 0.3, 3.0
#: Number of standard errors by which a field must explain more than a rival, over operators on which they differ.
APART = 2.0
#: Relative change below which a field counts as right, and minimum numbers of records and operators that depend on it.
LARGE, EVIDENCE, DEPENDENT = 0.04, 6, 3
#: Minimum elasticity at which a record counts as depending on a field.
MATTERS = 0.2
#: Maximum plausible error of a spec's value, as a factor; larger errors come from times that were disturbed or measured
#: on a different device.
PLAUSIBLE = 4.0
#: Number of rounds of refitting with prices at the fitted value, and number of fields to refit.
_ROUNDS, _FITTED = 3, 4
#: Bound on the fitted change of a field's logarithm.
_FURTHEST = 3.0


@dataclass(frozen=True)
class MeasuredProgram:
    """One measured program."""

    operator: str  #: Identity of its expression: errors of one operator are correlated
    program: RProgram
    measured_s: float  #: Median time


@dataclass(frozen=True)
class FieldExplanation:
    """One field, changed so that predictions fit best."""

    #: Dotted path, value in the spec, and fitted value.
    field: str
    value: float
    fitted: float
    #: Numbers of records and operators that depend on the field (elasticity of at least :data:`MATTERS`).
    records: int
    operators: int
    residual: float  #: Mean absolute residual of the logarithm over operators left out of the fit

    @property
    def too_high(self) -> float:
        """Relative excess of the spec's value over the fitted one; negative if it is lower."""
        return self.value / self.fitted - 1

    def __str__(self) -> str:
        side = "high" if self.too_high > 0 else "low"
        return (
            f"{self.field} looks {abs(self.too_high):.0%} {side}: {self.value:.4g} in the spec, {self.fitted:.4g} fits "
            f"best ({self.records} records of {self.operators} operators depend on it)"
        )


@dataclass(frozen=True)
class Diagnosis:
    """Result of comparing a spec with measurements."""

    #: Name of the spec, and the amount of evidence.
    device: str
    records: int
    operators: int
    bias: float  #: Median ratio of measured to predicted time
    residual: float  #: Mean absolute residual of the logarithm, with all operators weighted equally
    finding: FieldExplanation | None  #: The field that explains it, or ``None`` if there is none
    reason: str  #: Reason for no finding, otherwise empty
    #: The best explanations, best first; none of them is a finding if ``finding`` is ``None``.
    tried: tuple[FieldExplanation, ...] = ()

    def __repr__(self) -> str:
        return one_line_repr("Diagnosis", f"{self.device}: {self.finding or self.reason}")

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; ``None`` for unknown numbers."""

        def plain(e: FieldExplanation) -> dict[str, Any]:
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
class _ObservationArrays:
    """Observations as arrays: programs, logarithms of times, operators, and weights that add up to 1 per operator."""

    programs: tuple[RProgram, ...]
    measured: Floats
    group: Ints
    weight: Floats

    @classmethod
    def of(cls, observations: Sequence[MeasuredProgram]) -> _ObservationArrays:
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
        """Return the weighted mean per operator."""
        return np.asarray(np.bincount(self.group, self.weight * values), np.float64)


@dataclass(frozen=True)
class _FieldFit:
    """A field, the fitted change of its logarithm, and the residual of each operator left out of the fit."""

    step: FieldStep
    change: float
    slope: Floats
    left: Floats
    depends: Floats  # mean absolute elasticity per operator


def diagnose(observations: Sequence[MeasuredProgram], spec: DeviceSpec) -> Diagnosis:
    """Return the field of a spec that explains the residuals of its predictions, or the reason why there is none."""
    # Residuals r = ln(measured / predicted) are modelled as r = e * d, with the elasticity e of a field and a change d
    # of its logarithm: the weighted median of r / e, which minimizes absolute residuals and is robust to outliers.
    data = _priceable_observations(observations, spec)
    count, operators = len(data.programs), len(set(data.group.tolist()))
    if count < RECORDS or operators < OPERATORS:
        reason = (
            f"cannot tell: expected at least {RECORDS} measured programs of {OPERATORS} operators, got {count} of "
            f"{operators}. Compile more operators for this device."
        )
        return Diagnosis(spec.name, count, operators, math.nan, math.nan, None, reason)
    r = data.residuals(spec)
    before = data.per_operator(np.abs(r))
    fits = _fit_all_fields(data, spec, r)
    tried = tuple(_explanation_from_fit(f, data) for f in fits[:5])
    finding, reason = _choose_explanation(fits, before, tried, r)
    tried = tuple(e for e in tried if _is_plausible(e))
    return Diagnosis(
        spec.name, count, operators, math.exp(float(np.median(r))), float(before.mean()), finding, reason, tried
    )


def _priceable_observations(observations: Sequence[MeasuredProgram], spec: DeviceSpec) -> _ObservationArrays:
    data = _ObservationArrays.of(observations)
    if not observations:
        return data
    fits = np.isfinite(log_prices(data.programs, spec))
    return data if fits.all() else _ObservationArrays.of([o for o, ok in zip(observations, fits, strict=True) if ok])


def _fit_all_fields(data: _ObservationArrays, spec: DeviceSpec, r: Floats) -> list[_FieldFit]:
    base = data.measured - r
    found = []
    for step in finite_difference_steps(spec):
        slope = elasticity(step, lambda other: log_prices(data.programs, other), base)
        if (np.abs(slope) >= MATTERS).sum() >= EVIDENCE:
            found.append(_fit_field(data, step, 0.0, slope, r))
    found.sort(key=lambda f: (float(f.left.mean()), f.step.field))
    best = [_refine_fit(data, spec, f) for f in found[:_FITTED]]
    return sorted(best, key=lambda f: (float(f.left.mean()), f.step.field)) + found[_FITTED:]


def _fit_field(data: _ObservationArrays, step: FieldStep, change: float, slope: Floats, r: Floats) -> _FieldFit:
    """Return the fit of the residuals ``r`` that remain after ``change``, leaving each operator out in turn."""
    strength = data.weight * np.abs(slope)
    ratio = r / np.where(np.abs(slope) > 1e-9, slope, np.inf)
    order = np.argsort(ratio, kind="stable")
    more = _weighted_median(ratio[order], strength[order])
    left = np.zeros(len(set(data.group.tolist())))
    for g in range(len(left)):
        out = data.group == g
        kept = ~out[order]
        without = _weighted_median(ratio[order][kept], strength[order][kept])
        left[g] = (data.weight * np.abs(r - slope * without))[out].sum()
    return _FieldFit(step, change + more, slope, left, data.per_operator(np.abs(slope)))


def _weighted_median(sorted_values: Floats, weights: Floats) -> float:
    total = np.cumsum(weights)
    if not len(total) or total[-1] <= 0:
        return 0.0
    return float(np.clip(sorted_values[np.searchsorted(total, total[-1] / 2)], -_FURTHEST, _FURTHEST))


def _refine_fit(data: _ObservationArrays, spec: DeviceSpec, fit: _FieldFit) -> _FieldFit:
    """Repeat the fit with prices at the fitted value, because predictions are nonlinear."""
    for _ in range(_ROUNDS):
        value = fit.step.value * math.exp(fit.change)
        try:
            there = spec.with_overrides({fit.step.field: round(value) if fit.step.quantity.integer else value})
        except SpecError:  # out of the field's range: keep the linear fit
            return fit
        base = log_prices(data.programs, there)
        step = finite_difference_step(there, fit.step.field, fit.step.quantity)
        if step is None or not np.isfinite(base).all():
            return fit
        slope = elasticity(step, lambda other: log_prices(data.programs, other), base)
        moved = math.log(step.value / fit.step.value)
        again = _fit_field(data, fit.step, moved, slope, data.measured - base)
        if again.left.mean() >= fit.left.mean():
            return fit
        fit = again
    return fit


def _explanation_from_fit(fit: _FieldFit, data: _ObservationArrays) -> FieldExplanation:
    depends = np.abs(fit.slope) >= MATTERS
    fitted = fit.step.value * math.exp(fit.change)
    operators = len(set(data.group[depends].tolist()))
    return FieldExplanation(
        fit.step.field, fit.step.value, fitted, int(depends.sum()), operators, float(fit.left.mean())
    )


def _choose_explanation(
    fits: Sequence[_FieldFit], before: Floats, tried: Sequence[FieldExplanation], r: Floats
) -> tuple[FieldExplanation | None, str]:
    if fits and abs(tried[0].too_high) >= LARGE and _explains_residuals(fits[0], before):
        if not _is_plausible(tried[0]):
            return None, _message_for_implausible_times(r)
        rivals = [f.step.field for f in fits[1:] if _is_rival_explanation(fits[0], f, before)]
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
        return None, _message_for_implausible_times(r)
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


def _message_for_implausible_times(r: Floats) -> str:
    return (
        f"cannot tell: measured times are {math.exp(float(np.median(r))):.3g} times the predicted ones in the median, "
        f"and no number of the spec within a factor of {PLAUSIBLE:g} explains that. They look disturbed, or measured "
        "on another device: measure again on a quiet machine (roller compile --remeasure)."
    )


def _is_plausible(e: FieldExplanation) -> bool:
    return 1 / PLAUSIBLE <= e.value / e.fitted <= PLAUSIBLE


def _explains_residuals(fit: _FieldFit, before: Floats) -> bool:
    mine = fit.depends >= MATTERS
    if mine.sum() < DEPENDENT:
        return False
    gain = before[mine] - fit.left[mine]
    return bool(
        gain.sum() >= EXPLAINED * before[mine].sum() and _mean_over_standard_error(gain) >= SURE * (1 + 2 / mine.sum())
    )


def _is_rival_explanation(best: _FieldFit, other: _FieldFit, before: Floats) -> bool:
    """Return whether the records cannot distinguish ``other`` from ``best`` as an explanation."""
    if not _explains_residuals(other, before):
        return False
    gain = other.left - best.left
    differ = np.abs(gain) > AGREES / 3
    return bool(differ.sum() < DEPENDENT or _mean_over_standard_error(gain[differ]) < APART)


def _mean_over_standard_error(gains: Floats) -> float:
    deviation = float(gains.std(ddof=1)) / math.sqrt(len(gains))
    mean = float(gains.mean())
    if deviation <= 1e-12:
        return math.inf if mean > 1e-9 else 0.0
    return mean / deviation
