"""The schedule of a bulk-synchronous program as data: which slice of which tensor goes to which unit in which step.

It says by rule what a list of all copies would say at length: the tile a task has, the boxes of tensors that go with
it, the codelets of each phase. Whoever drives a device expands it; :mod:`roller.emulator.bsp` does, and so would a host
program of the vendor's runtime.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class AxisPlan:
    """An axis of the tiles: extent, extent of a unit's tile in one step, and whether tasks or steps go along it."""

    name: str
    extent: int
    tile: int
    spatial: bool


@dataclass(frozen=True)
class TensorPlan:
    """A tensor and a unit's copy of a piece of it.

    Parameters
    ----------
    name, role, shape, dtype
        Of the tensor; ``role`` is ``"input"``, ``"output"`` or ``"local"`` (no unit sees another one's).
    lattice, counts, pitches
        Per dimension the spacing of positions in a copy, how many of them, and how many the copy has room for.
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
    """A codelet: what it reads and writes, the numbers of its ``place``, whether it runs once per reduction step.

    Its workers share out its results in pieces of ``piece`` neighbours along the contiguous axis.
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
    """Everything a host has to know beside the codelets.

    Parameters
    ----------
    units, workers
        Of the device.
    axes, tensors, stages
        See the classes; stages in order.
    tasks, split, steps
        Tiles of the output times parts; parts of the reduction; steps of one part.
    sums, sums_dtype
        Accumulators of a unit that outlive a superstep (none: 0), and their dtype.
    combine, finish
        Codelets that combine and convert the parts of a split reduction; ``None`` where there are none.
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
        """Return a tensor's plan."""
        return next(t for t in self.tensors if t.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; :meth:`from_dict` is the inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Schedule:
        """Rebuild a schedule from :meth:`to_dict` data, of JSON too."""
        given = {**data}
        given["axes"] = tuple(AxisPlan(**a) for a in data["axes"])
        given["tensors"] = tuple(TensorPlan(**{k: _tuples(v) for k, v in t.items()}) for t in data["tensors"])
        given["stages"] = tuple(_stage_plan(s) for s in data["stages"])
        for name in ("combine", "finish"):
            given[name] = _stage_plan(data[name]) if data[name] else None
        return cls(**given)


def _stage_plan(data: Mapping[str, Any]) -> StagePlan:
    return StagePlan(**{k: _tuples(v) for k, v in data.items()})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, (list, tuple)) else value


def plain(name: str) -> str:
    """Return a name in letters, digits and underscores: how codelets call axes and tensors, no two of them alike.

    Other characters become their code between underscores. Names in which that could be read keep none of theirs.

    Examples
    --------
    >>> plain("C_acc"), plain("ho*wo"), plain("f/4"), plain("f%4"), plain("f_2f_4")
    ('C_acc', 'ho_2a_wo', 'f_2f_4', 'f_25_4', 'f_5f_2f_5f_4')
    """
    if re.fullmatch(r"\w+", name, re.ASCII) and not re.search(r"_[0-9a-f]+_", name):
        return name
    return "".join(c if c.isalnum() and c.isascii() else f"_{ord(c):x}_" for c in name)
