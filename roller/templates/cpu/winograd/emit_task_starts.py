"""Starts of a Winograd program's tasks and micro-kernels, and the number of units of each along each axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import Expr
from roller.templates.cpu.emit.tir_loop_constructors import int32_index, unravel_counter
from roller.tile.split_axis_into_tasks import TiledAxis

Coordinates = tuple[Expr, ...]
#: Number of a task's units along each axis: an integer if it is the same in all tasks.
Units = tuple[int | Expr, ...]


def task_count_and_coordinates(axes: Sequence[TiledAxis]) -> tuple[int | Expr, Callable[[Expr], Coordinates]]:
    """Return the number of tasks in a launch, and the function that maps a task's index to its coordinates."""
    # With an open axis, the count is opaque to TVM: the code for one task must be the code for any number of tasks.
    boxes = [a.boxes for a in axes]
    if not any(a.is_open for a in axes):
        return math.prod(boxes), lambda task: unravel_counter(task, boxes)

    def split(task: Expr) -> Coordinates:
        out: list[Expr] = []
        for n in reversed(boxes[1:]):
            out.append(tirx.FloorMod(task, int32_index(n)))
            task = tirx.FloorDiv(task, int32_index(n))
        return (task, *reversed(out))

    return int32_index(math.prod(boxes)), split


def number_of_coordinate(at: Coordinates, extents: Sequence[int]) -> Expr:
    """Return the flat index of coordinates, with the last axis fastest."""
    number = at[0]
    for n, x in zip(extents[1:], at[1:], strict=True):
        number = number * n + x
    return number


def first_unit_of_piece(number: Expr, size: int, extent: int) -> Expr:
    """Return the first unit of a piece; the last piece ends with the axis."""
    if extent <= size:
        return int32_index(0)
    return number * size if extent % size == 0 else tirx.min(number * size, int32_index(extent - size))


def first_unit_of_task(task: Expr, axis: TiledAxis) -> Expr:
    """Return the first unit of a task; the last task ends with the axis, or has the last group of an open axis."""
    if not axis.is_open:
        return first_unit_of_piece(task, axis.box, axis.units)
    return tirx.min(task * axis.box, int32_index(axis.units - axis.group))


def count_units_of_task(start: Expr, axis: TiledAxis) -> int | Expr:
    """Return the number of units in the task that begins at ``start``."""
    return tirx.min(int32_index(axis.box), int32_index(axis.units) - start) if axis.is_open else axis.box


def count_groups_of_task(own: int | Expr, axis: TiledAxis) -> int | Expr:
    """Return the number of groups in a task of ``own`` units."""
    return tirx.floordiv(own + (axis.group - 1), int32_index(axis.group)) if axis.is_open else axis.groups


def first_unit_of_group(number: Expr, own: int | Expr, axis: TiledAxis) -> Expr:
    """Return the first unit of a group in its task; the last group ends with the task."""
    return (
        tirx.min(number * axis.group, own - axis.group)
        if axis.is_open
        else first_unit_of_piece(number, axis.group, axis.box)
    )
