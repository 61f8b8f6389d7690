"""Dynamic axes of an operator, and the sizes given by a call's arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from roller.compiler.dynamic.dynamic_range import parse_range_bounds
from roller.compiler.dynamic.dynamic_size_box import SizeBox, Sizes
from roller.errors import ExprError, LaunchError, RollerError, did_you_mean, shown
from roller.expr import TensorExpr
from roller.expr.change_axis_extents import Stretch, apply_stretches, find_stretch

#: Sample extents for generalizing an expression: coprime, so that no two products coincide.
GENERALISATION_EXTENTS = (11, 7, 23, 13, 31, 17, 41, 29, 53, 37)


@dataclass(frozen=True)
class DynamicAxes:
    """Dynamic axes of an expression."""

    expr: TensorExpr  #: The expression at arbitrary extents
    moves: tuple[Stretch, ...]  #: Tensor dimensions that follow each axis
    box: SizeBox  #: Bounds by axis

    def at(self, sizes: Sizes) -> TensorExpr:
        """Return the expression at the given sizes."""
        return apply_stretches(self.expr, self.moves, sizes)

    @cached_property
    def places(self) -> dict[str, tuple[int, int]]:
        """Input and dimension that determine the extent of each axis, using as few inputs as possible."""
        held = {m.axis: [p for p in m.inputs if not any(p in o.inputs for o in self.moves if o is not m)]
                for m in self.moves}  # fmt: skip
        count = [sum(any(p[0] == n for p in found) for found in held.values()) for n in range(len(self.expr.inputs))]
        return {axis: min(found, key=lambda p: (-count[p[0]], p)) for axis, found in held.items() if found}

    def said(self, shapes: Mapping[int, Sequence[int]]) -> dict[str, int]:
        """Return the sizes that the inputs' shapes (keyed by input position) determine."""
        found = {}
        for move in self.moves:
            position, dim = self.places[move.axis]
            tensor, rate = self.expr.inputs[position], move.inputs[position, dim]
            more, rest = divmod(int(shapes[position][dim]) - tensor.shape[dim], rate)
            low, high = self.box.ends[move.axis]
            extent = move.extent + more
            if rest or not low <= extent <= high:
                ends = [tensor.shape[dim] + rate * (x - move.extent) for x in (low, high)]
                steps = f" in steps of {rate}" if rate > 1 else ""
                raise LaunchError(
                    f"{self.expr.name}: expected dimension {dim} of '{tensor.name}' from {ends[0]} to {ends[1]}{steps} "
                    f"('{move.axis}' from {low} to {high}), got {shapes[position][dim]}. Compile for ranges that have "
                    "it."
                )
            found[move.axis] = extent
        return found

    @property
    def generalisation_sizes(self) -> list[dict[str, int]]:
        """Sizes at which the expression is generalized; some may lie outside the box."""
        # Strides through the list, and the sum, keep axes from growing alike, which would hide the axis that a number
        # depends on.
        count = len(GENERALISATION_EXTENTS)
        return [
            {m.axis: GENERALISATION_EXTENTS[(3 * n + 4 * k) % count] + 2 * n for k, m in enumerate(self.moves)}
            for n in range(count)
        ]


def parse_dynamic_axes(expr: TensorExpr, shapes: Mapping[str, Any], constants: tuple[int, ...] = ()) -> DynamicAxes:
    """Return the dynamic axes that ``shapes`` specifies."""
    if not isinstance(shapes, Mapping) or not shapes:
        raise RollerError(
            f"shapes: expected axes and the ranges of their extents, got {shown(shapes)}. "
            "Write e.g. shapes={'i': range(1, 4097)}."
        )
    ends = {str(name): parse_range_bounds(str(name), given) for name, given in shapes.items()}
    known = sorted({a.name for s in expr.stages for a in s.axes})
    moves = {}
    for name in ends:
        if name not in known:
            raise RollerError(
                f"shapes: expected an axis that can vary, got {shown(name)}{did_you_mean(name, known) or '.'} "
                f"{expr.name} has {known}."
            )
        try:
            moves[name] = find_stretch(expr, name)
        except ExprError as err:
            raise RollerError(f"shapes: expected an axis that can vary, got {shown(name)}. {err}") from err
    _check_axes(expr, moves, constants)
    fixed = {n: low for n, (low, high) in ends.items() if low == high}
    if len(fixed) == len(ends):
        raise RollerError(f"shapes: expected a range of several extents, got {shown(shapes)}. Compile for this shape.")
    expr = apply_stretches(expr, [moves[n] for n in fixed], fixed)
    free = {n: e for n, e in ends.items() if n not in fixed}
    found = DynamicAxes(expr, tuple(find_stretch(expr, n) for n in free), SizeBox(free))
    if missing := [n for n in free if n not in found.places]:
        raise RollerError(f"shapes: expected an input whose shape says the extent of {missing[0]!r}, got none.")
    for sizes in (found.box.low, found.box.high):
        try:
            found.at(sizes)
        except ExprError as err:
            raise RollerError(f"shapes: {err} Leave the least extents out.") from err
    return found


def _check_axes(expr: TensorExpr, moves: Mapping[str, Stretch], constants: tuple[int, ...]) -> None:
    """Raise an error if an axis changes the shape of a constant or a dimension that another axis changes too."""
    for name, move in moves.items():
        held = [expr.inputs[p].name for p, _ in move.inputs if p in constants]
        if held:
            raise RollerError(f"shapes: expected '{name}' to move no constant, it moves '{held[0]}'. Pass it in calls.")
        other = next((o for o in moves if o != name and any(n in moves[o].rates for n in move.rates)), None)
        if other is not None:
            raise RollerError(f"shapes: expected sizes apart, '{name}' and '{other}' move one dimension. Name one.")
