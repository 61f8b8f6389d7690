"""``python -m roller.suite.worker MODEL``: trains a model of the suite, and measures its steps, for ``measuring``.

Requests come on standard input, answers go to what was standard output.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roller.insight.project_worker import answer_requests, options_of
from roller.insight.trace.step_clock import StepTiming
from roller.insight.trace.trace import Trace
from roller.suite.sampling import Sample, SamplingRule, sample_iterations
from roller.suite.turns import take_turns

#: Of Linux: asks for the personality of a process, and the bit of addresses that are not random.
_ASK, _FIXED = 0xFFFFFFFF, 0x0040000
#: Steps whose operators are timed one by one, after the sample.
TIMED_STEPS = 3


def main(name: str) -> None:
    """Answer requests until the other end is gone."""
    answer_requests(lambda request: _measured(name, request))


def _measured(name: str, request: dict[str, Any]) -> tuple[dict[str, Any], Trace]:
    from roller.insight.tracing import require_torch

    require_torch(f"suite: {name}")
    import torch

    from roller.insight.trace.pytorch.timed_step import measure_module, measurement_header
    from roller.suite.registry import MODELS
    from roller.suite.tracing import providers_of

    workload = MODELS[name].workload(reduced=request["reduced"])
    rule, samples = SamplingRule(**request["rule"]), list[Sample]()

    def sampled(
        step: Callable[[], object], *, steps_per_call: int, budget_s: float, between: Callable[[], object]
    ) -> StepTiming:
        if request["turns"]:
            samples.append(take_turns(step, Path(request["turns"]), steps_per_call=steps_per_call))
        else:
            samples.append(sample_iterations(step, rule, steps_per_call=steps_per_call, budget_s=budget_s))
        for _ in range(TIMED_STEPS):
            between()
        return samples[-1].timing()

    torch.manual_seed(request["seed"])
    found = measure_module(providers_of(name, workload), name, options_of(request), request["budget_s"], sampled)
    return {"measured": {**measurement_header(found), "sample": samples[-1].to_dict()}}, found.trace


def fix_addresses() -> None:
    """Start this process again with addresses that are not random, where the system lets it.

    Which memory shares a cache's sets would otherwise differ from one process to the next, and times with it.
    """
    import ctypes

    personality = getattr(ctypes.CDLL(None), "personality", None)
    if personality is not None and not personality(_ASK) & _FIXED and personality(_FIXED) != -1:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
    if sys.platform == "linux":
        fix_addresses()
    main(sys.argv[1])
