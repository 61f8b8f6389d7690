"""Where the tasks and micro-kernels of a Winograd program begin, and how many units of an axis they have."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from roller.te.compat import tirx
from roller.te.emit import Expr
from roller.templates.cpu.emit.nest import integer, unravel
from roller.tile.tiled_axis import TiledAxis

Coordinates = tuple[Expr, ...]
#: Units of a task along axes, a number where all tasks have as many.
Units = tuple[int | Expr, ...]


def tasks_of(axes: Sequence[TiledAxis]) -> tuple[int | Expr, Callable[[Expr], Coordinates]]:
    """Return the tasks of a launch, and what makes a task's coordinates of its number.

    With an axis that is open the count is written as one that is unknown: one task is code as any number is.
    """
    boxes = [a.boxes for a in axes]
    if not any(a.is_open for a in axes):
        return math.prod(boxes), lambda task: unravel(task, boxes)

    def split(task: Expr) -> Coordinates:
        out: list[Expr] = []
        for n in reversed(boxes[1:]):
            out.append(tirx.FloorMod(task, integer(n)))
            task = tirx.FloorDiv(task, integer(n))
        return (task, *reversed(out))

    return integer(math.prod(boxes)), split


def flat(at: Coordinates, extents: Sequence[int]) -> Expr:
    """Return the number of a coordinate, last axis fastest."""
    number = at[0]
    for n, x in zip(extents[1:], at[1:], strict=True):
        number = number * n + x
    return number


def start_of(number: Expr, size: int, extent: int) -> Expr:
    """First unit of a piece; the last piece ends with the axis."""
    if extent <= size:
        return integer(0)
    return number * size if extent % size == 0 else tirx.min(number * size, integer(extent - size))


def begin(task: Expr, axis: TiledAxis) -> Expr:
    """Return the first unit of a task; the last one ends with the axis, of an axis that is open with its last group."""
    if not axis.is_open:
        return start_of(task, axis.box, axis.units)
    return tirx.min(task * axis.box, integer(axis.units - axis.group))


def units_from(start: Expr, axis: TiledAxis) -> int | Expr:
    """Return the units of the task that begins with ``start``."""
    return tirx.min(integer(axis.box), integer(axis.units) - start) if axis.is_open else axis.box


def groups_of(own: int | Expr, axis: TiledAxis) -> int | Expr:
    """Return the groups of a task of ``own`` units."""
    return tirx.floordiv(own + (axis.group - 1), integer(axis.group)) if axis.is_open else axis.groups


def group_start(number: Expr, own: int | Expr, axis: TiledAxis) -> Expr:
    """Return the first unit of a group in its task; the last group ends with the task."""
    return tirx.min(number * axis.group, own - axis.group) if axis.is_open else start_of(number, axis.group, axis.box)
