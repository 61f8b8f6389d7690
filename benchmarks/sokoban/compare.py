"""One operator by both policies: predicted best, programs priced, processor time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import roller
from benchmarks.common import Row
from roller import perf
from roller.construction.constructor import Candidate
from roller.construction.sokoban import sokoban_candidates
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch


@dataclass(frozen=True)
class Compared:
    """Both policies on one operator.

    ``roller_s`` and ``sokoban_s`` are the predicted seconds of the best programs, ``roller_priced`` and
    ``sokoban_priced`` the programs priced in full, ``tilings`` those of the space, ``roller_cpu_s`` and
    ``sokoban_cpu_s`` processor time. ``rules`` says what kept construction from Sokoban's best program.
    """

    id: str
    roller_s: float
    sokoban_s: float
    roller_pool: int
    roller_priced: int
    sokoban_priced: int
    sokoban_bounded: int
    tilings: int
    roller_cpu_s: float
    sokoban_cpu_s: float
    roller_program: str
    sokoban_program: str
    rules: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """Construction's predicted best over Sokoban's: 1 where nothing is given up."""
        return self.roller_s / self.sokoban_s

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {**asdict(self), "ratio": self.ratio}
