"""Strategies of whole cases: what is computed, on which values, and how it is compiled; one per generator.

``drawn(generator, seed, number)`` is always the same case, whatever ran before it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.draw import QUICK, WIDE, Limits, expressions
from tests.fuzz.language import Data

#: Strategy by generator: of a case without its generator's name, with the limits of a quick or a wide run.
GENERATORS: dict[str, Callable[[Limits], st.SearchStrategy[Data]]] = {}

#: What a case may cost: in ``make test``, in a run of thousands by command.
LIMITS = {"quick": QUICK, "usual": Limits(), "wide": WIDE}


def generator(name: str) -> Callable[[Callable[[Limits], Any]], Callable[[Limits], Any]]:
    """Register the decorated strategy."""

    def register(function: Callable[[Limits], Any]) -> Callable[[Limits], Any]:
        GENERATORS[name] = function
        return function

    return register


#: Switches that change what is computed, not by which program: drawn last, so that all else is drawn as without them.
_OF_MEANING = ("propagate_nan",)


@st.composite
def options(draw: Any, most: int = 1) -> Data:
    """Draw ConstructOptions: every switch by its own field, so that a new one is drawn too."""
    from roller.templates.common.options import ConstructOptions

    out: Data = {"top_k": draw(st.integers(1, most))}
    if draw(st.integers(0, 2)) == 0:
        return out
    switches = [f for f in dataclasses.fields(ConstructOptions) if isinstance(f.default, bool)]
    for f in switches:
        if f.name not in _OF_MEANING and draw(st.integers(0, 5)) == 5:
            out[f.name] = not f.default
    if draw(st.integers(0, 5)) == 5:
        out["epsilon"] = draw(st.sampled_from((0.0, 0.1, 0.5, 4.0)))
    if draw(st.integers(0, 5)) == 5:
        out["units"] = draw(st.sampled_from((1, 2, 3, 64)))
    for f in switches:
        if f.name in _OF_MEANING and draw(st.integers(0, 5)) == 5:
            out[f.name] = not f.default
    return out


@st.composite
def compiling(draw: Any, names: list[str], public: int) -> Data:
    """Draw how an expression is compiled for this machine.

    Which inputs are constant, by which function, for which values.
    """
    out: Data = {"options": draw(options(most=2)), "seed": draw(st.integers(0, 999))}
    if names and draw(st.integers(0, 4)) == 4:
        out["constants"] = sorted(draw(st.sets(st.sampled_from(names), min_size=1)))
    if draw(st.integers(0, 5)) == 5:
        out["special"] = True
    if draw(st.integers(0, 99)) >= 100 - public:
        out["how"] = draw(st.sampled_from(({"deterministic": True}, {"deterministic": True}, {}, {"top_k": "auto"})))
        if out["how"] == {}:
            out["how"] = {"deterministic": False}
    return out


@generator("expressions")
@st.composite
def expression_cases(draw: Any, limits: Limits) -> Data:
    """Draw an expression of a user's own for this machine's processor."""
    e = draw(expressions(limits))
    return {"expression": e, **draw(compiling([i[0] for i in e["inputs"]], 8))}


def strategy(name: str, limits: Limits) -> st.SearchStrategy[Data]:
    """Return the strategy of a generator's cases, as JSON reads them back."""
    from tests.fuzz.judge import load_all

    load_all()

    return GENERATORS[name](limits).map(lambda c: json.loads(json.dumps({"generator": name, **c})))


class Enough(BaseException):
    """Raised to end a search: enough was run to make a finding smaller."""


def examined(
    name: str, limits: Limits, number: int, run_seed: int, fails: Callable[[Data], bool], shrink: bool
) -> Data | None:
    """Draw one case, and return the smallest one found that fails, or ``None`` where it does not.

    Hypothesis draws the simplest case first, then one by the seed: so cases do not depend on each other.
    """
    failing: list[Data] = []
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]

    @seed((run_seed << 32) + number)
    @settings(
        max_examples=2,
        database=None,
        deadline=None,
        derandomize=False,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(strategy(name, limits))
    def once(case: Data) -> None:
        if fails(case):
            failing.append(case)
            raise AssertionError("found")

    try:
        once()
    except (AssertionError, Enough):
        return min(failing, key=lambda c: len(json.dumps(c)), default=None)
    return None
