"""Number of kernel launches in a model call on a GPU, and the call's predicted time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from roller.artifact import KernelArtifact
from roller.hardware import DeviceSpec
from roller_runtime.plan.program_steps import Copy, ParallelGroup, Run, Step, iterate_kernel_runs


@dataclass(frozen=True)
class LaunchForecast:
    """Number of kernel launches in a call, and its predicted time; ``name``: ``"streams"`` or ``"one by one"``."""

    name: str
    launches: int
    predicted_s: float


def forecast_launches(
    steps: Sequence[Step], artifacts: Mapping[str, KernelArtifact], spec: DeviceSpec
) -> LaunchForecast:
    """Return the forecast for a program from the estimates of its compiled kernels."""
    name = "streams" if any(isinstance(s, ParallelGroup) for s in steps) else "one by one"
    launches = sum(len(artifacts[run.kernel].launches) for run in iterate_kernel_runs(steps))
    return LaunchForecast(name, launches, _predicted_seconds(steps, artifacts, spec))


def _predicted_seconds(steps: Iterable[Step], artifacts: Mapping[str, KernelArtifact], spec: DeviceSpec) -> float:
    """Return the predicted time, in seconds, of a sequence of steps; a group takes as long as its longest lane."""
    launch_s, copied_bytes_per_s = spec.execution.launch_s, spec.memory_layers[-1].bandwidth_bytes_per_s / 2

    def step_seconds(step: Step) -> float:
        if isinstance(step, Run):
            kernel = artifacts[step.kernel]
            # An estimate counts one launch even for a kernel with one launch per output.
            counted_s = float(kernel.estimate.get("terms", {}).get("launch_s", launch_s))
            return float(kernel.estimate["seconds"]) - counted_s + len(kernel.launches) * launch_s
        if isinstance(step, Copy):
            return launch_s + step.rows * step.row_bytes / copied_bytes_per_s
        if isinstance(step, ParallelGroup):
            return launch_s + max((sum(map(step_seconds, lane)) for lane in step.lanes), default=0.0)
        return 0.0

    return sum(map(step_seconds, steps))
