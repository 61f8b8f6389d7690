"""Values of a row's stages: exponentials that cannot overflow, and values that a reduction keeps.

A softmax subtracts the maximum of its row, so its exponentials need no check for overflow. Its quotients stay the same
if the exponentials are multiplied by a power of two, which keeps the smallest ones normal numbers. The reduction that
adds the exponentials also stores them for the last stage, in one loop instead of two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from roller.expr import Call, Const, Load, Scalar, Stage, TensorExpr, loads, transform_scalar, walk_scalar_tree
from roller.te.emit_tvm_expressions import Expr, emit_scalar
from roller.templates.cpu.emit.mathlib import exp_of_nonpositive

Env = Mapping[str, Any]
#: Prefix of the names of values that are not tensors.
_VALUE = "@value"


def stages_stored_by_reductions(stages: Sequence[Stage]) -> dict[str, Stage]:
    """Return, keyed by reduction, each stage whose elements the next reduction reads only where they are stored.

    Examples
    --------
    >>> from roller import ops
    >>> from roller.templates.cpu.rows.emit_shared_values import add_stages_for_shared_values
    >>> {n: s.name for n, s in stages_stored_by_reductions(add_stages_for_shared_values(ops.softmax((8,
    ...     100))).stages).items()}
    {'X_sum': 'X_sum@0'}
    """
    return {
        r.name: s
        for s, r in pairwise(stages)
        if s.combiner is None and r.combiner is not None and _reads_every_element_in_place(r, s)
    }


def _reads_every_element_in_place(reduction: Stage, stage: Stage) -> bool:
    """Return whether a reduction has the axes of a stage and reads the stage's elements only where they are stored."""
    if {(a.name, a.extent) for a in reduction.axes} != {(a.name, a.extent) for a in stage.axes}:
        return False
    found = [ld for ld in loads(reduction.body) if ld.tensor == stage.name]
    return bool(found) and all(ld.index == stage.store and not ld.guard for ld in found)


def stage_overwriting_values(stages: Sequence[Stage], kept: Stage) -> Stage | None:
    """Return the last stage if it may overwrite the values of ``kept``, else ``None``.

    Examples
    --------
    >>> from roller import ops
    >>> from roller.templates.cpu.rows.emit_shared_values import add_stages_for_shared_values
    >>> stages = add_stages_for_shared_values(ops.softmax((8, 100))).stages
    >>> stage_overwriting_values(stages, stages[1]).name
    'Y'
    """
    # The values then need no separate memory, and the lines of the result are loaded while they are computed.
    *before, last = stages
    read = [ld for ld in loads(last.body) if ld.tensor == kept.name]
    others = [s for s in before if any(ld.tensor == kept.name for ld in loads(s.body))]
    alike = (last.output.shape, last.output.dtype) == (kept.output.shape, kept.output.dtype)
    in_place = bool(read) and all(ld.index == last.store and not ld.guard for ld in read)
    return last if alike and in_place and last.combiner is None and len(others) == 1 else None


def emitter_of_stage_body(
    stage: Stage, expr: TensorExpr, tensors: Mapping[str, Any], placed: Callable[[Scalar], Scalar] = lambda n: n
) -> Callable[[Env], Expr]:
    """Return a function that emits the body of a stage for given values of its axes."""
    found = dict.fromkeys(n for n in walk_scalar_tree(stage.body) if is_exp_below_maximum(n, expr.stages))
    raised = bool(found) and may_scale_exponentials(expr)
    names = {n: f"{_VALUE}{i}" for i, n in enumerate(found)}
    arguments = {name: transform_scalar(n.args[0], placed) for n, name in names.items() if isinstance(n, Call)}
    body = transform_scalar(transform_scalar(stage.body, lambda n: Load(names[n], ()) if n in names else n), placed)

    def value(env: Env) -> Expr:
        def exponential(argument: Scalar) -> Callable[[], Expr]:
            return lambda: exp_of_nonpositive(emit_scalar(argument, env, tensors), raised=raised)

        return emit_scalar(body, env, {**tensors, **{n: exponential(a) for n, a in arguments.items()}})

    return value


def may_scale_exponentials(expr: TensorExpr) -> bool:
    """Return whether the outputs stay the same if all exponentials below a maximum are multiplied by one factor.

    Examples
    --------
    >>> from roller import ops
    >>> from roller.templates.cpu.rows.emit_shared_values import add_stages_for_shared_values
    >>> may_scale_exponentials(add_stages_for_shared_values(ops.softmax((8, 100))))
    True
    """
    powers: dict[str, int] = {}
    for s in expr.stages:
        power = _power_of_factor(s.body, powers, expr.stages)
        single = s.acc_dtype == s.output.dtype == "float32"
        if power is None or (power != 0 and (s.combiner not in (None, "sum") or not single or s.name in expr.outputs)):
            return False
        powers[s.name] = power
    return True


def _power_of_factor(n: Scalar, powers: Mapping[str, int], stages: Sequence[Stage]) -> int | None:
    """Return the power with which a factor of the exponentials occurs in ``n``; ``None`` if it is not a factor."""
    if is_exp_below_maximum(n, stages):
        return 1
    if isinstance(n, Load):
        power = powers.get(n.tensor, 0)
        return None if power and n.guard else power
    if not isinstance(n, Call):
        return 0 if not any(powers.get(ld.tensor, 0) for ld in loads(n)) else None
    found = [_power_of_factor(a, powers, stages) for a in n.args]
    if None in found or not any(found):
        return None if None in found else 0
    # Only products of powers that cancel each other: another factor could leave the range of the dtype.
    if n.fn == "mul" and sorted(map(int, filter(None, found))) == [-1, 1]:
        return 0
    if n.fn == "div" and found[1] == 1:
        return 0 if found[0] == 1 else -1 if isinstance(n.args[0], Const) else None
    return None


def is_exp_below_maximum(n: Scalar, stages: Sequence[Stage]) -> bool:
    """Return whether a node is a float32 ``exp(x - max(x))`` of a loaded ``x``."""
    # Only loaded values count: arithmetic would be repeated for the difference, and a compiler may round differently.
    if not (isinstance(n, Call) and n.fn == "exp" and isinstance(n.args[0], Call) and n.args[0].fn == "sub"):
        return False
    element, largest = n.args[0].args
    if not isinstance(element, Load) or element.guard or not isinstance(largest, Load) or largest.guard:
        return False
    return any(
        s.name == largest.tensor and s.combiner == "max" and s.body == element and s.store == largest.index
        and s.acc_dtype == s.output.dtype == "float32"
        for s in stages
    )  # fmt: skip
