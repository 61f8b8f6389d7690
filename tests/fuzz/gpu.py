"""Kernels for GPUs that are not here: constructed for a specification, emitted, and run on the emulator."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.cases import generator, options
from tests.fuzz.draw import SMALL, Limits, expressions
from tests.fuzz.judge import Judge, Report, each_candidate, judges, own_expression
from tests.fuzz.language import Data
from tests.fuzz.operators import call_cases, ready_operator
from tests.fuzz.verdict import BOUNDS, OK, RIGHT_REFUSED, WRONG, Verdict

#: The emulator makes every access by itself: cases stay small.
_POINTS = 1 << 12
_BOUNDS_WORDS = ("out of bounds", "misaligned", "outside")


def devices() -> tuple[str, ...]:
    """Return the specifications of GPUs that are shipped; CUDA first."""
    from roller.hardware import list_specs, load_spec

    languages = {n: load_spec(n).target.get("language") for n in list_specs()}
    return tuple(sorted((n for n, x in languages.items() if x in ("cuda", "hip")), key=lambda n: (languages[n], n)))


@generator("gpu")
@st.composite
def gpu_cases(draw: Any, limits: Limits) -> Data:
    """Draw an expression or an operator for a GPU."""
    known = devices()
    out: Data = {
        "device": draw(st.sampled_from(known)),
        "options": draw(options(most=2)),
        "seed": draw(st.integers(0, 99)),
    }
    if draw(st.integers(0, 1)):
        small = Limits(min(limits.points, _POINTS), min(limits.elements, _POINTS), limits.stages, limits.depth, SMALL)
        return out | {"expression": draw(expressions(small))}
    return out | draw(call_cases(hostile=False))


@judges("gpu")
def gpu(case: Data, report: Report) -> Verdict:
    """Judge the kernels of a case for a GPU."""
    case = {**case, "special": False}  # the emulator compares with the reference, which says nothing of NaN
    described = own_expression if "expression" in case else ready_operator
    return described(case, lambda expr, arrays, judge: emulated(case, expr, arrays, judge, report))


def emulated(case: Data, expr: Any, arrays: Mapping[str, np.ndarray], judge: Judge, report: Report) -> Verdict:
    """Lower every candidate of a case and run what is CUDA; text for AMD devices is emitted and not run."""
    from roller.runtime.check import Oracle

    oracle = Oracle(expr, list(arrays.values()))

    def one(artifact: Any, what: str) -> Verdict:
        return _proved(artifact, arrays, judge, oracle, what, report) if artifact.language == "cuda" else Verdict(OK)

    return each_candidate(case, expr, case["device"], one, report)


def _proved(
    artifact: Any, arrays: Mapping[str, np.ndarray], judge: Judge, oracle: Any, what: str, report: Report
) -> Verdict:
    from roller.emulator import prove

    checked: list[str] = []

    def compare(_: Any, __: Any, outputs: Sequence[np.ndarray]) -> str:
        result = oracle.check(list(outputs))
        checked.append(result.message)
        return judge(outputs)

    report(f"emulating {what}")
    proof = prove(
        artifact,
        list(arrays.values()),
        orders=("forward", "reverse"),
        compare=compare,
        cache_dir=os.environ.get("ROLLER_FUZZ_BUILDS"),
        workers=1,
    )
    if proof.ok:
        refused = next((m for m in checked if m), "")
        return Verdict(RIGHT_REFUSED, f"{what}: {refused}") if refused else Verdict(OK)
    text = str(proof)
    return Verdict(BOUNDS if any(w in text for w in _BOUNDS_WORDS) else WRONG, f"{what}: {text[:700]}")
