"""How the seconds of a call are divided: what every phase has at least, and its share of the rest; standard library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from roller.errors import RollerError

Clock = Callable[[], float]


@dataclass(frozen=True)
class Row:
    """A phase as the table of phases has it.

    Parameters
    ----------
    name
        Of the phase.
    least_s
        Seconds it has before any phase after it gets one.
    share
        Its part of the time that is left when all phases have these.
    begin_s
        Seconds below which it is not begun: its process takes as long to start.
    what
        For people.
    """

    name: str
    least_s: float
    share: float
    begin_s: float
    what: str


@dataclass(frozen=True)
class Unit:
    """One kernel, comparison or case that is still to be done.

    Parameters
    ----------
    kind
        What it is, as the rehearsal's table of pretended seconds names it.
    key
        What tells it from the others of its phase.
    predicted_s
        Seconds of one run on the device, where they are predicted.
    """

    kind: str
    key: tuple[str, ...]
    predicted_s: float = 0.0


class Phase(Protocol):
    """A part of the run."""

    name: str

    def left(self) -> int:
        """Return how much can be done now."""

    def expected(self) -> int:
        """Return how much is left, with what can only be done after another phase."""

    def waiting(self) -> Iterable[Unit]:
        """Return what can be done now, in the order it is done."""

    def run(self, deadline: float) -> None:
        """Do what is left until the clock is at ``deadline``."""

    def pretend(self, unit: Unit, reason: str) -> None:
        """Keep the result of a unit that nobody ran: a good one, or what went wrong."""


@dataclass(frozen=True)
class Part:
    """What one phase was given in a call, and what it took (seconds)."""

    name: str
    budget_s: float
    spent_s: float


def table_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
    """Return the table of phases from plain data."""
    return tuple(Row(r["name"], float(r["least_s"]), float(r["share"]), float(r["begin_s"]), r["what"]) for r in rows)


def budgets(rows: Sequence[Row], seconds: float) -> list[float]:
    """Divide the seconds of a call: a phase that would have too few to begin has none, the last one first.

    Parameters
    ----------
    rows
        Of the phases that have something to do, the most important first.
    seconds
        Of the call.

    Examples
    --------
    >>> rows = (Row("a", 150, 0.1, 9, ""), Row("b", 50, 0.3, 9, ""), Row("c", 0, 0.1, 9, ""))
    >>> budgets(rows, 250), budgets(rows, 204), budgets(rows, 170), budgets(rows, 155)
    ([160.0, 80.0, 10.0], [151.0, 53.0, 0.0], [150.0, 20.0, 0.0], [155.0, 0.0, 0.0])
    """
    begun = list(rows)
    while begun:
        given = _divided(begun, seconds)
        short = [r for r in begun if given[r.name] < r.begin_s]
        if not short:
            return [given.get(r.name, 0.0) for r in rows]
        begun.remove(short[-1])
    return [0.0 for _ in rows]


def _divided(rows: Sequence[Row], seconds: float) -> dict[str, float]:
    given, left = {}, seconds
    for row in rows:
        given[row.name] = min(row.least_s, left)
        left -= given[row.name]
    shares = sum(r.share for r in rows) or 1.0
    return {r.name: given[r.name] + left * r.share / shares for r in rows}


def run_all(
    phases: Sequence[Phase], table: Sequence[Row], seconds: float, clock: Clock, say: Callable[[str], None],
    refused: Callable[[str, str], None],
) -> list[Part]:  # fmt: skip
    """Run the phases, each to the end of its budget: one that ends early leaves the rest to the next.

    What the last one leaves goes to the phases that were cut, in their order.

    Parameters
    ----------
    phases
        The most important first.
    table
        Has a row for each of them.
    seconds
        Of this call.
    clock, say
        Tells seconds; receives a line per phase.
    refused
        Receives the name of a phase that could not run, and why.
    """
    rows = {r.name: r for r in table}
    wanted = [p for p in phases if p.expected()]
    given = budgets([rows[p.name] for p in wanted], seconds)
    start = clock()
    end, until, spent = start + seconds, start, dict.fromkeys((p.name for p in wanted), 0.0)

    def begin(phase: Phase, deadline: float) -> None:
        now, left = clock(), phase.left()
        if not left or deadline - now < rows[phase.name].begin_s:
            return
        say(f"-- {phase.name}: {left} left, {deadline - now:.0f} s")
        try:
            phase.run(deadline)
        except RollerError as err:  # the device could be opened before: the other phases may still go on
            refused(phase.name, str(err))
            say(f"{phase.name}: {err}")
        spent[phase.name] += clock() - now

    for phase, budget_s in zip(wanted, given, strict=True):
        until += budget_s
        begin(phase, min(until, end))
    for phase in wanted:
        begin(phase, end)
    return [Part(p.name, g, spent[p.name]) for p, g in zip(wanted, given, strict=True)]
