"""Fits the model's constants to measured times, with the model's own formulas.

Fits are least squares in logarithms, because errors are factors. The spread of a constant is the width of its 95 %
confidence interval, computed from the residuals and the Jacobian; noisy times, or times that deviate from the formula,
give a wide interval and are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from roller.errors import SpecError
from roller.probing.robust_window_statistics import MeasuredValue

Array = np.ndarray
#: Maximum number of steps of the minimizer, and the relative gain below which it stops.
_MOST_STEPS, _ENOUGH = 200, 1e-12
#: Maximum residual of an accepted size (root mean square of logarithms) ...
_EXPLAINED = 0.2
#: ... and minimum ratio of the next best residual to it.
_CLEARER = 1.4


def fit_positive_constants(
    model: Callable[[Array], Array], start: Sequence[float], samples: int
) -> list[MeasuredValue]:
    """Minimize the sum of squares of ``model`` over positive constants (Levenberg-Marquardt in their logarithms).

    >>> x = np.arange(1.0, 6.0)
    >>> [m] = fit_positive_constants(lambda c: np.log(c[0] * x) - np.log(3.0 * x), [1.0], 5)
    >>> round(m.value, 6), m.spread < 1e-6
    (3.0, True)
    """
    at = np.log(np.asarray(start, np.float64))
    damping, residual = 1e-3, model(np.exp(at))
    for _ in range(_MOST_STEPS):
        jacobian = _jacobian(model, at, residual)
        normal = jacobian.T @ jacobian
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-12), -jacobian.T @ residual)
        fresh = model(np.exp(at + np.clip(step, -2.0, 2.0)))
        gain = residual @ residual - fresh @ fresh
        if np.isfinite(gain) and gain >= 0:
            at, residual, damping = at + np.clip(step, -2.0, 2.0), fresh, damping * 0.3
            if gain <= _ENOUGH * (1.0 + residual @ residual):
                break
        else:
            damping *= 10.0
            if damping > 1e12:
                break
    jacobian = _jacobian(model, at, residual)
    freedom = max(1, len(residual) - len(at))
    covariance = np.linalg.pinv(jacobian.T @ jacobian) * (residual @ residual) / freedom
    errors = np.sqrt(np.maximum(0.0, np.diag(covariance)))
    return [MeasuredValue(float(v), float(2 * 1.96 * e), samples) for v, e in zip(np.exp(at), errors, strict=True)]


def _jacobian(model: Callable[[Array], Array], at: Array, residual: Array) -> Array:
    small = 1e-6
    columns = [(model(np.exp(at + small * unit)) - residual) / small for unit in np.eye(len(at))]
    return np.stack(columns, axis=1)


def fit_bandwidth_saturation(
    warps: Array, bytes_per_s: Array, samples: int
) -> tuple[MeasuredValue, MeasuredValue, MeasuredValue]:
    """Return the bandwidth per TEU, the exponent and the peak of ``bandwidth(W) = ((W*b)**-p + peak**-p)**(-1/p)``."""
    start = [float(np.max(bytes_per_s / warps)), 1.5, float(np.max(bytes_per_s)) * 1.05]

    def residuals(c: Array) -> Array:
        return np.asarray(np.log(((warps * c[0]) ** -c[1] + c[2] ** -c[1]) ** (-1 / c[1]) / bytes_per_s))

    b, p, peak = fit_positive_constants(residuals, start, samples)
    return b, p, peak


def fit_reduction_step_times(
    outputs: Array, warps: Array, seconds: Array, schedulers: int, samples: int
) -> tuple[MeasuredValue, MeasuredValue, MeasuredValue]:
    """Return the latency, issue time and multiply-add time, in seconds, of a register tile's reduction step."""
    # The model: seconds = latency + max(1, warps/schedulers) * outputs * fma + warps/schedulers * issue.
    share = warps / schedulers

    def residuals(c: Array) -> Array:
        return np.asarray(np.log((c[0] + np.maximum(1.0, share) * outputs * c[1] + share * c[2]) / seconds))

    start = [
        float(seconds.min()),
        float(np.min(seconds / (np.maximum(1.0, share) * outputs))),
        float(seconds.min()) / 4,
    ]
    latency, fma, issue = fit_positive_constants(residuals, start, samples)
    return latency, issue, fma


def choose_proportional_hypothesis(seconds: Array, counts: dict[Any, Array], what: str) -> Any:
    """Return the hypothesis whose counts are most nearly proportional to the times.

    >>> choose_proportional_hypothesis(np.array([1.0, 1.02, 2.01]), {32: np.array([1, 1, 2]), 64: np.array([1, 1, 1])},
    ...     "transaction")
    32
    """
    rest = {}
    for name, count in counts.items():
        ratio = np.log(seconds / count)
        rest[name] = float(np.sqrt(np.mean((ratio - ratio.mean()) ** 2)))
    ranked = sorted(rest, key=lambda k: (rest[k], str(k)))
    best, second = rest[ranked[0]], rest[ranked[1]]
    if best > _EXPLAINED or second < max(best, 1e-3) * _CLEARER:
        found = ", ".join(f"{k} leaves {rest[k]:.0%}" for k in ranked[:2])
        raise SpecError(f"{what}: expected one size that explains the times, got {found}. Repeat on a quieter device.")
    return ranked[0]


def find_capacity_edge(sizes: Array, seconds: Array) -> float:
    """Return the size at which the logarithm of the time is half-way between its two levels.

    >>> round(find_capacity_edge(np.array([1.0, 2.0, 4.0, 8.0]), np.array([1.0, 1.0, 4.0, 4.0])), 2)
    2.83
    """
    y = np.log(seconds)
    low, high = y[:2].mean(), y[-2:].mean()
    if high - low < np.log(1.3):
        raise SpecError(
            f"capacity: expected the time to rise beyond the cache, got {np.exp(high - low):.2f} times. "
            "Repeat with the size the device states (--set memory_layers.l2.capacity_bytes=...)."
        )
    middle = (low + high) / 2
    above = int(np.argmax(y >= middle))
    share = (middle - y[above - 1]) / (y[above] - y[above - 1])
    x = np.log(sizes)
    return float(np.exp(x[above - 1] + share * (x[above] - x[above - 1])))


def value_with_resampled_spread(
    draw: Callable[[np.random.Generator], float], times: int, samples: int
) -> MeasuredValue:
    """Return the median of ``draw`` over resampled windows, with its spread."""
    rng = np.random.default_rng(7)
    values = np.array([draw(rng) for _ in range(times)])
    middle = float(np.median(values))
    return MeasuredValue(middle, float(np.ptp(values)) / abs(middle), samples)
