"""What a pack holds and what a run begins with, from one file of data: phases, headline operators, how many others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gpu.plan import Planned, Schedule
from benchmarks.gpu.schedule import table_of

FILE = Path(__file__).with_name("quarter_hour.yaml")


@dataclass(frozen=True)
class Contents:
    """How much a pack holds.

    Parameters
    ----------
    headline_top_k, more_top_k
        Candidates of every headline operator, and of every other one.
    more
        Operators beside the headline.
    models
        Names of models.
    """

    headline_top_k: int
    more: int
    more_top_k: int
    models: tuple[str, ...]


def contents(minutes: float) -> Contents:
    """Return how much a pack holds that is made for so many minutes.

    Examples
    --------
    >>> contents(11).models, contents(40).more_top_k
    ((), 10)
    """
    row = next(r for r in _data()["contents"] if minutes <= r["up_to_minutes"])
    return Contents(row["headline_top_k"], row["more"], row["more_top_k"], tuple(row["models"]))


def schedule(planned: Sequence[Planned]) -> Schedule:
    """Return the phases and the headline operators among some rows, as they travel with a pack."""
    data = _data()
    ids = tuple(p.id for p in headline(planned, data["headline"]))
    pretended_s = {kind: (float(start), float(each)) for kind, (start, each) in data["rehearsal"].items()}
    return Schedule(table_of(data["phases"]), ids, pretended_s)


def headline(planned: Sequence[Planned], rules: Iterable[Mapping[str, Any]]) -> list[Planned]:
    """Return the headline operators, in the order of the rules.

    Parameters
    ----------
    planned
        All rows.
    rules
        Each takes so many (``take``) of the rows whose columns or ``set`` are those of ``where``, spread over the work.
    """
    found: list[Planned] = []
    for rule in rules:
        free = [p for p in planned if p not in found and not p.left_out and _is(p, rule["where"])]
        found += spread(sorted(free, key=lambda p: (p.row.get("flops", 0), p.id)), rule["take"])
    return found


def more(planned: Sequence[Planned], first: Sequence[str], count: int) -> list[Planned]:
    """Return so many of the rows that are not among the first, spread evenly over the sets and their work."""
    rest = [p for p in planned if p.id not in set(first) and not p.left_out]
    ordered = sorted(rest, key=lambda p: (p.sets[0], str(p.row["op"]), p.row.get("flops", 0), p.id))
    return spread(ordered, count)


def spread(rows: Sequence[Planned], count: int) -> list[Planned]:
    """Return so many rows at even distances, or all where there are no more."""
    if count >= len(rows):
        return list(rows)
    return [rows[int((n + 0.5) * len(rows) / count)] for n in range(count)]


def _is(planned: Planned, where: Mapping[str, Any]) -> bool:
    columns = {**planned.row, "set": None}
    return all(v in planned.sets if k == "set" else columns.get(k) == v for k, v in where.items())


def _data() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return data
