"""A model read at some sizes of its ranges: the same steps at each, and the lengths that follow from the sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from roller.compiler.dynamic.box import Box, Sizes
from roller.compiler.dynamic.symbolic_programs import SymbolicExpr
from roller.core.anti_unification import MismatchError, general
from roller.core.fitting import Fitter
from roller.core.formulas import Formula
from roller.core.lengths import quotients
from roller.errors import RollerError, counted
from roller.models.graph.plan import Plan
from roller.models.graph.plan_data import plan_from_dict, plan_to_dict
from roller.models.graph.steps import ParallelGroup, Program, Run, Step, runs_of

#: Sizes at which a model is read, and those of them that are no corners at least; more where lengths could follow in
#: several ways, so often.
_POINTS, _BETWEEN, _MORE, _ROUNDS = 9, 4, 2, 8
#: Sizes that are tried for being no special ones.
_TRIED = 2000


@dataclass(frozen=True)
class Reading:
    """A model at some sizes.

    Parameters
    ----------
    box
        The sizes, and lengths that follow from them.
    points
        Those at which it was read, with all that follow.
    programs
        What was read there: the same steps.
    largest
        The program of the largest sizes.
    """

    box: Box
    points: tuple[dict[str, int], ...]
    programs: tuple[Program, ...]
    largest: Program


def read_ranges(box: Box, read: Callable[[Sizes], Program]) -> Reading:
    """Read a model at sizes enough to know every length of its values."""
    box = box.told
    corners = _corners(box)
    several = (p for p in _points(box) if p not in corners)
    points = [*corners, *itertools.islice(several, max(_BETWEEN, _POINTS - len(corners)))]
    programs = [_named(read(p)) for p in points]
    largest = _named(read(box.high))
    for _ in range(_ROUNDS):
        derived, doubts = _lengths([*programs, largest], [*points, box.high])
        whole = Box(box.ends, derived)
        # Other sizes would leave the doubt; where none of the ranges tells two formulas apart, either is right.
        more = list(itertools.islice((p for p in several if _tells(whole.whole(p), doubts)), _MORE)) if doubts else []
        if not more:
            break
        points, programs = [*points, *more], [*programs, *(_named(read(p)) for p in more)]
    else:
        raise MismatchError(f"lengths: expected one formula of each, got {counted(len(doubts), 'other')}.")
    found = _with_largest(whole, [whole.whole(p) for p in points], programs, largest)
    _check_ends(found, read)
    return found


def _ends(box: Box) -> list[dict[str, int]]:
    """Return sizes each of which is the least or the largest: of every two sizes all four pairs, the least ones first.

    An orthogonal array of strength two: the columns of a Hadamard matrix (R. Plackett and J. Burman, "The design of
    optimum multifactorial experiments", Biometrika 33, 1946).

    Examples
    --------
    >>> [tuple(p.values()) for p in _ends(Box({"m": (1, 9), "n": (3, 5)}))]
    [(1, 3), (9, 3), (1, 5), (9, 5)]
    """
    count = 1 << len(box.ends).bit_length()
    numbered = tuple(enumerate(box.ends.items(), 1))
    return [{n: e[(row & column).bit_count() % 2] for column, (n, e) in numbered} for row in range(count)]


def _corners(box: Box) -> list[dict[str, int]]:
    """Return sizes near the ends, where one length overtakes another if it ever does, for a model to be read at.

    None is 1 or the largest, where steps may vanish, and no two of a point are equal, as of :func:`_points`.
    """
    found: list[dict[str, int]] = []
    for end in _ends(box):
        point: dict[str, int] = {}
        for name, (low, high) in box.ends.items():
            near = range(max(2, low), high) if end[name] == low else range(high - 1, max(1, low - 1), -1)
            point[name] = next((x for x in near if x not in point.values()), 0)
        if all(point.values()) and point not in found:
            found.append(point)
    return found


def _check_ends(found: Reading, read: Callable[[Sizes], Program]) -> None:
    """Make sure that values have the lengths at the ends that formulas give, and results the shapes.

    Sizes of 1 are looked at here alone: their steps differ, since axes of one element vanish.
    """
    names = list(found.programs[0].values)
    told = general([[list(p.values[n].shape) for n in names] for p in found.programs], Fitter(found.points))
    known = [tuple(p[n] for n in found.box.ends) for p in (*found.points, found.box.high)]
    for end in (e for e in _ends(found.box) if tuple(e.values()) not in known):
        try:
            meant = read(end)
        except RollerError as err:
            raise MismatchError(f"at {end}: {err}") from err
        for name, shape in zip(names, told.at(found.box.whole(end)), strict=True):
            if name not in meant.values:
                continue
            here = meant.values[name].shape
            alike = here == tuple(shape) if name in meant.outputs else math.prod(here) == math.prod(shape)
            if not alike:
                raise MismatchError(f"'{name}' is {list(here)} at {end}, not {list(shape)}")


def _points(box: Box) -> Iterator[dict[str, int]]:
    """Yield sizes at which a model is read: no two of a point are equal, none is 1, none is the largest."""
    found: list[dict[str, int]] = []
    for p in itertools.islice(box.points(5), _TRIED):
        wide = all(x > 1 for x in p.values()) and len(set(p.values())) == len(p)
        if wide and p not in found and p != box.high:
            found.append(p)
            yield p


def _tells(sizes: Sizes, doubts: Sequence[tuple[Formula, Formula]]) -> bool:
    """Whether two formulas that are in doubt differ at some sizes."""
    return any(one.at(sizes) != other.at(sizes) for one, other in doubts)


def _lengths(
    programs: Sequence[Program], points: Sequence[Sizes]
) -> tuple[dict[str, Formula], list[tuple[Formula, Formula]]]:
    """Return lengths of values that are no products of sizes, by new names, and those that could be another formula.

    A stride makes ``floor((h + 1) / 2)`` of a length, padding ``h + 2``: with names of their own for these, all other
    numbers of a model are products again.
    """
    known = [dict(p) for p in points]
    found: dict[str, Formula] = {}
    doubts: list[tuple[Formula, Formula]] = []
    for values in _dims(programs):
        if Fitter(known).product(values) is not None:
            continue
        several = [f for pair in quotients(known, values) for f in pair]
        if not several:
            continue  # whoever needs it says so
        formula = several[0]
        name = _unused(f"{min(formula.sizes).partition('_at_')[0]}_at_{len(found)}", known[0])
        found[name] = formula
        doubts += [(formula, other) for other in dict.fromkeys(several) if other != formula]
        for p, x in zip(known, values, strict=True):
            p[name] = x
    return found, doubts


def _unused(name: str, taken: Collection[str]) -> str:
    """Return a name that no size has: those of users may read like ours."""
    while name in taken:
        name += "_"
    return name


def _dims(programs: Sequence[Program]) -> Iterator[tuple[int, ...]]:
    """Yield lengths that differ between programs, each once, in the order in which a model computes its values."""
    seen = set()
    shapes = [[v.shape for v in p.values.values()] + _inside(p) for p in programs]
    for several in zip(*shapes, strict=False):
        for values in zip(*several, strict=False):
            if len(set(values)) > 1 and values not in seen:
                seen.add(values)
                yield values


def _inside(program: Program) -> list[tuple[int, ...]]:
    """Return the shapes of what kernels hold for themselves, and their axes."""
    stages = [s for k in program.kernels.values() for s in k.expression.stages]
    return [shape for s in stages for shape in (s.output.shape, tuple(a.extent for a in s.axes))]


def _with_largest(box: Box, points: list[dict[str, int]], programs: list[Program], largest: Program) -> Reading:
    """Return what was read, the largest sizes among the points where the steps are the same there.

    What a model cuts off for other sizes is all there is for the largest, and the step is gone: then the program of
    the largest sizes is what those of the others say. It computes all that was read there; what a model does at its
    largest sizes alone is refused.
    """
    whole = [*points, box.high]
    datas = [plan_to_dict(Plan(p)) for p in (*programs, largest)]
    try:
        general(datas, Fitter(whole))
    except MismatchError:
        data = general(datas[:-1], Fitter(points)).at(box.high)
        made = plan_from_dict(data, programs[-1].constants, largest.name).program
        shapes = [[p.values[n].shape for n in p.outputs] for p in (made, largest)]
        if shapes[0] != shapes[1] or _computed(largest) != _computed_at(programs, points, box.high):
            raise
        return Reading(box, tuple(points), tuple(programs), made)
    return Reading(box, tuple(whole), (*programs, largest), largest)


def _computed(program: Program) -> set[str]:
    """Return what the kernels of a program compute, by keys that no name changes."""
    return {source.expression.key for source in program.kernels.values()}


def _computed_at(programs: Sequence[Program], points: Sequence[Sizes], sizes: Sizes) -> set[str]:
    """Return what kernels compute at some sizes, as they were read at others."""
    several = ([p.kernels[k].expression for p in programs] for k in programs[0].kernels)
    return {SymbolicExpr.of(e, points).at(sizes).key for e in several}


def _named(program: Program) -> Program:
    """Return a program whose kernels have names in the order of their first use, which no size changes."""
    names: dict[str, str] = {}
    for run in runs_of(program.steps):
        names.setdefault(run.kernel, f"k{len(names)}")

    def named(step: Step) -> Step:
        if isinstance(step, ParallelGroup):
            return replace(step, lanes=tuple(tuple(map(named, lane)) for lane in step.lanes))
        return replace(step, kernel=names[step.kernel]) if isinstance(step, Run) else step

    kernels = {names[k]: s for k, s in program.kernels.items() if k in names}
    return replace(program, steps=tuple(map(named, program.steps)), kernels=kernels)
