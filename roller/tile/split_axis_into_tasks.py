"""Division of an axis of output tiles into tasks and micro-kernels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TiledAxis:
    """Tiling of one spatial axis in units (output tiles, images, or filters).

    Parameters
    ----------
    units
        Number of units along the axis.
    group, groups
        Number of units per micro-kernel (a group), and number of groups per box.
    box, boxes
        Number of units per task (a box), and number of tasks along the axis.
    is_open
        Whether the number of units may vary between calls; it is never less than ``group``.
    """

    # The last group of a box and the last box of the axis start early and overlap their neighbour; the results of both
    # are equal, bit for bit. The last box of an open axis has fewer units instead, but at least a group.
    name: str
    units: int
    group: int
    groups: int
    box: int
    boxes: int
    is_open: bool = False

    @classmethod
    def of(cls, name: str, units: int, group: int, box: int, is_open: bool = False) -> TiledAxis:
        """Return the tiling closest to the given sizes; groups are equal and within the axis unless it is open."""
        if is_open:
            return cls(name, units, group, max(1, box // group), max(group, box), -(-units // max(group, box)), True)
        whole = -(-units // min(group, units))
        even = -(-units // whole)
        taken = min(whole, max(1, box // group))
        size = min(units, taken * even)
        return cls(name, units, even, -(-size // even), size, -(-units // size))

    @property
    def passed(self) -> float:
        """Fraction of the groups in ``boxes`` full boxes that micro-kernels process."""
        if not self.is_open:
            return 1.0
        full, rest = divmod(self.units, self.box)
        return (full * self.groups + -(-rest // self.group)) / (self.boxes * self.groups)
