"""Comparison of a compiled model with ONNX Runtime on the same random inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roller.models.compiled_model import CompiledModel
from roller.models.disagreement_verdict import ReferenceOutputs, decide_which_is_right, run_references
from roller.models.onnxruntime_reference import make_random_expected_outputs
from roller.models.session.check_and_time_bundle import relative_error
from roller.models.session.gpu_bundle import TOLERANCE
from roller_runtime.core.display import one_line_repr

if TYPE_CHECKING:
    import onnx

#: Largest accepted error of an output, relative to its largest magnitude, by dtype; integers wider than 8 bits must be
#: equal.
TOLERANCES = {
    "float16": 2e-2,
    "bfloat16": 1e-1,
    "float8_e4m3fn": 0.25,
    "float8_e5m2": 0.5,
    "float32": TOLERANCE,
    "float64": TOLERANCE,
}


@dataclass(frozen=True)
class Difference:
    """Error of one output relative to ONNX Runtime.

    Parameters
    ----------
    error
        Largest absolute difference divided by the largest magnitude; infinite if shapes or non-finite values differ.
    tolerance
        Largest accepted ``error``.
    right, why
        The fields of the :class:`roller.models.disagreement_verdict.Verdict` on an error above the tolerance; otherwise
        ``None`` and empty.
    """

    output: str
    dtype: str
    error: float
    tolerance: float
    right: str | None = None
    why: str = ""

    @property
    def ok(self) -> bool:
        """Whether the error is within the tolerance."""
        return self.error <= self.tolerance


@dataclass(frozen=True)
class Comparison:
    """Differences between a model and ONNX Runtime, one per output and set of random inputs."""

    name: str
    source: str
    differences: tuple[Difference, ...]
    sets: int

    @property
    def ok(self) -> bool:
        """Whether all errors are within their tolerances."""
        return all(d.ok for d in self.differences)

    def __repr__(self) -> str:
        worst = max((d.error for d in self.differences), default=0.0)
        decide_which_is_right = "agrees" if self.ok else "DIFFERS"
        return one_line_repr(
            "Comparison", f"{self.name} {decide_which_is_right} with {self.source}: largest error {worst:.2g}"
        )


def compare_with_onnxruntime(
    made: CompiledModel,
    model: str | Path | bytes | onnx.ModelProto,
    *,
    sets: int = 1,
    seed: int = 0,
    tolerance: float | None = None,
    values: Mapping[str, Any] | None = None,
) -> Comparison:
    """Run a compiled model and ONNX Runtime on random inputs; if they differ, decide which is right."""
    program, session = made.plan.program, made.session()
    found, source = list[Difference](), ""
    for number in range(sets):
        expected = make_random_expected_outputs(model, program, seed=seed + number, values=values)
        got = session.run(None, dict(zip(program.inputs, expected.feeds, strict=True)))
        source = expected.source
        pairs = [(np.asarray(a), np.asarray(w)) for a, w in zip(got, expected.outputs, strict=True)]
        some = [_measure_difference(n, a, w, tolerance) for n, (a, w) in zip(program.outputs, pairs, strict=True)]
        if not all(d.ok for d in some):
            known = {n: np.asarray(v) for n, v in (values or {}).items()}
            others = run_references(model, program, {**known, **dict(zip(program.inputs, expected.feeds, strict=True))})
            some = [_add_verdict_if_wrong(d, *pairs[k], others, k, tolerance) for k, d in enumerate(some)]
        found += some
    return Comparison(program.name or "model", source, tuple(found), sets)


def _add_verdict_if_wrong(
    found: Difference,
    got: np.ndarray,
    wanted: np.ndarray,
    others: ReferenceOutputs,
    position: int,
    tolerance: float | None,
) -> Difference:
    """Return ``found``, with a verdict on which result is right if its error exceeds the tolerance."""
    if found.ok:
        return found

    def near(array: np.ndarray, judge: tuple[np.ndarray, ...] | None) -> bool | None:
        return None if judge is None else _measure_difference(found.output, array, judge[position], tolerance).ok

    details = decide_which_is_right(
        near(got, others.reference), near(wanted, others.reference), near(got, others.unoptimised)
    )
    return replace(found, right=details.right, why=details.why)


def _measure_difference(name: str, got: np.ndarray, wanted: np.ndarray, tolerance: float | None) -> Difference:
    if got.dtype.name in TOLERANCES:
        most = TOLERANCES[got.dtype.name] if tolerance is None else tolerance
    elif got.dtype in (np.int8, np.uint8):  # results of a quantization may be rounded to its next step
        most = 1.0 / max(float(np.abs(wanted.astype(np.int64)).max(initial=0)), 1.0)
    else:
        most = 0.0
    return Difference(name, got.dtype.name, relative_error(got, wanted), most)
