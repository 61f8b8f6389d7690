"""How an axis of output tiles is cut into tasks and micro-kernels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TiledAxis:
    """Tiling of one spatial axis in units (output tiles, images, or filters).

    A micro-kernel takes ``group`` units, a task ``box`` units. The last group of a box and the last box of the axis
    start early, overlapping their neighbour: what both compute is the same, bit for bit. Of an axis that is open the
    last box has fewer units, a group at least.

    Parameters
    ----------
    name
        The axis.
    units
        Units along the axis.
    group, groups
        Units of one micro-kernel; groups of one box.
    box, boxes
        Units of one task; tasks along the axis.
    is_open
        Whether the units differ from call to call, a group at least.
    """

    name: str
    units: int
    group: int
    groups: int
    box: int
    boxes: int
    is_open: bool = False

    @classmethod
    def of(cls, name: str, units: int, group: int, box: int, is_open: bool = False) -> TiledAxis:
        """Return the tiling nearest to what is asked: groups of equal size, at most the whole axis."""
        if is_open:
            return cls(name, units, group, max(1, box // group), max(group, box), -(-units // max(group, box)), True)
        whole = -(-units // min(group, units))
        even = -(-units // whole)
        taken = min(whole, max(1, box // group))
        size = min(units, taken * even)
        return cls(name, units, even, -(-size // even), size, -(-units // size))

    @property
    def passed(self) -> float:
        """Share of the units of ``boxes`` full boxes that micro-kernels pass."""
        if not self.is_open:
            return 1.0
        full, rest = divmod(self.units, self.box)
        return (full * self.groups + -(-rest // self.group)) / (self.boxes * self.groups)
