"""Right kernels of random expressions by the interpreter, judged by the check."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.check_quality.expressions import random_expression
from benchmarks.check_quality.interpreter import Interpreter
from roller.runtime.check import Oracle
from roller.runtime.random_inputs import random_inputs


def interpreted(first: int, count: int) -> list[dict[str, Any]]:
    """Judge right kernels of random expressions, computed by the interpreter."""
    out = []
    for seed in range(first, first + count):
        expr = random_expression(seed)
        arrays = random_inputs(expr, seed)
        oracle = Oracle(expr, arrays)
        made = Interpreter(expr, np.random.default_rng(seed))(arrays)
        outcome = oracle.check([np.asarray(a) for a in made])
        kinds = [int(np.sum(np.broadcast_to(e.found.unknown, e.found.value.shape))) for e in oracle._expected]
        out.append({
            "seed": seed, "kind": "", "expression": expr.name, "text": outcome.message, "elements": outcome.points,
            "result": "right" if outcome.ok else "refused", "interpreted": True, "anything": sum(kinds),
        })  # fmt: skip
    return out
