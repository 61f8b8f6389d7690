"""Small models of ONNX: the random families of :mod:`tests.models.onnx`, compiled, held to ONNX Runtime."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.fuzz.cases import generator
from tests.fuzz.draw import Limits
from tests.fuzz.judge import Report, judges
from tests.fuzz.language import Data
from tests.fuzz.verdict import FOREIGN, OK, REFUSED, SKIPPED, WRONG, Verdict


@generator("onnx")
@st.composite
def model_cases(draw: Any, limits: Limits) -> Data:
    """Draw a model of a family; which one a number makes is the family's affair."""
    from tests.models.onnx.random_families import FAMILIES

    return {"family": draw(st.sampled_from(sorted(FAMILIES))), "seed": draw(st.integers(0, 10**6))}


@judges("onnx")
def model(case: Data, report: Report) -> Verdict:
    """Judge a compiled model."""
    from tests.models.onnx.random_families import compiled, family_case, outcome, smaller

    report("compiling")
    made = family_case(case["family"], case["seed"])
    kind, why = outcome(made, compiled)
    if kind in ("wrong", "crashed"):
        kind, why = outcome(smaller(made, compiled), compiled)
    names = {"equal": OK, "refused": REFUSED, "none": SKIPPED, "wrong": WRONG, "crashed": FOREIGN}
    return Verdict(names[kind], why[:600])
