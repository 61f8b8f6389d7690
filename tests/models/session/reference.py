"""What a program computes, slowly: every step with NumPy, kernels through their expressions in float64.

The oracle of the partition (which may cut and fuse as it likes and must never change what a model computes), of the
memory plan and of the session.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence

import numpy as np

from roller.errors import ModelError
from roller_runtime.core.dtypes import numpy_dtype
from roller_runtime.plan.program_steps import Call, Copy, Join, ParallelGroup, Program, Run, Step, Value, View
from roller_runtime.session.fallback_runtime import run_fallback_step


def evaluate_program(program: Program, feeds: Mapping[str, np.ndarray] | Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Compute the outputs of a program.

    Parameters
    ----------
    program
        The program; steps run in order, one after another.
    feeds
        Arrays of the inputs, by name or in order.

    Returns
    -------
    dict of str to numpy.ndarray
        Outputs by name, in the program's order, shapes and dtypes as declared.

    Raises
    ------
    ModelError
        Where an input is missing or has another shape.
    """
    given = dict(feeds) if isinstance(feeds, Mapping) else dict(zip(program.inputs, feeds, strict=True))
    held: dict[str, np.ndarray] = {n: np.asarray(a) for n, a in program.constants.items()}
    for name in program.inputs:
        value = program.values[name]
        if name not in given or tuple(np.shape(given[name])) != value.shape:
            got = np.shape(given[name]) if name in given else "nothing"
            raise ModelError(f"{program.name}: input '{name}': expected shape {value.shape}, got {got}.")
        held[name] = typed(given[name], value)
    for step in program.steps:
        _run(step, program, held)
    return {n: held[n] if n in program.loose else typed(held[n], program.values[n]) for n in program.outputs}


def typed(array: np.ndarray, value: Value) -> np.ndarray:
    """Return ``array`` in the shape and dtype of a value."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(array).astype(numpy_dtype(value.dtype), copy=False).reshape(value.shape)


def _run(step: Step, program: Program, held: dict[str, np.ndarray]) -> None:
    """Compute one step; what it writes joins ``held``."""
    values = program.values
    if isinstance(step, Run):
        expr = program.kernels[step.kernel].expression
        arrays = [held[n].reshape(t.shape) for n, t in zip(step.inputs, expr.inputs, strict=True)]
        with np.errstate(all="ignore"):
            results = expr.evaluate(arrays)
        held.update({n: typed(r, values[n]) for n, r in zip(step.outputs, results, strict=True)})
    elif isinstance(step, View):
        flat = np.ascontiguousarray(held[step.source]).reshape(-1)
        first = step.offset_bytes // flat.itemsize if flat.size else 0
        target = values[step.target]
        held[step.target] = flat[first : first + target.elements].reshape(target.shape)
    elif isinstance(step, Join):
        held[step.target] = np.concatenate([held[n] for n in step.sources], axis=step.axis)
    elif isinstance(step, Copy):
        _copy(step, program, held)
    elif isinstance(step, ParallelGroup):
        for lane in step.lanes:
            for inner in lane:
                _run(inner, program, held)
    else:
        made = _call(step, held) if isinstance(step, Call) else run_fallback_step(step, [held[n] for n in step.inputs])
        for name, result in zip(step.outputs, made, strict=False):
            if name in values and np.shape(result) != values[name].shape:
                got = f"expected shape {values[name].shape}, got {np.shape(result)}"
                raise ModelError(f"{program.name}: '{name}': {got}.")
            if name:
                held[name] = typed(result, values[name]) if name in values else result


def _copy(step: Copy, program: Program, held: dict[str, np.ndarray]) -> None:
    source = np.ascontiguousarray(held[step.source]).reshape(-1).view(np.uint8)
    target = program.values[step.target]
    made = held.setdefault(step.target, np.zeros(target.shape, numpy_dtype(target.dtype)))
    flat = made.reshape(-1).view(np.uint8)
    for row in range(step.rows):
        at = step.target_offset_bytes + row * step.target_pitch_bytes
        of = step.source_offset_bytes + row * step.source_pitch_bytes
        flat[at : at + step.row_bytes] = source[of : of + step.row_bytes]


def _call(step: Call, held: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
    library = importlib.import_module("roller_runtime.session.array_functions")
    given = [held[n] if n else None for n in step.inputs]
    results = library.FUNCTIONS[step.function](np, given, dict(step.attributes))
    return results if isinstance(results, (tuple, list)) else (results,)
