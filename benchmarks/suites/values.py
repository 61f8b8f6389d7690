"""What a suite finds: values that say whether they are measured, predicted, counted or published, and their file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from roller.errors import RollerError
from roller.suite.run_file import read_json
from roller_runtime.core.files import write_atomically

FORMAT, VERSION = "roller benchmark", 1
MEASURED, PREDICTED, COUNTED, PUBLISHED = KINDS = ("measured", "predicted", "counted", "published")


class Value(NamedTuple):
    """One value of one case.

    Parameters
    ----------
    case
        Operator, model or setting.
    quantity
        What it is: ``"time"``, ``"speed-up"``.
    series
        Whose it is: ``"Roller"``, ``"library"``, ``"PyTorch"``.
    value
        ``None`` where there is none; ``note`` then says why.
    unit
        Of the value: ``"s"``, ``""`` for a ratio.
    kind
        One of :data:`KINDS`.
    low, high
        Ends of its interval, where it has one: 95 % confidence interval of a measured value; band of the expected error
        of a predicted one.
    note
        A sentence for the reader.
    """

    case: str
    quantity: str
    series: str
    value: float | None
    unit: str
    kind: str
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What the value is of, for comparison with another run."""
        return self.case, self.quantity, self.series, self.kind


@dataclass(frozen=True)
class Results:
    """The values of one run of a suite.

    Parameters
    ----------
    head
        Suite, device, whether quick, seed, date, revision and environment, as plain data.
    values
        In the order in which they were found.
    """

    head: Mapping[str, Any]
    values: Sequence[Value] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        values = [one._asdict() for one in self.values]
        return {"format": FORMAT, "version": VERSION, "run": dict(self.head), "values": values}

    def of(self, quantity: str, series: str | None = None, kind: str | None = None) -> dict[str, Value]:
        """Return the values of a quantity (and a series and a kind) by case, those without a value left out."""
        return {
            v.case: v for v in self.values
            if v.quantity == quantity and series in (None, v.series) and kind in (None, v.kind) and v.value is not None
        }  # fmt: skip

    def grouped(self, quantity: str = "time") -> dict[tuple[str, str], dict[str, Value]]:
        """Return the values of a quantity by series and kind, then by case, those without a value left out."""
        found: dict[tuple[str, str], dict[str, Value]] = {}
        for v in self.values:
            if v.quantity == quantity and v.value is not None:
                found.setdefault((v.series, v.kind), {})[v.case] = v
        return found

    def times(self, quantity: str = "time") -> dict[tuple[str, str], dict[str, float]]:
        """Return what :meth:`grouped` returns as numbers, in seconds."""
        return {
            name: {case: v.value for case, v in values.items() if v.value is not None}
            for name, values in self.grouped(quantity).items()
        }


def write(path: Path, results: Results) -> None:
    """Write results as JSON, one line a value."""
    data = results.to_dict()
    lines = ",\n".join(json.dumps(value) for value in data.pop("values"))
    text = f'{json.dumps(data, indent=1)[:-2]},\n "values": [\n{lines}\n]}}\n'
    with write_atomically(path) as file:
        file.write(text.encode())


def read(path: Path) -> Results:
    """Read results.

    Raises
    ------
    RollerError
        The file cannot be read, or holds something else.
    """
    data = read_json(path, "a run of a suite")
    try:
        if data["format"] != FORMAT or data["version"] != VERSION:
            raise ValueError
        values = tuple(Value(**value) for value in data["values"])
        if not all(map(_is_value, values)):
            raise ValueError
        return Results({"date": "unknown", "revision": "unknown", **data["run"]}, values)
    except (KeyError, TypeError, ValueError) as error:
        raise RollerError(
            f"{path}: expected the results of a suite, version {VERSION}, got another file. Write one with `python -m "
            f"benchmarks run SUITE --out FOLDER`."
        ) from error


def _is_value(one: Value) -> bool:
    words = (one.case, one.quantity, one.series, one.unit, one.kind, one.note)
    numbers = [number for number in (one.value, one.low, one.high) if number is not None]
    return all(isinstance(word, str) for word in words) and all(isinstance(n, (int, float)) for n in numbers)


class Change(NamedTuple):
    """A value that differs from the last run's by more than its noise, or that only one run has."""

    key: tuple[str, str, str, str]
    before: float | None
    after: float | None

    @property
    def ratio(self) -> float | None:
        """After over before; ``None`` where one is missing or zero."""
        return self.after / self.before if self.before and self.after is not None else None


#: Relative change of a value without noise that is reported: predicted, counted and published ones repeat exactly.
EXACT = 1e-9
#: The same of a measured value without an interval: what one run of a shared machine is from the next. Assumed.
MEASURED_NOISE = 0.10


def changes(last: Results, now: Results) -> list[Change]:
    """Return what differs between two runs of a suite, in the order of the new run.

    A measured value with intervals differs where they do not overlap; one without by :data:`MEASURED_NOISE`.
    """
    old, new = ({v.key: v for v in results.values} for results in (last, now))
    found = [
        Change(key, _value(old.get(key)), _value(new.get(key)))
        for key in dict.fromkeys((*new, *old)) if _differ(old.get(key), new.get(key))
    ]  # fmt: skip
    return found


def _value(one: Value | None) -> float | None:
    return None if one is None else one.value


def _differ(before: Value | None, after: Value | None) -> bool:
    if before is None or after is None or before.value is None or after.value is None:
        return _value(before) != _value(after) or (before is None) != (after is None)
    ends = (before.low, before.high, after.low, after.high)
    if before.kind == MEASURED and None not in ends:
        return max(before.low or 0.0, after.low or 0.0) > min(before.high or 0.0, after.high or 0.0)
    limit = MEASURED_NOISE if before.kind == MEASURED else EXACT
    return abs(after.value - before.value) > limit * abs(before.value)
