"""Runs bound steps one by one in Python: slow, but the test oracle for the native runner.

Library functions and other runtimes run here even if the native runner runs all other steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np

from roller_runtime.errors import LaunchError
from roller_runtime.plan.program_steps import Call
from roller_runtime.session.fallback_runtime import run_fallback_step
from roller_runtime.session.plan_binding import Bound, BoundCall, BoundCopy, BoundParallelGroup, BoundRun, Operand

#: Maps an operand to its array in this call.
Memory: TypeAlias = Callable[[Operand], np.ndarray]
#: Receives the array of an output whose shape is known only at run time.
Keep: TypeAlias = Callable[[Operand, np.ndarray], None]


def interpret_steps(
    steps: Iterable[Bound], memory: Memory, keep: Keep, seconds: dict[int, float] | None = None
) -> None:
    """Run steps in order and lanes one after another; ``seconds`` receives the time of each step by ``id``."""
    for step in steps:
        start = time.perf_counter()
        if isinstance(step, BoundRun):
            step.kernel.call(*(memory(o) for o in step.operands))
        elif isinstance(step, BoundCopy):
            _run_copy(step, memory)
        elif isinstance(step, BoundParallelGroup):
            for lane in step.lanes:
                interpret_steps(lane, memory, keep, seconds)
        else:
            run_call_step(step, memory, keep)
        if seconds is not None:
            seconds[id(step)] = time.perf_counter() - start


def _run_copy(bound: BoundCopy, memory: Memory) -> None:
    step = bound.step
    source, target = (memory(o).reshape(-1).view(np.uint8) for o in (bound.source, bound.target))
    for row in range(step.rows):
        of = step.source_offset_bytes + row * step.source_pitch_bytes
        at = step.target_offset_bytes + row * step.target_pitch_bytes
        target[at : at + step.row_bytes] = source[of : of + step.row_bytes]


def run_call_step(bound: BoundCall, memory: Memory, keep: Keep) -> None:
    """Run a library function or a fallback subgraph."""
    inputs = [None if o is None else memory(o) for o in bound.inputs]
    made = _compute_call(bound, inputs)
    for n, (result, operand) in enumerate(zip(made, bound.outputs, strict=False)):
        if operand is None:
            continue
        found = np.asarray(result)
        if operand.loose and found.dtype == operand.dtype:
            keep(operand, found)
            continue
        if found.shape != operand.shape or found.dtype != operand.dtype:
            raise LaunchError(
                f"{call_label(bound)}: output {n}: expected {operand.dtype} of shape {operand.shape}, got "
                f"{found.dtype} of shape {found.shape}. Compile the model for the shapes it runs with."
            )
        memory(operand)[...] = found


def _compute_call(bound: BoundCall, inputs: list[np.ndarray | None]) -> tuple[Any, ...]:
    step = bound.step
    if not isinstance(step, Call):
        return run_fallback_step(step, inputs)
    from roller_runtime.session.array_functions import FUNCTIONS

    function = FUNCTIONS.get(step.function)
    if function is None:
        raise LaunchError(f"{call_label(bound)}: no function '{step.function}' in this version of roller. Upgrade it.")
    try:
        return tuple(function(np, inputs, step.attributes))
    except (IndexError, ValueError, TypeError, ArithmeticError) as err:
        raise LaunchError(f"{call_label(bound)}: {err}. Check the inputs of the model.") from err


def call_label(bound: BoundCall) -> str:
    """Return the name of a library function or fallback subgraph for messages."""
    step = bound.step
    return (step.label or step.function) if isinstance(step, Call) else f"{step.runtime}({', '.join(step.nodes)})"
