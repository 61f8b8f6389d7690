"""Lifetimes of values in memory: from the first step that touches a value to the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from roller.errors import ModelError
from roller_runtime.plan.program_steps import Copy, ParallelGroup, Program, Step, values_read, values_written

#: Group and lane of memory that is touched outside any ``ParallelGroup`` or in more than one lane.
OUTSIDE = -1


@dataclass(frozen=True)
class Lifetime:
    """Positions of the first and last steps that touch a value's memory.

    Parameters
    ----------
    first, last
        Positions in the order of steps; steps in lanes are numbered lane after lane.
    group, lane
        Index of the ``ParallelGroup`` and of the lane, for memory touched in one lane only. Lifetimes in different
        lanes of a group overlap, whatever their positions are.
    """

    first: int
    last: int
    group: int = OUTSIDE
    lane: int = OUTSIDE

    def overlaps(self, other: Lifetime) -> bool:
        """Return whether two lifetimes overlap.

        Examples
        --------
        >>> Lifetime(0, 3).overlaps(Lifetime(3, 4)), Lifetime(0, 3).overlaps(Lifetime(4, 5))
        (True, False)
        >>> Lifetime(0, 1, 0, 0).overlaps(Lifetime(2, 3, 0, 1))
        True
        """
        if self.group != OUTSIDE and self.group == other.group and self.lane != other.lane:
            return True
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class _StepPosition:
    position: int
    group: int = OUTSIDE
    lane: int = OUTSIDE


def root_lifetimes(program: Program, root_of: Callable[[str], str]) -> dict[str, Lifetime]:
    """Return the lifetime of each root that a step writes, except dynamic outputs, in order of first use."""
    touched: dict[str, list[_StepPosition]] = {}
    spans: dict[int, tuple[int, int]] = {}
    given = {*program.inputs, *program.constants}
    position = 0
    for step in program.steps:
        if not isinstance(step, ParallelGroup):
            _record_accesses_by_root(step, _StepPosition(position), root_of, touched, given)
            position += 1
            continue
        group, start = len(spans), position
        for lane, steps in enumerate(step.lanes):
            for inner in steps:
                _record_accesses_by_root(inner, _StepPosition(position, group, lane), root_of, touched, given)
                position += 1
        spans[group] = (start, max(start, position - 1))
    return {name: _make_lifetime(spots, spans) for name, spots in touched.items() if name not in program.loose}


def _record_accesses_by_root(
    step: Step,
    spot: _StepPosition,
    root_of: Callable[[str], str],
    touched: dict[str, list[_StepPosition]],
    given: set[str],
) -> None:
    for name in values_read(step):
        root = root_of(name)
        if root not in touched and root not in given:
            # A nested group is one position, which both reads and writes the values passed within it.
            if isinstance(step, ParallelGroup) and name in values_written(step):
                continue
            raise ModelError(f"step {spot.position}: reads '{name}', which no step before it writes. Order the steps.")
        if root in touched:
            touched[root].append(spot)
    for name in values_written(step):
        root = root_of(name)
        if root in given and isinstance(step, Copy) and name != root:
            continue  # a part of an input that calls extend in place
        if root in given:
            raise ModelError(f"step {spot.position}: writes '{name}', which is an input or a constant.")
        touched.setdefault(root, []).append(spot)


def _make_lifetime(spots: Iterable[_StepPosition], spans: dict[int, tuple[int, int]]) -> Lifetime:
    found = list(spots)
    first, last = min(s.position for s in found), max(s.position for s in found)
    lanes = {(s.group, s.lane) for s in found}
    if len(lanes) == 1:
        group, lane = lanes.pop()
        return Lifetime(first, last, group, lane)
    # Lanes run concurrently: memory that is touched in a lane and elsewhere is live during the whole group.
    for group in {s.group for s in found} - {OUTSIDE}:
        first, last = min(first, spans[group][0]), max(last, spans[group][1])
    return Lifetime(first, last)


def peak_bytes(lives: Iterable[tuple[Lifetime, int]]) -> int:
    """Return the maximum number of bytes that are live at once, a lower bound on the size of the arena.

    Examples
    --------
    >>> peak_bytes([(Lifetime(0, 1), 8), (Lifetime(1, 2), 4), (Lifetime(2, 3), 8)])
    12
    """
    pairs = list(lives)
    changes: dict[int, int] = {}
    lanes: dict[int, dict[int, list[tuple[Lifetime, int]]]] = {}
    for life, size in pairs:
        if life.group != OUTSIDE:
            lanes.setdefault(life.group, {}).setdefault(life.lane, []).append((life, size))
            continue
        changes[life.first] = changes.get(life.first, 0) + size
        changes[life.last + 1] = changes.get(life.last + 1, 0) - size
    for found in lanes.values():
        # All lanes may reach their peaks at the same time, at any position of the group.
        most = sum(peak_bytes((Lifetime(x.first, x.last), size) for x, size in lane) for lane in found.values())
        first = min(x.first for lane in found.values() for x, _ in lane)
        last = max(x.last for lane in found.values() for x, _ in lane)
        changes[first] = changes.get(first, 0) + most
        changes[last + 1] = changes.get(last + 1, 0) - most
    now = top = 0
    for position in sorted(changes):
        now += changes[position]
        top = max(top, now)
    return top
