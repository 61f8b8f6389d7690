"""``python -m roller.suite.worker MODEL``: trains a model of the suite, and measures its steps, for ``measuring``.

Requests come on standard input, answers go to what was standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from roller.insight.project_worker import answer_requests, options_of
from roller.insight.trace.step_clock import StepTiming
from roller.insight.trace.trace import Trace
from roller.suite.sampling import Sample, SamplingRule, sample_iterations

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
        samples.append(sample_iterations(step, rule, steps_per_call=steps_per_call, budget_s=budget_s))
        for _ in range(TIMED_STEPS):
            between()
        return samples[-1].timing()

    torch.manual_seed(request["seed"])
    found = measure_module(providers_of(name, workload), name, options_of(request), request["budget_s"], sampled)
    return {"measured": {**measurement_header(found), "sample": samples[-1].to_dict()}}, found.trace


if __name__ == "__main__":
    main(sys.argv[1])
