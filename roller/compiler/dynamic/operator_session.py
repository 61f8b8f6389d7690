"""The session of one operator over ranges of sizes: the form in which its kernels are saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from roller.artifact import KernelArtifact
from roller.backends.constant_inputs import constant_arrays
from roller.compiler.dynamic.dynamic_size_box import SizeBox, Sizes
from roller.compiler.dynamic.loaded_kernel import KEY
from roller.core.anti_unification import general
from roller.core.formula_fitting import FormulaFitter
from roller.expr import TensorExpr
from roller.runtime.session.start_range_session import make_range_kernel, output_dimensions, start_range_session
from roller_runtime.core.size_formulas import Atom, Formula
from roller_runtime.plan.execution_plan import CONSTANT, INPUT, OUTPUT, Place, Plan
from roller_runtime.plan.plan_json import plan_to_dict
from roller_runtime.plan.program_steps import Program, Run, Value
from roller_runtime.session.range_plan import KernelChooser, RangeKernel, RangePlan, variant_key
from roller_runtime.session.range_session import RangeSession


@dataclass(frozen=True)
class _SessionSizes:
    """The sizes of the session: axes that a dimension of an input equals, or else a dimension that follows the axis."""

    ends: Mapping[str, tuple[int, int]]
    derived: Mapping[str, Formula]  #: The other axes, and the other dimensions of inputs
    inputs: Mapping[str, tuple[int | str, ...]]


def start_operator_session(
    expression_at: Callable[[Sizes], TensorExpr],
    points: Sequence[Sizes],
    box: SizeBox,
    variants: Sequence[Callable[[Sizes], KernelArtifact]],
    choose: Callable[[Mapping[str, Sequence[RangeKernel]]], KernelChooser],
    cores: int,
    doubt: str,
) -> RangeSession:
    """Return the session of an operator.

    Parameters
    ----------
    expression_at
        Function that returns the expression at given extents of its dynamic axes.
    points
        Extents, inside the box or not, from which shapes are generalized.
    box
        Ranges of the axes.
    variants
        For each kernel, a function that returns its artifact at given extents.
    choose
        Function that returns the chooser for the plan's kernels.
    cores
        Number of threads per call.
    doubt
        Reason why the choice of kernels may be wrong; empty if there is none.
    """
    artifacts = [at(box.high) for at in variants]
    constants = {artifacts[0].expression.inputs[n].name: a for n, a in constant_arrays(artifacts[0]).items()}
    largest = _plan_of(expression_at(box.high), constants)
    plans, fitter = [_plan_of(expression_at(p), constants) for p in points], FormulaFitter(points)
    sizes, program = _session_sizes(expression_at, box, frozenset(constants)), largest.program
    kernels = {KEY: tuple(make_range_kernel(at, points) for at in variants)}
    shapes = {name: [p.program.values[name].shape for p in plans] for name in program.outputs}
    plan = RangePlan(
        general(list(map(plan_to_dict, plans)), fitter), program.name,
        {n: program.values[n].dtype for n in (*program.inputs, *program.outputs)}, 0, sizes.ends, sizes.derived,
        sizes.inputs, output_dimensions(shapes, points, [n for n in box.ends if n in sizes.ends]), kernels,
        choose(kernels),
    )  # fmt: skip
    by_variant = {variant_key(KEY, n): a for n, a in enumerate(artifacts)}
    return start_range_session(plan, largest, cores=cores, doubt=doubt, artifacts=by_variant)


def _plan_of(expr: TensorExpr, constants: Mapping[str, np.ndarray]) -> Plan:
    """Return the plan with one step, which runs the operator's kernel."""
    values = {t.name: Value(t.name, tuple(t.shape), t.dtype) for t in (*expr.inputs, *expr.output_tensors)}
    names, outputs = tuple(t.name for t in expr.inputs), tuple(t.name for t in expr.output_tensors)
    given = tuple(n for n in names if n not in constants)
    places = {n: Place(CONSTANT, name=n) for n in constants}
    places |= {n: Place(space, k) for space, several in ((INPUT, given), (OUTPUT, outputs))
               for k, n in enumerate(several)}  # fmt: skip
    return Plan(
        Program(expr.name, given, outputs, values, dict(constants), (Run(expr.name, KEY, names, outputs),)), places
    )


def _session_sizes(expression_at: Callable[[Sizes], TensorExpr], box: SizeBox, held: frozenset[str]) -> _SessionSizes:
    """Return the sizes that the arrays of a call determine, and the axes as functions of them."""
    least = {t.name: list(t.shape) for t in expression_at(box.low).inputs if t.name not in held}
    inputs: dict[str, list[int | str]] = {name: [*shape] for name, shape in least.items()}
    ends, derived = dict[str, tuple[int, int]](), dict[str, Formula]()
    taken = {*box.ends, *least}

    def new_name(tensor: str, dim: int) -> str:
        name = f"{tensor}_{dim}"
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    for axis, (low, high) in box.ends.items():
        more = {t.name: t.shape for t in expression_at({**box.low, axis: low + 1}).inputs}
        follow = [(name, d, more[name][d] - x, x) for name, shape in least.items() for d, x in enumerate(shape)
                  if more[name][d] != x]  # fmt: skip
        exact = [(name, d) for name, d, rate, first in follow if (rate, first) == (1, low)]
        for name, d in exact:
            inputs[name][d] = axis
        others = [row for row in follow if row[:2] not in exact]
        if exact:
            ends[axis] = low, high
        else:  # no array has this extent: a dimension that follows it is the size, and the axis is computed from it
            (name, d, rate, first), *others = others
            size = inputs[name][d] = new_name(name, d)
            ends[size] = first, first + rate * (high - low)
            derived[axis] = Formula(0, ((1, (Atom((size,), "floor", rate, shift=rate * low - first),)),))
        for name, d, rate, first in others:
            size = inputs[name][d] = new_name(name, d)
            derived[size] = Formula(first - rate * low, ((rate, (Atom((axis,)),)),))
    return _SessionSizes(ends, derived, {name: tuple(dims) for name, dims in inputs.items()})
