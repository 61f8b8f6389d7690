"""Programs that take any extent of a size: the tiles stay, their number follows.

A family is a program with its extent left open. Its kernel needs at least one register tile of rows; the last tile of
a call is shifted back to end with the axis, so that no row is out of bounds. What a family costs at an extent is what
the model says of its program there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from roller.compiler.dynamic.ranges import Range
from roller.construction.constructor import construct_candidates, program_of
from roller.construction.ranking import best_programs
from roller.expr import TensorExpr
from roller.expr.resizing import Size, growing_sizes, is_open, of_extent
from roller.hardware import DeviceSpec
from roller.templates import pricing
from roller.templates.common.options import ConstructOptions
from roller.templates.registry import programs_of, writer_of
from roller.tile import RProgram

#: Extents that programs are constructed and priced for: all of the first, where one row more is a large part of the
#: work, then some in equal ratios.
_FIRST, _FURTHER = 8, 8
#: What the program of a first extent may be predicted to take over the best one: a margin that was chosen, for prices
#: count no reads of what a register tile with more rows reads once.
_NEAR_OWN = 1.1
#: Programs of each: enough that those of every micro-kernel with its loops in either order are among them
#: (:func:`~roller.construction.ranking.best_programs` spreads from ten on).
_EACH = 10
#: Extents at which it is asked whether there are such programs.
_ASKED = 3
#: What one more kernel must gain of the root of the mean square of the logarithms of times over the best ones.
_WORTH = 0.0005


@dataclass(frozen=True)
class Family:
    """A program whose extent along one size is open.

    Parameters
    ----------
    program
        For one extent.
    size
        Of the program's expression.
    """

    program: RProgram
    size: Size

    @property
    def axis(self) -> int:
        """Position of the size's axis among those of the program."""
        return self.program.axis_names.index(self.size.name)

    @property
    def rows(self) -> int:
        """Elements of a register tile along it: the least extent it takes."""
        return self.program.tiles[0][1][self.axis]

    def at(self, extent: int) -> RProgram:
        """Return the program of an extent, not below :attr:`rows`: its tiles are not evened out, as code has one."""
        n, rows = self.axis, self.rows
        tiles = -(-extent // rows)

        def cut(layer: tuple[int, ...]) -> tuple[int, ...]:
            return (*layer[:n], rows * min(layer[n] // rows, tiles), *layer[n + 1 :])

        layers = tuple((name, cut(layer)) for name, layer in self.program.tiles)
        expr = of_extent(self.program.expr, self.size, extent)
        return replace(self.program, expr=expr, tiles=layers, open_axes=(self.size.name,))

    def narrowed(self, rows: int) -> Family:
        """Return the family with fewer rows in a register tile, so that it takes as small an extent."""
        n, was = self.axis, self.rows
        layers = tuple(
            (name, (*tile[:n], rows * (tile[n] // was), *tile[n + 1 :])) for name, tile in self.program.tiles
        )  # fmt: skip
        return replace(self, program=replace(self.program, tiles=layers))

    @property
    def kind(self) -> tuple[object, ...]:
        """What kernels that are predicted alike may differ in: register tile, panels, which loop is outer.

        Tasks of one tile of rows read the rows once and all columns for each; tasks of many rows do the contrary.
        """
        n, layers = self.axis, [tile for _, tile in self.program.tiles]
        return layers[0], self.program.vector_axis, self.program.staged, layers[-1][n] > 2 * self.rows

    def name(self) -> str:
        """Return the program's text without its extent: equal for programs that differ in nothing else."""
        return str(replace(self.program, relaxed=()))


def samples(low: int, high: int, first: int = _FIRST, further: int = _FURTHER) -> tuple[int, ...]:
    """Return extents from the least to the largest: the first one by one, then some in equal ratios.

    Examples
    --------
    >>> samples(1, 4096, 4, 5)
    (1, 2, 3, 4, 16, 64, 256, 1024, 4096)
    """
    end = min(high, low + first - 1)
    ratios = np.geomspace(end, high, further + 1) if end < high else ()
    return tuple(dict.fromkeys([*range(low, end + 1), *(int(x) for x in np.round(ratios))]))


def families_suit(varies: Range, spec: DeviceSpec, options: ConstructOptions) -> bool:
    """Whether most of a few extents have a best program of a template that can leave an extent open."""
    programs = [
        construct_candidates(varies.at(x), spec, replace(options, top_k=1))[0].program
        for x in samples(varies.low, varies.high, 1, _ASKED - 1)
    ]
    return 2 * sum(writer_of(p.kind, p).extents_of_calls for p in programs) > len(programs)


def families(varies: Range, spec: DeviceSpec, options: ConstructOptions) -> tuple[list[Family], dict[int, float]]:
    """Return families constructed for extents of the whole range, each once, and the best predicted seconds of each.

    There are none where what may leave the extent open is never among the best, as for batches of pooling.
    """
    found: dict[str, Family] = {}
    best: dict[int, float] = {}
    lone: Sequence[RProgram] = ()
    for extent in samples(varies.low, varies.high):
        expr = varies.at(extent)
        best[extent] = construct_candidates(expr, spec, replace(options, top_k=1))[0].estimate.seconds
        programs = _programs(expr, varies, extent, spec, options)
        lone = programs if extent == 1 else lone
        for program in programs:
            family = _open(program, varies, extent)
            if family is not None:
                found.setdefault(family.name(), family)
    others = tuple(found.values())
    for program in lone:
        family = next(filter(None, (_of_one_row(program, like) for like in others)), None)
        if family is not None:
            found.setdefault(family.name(), family)
    lowest = [f.narrowed(varies.low) for f in found.values() if f.rows == min(f.rows for f in found.values())]
    for family in lowest if all(f.rows > varies.low for f in found.values()) else ():
        found.setdefault(family.name(), family)  # canonical forms may have no such axis where its extent is 1
    return list(found.values()), best


def _programs(
    expr: TensorExpr, varies: Range, extent: int, spec: DeviceSpec, options: ConstructOptions
) -> Sequence[RProgram]:
    """Return the best programs of an extent whose templates can leave it open."""
    constants = tuple(expr.inputs[n].name for n in options.constants_of(expr))
    names = {a for _, a in varies.size.axes}
    batches = [
        replace(b, constants=constants) if constants else b
        for b in programs_of(expr, spec, options)
        if len(b) and writer_of(spec.kind, b).extents_of_calls and b.geometry.names[b.vector_axis or 0] not in names
    ]
    if not batches:
        return ()
    return [p for p, _ in best_programs(batches, spec, _EACH, partial(program_of, spec=spec))]


def _open(program: RProgram, varies: Range, extent: int) -> Family | None:
    """Return a program as a family; ``None`` where its template, or its form of the expression, needs the extent."""
    if not writer_of(program.kind, program).extents_of_calls or program.split_k > 1:
        return None
    named = {a for _, a in varies.size.axes}
    known = [s for s in growing_sizes(program.expr) if is_open(program.expr, s)]
    sizes = [s for s in known if s.name in named and s.extent == extent]
    if len(sizes) != 1 or sizes[0].name not in program.axis_names or program.vector_axis == sizes[0].name:
        return None
    family = Family(program, sizes[0])
    return family if family.rows <= extent else None


def fewest(
    costs: np.ndarray, best: np.ndarray, most: int, worth: float = _WORTH, given: Sequence[int] = ()
) -> list[int]:
    """Return the rows of ``costs`` that together come nearest to the best everywhere, chosen greedily."""
    chosen: list[int] = []
    wanted = list(given)
    now, reached = np.full(costs.shape[1], np.inf), (costs.shape[1] + 1, 0.0)
    for _ in range(most):
        seconds = np.minimum(now, costs)
        open_yet = np.isinf(seconds)  # extents that nothing takes yet come first; then the worst of them count most
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


def shortlist(
    costs: np.ndarray, least: np.ndarray, most: int, built: int, kinds: Sequence[object] | None = None,
    given: Sequence[int] = (),
) -> list[int]:  # fmt: skip
    """Return the rows worth building: those that cover all extents best, ``most`` of them, then the best of others."""
    first = fewest(costs, least, most, given=given)
    kinds = kinds or [None] * len(costs)
    known = {kinds[n] for n in first}
    for new in (True, False):
        left = [n for n in range(len(costs)) if n not in first and not (new and kinds[n] in known)]
        more = fewest(costs[left], least, built - len(first)) if left else []
        first += [left[n] for n in more]
    return first


def _of_one_row(program: RProgram, like: Family) -> Family | None:
    """Return a program of the extent 1 as a family: its canonical form has no such axis, that of another family has.

    ``None`` where the forms differ in more.
    """
    if program.split_k > 1:  # as of every family
        return None
    whole = like.program
    extents = {a.name: a.extent for a in whole.axes if a.name != like.size.name}
    if {a.name: a.extent for a in program.axes} != extents:
        return None

    def wider(tile: tuple[int, ...]) -> tuple[int, ...]:
        known = dict(zip(program.axis_names, tile, strict=True))
        return tuple(known.get(name, 1) for name in whole.axis_names)

    layers = tuple((name, wider(tile)) for name, tile in program.tiles)
    return replace(like, program=replace(program, expr=whole.expr, tiles=layers))


def own_of_first(found: Sequence[Family], extents: Sequence[int], costs: np.ndarray) -> list[int]:
    """Return a family for each of the first extents, some for several.

    Of those that are predicted near the best it is one whose register tile holds all rows: what does not move with them
    is read once, however good the caches are.
    """
    rows = np.array([f.rows for f in found])
    own = dict[int, None]()
    for column, extent in enumerate(extents):
        seconds = costs[:, column]
        if extent < extents[0] + _FIRST and np.isfinite(seconds.min()):
            near = seconds <= _NEAR_OWN * seconds.min()
            whole = near & (rows == extent)
            own[int(np.where(whole if whole.any() else near, seconds, np.inf).argmin())] = None
    return list(own)


def price_table(found: Sequence[Family], extents: Sequence[int], spec: DeviceSpec) -> np.ndarray:
    """Return predicted seconds ``(families, extents)``; infinite where one cannot take an extent."""
    out = np.full((len(found), len(extents)), np.inf)
    for column, extent in enumerate(extents):
        rows = [n for n, f in enumerate(found) if f.rows <= extent]
        shared: dict[TensorExpr, TensorExpr] = {}  # programs of one expression are priced together
        programs = [found[n].at(extent) for n in rows]
        programs = [replace(p, expr=shared.setdefault(p.expr, p.expr)) for p in programs]
        out[rows, column] = [e.seconds for e in pricing.estimate_programs(programs, spec)]
    return out
