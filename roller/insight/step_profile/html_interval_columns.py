"""Intervals of a profile's figures as columns for its page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from roller.insight.step_profile.node import Node, Seconds


class StepTimes(Protocol):
    """Protocol for a profile with a throughput and its interval."""

    @property
    def throughput(self) -> float:
        """Samples per second."""
        ...

    @property
    def iteration_s(self) -> float:
        """Time of one step."""
        ...

    @property
    def lower_s(self) -> float:
        """Lower end of the interval of ``iteration_s``."""
        ...

    @property
    def upper_s(self) -> float:
        """Upper end of the interval of ``iteration_s``."""
        ...


def interval_columns(rows: Sequence[Node]) -> dict[str, Any] | None:
    """Return the interval ends of wall and device times as columns; ``None`` if no row has an interval."""
    if not any(row.lower for row in rows):
        return None
    found: dict[str, Any] = {}
    for name, intervals in (
        ("wall", [row.interval_s for row in rows]), ("device", [row.device_interval_s for row in rows]),
    ):  # fmt: skip
        for place, end in enumerate(("lower", "upper")):
            found[f"{name}_{end}_s"] = np.array([math.nan if x is None else x[place] for x in intervals], np.float64)
    return found


def phase_interval_ends(row: Node) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Return the lower ends and the upper ends of the wall time in each phase."""
    return _wall_s_by_phase(row.lower), _wall_s_by_phase(row.upper)


def _wall_s_by_phase(seconds: Mapping[str, Seconds]) -> dict[str, float]:
    return {phase: part.wall_s for phase, part in seconds.items()}


def throughput_interval(step: StepTimes) -> list[float] | None:
    """Return the lowest and highest throughput in the interval of the step time; ``None`` if unknown."""
    if not step.throughput or not 0.0 < step.lower_s < step.upper_s:
        return None
    samples = step.throughput * step.iteration_s
    return [samples / step.upper_s, samples / step.lower_s]
