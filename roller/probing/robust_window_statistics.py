"""Robust statistics of repeated short windows.

Disturbances only slow windows down and come in bursts, so a value is the median of the fastest windows, and its spread
is their range. If even these windows disagree, no undisturbed window was seen, and the value is rejected.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Relative spread above which a value is not written.
MAX_SPREAD = 0.15
#: Share of the windows that are kept, fastest first.
KEPT_SHARE = 0.25
#: Share of the rounds that are kept if disturbances only raise, or only lower, a value.
_BEST_SHARE = 0.4
#: Minimum number of windows for a meaningful spread.
MIN_KEPT = 3


@dataclass(frozen=True)
class MeasuredValue:
    """A value with its spread.

    >>> MeasuredValue(2.0e-3, 0.01, 40).rate(1.0e6).value
    500000000.0
    """

    value: float  #: Value in the unit of the spec field, or in seconds before conversion
    spread: float  #: ``(max - min) / median`` of the windows kept
    samples: int  #: Number of all windows

    def times(self, factor: float) -> MeasuredValue:
        """Return the value multiplied by a factor."""
        return MeasuredValue(self.value * factor, self.spread, self.samples)

    def rate(self, work: float) -> MeasuredValue:
        """Return ``work`` per second for a value in seconds."""
        return MeasuredValue(work / self.value, self.spread, self.samples)

    def difference_from(self, other: MeasuredValue) -> MeasuredValue:
        """Return the difference between two values, with the sum of their absolute uncertainties."""
        value = self.value - other.value
        uncertain = self.value * self.spread + other.value * other.spread
        return MeasuredValue(value, uncertain / abs(value) if value else float("inf"), min(self.samples, other.samples))

    def to_dict(self) -> dict[str, float]:
        """Return JSON-ready data; ``MeasuredValue(**data)`` reads it back."""
        return {"value": self.value, "spread": self.spread, "samples": self.samples}


def median_of_fastest_windows(windows: Sequence[float], kept: float = KEPT_SHARE) -> MeasuredValue:
    """Return the robust value of repeated windows of the same work.

    >>> median_of_fastest_windows([1.0, 1.01, 1.02, 1.0, 9.0, 1.3, 1.5, 1.2]).value
    1.0
    """
    if not windows or min(windows) <= 0:
        raise ValueError(f"best_of: expected windows longer than 0 s, got {list(windows)[:4]}. Do more work in each.")
    best = sorted(windows)[: max(MIN_KEPT, round(len(windows) * kept))]
    middle = statistics.median(best)
    return MeasuredValue(middle, (best[-1] - best[0]) / middle, len(windows))


def median_of_good_rounds(rounds: Sequence[MeasuredValue], better: int = 0) -> MeasuredValue:
    """Return the median of the rounds that count: the best rounds, or the closest majority if ``better`` is 0.

    >>> median_of_good_rounds([MeasuredValue(v, 0.01, 9) for v in (1.0, 3.0, 1.02, 1.01, 0.5)])
    MeasuredValue(value=1.01, spread=0.01980198019801982, samples=45)
    >>> median_of_good_rounds([MeasuredValue(v, 0.01, 9) for v in (100, 71, 72, 101, 70)], better=1).value
    100.5
    """
    values = sorted(rounds, key=lambda m: m.value)
    many = round(len(values) * _BEST_SHARE) if better else len(values) // 2 + 1
    runs = [values[i : i + max(1, many)] for i in range(len(values) - max(1, many) + 1)]
    if better:
        near = runs[-1 if better > 0 else 0]
    else:
        near = min(runs, key=lambda r: r[-1].value - r[0].value)
    middle = statistics.median(m.value for m in near)
    apart = (near[-1].value - near[0].value) / abs(middle) if middle else float(near[-1].value != near[0].value)
    return MeasuredValue(middle, max(apart, min(m.spread for m in near)), sum(m.samples for m in rounds))


def accept_or_reject_by_spread(found: Mapping[str, MeasuredValue]) -> tuple[dict[str, MeasuredValue], dict[str, str]]:
    """Return the values that may be written, and the reasons why others may not.

    >>> fine, refused = accept_or_reject_by_spread({"a": MeasuredValue(1.0, 0.02, 9), "b": MeasuredValue(1.0, 0.4, 9)})
    >>> list(fine), refused["b"]
    (['a'], 'spread 40 % of 9 windows, at most 15 % may be written. Repeat on a quieter machine.')
    """
    fine, refused = {}, {}
    for path, m in found.items():
        if m.spread <= MAX_SPREAD and m.value >= 0:
            fine[path] = m
        elif m.value < 0:
            refused[path] = f"value {m.value:.3g}: lost in the noise of the windows. Repeat on a quieter machine."
        else:
            refused[path] = (
                f"spread {m.spread:.0%} of {m.samples} windows, at most {MAX_SPREAD:.0%} may be written. "
                "Repeat on a quieter machine."
            ).replace("%", " %")
    return fine, refused
