"""Trace of tile growth for explanations: which states grew, along which axes, and with what score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from roller.tile.geometry import Ints


@dataclass(frozen=True)
class GrowthStep:
    """One step of growth.

    Parameters
    ----------
    before, after
        States before and after the step: a register tile, or a register tile followed by the threads per axis.
    column
        Index of the column that grew.
    score
        Data reuse score of the step (bytes saved per byte of footprint).
    others
        ``((column, score), ...)`` for the other ways to grow the state, best first.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    column: int
    score: float
    others: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class _GrowthRound:
    states: Ints
    table: Ints
    score: np.ndarray
    grew: np.ndarray


#: A path: the number of better choices passed over, the negative sum of its scores, and its steps.
_GrowthPath: TypeAlias = tuple[int, float, tuple[GrowthStep, ...]]


@dataclass
class GrowthTrace:
    """Rounds of growth, in order."""

    rounds: list[_GrowthRound] = field(default_factory=list)

    def note(self, states: Ints, table: Ints, score: np.ndarray, grew: np.ndarray) -> None:
        """Record a round: ``states``, shape ``(N, row)``, and in ``table`` their children, shape ``(ways, N, row)``."""
        self.rounds.append(_GrowthRound(states, table, np.asarray(score), grew))

    def road(self, target: Sequence[int]) -> tuple[GrowthStep, ...] | None:
        """Return the steps from an initial state to ``target``, or ``None`` if growth never reached it."""
        found = self._best_path(np.asarray(target, np.int64), len(self.rounds), {})
        return None if found is None else found[2]

    def _best_path(
        self, wanted: Ints, before: int, known: dict[tuple[bytes, int], _GrowthPath | None]
    ) -> _GrowthPath | None:
        """Return the path, within ``before`` rounds, that passes over the fewest better choices, else ``None``."""
        key = wanted.tobytes(), before
        if key not in known:
            first = any((r.states == wanted).all(axis=1).any() for r in self.rounds[:1])
            roads: list[_GrowthPath] = [(0, 0.0, ())] if first else []
            for n in range(before):
                r = self.rounds[n]
                for way, state in np.argwhere((r.table == wanted).all(axis=2) & r.grew).tolist():
                    start = self._best_path(r.states[state], n, known)
                    if start is not None:
                        step = _growth_step(r, way, state)
                        over = sum(score > step.score for _, score in step.others)
                        roads.append((start[0] + over, start[1] - step.score, (*start[2], step)))
            known[key] = min(roads, key=lambda x: x[:2], default=None)
        return known[key]


def _growth_step(r: _GrowthRound, way: int, state: int) -> GrowthStep:
    """Return the step that grew ``state`` along ``way``, with the other ways in which it could have grown."""
    before = tuple(int(x) for x in r.states[state])
    found: dict[int, float] = {}
    for w in np.flatnonzero(r.grew[:, state]):
        column = int(np.flatnonzero(r.table[w, state] != r.states[state])[0])
        if w != way:
            found[column] = max(found.get(column, -np.inf), float(r.score[w, state]))
    after = tuple(int(x) for x in r.table[way, state])
    column = next(n for n, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)
    others = sorted(((c, s) for c, s in found.items() if c != column), key=lambda x: -x[1])
    return GrowthStep(before, after, column, float(r.score[way, state]), tuple(others))
