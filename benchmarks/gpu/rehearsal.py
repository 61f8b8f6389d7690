"""A rehearsal: the schedule of several calls on a clock that only what is pretended moves; no device, no measurement.

The phases, their budgets, their order and the file of results are those of a run; only what a kernel, a comparison or
a case takes is pretended.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu.journal import RunJournal
from benchmarks.gpu.phases import Job, phases
from benchmarks.gpu.plan import Pack
from benchmarks.gpu.schedule import Part, Phase, Row, run_all
from roller.backends.parse_device_names import DeviceHandle

Key = tuple[str, ...]


class FakeClock:
    """Tells the seconds that were pretended."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return them."""
        return self.now


class PretendedPhase:
    """A phase whose units take pretended seconds, and are not run.

    Parameters
    ----------
    phase
        The phase of a run.
    clock
        Moved by what is pretended.
    pretended_s
        Seconds to begin the phase, and of one unit, by the kind of the unit.
    hangs
        Units that never end, and the seconds that costs.
    """

    def __init__(
        self, phase: Phase, clock: FakeClock, pretended_s: Mapping[str, tuple[float, float]],
        hangs: Mapping[Key, float],
    ) -> None:  # fmt: skip
        self.name, self._phase, self._clock = phase.name, phase, clock
        self._pretended_s, self._hangs = pretended_s, hangs
        #: Units that a deadline cut, and the units that were done.
        self.lost: list[Key] = []
        self.done: list[Key] = []
        self.left, self.expected = phase.left, phase.expected

    def run(self, deadline: float) -> None:
        """Pretend what is left until ``deadline``."""
        units, clock = list(self._phase.waiting()), self._clock
        clock.now = min(deadline, clock.now + max(self._pretended_s[k][0] for k in {u.kind for u in units}))
        for unit in units:
            took = self._hangs.get(unit.key, self._pretended_s[unit.kind][1])
            if clock.now + took > deadline:
                if clock.now < deadline:
                    self.lost.append(unit.key)
                clock.now = deadline
                return
            clock.now += took
            self._phase.pretend(unit, f"no answer within {took:g} s" if unit.key in self._hangs else "")
            self.done.append(unit.key)


@dataclass
class Call:
    """What a rehearsed call did.

    Parameters
    ----------
    seconds
        Of the call.
    parts
        What every phase was given and took, in the order they ran.
    done, lost, left
        Units by phase: what was done, what a deadline cut, and how many are left of those that can be done.
    """

    seconds: float
    parts: list[Part]
    done: dict[str, list[Key]] = field(default_factory=dict)
    lost: dict[str, list[Key]] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)


def rehearsed(
    pack: Pack, folder: Path, seconds: float, hangs: Mapping[Key, float] | None = None, pattern: str = "*",
    say: Callable[[str], None] = lambda line: None,
) -> Call:  # fmt: skip
    """Rehearse one call; a later one in the same folder goes on where it ended.

    Parameters
    ----------
    pack
        The pack.
    folder
        Where the pretended results are kept.
    seconds
        Of the call.
    hangs
        Units that never end, and the seconds that costs.
    pattern
        Ids or patterns of what is run.
    say
        Receives a line per phase.
    """
    clock, handle = FakeClock(), DeviceHandle("null", 0, pack.device)
    header = {"pack": pack.checksum, "card": pack.device, "device": "rehearsal", "kind": "null", "seed": 0}
    journal = RunJournal(folder, header, clock, durable=False)
    try:
        journal.write("call", date="rehearsal", properties={"name": "rehearsal"})
        job = Job(pack, handle, journal, say, pattern=pattern, clock=clock)
        made = [PretendedPhase(p, clock, pack.schedule.pretended_s, hangs or {}) for p in phases(job)]
        parts = run_all(made, pack.schedule.phases, seconds, clock, say, lambda name, why: None)
        return Call(seconds, parts, {p.name: p.done for p in made}, {p.name: p.lost for p in made},
                    {p.name: p.expected() for p in made})  # fmt: skip
    finally:
        journal.close()


def told(pack: Pack, minutes: Sequence[float], pattern: str = "*") -> str:
    """Rehearse calls of so many minutes, one after another, and return a table of them for people."""
    with tempfile.TemporaryDirectory(prefix="roller-rehearsal-") as folder:
        calls = [rehearsed(pack, Path(folder), 60 * m, pattern=pattern) for m in minutes]
    lines = [f"Rehearsal for {pack.device}: pretended times, no measurement."]
    for number, (call, m) in enumerate(zip(calls, minutes, strict=True), 1):
        lines += ["", f"Call {number}, {m:g} minutes:", "", *_table(call, pack.schedule.phases)]
    return "\n".join(lines)


def _table(call: Call, rows: Sequence[Row]) -> list[str]:
    ran, order = {p.name: p for p in call.parts}, _cut_order(rows)
    columns = ("phase", "budget s", "took s", "done", "left", "cut first", "what")
    lines = [_line(columns), "|---|---:|---:|---:|---:|---:|---|"]
    for row in rows:
        if row.name in call.done:
            part = ran.get(row.name, Part(row.name, 0.0, 0.0))
            times = (f"{part.budget_s:.0f}", f"{part.spent_s:.0f}")
            counts = (len(call.done[row.name]), call.left[row.name])
            lines.append(_line((row.name, *times, *counts, order[row.name], row.what)))
    return lines


def plan_told(pack: Pack, minutes: float, pattern: str = "*") -> str:
    """Return what a first call of so many minutes is to do, as a table for people."""
    with tempfile.TemporaryDirectory(prefix="roller-rehearsal-") as folder:
        call = rehearsed(pack, Path(folder), 60 * minutes, pattern=pattern)
    given, order = {p.name: p.budget_s for p in call.parts}, _cut_order(pack.schedule.phases)
    lines = [f"{pack.device}, {minutes:g} minutes; a phase that ends early leaves the rest to the next:", "",
             _line(("phase", "budget s", "units", "cut first", "what")), "|---|---:|---:|---:|---|"]  # fmt: skip
    for row in pack.schedule.phases:
        if row.name in call.done:
            units = len(call.done[row.name]) + call.left[row.name]
            lines.append(_line((row.name, f"{given.get(row.name, 0.0):.0f}", units, order[row.name], row.what)))
    return "\n".join(lines)


def _cut_order(rows: Iterable[Row]) -> dict[str, int]:
    """Return when each phase is cut where time is short: 1 is cut first."""
    names = [r.name for r in rows]
    return {name: len(names) - n for n, name in enumerate(names)}


def _line(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"
