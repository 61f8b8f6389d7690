"""What becomes of a case: roller beside onnx's reference, and ONNX Runtime where they differ or it has no answer."""

from __future__ import annotations

import contextlib
import os
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator

from benchmarks.onnx_audit.cases import Case
from benchmarks.onnx_audit.exceptions import exception_of
from benchmarks.onnx_backend import Prepared, RollerBackend
from benchmarks.onnx_coverage import EXCEPTIONS, reason_of
from roller.errors import RollerError

SAME, REFUSED, EXCEPTED, UNJUDGED, DIFFERS = "same", "refused", "excepted", "unjudged", "differs"
OUTCOMES = (SAME, REFUSED, EXCEPTED, UNJUDGED, DIFFERS)

Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Parameters
    ----------
    about
        Of the case.
    kind
        One of :data:`OUTCOMES`.
    reason
        Why it is refused, excepted or not judged; what differs.
    """

    about: str
    kind: str
    reason: str = ""


def judged(case: Case, *, compiled: bool = False) -> Outcome:
    """Return what becomes of a case, kernels computed by their definition unless they are ``compiled``."""
    with _quiet():
        try:
            got = _ours(case, compiled)
        except RollerError as refusal:
            return Outcome(case.about, REFUSED, reason_of(str(refusal)))
        except Exception as error:  # noqa: BLE001 - whatever else happens is a defect to be listed
            if isinstance(error, IndexError) and _is_of_library(error):  # a session raises it as a LaunchError
                at = " ".join(str(error).split()[:1])
                return Outcome(case.about, REFUSED, f"{case.operator}: at run time, {at} out of bounds")
            return Outcome(case.about, DIFFERS, f"roller fails: {type(error).__name__}: {str(error)[:200]}")
        wanted = case.expected if case.expected is not None else _asked(_reference, case)
        if wanted is None:
            wanted = _asked(runtime, case)
            if wanted is None:
                return Outcome(case.about, UNJUDGED, "neither onnx's reference nor ONNX Runtime computes it")
        difference = differing(got, wanted)
        if not difference:
            return Outcome(case.about, SAME)
        again = _asked(_reference, case)
        if again is not None and differing(again, _asked(_reference, case) or ()):
            return Outcome(case.about, UNJUDGED, "its result is random")
        if _has_halves(case) and (wide := _asked(_in_float32, case)) is not None and not differing(got, wide):
            return Outcome(case.about, SAME)  # the reference rounds between, and roller once
        third, told = _asked(runtime, case), exception_of(case)
        if told is not None and (told.alone or third is None or not differing(got, third)):
            return Outcome(case.about, EXCEPTED, told.clause)
        if case.about in EXCEPTIONS:
            return Outcome(case.about, EXCEPTED, EXCEPTIONS[case.about])
        beside = "ONNX Runtime does not run it" if third is None else _sides(got, wanted, third)
        return Outcome(case.about, DIFFERS, f"{difference} ({beside})")


def _is_of_library(error: BaseException) -> bool:
    """Whether a function that runs on the values of a call raised an error."""
    inside = [f for f in traceback.extract_tb(error.__traceback__) if "roller" in Path(f.filename).parts]
    return bool(inside) and Path(inside[-1].filename).parent.name == "model"


def _sides(got: Arrays, wanted: Arrays, third: Arrays) -> str:
    if not differing(got, third):
        return "ONNX Runtime computes the same"
    return "ONNX Runtime sides with the reference" if not differing(third, wanted) else "ONNX Runtime differs from both"


def differing(got: Arrays, wanted: Arrays) -> str:
    """Return how results differ, empty where they do not; what rounding adds is none."""
    if len(got) != len(wanted):
        return f"expected {len(wanted)} results, got {len(got)}"
    for one, other in zip(got, wanted, strict=True):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return f"expected {other.dtype}{list(other.shape)}, got {one.dtype}{list(one.shape)}"
        if one.dtype.kind in "iub":
            if not np.array_equal(one, other):
                return f"expected {_some(other, one != other)}, got {_some(one, one != other)}"
            continue
        a, b = one.astype(np.float64), other.astype(np.float64)
        relative = {"float16": 2.0**-7, "bfloat16": 2.0**-4}.get(one.dtype.name, 1e-3)
        largest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
        near = np.isclose(a, b, rtol=relative, atol=max(1e-7, largest * relative / 128), equal_nan=True)
        if not near.all():
            return f"expected {_some(other, ~near)}, got {_some(one, ~near)}"
    return ""


def _some(array: np.ndarray, where: Any) -> str:
    return "[" + ", ".join(f"{float(v):.6g}" for v in array[where].ravel()[:4]) + "]"


def _ours(case: Case, compiled: bool) -> Arrays:
    # A definition's nodes are not fused: every value is rounded, as the reference does it.
    made = RollerBackend.prepare(case.model()) if compiled else Prepared(case.model(), True, {}, fused=False)
    return tuple(np.asarray(a) for a in made.run(list(case.arrays().values())))


def _asked(judge: Any, case: Case) -> Arrays | None:
    """Return what a judge computes, ``None`` where it does not take the case."""
    try:
        found = tuple(judge(case))
    except Exception:  # noqa: BLE001 - judges raise whatever they like for what they do not take
        return None
    return None if any(a.dtype.kind in "OUS" for a in found) else found


def _reference(case: Case) -> Arrays:
    return tuple(np.asarray(a) for a in ReferenceEvaluator(case.model()).run(None, case.arrays()))


def _has_halves(case: Case) -> bool:
    return any(a is not None and a.dtype == np.float16 for a in case.feeds)


def _in_float32(case: Case) -> Arrays:
    """Return what the reference computes in float32, rounded at the end to what the case has."""
    feeds = tuple(a.astype(np.float32) if a is not None and a.dtype == np.float16 else a for a in case.feeds)
    found = _reference(replace(case, feeds=feeds))
    return tuple(w.astype(np.float16) if w.dtype == np.float32 else w for w in found)


def runtime(case: Case) -> Arrays:
    """Return what ONNX Runtime computes without optimising."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    model = case.model()
    model.ir_version = min(model.ir_version, 10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return tuple(np.asarray(a) for a in session.run(None, case.arrays()))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop warnings, and what ONNX Runtime writes past Python."""
    with warnings.catch_warnings(), np.errstate(all="ignore"), open(os.devnull, "w") as nowhere:
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(nowhere):
            yield
