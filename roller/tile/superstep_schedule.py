"""The schedule of a bulk-synchronous program as data: the slice of each tensor that each unit gets in each superstep.

It states rules instead of listing every copy: the tile of a task, the boxes of its tensors, and the codelets of each
phase. A device driver expands these rules, as :mod:`roller.emulator.codelet_emulator` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class AxisPlan:
    """An axis of the tiles: its extent, the extent of a unit's tile in one step, and whether it is spatial."""

    name: str
    extent: int
    tile: int
    spatial: bool


@dataclass(frozen=True)
class TensorPlan:
    """A tensor and a unit's copy of a piece of it.

    Parameters
    ----------
    role
        ``"input"``, ``"output"`` or ``"local"`` (no unit reads another unit's piece).
    lattice, counts, pitches
        Per dimension, the spacing of positions in a copy, their number, and the number for which the copy has space.
    accesses
        Per access and dimension ``(constant, ((axis, coefficient, divisor, modulus), ...))``.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    lattice: tuple[int, ...]
    counts: tuple[int, ...]
    pitches: tuple[int, ...]
    accesses: tuple[tuple[tuple[int, tuple[tuple[str, int, int, int], ...]], ...], ...]


@dataclass(frozen=True)
class StagePlan:
    """A codelet: the tensors it reads and writes, and whether it runs once per reduction step.

    Parameters
    ----------
    place
        Names of the arguments that give the codelet its position.
    piece
        Number of adjacent results along the contiguous axis that one worker computes at a time.
    """

    entry: str
    reads: tuple[str, ...]
    writes: str
    place: tuple[str, ...]
    axes: tuple[tuple[str, int], ...]
    anchor: bool
    keeps_sums: bool
    piece: int


@dataclass(frozen=True)
class Schedule:
    """Everything that a host must know in addition to the codelets.

    Parameters
    ----------
    units, workers
        Number of units of the device, and number of workers per unit.
    tasks, split, steps
        Number of tasks (output tiles times reduction parts), of reduction parts, and of steps per part.
    sums, sums_dtype
        Number of a unit's accumulators that outlive a superstep, and their dtype.
    combine, finish
        Codelets that combine and convert the parts of a split reduction, or ``None`` for an unsplit reduction.
    """

    units: int
    workers: int
    axes: tuple[AxisPlan, ...]
    tensors: tuple[TensorPlan, ...]
    stages: tuple[StagePlan, ...]
    tasks: int
    split: int
    steps: int
    sums: int
    sums_dtype: str
    combine: StagePlan | None = None
    finish: StagePlan | None = None

    def tensor(self, name: str) -> TensorPlan:
        """Return the plan of the tensor ``name``."""
        return next(t for t in self.tensors if t.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; :meth:`from_dict` is the inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Schedule:
        """Rebuild a schedule from :meth:`to_dict` data, even if they were saved as JSON."""
        given = {**data}
        given["axes"] = tuple(AxisPlan(**a) for a in data["axes"])
        given["tensors"] = tuple(TensorPlan(**{k: _lists_to_tuples(v) for k, v in t.items()}) for t in data["tensors"])
        given["stages"] = tuple(_stage_plan_from_dict(s) for s in data["stages"])
        for name in ("combine", "finish"):
            given[name] = _stage_plan_from_dict(data[name]) if data[name] else None
        return cls(**given)


def _stage_plan_from_dict(data: Mapping[str, Any]) -> StagePlan:
    return StagePlan(**{k: _lists_to_tuples(v) for k, v in data.items()})


def _lists_to_tuples(value: Any) -> Any:
    return tuple(_lists_to_tuples(v) for v in value) if isinstance(value, (list, tuple)) else value


def codelet_name(name: str) -> str:
    """Return a unique codelet name of letters, digits and underscores; other characters become ``_code_``.

    Examples
    --------
    >>> codelet_name("C_acc"), codelet_name("ho*wo"), codelet_name("f/4"), codelet_name("f%4"), codelet_name("f_2f_4")
    ('C_acc', 'ho_2a_wo', 'f_2f_4', 'f_25_4', 'f_5f_2f_5f_4')
    """
    if re.fullmatch(r"\w+", name, re.ASCII) and not re.search(r"_[0-9a-f]+_", name):
        return name
    return "".join(c if c.isalnum() and c.isascii() else f"_{ord(c):x}_" for c in name)
