"""``python -m benchmarks.guard``: what construction costs and predicts, without a clock, beside what it did before.

For the 119 operators on three specifications: programs that were priced in full, the sum of predicted seconds of the
best ones, and calls of Python functions in construction. The counts are the same on every machine and under any load,
so that a slower construction, or worse programs, show in CI. ``--write`` accepts what is found as the new values.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import typer

import roller
from benchmarks.common import HERE, operators, screen, table, write_json
from benchmarks.sokoban.compare import counted_prices, expression
from roller.hardware import load_spec

RESULTS = HERE / "results" / "guard.json"
SPECS = ("v100", "h100", "cpu-avx512")
#: Relative growth of each figure that is accepted.
LIMITS = {"priced": 0.05, "predicted_s": 0.001, "calls": 0.10}
#: Calls of a function depend on how this release of Python runs comprehensions.
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class Cost(NamedTuple):
    """What the construction of some operators costs and predicts.

    Parameters
    ----------
    priced
        Programs priced in full.
    predicted_s
        Sum of the predicted seconds of the best program of each operator.
    calls
        Calls of Python functions.
    """

    priced: int
    predicted_s: float
    calls: int


def cost_of(spec_name: str, pattern: str = "*") -> Cost:
    """Return the cost of construction of the operators whose ids match a pattern, for a specification."""
    spec, seconds, calls = load_spec(spec_name), 0.0, 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    with counted_prices() as counted:
        for row in operators(pattern):
            expr = expression(row, spec)
            before = sys.getprofile()
            sys.setprofile(count)
            try:
                best = roller.construct(expr, spec, top_k=1)[0]
            finally:
                sys.setprofile(before)
            seconds += best.estimate.seconds
    return Cost(sum(counted), seconds, calls)


def excesses(found: Mapping[str, Cost], known: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each figure that grew by more than its limit."""
    for spec, cost in found.items():
        before = known["costs"][spec]
        for name, value in cost._asdict().items():
            if name == "calls" and known["python"] != PYTHON:
                continue
            if value > (1 + LIMITS[name]) * before[name]:
                yield (
                    f"{spec}: {name}: expected at most {1 + LIMITS[name]:.3f} times {before[name]:.6g}, got "
                    f"{value:.6g}. Make construction cheaper, or accept it with --write."
                )


def main(
    pattern: Annotated[str, typer.Option("--filter", help="Ids or patterns of operators; no check then.")] = "*",
    write: Annotated[bool, typer.Option("--write", help="Accept what is found.")] = False,
) -> None:
    """Count what construction costs; exit with 1 where it grew."""
    found = {spec: cost_of(spec, pattern) for spec in SPECS}
    rows: list[Sequence[str]] = [
        (spec, str(cost.priced), f"{cost.predicted_s:.6g}", str(cost.calls)) for spec, cost in found.items()
    ]
    screen().print(table("construction, counted", ("device", "priced", "predicted s", "calls"), rows))
    if write:
        costs = {spec: cost._asdict() for spec, cost in found.items()}
        write_json(RESULTS, {"python": PYTHON, "operators": len(operators(pattern)), "costs": costs})
    elif pattern == "*":
        grown = list(excesses(found, json.loads(RESULTS.read_text(encoding="utf-8"))))
        for sentence in grown:
            screen().print(sentence)
        if grown:
            sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
