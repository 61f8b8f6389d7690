"""Figures of a set of operators."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean; NaN of nothing.

    Examples
    --------
    >>> geometric_mean([1.0, 4.0])
    2.0
    """
    logs = [math.log(v) for v in values]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def top_share(operator: Mapping[str, Any]) -> float | None:
    """Return the best candidate's time divided by the first's: 1 where the first prediction was the best."""
    first = next((c for c in operator["candidates"] if c["rank"] == 1), None)
    if first is None or first["measured_s"] is None or operator["best_s"] is None:
        return None
    return float(operator["best_s"] / first["measured_s"])
