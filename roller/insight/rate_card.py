"""The user's hourly rates for devices, each with a source and a date."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date as date_type
from datetime import datetime
from pathlib import Path

from roller.errors import RollerError, did_you_mean, shown
from roller_runtime.core.files import read_text

#: Days after which a price is old: rental prices of devices change several times a year.
OLD_DAYS = 180


@dataclass(frozen=True)
class HourlyRate:
    """The price of one device per hour, with its source and date."""

    per_hour: float
    source: str
    date: str

    def is_old(self, today: date_type | None = None) -> bool:
        """Return whether the price is more than 180 days old."""
        return ((today or date_type.today()) - date_type.fromisoformat(self.date)).days > OLD_DAYS


@dataclass(frozen=True)
class RateCard:
    """The user's hourly rates: a currency, and a rate for each device name."""

    currency: str
    devices: Mapping[str, HourlyRate]

    def per_hour(self, device: str) -> float | None:
        """Return the price of a device per hour; ``None`` if the card does not list the device."""
        found = self.devices.get(device)
        return None if found is None else found.per_hour

    def missing_rate_note(self, name: str) -> str:
        """Return a sentence if the card does not list a device; otherwise ``""``."""
        if name in self.devices:
            return ""
        known = f" (only for {', '.join(sorted(self.devices))})" if self.devices else ""
        return f"No price for {name or 'an unnamed device'}{known}: its cost is not shown."

    def old_rate_notes(self, names: Iterable[str], today: date_type | None = None) -> tuple[str, ...]:
        """Return a sentence for each of the given devices whose price is old."""
        return tuple(
            f"The price of {name} is from {rate.date} ({rate.source}), more than {OLD_DAYS} days old: update it."
            for name in dict.fromkeys(names)
            if (rate := self.devices.get(name)) is not None and rate.is_old(today)
        )


def read_rate_card(path: str | Path) -> RateCard:
    """Read the user's hourly rates.

    Parameters
    ----------
    path
        A YAML file with ``currency`` and, for each of its ``devices``, ``per_hour``, ``source`` and ``date``. All are
        required, since a price without a source and a date cannot be trusted.

    Raises
    ------
    RollerError
        If the file cannot be read or has a different format.
    """
    import yaml

    def invalid_rate_card(where: str, expected: str, got: object, names: Sequence[str] = ()) -> RollerError:
        hint = did_you_mean(str(got), names) if names else ""
        return RollerError(
            f"{path}: {where}: expected {expected}, got {shown(got)}{hint}. Write e.g. {{currency: USD, devices: "
            f"{{a100: {{per_hour: 1.5, source: my provider, date: 2026-01-31}}}}}}."
        )

    try:
        data = yaml.safe_load(read_text(path))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise invalid_rate_card(
            "prices", "a YAML file", getattr(error, "strerror", None) or str(error).splitlines()[0]
        ) from error
    if not isinstance(data, Mapping) or set(data) != {"currency", "devices"}:
        raise invalid_rate_card(
            "prices", "currency and devices", sorted(map(str, data)) if isinstance(data, Mapping) else data
        )
    if not isinstance(data["currency"], str) or not isinstance(data["devices"], Mapping):
        raise invalid_rate_card("currency, devices", "a word, and a mapping of devices", data["currency"])
    found = {}
    for name, row in data["devices"].items():
        if not isinstance(row, Mapping) or set(row) != {"per_hour", "source", "date"}:
            raise invalid_rate_card(f"devices.{name}", "per_hour, source and date", row)
        hour = row["per_hour"]
        if isinstance(hour, bool) or not isinstance(hour, (int, float)) or not 0 < hour < 1e12:
            raise invalid_rate_card(f"devices.{name}.per_hour", "a number above 0", hour)
        when = row["date"]
        if not isinstance(when, date_type):
            raise invalid_rate_card(f"devices.{name}.date", "a date, e.g. 2026-01-31", when)
        day = when.date() if isinstance(when, datetime) else when  # YAML reads a date with a time as a datetime
        found[str(name)] = HourlyRate(float(hour), str(row["source"]), day.isoformat())
    return RateCard(data["currency"], found)
