"""Program families for any extent of a size: the tiles stay fixed, and the number of tiles varies.

A family's kernel needs at least one register tile of rows; the last tile of a call is shifted back to end with the
axis, so that no row is out of bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from roller.compiler.dynamic.dynamic_range import DynamicRange
from roller.construction.constructor import construct_candidates, program_from_row
from roller.construction.ranking import best_programs
from roller.expr import TensorExpr
from roller.expr.sizes_growable_by_padding import (
    GrowableSize,
    expression_with_size,
    growing_sizes,
    is_leading_dimension,
)
from roller.hardware import DeviceSpec
from roller.templates import price_with_templates
from roller.templates.common.options import ConstructOptions
from roller.templates.registry import programs_of, template_writing
from roller.tile import RProgram

#: Numbers of extents for construction: of the smallest ones, where one more row is a large part of the work, and of a
#: geometric series after them.
_FIRST, _FURTHER = 8, 8
#: Maximum ratio of the predicted time to the best one for a program with all rows in one register tile; prices ignore
#: the reads that such a tile saves.
_NEAR_OWN = 1.1
#: Number of programs per extent: enough for every micro-kernel with both loop orders
#: (:func:`~roller.construction.ranking.best_programs` spreads ten or more).
_EACH = 10
#: Number of extents at which templates are tested.
_ASKED = 3
#: Minimum amount by which one more kernel must lower the root mean square of the logarithms of time ratios to the best.
_WORTH = 0.0005


@dataclass(frozen=True)
class ProgramFamily:
    """A program that is open in one size."""

    program: RProgram  #: The program for one extent
    size: GrowableSize  #: The open size in the program's expression

    @property
    def axis(self) -> int:
        """Position of the open axis in the program."""
        return self.program.axis_names.index(self.size.name)

    @property
    def rows(self) -> int:
        """Number of elements of a register tile along the open axis: the smallest supported extent."""
        return self.program.tiles[0][1][self.axis]

    def at(self, extent: int) -> RProgram:
        """Return the program for an extent of at least :attr:`rows`, with unchanged register tiles."""
        n, rows = self.axis, self.rows
        tiles = -(-extent // rows)

        def cut_tile(layer: tuple[int, ...]) -> tuple[int, ...]:
            return (*layer[:n], rows * min(layer[n] // rows, tiles), *layer[n + 1 :])

        layers = tuple((name, cut_tile(layer)) for name, layer in self.program.tiles)
        expr = expression_with_size(self.program.expr, self.size, extent)
        return replace(self.program, expr=expr, tiles=layers, open_axes=(self.size.name,))

    def narrowed(self, rows: int) -> ProgramFamily:
        """Return the family with fewer rows per register tile, which supports smaller extents."""
        n, was = self.axis, self.rows
        layers = tuple(
            (name, (*tile[:n], rows * (tile[n] // was), *tile[n + 1 :])) for name, tile in self.program.tiles
        )  # fmt: skip
        return replace(self, program=replace(self.program, tiles=layers))

    @property
    def kind(self) -> tuple[object, ...]:
        """Properties in which equally priced kernels differ: register tile, panels, outer loop."""
        # Tasks of one tile of rows read all columns for each tile; tasks of many rows read all rows for each column.
        n, layers = self.axis, [tile for _, tile in self.program.tiles]
        return layers[0], self.program.vector_axis, self.program.staged, layers[-1][n] > 2 * self.rows

    def name(self) -> str:
        """Return the program's text without relaxed rules: the family's identity."""
        return str(replace(self.program, relaxed=()))


def sample_extents(low: int, high: int, first: int = _FIRST, further: int = _FURTHER) -> tuple[int, ...]:
    """Return extents from smallest to largest: the first ones one by one, then a geometric series.

    >>> sample_extents(1, 4096, 4, 5)
    (1, 2, 3, 4, 16, 64, 256, 1024, 4096)
    """
    end = min(high, low + first - 1)
    ratios = np.geomspace(end, high, further + 1) if end < high else ()
    return tuple(dict.fromkeys([*range(low, end + 1), *(int(x) for x in np.round(ratios))]))


def templates_allow_families(varies: DynamicRange, spec: DeviceSpec, options: ConstructOptions) -> bool:
    """Return whether, at most of a few extents, the best program comes from a template that supports open extents."""
    programs = [
        construct_candidates(varies.at(x), spec, replace(options, top_k=1))[0].program
        for x in sample_extents(varies.low, varies.high, 1, _ASKED - 1)
    ]
    return 2 * sum(template_writing(p.kind, p).extents_of_calls for p in programs) > len(programs)


def families(
    varies: DynamicRange, spec: DeviceSpec, options: ConstructOptions
) -> tuple[list[ProgramFamily], dict[int, float]]:
    """Return the families constructed over the range and the best predicted time per extent, in seconds."""
    found: dict[str, ProgramFamily] = {}
    best: dict[int, float] = {}
    lone: Sequence[RProgram] = ()
    for extent in sample_extents(varies.low, varies.high):
        expr = varies.at(extent)
        best[extent] = construct_candidates(expr, spec, replace(options, top_k=1))[0].estimate.seconds
        programs = _best_open_programs(expr, varies, extent, spec, options)
        lone = programs if extent == 1 else lone
        for program in programs:
            family = _as_family(program, varies, extent)
            if family is not None:
                found.setdefault(family.name(), family)
    others = tuple(found.values())
    for program in lone:
        family = next(filter(None, (_family_from_unit_extent(program, like) for like in others)), None)
        if family is not None:
            found.setdefault(family.name(), family)
    lowest = [f.narrowed(varies.low) for f in found.values() if f.rows == min(f.rows for f in found.values())]
    for family in lowest if all(f.rows > varies.low for f in found.values()) else ():
        found.setdefault(family.name(), family)  # canonical forms drop axes of extent 1
    return list(found.values()), best


def _best_open_programs(
    expr: TensorExpr, varies: DynamicRange, extent: int, spec: DeviceSpec, options: ConstructOptions
) -> Sequence[RProgram]:
    constants = tuple(expr.inputs[n].name for n in options.constants_of(expr))
    names = {a for _, a in varies.size.axes}
    batches = [
        replace(b, constants=constants) if constants else b
        for b in programs_of(expr, spec, options)
        if len(b)
        and template_writing(spec.kind, b).extents_of_calls
        and b.geometry.names[b.vector_axis or 0] not in names
    ]
    if not batches:
        return ()
    return [p for p, _ in best_programs(batches, spec, _EACH, partial(program_from_row, spec=spec))]


def _as_family(program: RProgram, varies: DynamicRange, extent: int) -> ProgramFamily | None:
    """Return a program as a family, or ``None`` if its template or form depends on the extent."""
    if not template_writing(program.kind, program).extents_of_calls or program.split_k > 1:
        return None
    named = {a for _, a in varies.size.axes}
    known = [s for s in growing_sizes(program.expr) if is_leading_dimension(program.expr, s)]
    sizes = [s for s in known if s.name in named and s.extent == extent]
    if len(sizes) != 1 or sizes[0].name not in program.axis_names or program.vector_axis == sizes[0].name:
        return None
    family = ProgramFamily(program, sizes[0])
    return family if family.rows <= extent else None


def choose_covering_rows(
    costs: np.ndarray, best: np.ndarray, most: int, worth: float = _WORTH, given: Sequence[int] = ()
) -> list[int]:
    """Return the indices of rows of ``costs``, chosen greedily, that together are closest to ``best`` everywhere."""
    chosen: list[int] = []
    wanted = list(given)
    now, reached = np.full(costs.shape[1], np.inf), (costs.shape[1] + 1, 0.0)
    for _ in range(most):
        seconds = np.minimum(now, costs)
        open_yet = np.isinf(seconds)  # uncovered extents come first, then large ratios count most
        ratios = np.divide(seconds, best, out=np.ones_like(costs), where=~open_yet)
        regret = np.sqrt((np.log(ratios) ** 2).mean(axis=1))
        if wanted:
            chosen.append(row := wanted.pop(0))
            now, reached = np.minimum(now, costs[row]), (int(open_yet[row].sum()), float(regret[row]))
            continue
        row = min(range(len(costs)), key=lambda n: (open_yet[n].sum(), regret[n]))
        gained = (int(open_yet[row].sum()), float(regret[row]))
        if gained[0] == reached[0] and gained[1] > reached[1] - worth:
            break
        chosen.append(row)
        now, reached = np.minimum(now, costs[row]), gained
    return chosen


def shortlist_rows(
    costs: np.ndarray, least: np.ndarray, most: int, built: int, kinds: Sequence[object] | None = None,
    given: Sequence[int] = (),
) -> list[int]:  # fmt: skip
    """Return the indices of rows worth building: up to ``most`` that cover all extents best, then the best others."""
    first = choose_covering_rows(costs, least, most, given=given)
    kinds = kinds or [None] * len(costs)
    known = {kinds[n] for n in first}
    for new in (True, False):
        left = [n for n in range(len(costs)) if n not in first and not (new and kinds[n] in known)]
        more = choose_covering_rows(costs[left], least, built - len(first)) if left else []
        first += [left[n] for n in more]
    return first


def _family_from_unit_extent(program: RProgram, like: ProgramFamily) -> ProgramFamily | None:
    """Return a program for extent 1, whose form lacks the open axis, as a family like ``like``, or ``None``."""
    if program.split_k > 1:  # as for every family
        return None
    whole = like.program
    extents = {a.name: a.extent for a in whole.axes if a.name != like.size.name}
    if {a.name: a.extent for a in program.axes} != extents:
        return None

    def widen_tile(tile: tuple[int, ...]) -> tuple[int, ...]:
        known = dict(zip(program.axis_names, tile, strict=True))
        return tuple(known.get(name, 1) for name in whole.axis_names)

    layers = tuple((name, widen_tile(tile)) for name, tile in program.tiles)
    return replace(like, program=replace(program, expr=whole.expr, tiles=layers))


def choose_families_of_first_extents(
    found: Sequence[ProgramFamily], extents: Sequence[int], costs: np.ndarray
) -> list[int]:
    """Return the index of a near-best family per smallest extent, if possible with all rows in one tile."""
    # With all rows in one register tile, the other operand is read once, whatever the caches do.
    rows = np.array([f.rows for f in found])
    own = dict[int, None]()
    for column, extent in enumerate(extents):
        seconds = costs[:, column]
        if extent < extents[0] + _FIRST and np.isfinite(seconds.min()):
            near = seconds <= _NEAR_OWN * seconds.min()
            whole = near & (rows == extent)
            own[int(np.where(whole if whole.any() else near, seconds, np.inf).argmin())] = None
    return list(own)


def price_families_at_extents(found: Sequence[ProgramFamily], extents: Sequence[int], spec: DeviceSpec) -> np.ndarray:
    """Return predicted seconds, shape ``(families, extents)``; infinite for unsupported extents."""
    out = np.full((len(found), len(extents)), np.inf)
    for column, extent in enumerate(extents):
        rows = [n for n, f in enumerate(found) if f.rows <= extent]
        shared: dict[TensorExpr, TensorExpr] = {}  # programs of one expression are priced together
        programs = [found[n].at(extent) for n in rows]
        programs = [replace(p, expr=shared.setdefault(p.expr, p.expr)) for p in programs]
        out[rows, column] = [e.seconds for e in price_with_templates.estimate_programs(programs, spec)]
    return out
