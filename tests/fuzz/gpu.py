"""Kernels for GPUs that are not here: constructed for a specification, emitted, and run on the emulator."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.arrays import inputs_of
from tests.fuzz.cases import generator, options
from tests.fuzz.draw import SMALL, Limits, expressions
from tests.fuzz.interpret import interpret
from tests.fuzz.judge import Judge, Report, judges, options_of, wrong_outputs
from tests.fuzz.language import Data, as_te, dtypes_of
from tests.fuzz.operators import built, call_cases, reference_judge
from tests.fuzz.verdict import BOUNDS, NO_KERNEL, OK, RIGHT_REFUSED, WRONG, Verdict, refusal

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
    from roller.te.reader import read

    if "expression" in case:
        described = case["expression"]
        arrays = inputs_of(described["inputs"], case["seed"], False)
        expected, dtypes = interpret(described, arrays), dtypes_of(described)
        try:
            expr = read(as_te(described))
        except Exception as error:  # noqa: BLE001
            return refusal(error, "read")

        def judge(outputs: Sequence[np.ndarray]) -> str:
            return wrong_outputs(expected, dtypes, outputs)

        return emulated(case, expr, arrays, judge, report)
    expr, verdict = built(case)
    if verdict is not None:
        return verdict
    arrays = inputs_of([(t.name, t.shape, t.dtype) for t in expr.inputs], case["seed"], False)
    found = reference_judge(case, expr, arrays)
    return found if isinstance(found, Verdict) else emulated(case, expr, arrays, found, report)


def emulated(case: Data, expr: Any, arrays: Mapping[str, np.ndarray], judge: Judge, report: Report) -> Verdict:
    """Lower every candidate of a case and run what is CUDA; text for AMD devices is emitted and not run."""
    import roller
    from roller.hardware import load_spec
    from roller.pipeline import lower
    from roller.runtime.check import Oracle

    spec = load_spec(case["device"])
    report("constructing")
    try:
        found = roller.construct(expr, case["device"], options=options_of(case))
    except Exception as error:  # noqa: BLE001
        return refusal(error, "construct")
    refused = []
    oracle = Oracle(expr, list(arrays.values()))
    for candidate in found:
        what = f"{case['device']} {candidate.program.structure} {candidate.program.tiles}"
        report(f"lowering {what}")
        try:
            artifact = lower(candidate.program, expr, spec)
        except Exception as error:  # noqa: BLE001
            refused.append(refusal(error, "lower"))
            continue
        if artifact.language == "cuda":
            verdict = _proved(artifact, arrays, judge, oracle, what, report)
            if not verdict.fine:
                return verdict
    bad = [v for v in refused if not v.fine]
    if refused and len(refused) == len(found):
        return bad[0] if bad else Verdict(NO_KERNEL, refused[0].message)
    return next((v for v in bad if v.kind == "foreign exception"), Verdict(OK))


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
