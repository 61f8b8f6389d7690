"""Decides by ONNX's reference evaluator whether roller or ONNX Runtime is right where they differ."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from roller.errors import LaunchError
from roller.models.onnxruntime_reference import reshape_outputs, run_onnxruntime
from roller_runtime.plan.program_steps import Program

if TYPE_CHECKING:
    import onnx

#: Maximum number of elements in all values of a model together; the reference evaluator, which is plain Python, does
#: not run on larger models.
MAX_ELEMENTS = 1 << 26


@dataclass(frozen=True)
class ReferenceOutputs:
    """Outputs of the reference evaluator and of unoptimized ONNX Runtime; ``None`` for one that gave no result."""

    reference: tuple[np.ndarray, ...] | None
    unoptimised: tuple[np.ndarray, ...] | None


@dataclass(frozen=True)
class Verdict:
    """The side that is right, ``"roller"`` or ``"onnxruntime"`` (``None`` if undecided), and the reason as text."""

    right: str | None
    why: str


def run_references(
    model: str | Path | bytes | onnx.ModelProto, program: Program, feeds: Mapping[str, np.ndarray]
) -> ReferenceOutputs:
    """Run ONNX's reference evaluator and ONNX Runtime without optimizations."""
    try:
        unoptimised = run_onnxruntime(model, program, feeds, optimised=False)[0]
    except LaunchError:
        unoptimised = None
    return ReferenceOutputs(_run_reference_evaluator(model, program, feeds), unoptimised)


def _run_reference_evaluator(
    model: str | Path | bytes | onnx.ModelProto, program: Program, feeds: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, ...] | None:
    from onnx.reference import ReferenceEvaluator

    if sum(v.elements for v in program.values.values()) > MAX_ELEMENTS:
        return None
    given = os.fspath(model) if isinstance(model, (str, Path)) else model
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            evaluator = ReferenceEvaluator(given)
            taken = {n: a for n, a in feeds.items() if n in evaluator.input_names}
            found = evaluator.run(list(program.outputs), taken)
            return reshape_outputs(program, list(found))
    except Exception:  # noqa: BLE001 - it raises whatever Python does for what it does not take
        return None


def decide_which_is_right(ours: bool | None, theirs: bool | None, unoptimised: bool | None) -> Verdict:
    """Return whether roller or ONNX Runtime is right about an output in which they differ.

    Examples
    --------
    >>> decide_which_is_right(True, False, True).why
    "roller is right: onnx's reference evaluator agrees with it, and ONNX Runtime does without its optimisations"
    >>> decide_which_is_right(None, None, None).right is None
    True
    """
    plain = ", and ONNX Runtime does without its optimisations" if unoptimised else ""
    if ours and not theirs:
        return Verdict("roller", f"roller is right: onnx's reference evaluator agrees with it{plain}")
    if theirs and not ours:
        why = "ONNX Runtime is right: onnx's reference evaluator agrees with it"
        return Verdict("onnxruntime", f"{why}, but not without its optimisations" if unoptimised else why)
    if ours is None and unoptimised:
        why = "ONNX Runtime agrees with roller without its optimisations (onnx's reference evaluator has no answer)"
        return Verdict("roller", f"roller is right: {why}")
    if ours is None:
        return Verdict(None, "nobody can tell: onnx's reference evaluator has no answer")
    if ours:
        return Verdict(None, "nobody can tell: onnx's reference evaluator lies between the two")
    return Verdict(None, f"nobody can tell: onnx's reference evaluator differs from both{plain}")
