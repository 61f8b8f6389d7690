"""``python -m roller.suite.worker MODEL`` trains a suite model and measures its steps for ``measuring``."""

# It reads requests from standard input and writes responses to the original standard output.

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roller.insight.project_worker import answer_requests, options_from_request
from roller.insight.trace.time_steps_until_stable import StepTiming
from roller.insight.trace.trace import Trace
from roller.suite.run_file import timing_environment
from roller.suite.sampling import Sample, SamplingRule, sample_iterations
from roller.suite.turn_coordinator import run_requested_blocks

#: Settings of the GNU C library and OpenMP for repeatable runs. The process keeps freed memory, since fresh pages slow
#: down steps of many small tensors, and differently in each process; and threads stay on their processors.
REPEATABLE = {
    "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(1 << 24),
    "OMP_PROC_BIND": "true",
}  # fmt: skip
#: Linux constants: request for the process's personality, and its bit ADDR_NO_RANDOMIZE.
_ASK, _FIXED = 0xFFFFFFFF, 0x0040000
#: Number of steps after the sample whose operators are timed individually.
TIMED_STEPS = 3


def main(name: str) -> None:
    """Handle requests until the other end closes."""
    answer_requests(lambda request: _measure_request(name, request))


def _measure_request(name: str, request: dict[str, Any]) -> tuple[dict[str, Any], Trace]:
    from roller.insight.tracing import require_torch

    require_torch(f"suite: {name}")
    import torch

    from roller.insight.trace.pytorch.measure_step import measure_module, measurement_json_without_trace
    from roller.suite.registry import MODELS
    from roller.suite.tracing import make_provider_module

    workload = MODELS[name].workload(reduced=request["reduced"])
    rule, samples = SamplingRule(**request["rule"]), list[Sample]()

    def take_sample(
        step: Callable[[], object], *, steps_per_call: int, budget_s: float, between: Callable[[], object]
    ) -> StepTiming:
        if request["turns"]:
            run_requested_blocks(step, Path(request["turns"]), steps_per_call=steps_per_call)
            samples.append(Sample(0, (), 0, None, None, "the other end has the rounds"))
        else:
            samples.append(sample_iterations(step, rule, steps_per_call=steps_per_call, budget_s=budget_s))
        for _ in range(TIMED_STEPS):
            between()
        return samples[-1].timing()

    torch.manual_seed(request["seed"])
    found = measure_module(
        make_provider_module(name, workload), name, options_from_request(request), request["budget_s"], take_sample
    )
    return {
        "measured": {
            **measurement_json_without_trace(found),
            "sample": samples[-1].to_dict(),
            "environment": _process_environment(),
        }
    }, found.trace


def _process_environment() -> dict[str, Any]:
    settings = {name: os.environ.get(name) for name in REPEATABLE}
    return {
        **timing_environment(sys.modules["roller"].__version__),
        "repeatable": {**settings, "fixed addresses": has_fixed_addresses()},
    }


def has_fixed_addresses() -> bool:
    """Return whether address randomization is off; ``False`` if the system does not report it."""
    personality = _personality_function()
    found = -1 if personality is None else personality(_ASK)
    return found >= 0 and bool(found & _FIXED)


def _personality_function() -> Callable[[int], int] | None:
    import ctypes

    return getattr(ctypes.CDLL(None), "personality", None) if sys.platform == "linux" else None


def disable_address_randomization() -> None:
    """Restart this process without address randomization, if the system permits it."""
    # addresses decide which data share cache sets, so random ones make times differ between processes
    personality = _personality_function()
    if personality is None:
        return
    before = personality(_ASK)
    if before >= 0 and not before & _FIXED and personality(before | _FIXED) >= 0:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
    disable_address_randomization()
    main(sys.argv[1])
