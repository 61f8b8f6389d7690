"""Numbers as a device's file states them: the values from all sources, and notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from roller.hardware.checks import SOURCES, join_dotted_path


@dataclass(frozen=True)
class SourcedNumber:
    """One number as its file states it."""

    path: str
    values: tuple[tuple[str, float], ...]  #: ``(source, value)`` pairs in order of preference
    note: str = ""
    spread: float | None = None  #: Relative spread over repeated measurements; ``None`` if not repeated


def collect_sourced_numbers(data: Mapping[str, Any]) -> tuple[SourcedNumber, ...]:
    """Return every number of a parsed file.

    >>> layers = [{"name": "l2", "latency_s": {"assumed": 1.0e-7}}]
    >>> [(x.path, x.values) for x in collect_sourced_numbers({"units": {"datasheet": 80, "note": "SMs"},
    ...     "memory_layers": layers})]
    [('units', (('datasheet', 80),)), ('memory_layers.l2.latency_s', (('assumed', 1e-07),))]
    """
    return tuple(_walk_sourced_numbers("", data))


def _walk_sourced_numbers(path: str, data: object) -> Iterator[SourcedNumber]:
    if isinstance(data, list):
        for x in data:
            if isinstance(x, Mapping) and isinstance(x.get("name"), str):
                yield from _walk_sourced_numbers(join_dotted_path(path, x["name"]), x)
        return
    if not isinstance(data, Mapping):
        return
    values = tuple((s, data[s]) for s in SOURCES if isinstance(data.get(s), (int, float)))
    if values:
        spread = data.get("spread")
        yield SourcedNumber(path, values, str(data.get("note", "")), None if spread is None else float(spread))
        return
    for key, value in data.items():
        if key == "clock_hz" and isinstance(value, Mapping) and "boost" in value:
            yield from _walk_sourced_numbers("clock_hz", value["boost"])
            yield from _walk_sourced_numbers("sustained_clock_hz", value.get("sustained"))
        else:
            yield from _walk_sourced_numbers(join_dotted_path(path, str(key)), value)
