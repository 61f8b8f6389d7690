"""Reads a model at sample sizes within its ranges and derives formulas for lengths that depend on the sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roller.compiler.dynamic.dynamic_size_box import SizeBox, Sizes
from roller.compiler.dynamic.symbolic_programs import SymbolicExpr
from roller.core.anti_unification import MismatchError, general
from roller.core.fit_output_lengths import fit_floor_quotients
from roller.core.formula_fitting import FormulaFitter
from roller.errors import RollerError, counted
from roller.expr.scalar import Const, walk_scalar_tree
from roller.expr.tensor_expr import TensorExpr
from roller.models.onnx.critical_sizes import find_critical_sizes
from roller.models.onnx.folded_nodes import FoldedNode
from roller_runtime.core.size_formulas import Formula
from roller_runtime.plan.execution_plan import Plan
from roller_runtime.plan.plan_json import plan_from_dict, plan_to_dict
from roller_runtime.plan.program_steps import ParallelGroup, Program, Run, Step, iterate_kernel_runs

#: Number of samples, minimum number of samples that are not corners, number of further samples per round if several
#: formulas fit, and maximum number of rounds.
_POINTS, _BETWEEN, _MORE, _ROUNDS = 9, 4, 2, 8
#: Maximum number of critical sizes that are checked, and number of further ones if values cannot be evaluated.
_CRITICAL, _UNKNOWN = 16, 4
#: Maximum number of candidates for sample sizes.
_TRIED = 2000


@dataclass(frozen=True)
class SampledModel:
    """The programs of a model at sample sizes.

    Parameters
    ----------
    box
        The sizes and the lengths derived from them.
    points
        The sample sizes, together with all derived lengths.
    programs
        The program at each of these points; their steps are equal.
    largest
        The program at the largest sizes.
    """

    box: SizeBox
    points: tuple[dict[str, int], ...]
    programs: tuple[Program, ...]
    largest: Program


def read_at_sample_sizes(
    box: SizeBox, read: Callable[[Sizes], Program], folded: Callable[[Sizes], Mapping[str, FoldedNode]] | None = None
) -> SampledModel:
    """Read a model at enough sizes to determine every dimension of its values.

    ``folded`` returns the nodes folded at sizes that were read; what they compute is then checked at all sizes.
    """
    box = box.box_for_reading_models
    corners = sizes_near_ends(box)
    several = (p for p in _distinct_sample_sizes(box) if p not in corners)
    points = [*corners, *itertools.islice(several, max(_BETWEEN, _POINTS - len(corners)))]
    programs = [_name_kernels_by_order(read(p)) for p in points]
    largest = _name_kernels_by_order(read(box.high))
    for _ in range(_ROUNDS):
        derived, doubts = _derive_length_formulas([*programs, largest], [*points, box.high])
        whole = SizeBox(box.ends, derived)
        # Further samples must distinguish the formulas; if none within the ranges does, either formula is right.
        more = (
            list(itertools.islice((p for p in several if _formulas_differ(whole.with_derived_sizes(p), doubts)), _MORE))
            if doubts
            else []
        )
        if not more:
            break
        points, programs = [*points, *more], [*programs, *(_name_kernels_by_order(read(p)) for p in more)]
    else:
        raise MismatchError(f"lengths: expected one formula of each, got {counted(len(doubts), 'other')}.")
    found = _make_sampled_model(whole, [whole.with_derived_sizes(p) for p in points], programs, largest)
    _check_formulas_at_ends(found, read)
    if folded is not None:
        _check_critical_sizes(found, read, [folded(p) for p in found.points])
    return found


def _pairwise_end_sizes(box: SizeBox) -> list[dict[str, int]]:
    """Return combinations of smallest and largest values that cover all four pairs of any two sizes, smallest first.

    Examples
    --------
    >>> [tuple(p.values()) for p in _pairwise_end_sizes(SizeBox({"m": (1, 9), "n": (3, 5)}))]
    [(1, 3), (9, 3), (1, 5), (9, 5)]
    """
    # An orthogonal array of strength two: the columns of a Hadamard matrix (R. Plackett and J. Burman, "The design of
    # optimum multifactorial experiments", Biometrika 33, 1946).
    count = 1 << len(box.ends).bit_length()
    numbered = tuple(enumerate(box.ends.items(), 1))
    return [{n: e[(row & column).bit_count() % 2] for column, (n, e) in numbered} for row in range(count)]


def sizes_near_ends(box: SizeBox) -> list[dict[str, int]]:
    """Return sample sizes near the ends of the ranges; a different one of two lengths may be the larger one there."""
    # No size is 1 or the largest, at which steps may vanish, and no two sizes in a sample are equal.
    found: list[dict[str, int]] = []
    for end in _pairwise_end_sizes(box):
        point: dict[str, int] = {}
        for name, (low, high) in box.ends.items():
            near = range(max(2, low), high) if end[name] == low else range(high - 1, max(1, low - 1), -1)
            point[name] = next((x for x in near if x not in point.values()), 0)
        if all(point.values()) and point not in found:
            found.append(point)
    return found


def _check_formulas_at_ends(found: SampledModel, read: Callable[[Sizes], Program]) -> None:
    """Verify the formulas for lengths and result shapes at the ends of the ranges."""
    # Sizes of 1 are checked only here: their steps differ, because axes of one element vanish.
    known = [tuple(p[n] for n in found.box.ends) for p in (*found.points, found.box.high)]
    _check_at(found, read, [e for e in _pairwise_end_sizes(found.box) if tuple(e.values()) not in known])


def _check_critical_sizes(
    found: SampledModel, read: Callable[[Sizes], Program], samples: Sequence[Mapping[str, FoldedNode]]
) -> None:
    """Compare the programs where values computed from sizes are not as at the sample sizes."""
    classes, unknown = find_critical_sizes(found.box, found.points, samples)
    ends = [*_pairwise_end_sizes(found.box), {n: high for n, (_, high) in found.box.ends.items()}]
    several: list[dict[str, int]] = []
    for sizes in classes:
        wide = [p for p in sizes if _is_wide(p) and p not in ends]
        if wide or not any(p in ends for p in sizes):
            several += [p for p in ((wide or sizes)[0], (wide or sizes)[-1]) if p not in several]
    if len(several) > _CRITICAL:
        raise MismatchError(
            f"values are computed from sizes; they differ at {len(several)} sizes or more, such as {several[0]}, of "
            f"which at most {_CRITICAL} are checked"
        )
    if unknown:  # what decides there cannot be found; some sizes may show it
        several += itertools.islice(
            (p for p in _distinct_sample_sizes(SizeBox(found.box.ends), 7) if p not in several), _UNKNOWN
        )
    _check_at(found, read, several, steps=True)


def _check_at(
    found: SampledModel, read: Callable[[Sizes], Program], several: Iterable[Sizes], steps: bool = False
) -> None:
    """Compare result shapes, constants and literals with the generalized ones, and ``steps`` where no axis vanishes."""
    names = list(found.programs[0].values)
    details = general([[list(p.values[n].shape) for n in names] for p in found.programs], FormulaFitter(found.points))
    for end in several:
        sizes = found.box.with_derived_sizes(end)
        try:
            meant = read(end)
        except RollerError as err:
            raise MismatchError(f"at {end}: {err}") from err
        _check_constants_at_end(found, meant, end)
        for name, shape in zip(names, details.at(sizes), strict=True):
            if name not in meant.values:
                continue
            here = meant.values[name].shape
            alike = here == tuple(shape) if name in meant.outputs else math.prod(here) == math.prod(shape)
            if not alike:
                raise MismatchError(f"'{name}' is {list(here)} at {end}, not {list(shape)}")
        if steps and _is_wide(end):
            _check_steps(found, _name_kernels_by_order(meant), sizes, end)


def _check_steps(found: SampledModel, meant: Program, sizes: Sizes, end: Sizes) -> None:
    """Raise an error if the steps or kernels at ``end`` are not those generalized from the sample sizes."""
    try:
        general([plan_to_dict(Plan(p)) for p in (*found.programs, meant)], FormulaFitter([*found.points, sizes]))
        same = _kernel_keys(meant) == {e.key for e in _expressions_at(found.programs, found.points, sizes)}
    except MismatchError as err:
        raise MismatchError(f"at {dict(end)}: {err}") from err
    if not same:
        raise MismatchError(f"the kernels at {dict(end)} differ")


def _is_wide(sizes: Sizes) -> bool:
    """Return whether no axis vanishes and no two sizes are equal, so that all steps are those of most sizes."""
    return min(sizes.values()) > 1 and len(set(sizes.values())) == len(sizes)


def _check_constants_at_end(found: SampledModel, meant: Program, end: Sizes) -> None:
    """Raise an error if a constant or a literal of a kernel has another value at ``end`` than at the sample sizes."""
    for name, array in meant.constants.items():
        whole = found.largest.constants.get(name)
        if whole is not None and not is_prefix(whole, array) and not is_corner(whole, array):
            raise MismatchError(f"the constant '{name}' is computed from sizes; it differs at {dict(end)}")
    sizes = found.box.with_derived_sizes(end)
    try:
        known = {x for e in _expressions_at(found.programs, found.points, sizes) for x in _literals(e)}
    except MismatchError:
        return  # these kernels are refused later
    # A constant of one element is a literal of the kernel that reads it: the corner of a mask, for example.
    arrays = (a for p in (*found.programs, found.largest) for a in p.constants.values())
    known |= {float(a.reshape(-1)[0]) for a in arrays if a.size}
    new = sorted({x for k in meant.kernels.values() for x in _literals(k.expression)} - known)
    if new:
        raise MismatchError(f"a constant is computed from sizes; it is {new[0]:g} at {dict(end)} only")


def _literals(expr: TensorExpr) -> set[float]:
    """Return the literals of a kernel, except NaN and the integer 0, which is the position of an axis' only element."""
    several = (x for stage in expr.stages for x in walk_scalar_tree(stage.body) if isinstance(x, Const))
    return {float(x.value) for x in several if x.value == x.value and (x.value or "float" in x.dtype)}


def _distinct_sample_sizes(box: SizeBox, seed: int = 5) -> Iterator[dict[str, int]]:
    """Yield sample sizes: within a sample, no two are equal, none is 1, and not all are the largest."""
    found: list[dict[str, int]] = []
    for p in itertools.islice(box.random_sizes(seed), _TRIED):
        if _is_wide(p) and p not in found and p != box.high:
            found.append(p)
            yield p


def _formulas_differ(sizes: Sizes, doubts: Sequence[tuple[Formula, Formula]]) -> bool:
    """Return whether the two formulas of any pair differ at ``sizes``."""
    return any(one.at(sizes) != other.at(sizes) for one, other in doubts)


def _derive_length_formulas(
    programs: Sequence[Program], points: Sequence[Sizes]
) -> tuple[dict[str, Formula], list[tuple[Formula, Formula]]]:
    """Return named formulas for lengths that are not products of sizes, and pairs of formulas that both fit."""
    # For example, a stride gives ``floor((h + 1) / 2)``, and padding gives ``h + 2``; all other lengths are products of
    # sizes and of such lengths.
    known = [dict(p) for p in points]
    found: dict[str, Formula] = {}
    doubts: list[tuple[Formula, Formula]] = []
    for values in _varying_lengths(programs):
        if FormulaFitter(known).product(values) is not None:
            continue
        several = [f for pair in fit_floor_quotients(known, values) for f in pair]
        if not several:
            continue  # an error follows where the length is needed
        formula = several[0]
        name = _unused_name(f"{min(formula.sizes).partition('_at_')[0]}_at_{len(found)}", known[0])
        found[name] = formula
        doubts += [(formula, other) for other in dict.fromkeys(several) if other != formula]
        for p, x in zip(known, values, strict=True):
            p[name] = x
    return found, doubts


def _unused_name(name: str, taken: Collection[str]) -> str:
    """Return ``name``, extended until no size has it; users' names may resemble generated ones."""
    while name in taken:
        name += "_"
    return name


def _varying_lengths(programs: Sequence[Program]) -> Iterator[tuple[int, ...]]:
    """Yield the distinct lengths that differ between programs, in the order of the model's values."""
    seen = set()
    shapes = [[v.shape for v in p.values.values()] + _stage_shapes_of_kernels(p) for p in programs]
    for several in zip(*shapes, strict=False):
        for values in zip(*several, strict=False):
            if len(set(values)) > 1 and values not in seen:
                seen.add(values)
                yield values


def _stage_shapes_of_kernels(program: Program) -> list[tuple[int, ...]]:
    """Return, for each stage in the program's kernels, the output shape and the axis extents."""
    stages = [s for k in program.kernels.values() for s in k.expression.stages]
    return [shape for s in stages for shape in (s.output.shape, tuple(a.extent for a in s.axes))]


def _make_sampled_model(
    box: SizeBox, points: list[dict[str, int]], programs: list[Program], largest: Program
) -> SampledModel:
    """Return the sampled model; the largest sizes are one of its points if their steps are the same."""
    # A step that truncates may vanish at the largest sizes. The program there is then derived from the other sizes and
    # must have the same kernels and result shapes as the one that was read.
    whole = [*points, box.high]
    datas = [plan_to_dict(Plan(p)) for p in (*programs, largest)]
    try:
        general(datas, FormulaFitter(whole))
    except MismatchError:
        data = general(datas[:-1], FormulaFitter(points)).at(box.high)
        made = plan_from_dict(data, _constants_at_largest(data, programs[-1], largest), largest.name).program
        shapes = [[p.values[n].shape for n in p.outputs] for p in (made, largest)]
        if shapes[0] != shapes[1] or _kernel_keys(largest) != {
            e.key for e in _expressions_at(programs, points, box.high)
        }:
            raise
        return SampledModel(box, tuple(points), tuple(programs), made)
    return SampledModel(box, tuple(whole), (*programs, largest), largest)


def _constants_at_largest(data: Mapping[str, Any], program: Program, largest: Program) -> dict[str, np.ndarray]:
    """Return a program's constants at the largest sizes, where equal constants may have one name."""
    shapes = {name: tuple(shape) for name, shape, _ in data["values"]}
    found = dict(program.constants)
    for name, array in found.items():
        if shapes[name] == array.shape:
            continue
        several = [a for a in largest.constants.values() if a.shape == shapes[name] and a.dtype == array.dtype
                   and is_prefix(a, array)]  # fmt: skip
        if name in largest.constants and largest.constants[name].shape == shapes[name]:
            several = [largest.constants[name]]
        if several and all(np.array_equal(a, several[0]) for a in several[1:]):
            found[name] = several[0]
    return found


def is_prefix(whole: np.ndarray, part: np.ndarray) -> bool:
    """Return whether ``whole`` begins with the bytes of ``part``; an axis of stride 0 is compared only once."""
    if part.shape == whole.shape:
        once = tuple(slice(1) if x == y == 0 else slice(None) for x, y in zip(part.strides, whole.strides, strict=True))
        part, whole = part[once], whole[once]
    flat, held = (np.ascontiguousarray(a).reshape(-1) for a in (part, whole))
    return np.array_equal(flat.view(np.uint8), held[: flat.size].view(np.uint8))


def is_corner(whole: np.ndarray, part: np.ndarray) -> bool:
    """Return whether ``part`` is the start of ``whole`` along each axis."""
    if part.dtype != whole.dtype or part.ndim != whole.ndim:
        return False
    corner = whole[tuple(map(slice, part.shape))]
    return np.array_equal(
        np.ascontiguousarray(part).reshape(-1).view(np.uint8), np.ascontiguousarray(corner).reshape(-1).view(np.uint8)
    )


def _kernel_keys(program: Program) -> set[str]:
    """Return the keys of a program's kernels, regardless of names."""
    return {source.expression.key for source in program.kernels.values()}


def _expressions_at(programs: Sequence[Program], points: Sequence[Sizes], sizes: Sizes) -> Iterator[TensorExpr]:
    """Yield the kernels' expressions at ``sizes``, generalized from those at ``points``."""
    several = ([p.kernels[k].expression for p in programs] for k in programs[0].kernels)
    return (SymbolicExpr.of(e, points).at(sizes) for e in several)


def _name_kernels_by_order(program: Program) -> Program:
    """Return a program whose kernels are named in the order of their first use, which does not depend on sizes."""
    names: dict[str, str] = {}
    for run in iterate_kernel_runs(program.steps):
        names.setdefault(run.kernel, f"k{len(names)}")

    def named(step: Step) -> Step:
        if isinstance(step, ParallelGroup):
            return replace(step, lanes=tuple(tuple(map(named, lane)) for lane in step.lanes))
        return replace(step, kernel=names[step.kernel]) if isinstance(step, Run) else step

    kernels = {names[k]: s for k, s in program.kernels.items() if k in names}
    return replace(program, steps=tuple(map(named, program.steps)), kernels=kernels)
