"""Forms of an expression over whose axes a user may name tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from roller.expr import TensorExpr
from roller.expr.canonical import fuse_axes, group_axes
from roller.tile.geometry import Geometry


def forms_for_named_tiles(expr: TensorExpr) -> Iterator[Geometry]:
    """Yield the forms for user-named tiles: the expression, its fused form, and both of them grouped in two ways."""
    fused = fuse_axes(expr)
    grouped = (group_axes(x, reductions=r) for r in (True, False) for x in (expr, fused))
    for form in (expr, fused, *grouped):
        if form is not None:
            yield Geometry.of(form)


def fits_form(tile: Mapping[str, int] | Sequence[int], geometry: Geometry, fastest: bool) -> bool:
    """Return whether a layer's tile names only axes of this form or, as a sequence, has a valid number of extents."""
    if isinstance(tile, Mapping):
        return all(find_axis_name(a, geometry.names) is not None for a in tile)
    ranks = (len(geometry.names), int(geometry.spatial.sum())) if fastest else (len(geometry.names),)
    return len(tile) in ranks


def find_axis_name(given: object, names: Sequence[str]) -> str | None:
    """Return the axis that ``given`` names (with the parts of a group in any order), or ``None`` if there is none."""
    if not isinstance(given, str):
        return None
    parts = sorted(given.replace(" ", "").split("*"))
    return next((n for n in names if n == given or sorted(n.split("*")) == parts), None)
