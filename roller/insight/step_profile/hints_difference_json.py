"""Hints with prices, and the difference from another profile, as data for ``--json`` and the HTML report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol

from roller.insight.step_profile.difference import LineDifference, ProfileDifference
from roller.insight.step_profile.step_profile import StepProfile
from roller.insight.step_profile.what_if_hints import Hint


class _HourlyRateProtocol(Protocol):
    """Protocol for :class:`~roller.insight.rate_card.HourlyRate`."""

    @property
    def per_hour(self) -> float: ...
    @property
    def source(self) -> str: ...
    @property
    def date(self) -> str: ...
    def is_old(self) -> bool: ...


def hints_data(profile: StepProfile, hints: Sequence[Hint]) -> list[dict[str, Any]]:
    """Return hints as JSON-ready data, each with the unit of its prices."""
    of = "samples" if profile.samples else "steps"
    return [{**hint.to_dict(), "price_per": f"million {of}"} for hint in hints]


def hourly_rate_json_data(currency: str, rate: _HourlyRateProtocol | None) -> dict[str, Any] | None:
    """Return the hourly rate of a device as JSON-ready data; ``None`` without a rate."""
    if rate is None:
        return None
    return {
        "currency": currency, "per_hour": rate.per_hour, "source": rate.source, "date": rate.date,
        "is_old": rate.is_old(),
    }  # fmt: skip


def hints_and_difference_data(
    profile: StepProfile,
    hints: Sequence[Hint] | None,
    found: ProfileDifference | None,
    currency: str = "",
    rate: _HourlyRateProtocol | None = None,
) -> dict[str, Any]:
    """Return the requested parts as JSON-ready data: ``hints`` with ``price``, and ``difference``."""
    data: dict[str, Any] = {}
    if found is not None:
        data["difference"] = difference_data(found)
    if hints is not None:
        data |= {"hints": hints_data(profile, hints), "price": hourly_rate_json_data(currency, rate)}
    return data


def difference_data(found: ProfileDifference) -> dict[str, Any]:
    """Return a difference as JSON-ready data: both profiles in short form, the step, and every line that differs."""
    return {
        "kind": _least_certain_label(found), "before": _profile_summary(found.before),
        "after": _profile_summary(found.after),
        "delta_s": found.delta_s, "delta_bytes": found.delta_bytes,
        "lines": [_line_difference_data(line, found.fits) for line in found.differing],
    }  # fmt: skip


def _least_certain_label(found: ProfileDifference) -> str:
    labels = (found.before.label, found.after.label)
    return next(label for label in ("predicted", "calibrated", "recorded", "measured") if label in labels)


def _line_difference_data(line: LineDifference, fits: bool) -> dict[str, Any]:
    data = {**asdict(line), "delta_s": line.delta_s, "delta_bytes": line.delta_bytes}
    return data if fits else {**data, "delta_bytes": None, "made_delta_bytes": None}


def _profile_summary(profile: StepProfile) -> dict[str, Any]:
    names = (
        "name", "source", "label", "device", "devices", "batch", "amp", "iteration_s", "lower_s", "upper_s",
        "total_bytes", "out_of_memory", "out_of_memory_at",
    )  # fmt: skip
    return {name: getattr(profile, name) for name in names}
