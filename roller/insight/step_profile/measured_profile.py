"""Profiles of steps that ran on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from roller.insight.measured_step import MeasuredStep, measure_step
from roller.insight.memory.cpu_heap import simulate_cpu_memory
from roller.insight.step_profile.memory_curve import cpu_memory_points_over_step
from roller.insight.step_profile.node import Seconds
from roller.insight.step_profile.predicted_profile import add_memory_to_tree, tree_path_of_operator
from roller.insight.step_profile.step_profile import StepProfile
from roller.insight.step_profile.tree_builder import NodeKey, TreeBuilder

#: Keys of the nodes for a step's time outside operators, and for the process's memory outside tensors.
UNTRACKED, NO_TENSOR = NodeKey("overhead", "outside of operators"), NodeKey("overhead", "memory of no tensor")


def measured_profile(
    entry: str | Path,
    *,
    batch: int | None = None,
    amp: str | None = None,
    checkpoint: bool | str | Sequence[str] | None = None,
    budget_s: float = 60.0,
) -> StepProfile:
    """Profile a step on this machine; for parameters, see :func:`roller.insight.measured_step.measure_step`."""
    found = measure_step(entry, batch=batch, amp=amp, checkpoint=checkpoint or False, budget_s=budget_s)
    return profile_of_measured_step(found, Path(entry).name)


def profile_of_measured_step(found: MeasuredStep, name: str = "step") -> StepProfile:
    """Return the profile of a measured step."""
    tree, trace = TreeBuilder(), found.trace
    intervals = found.operator_interval_s or tuple((took_s, took_s) for took_s in found.operator_s)
    timed = zip(trace.steady(), found.operator_s, intervals, strict=True)
    for operator, took_s, (least_s, most_s) in timed:
        path = tree_path_of_operator(operator)
        tree.count_call(path)
        error = (least_s / took_s, most_s / took_s) if most_s > least_s and took_s > 0 else None
        tree.add_time((*path, NodeKey("kernel", operator.name)), operator.phase, Seconds(took_s, took_s), error=error)
    # negative if operators took longer when each was timed alone
    tree.add_time((UNTRACKED,), "other", Seconds(found.untracked_s, 0.0, max(0.0, found.untracked_s)), calls=0)
    memory = simulate_cpu_memory(trace, None)
    add_memory_to_tree(tree, trace, memory)
    outside = found.process_peak_bytes - memory.total_bytes
    if outside > 0:
        tree.add_bytes((NO_TENSOR,), "process", held=outside, tensors=0)
    root = tree.build()
    lower_s, upper_s = min(found.lower_s, root.wall_s), max(found.upper_s, root.wall_s)
    precision = trace.options.get("amp")
    return StepProfile(
        name, "measured", found.machine, root, root.wall_s, lower_s, upper_s, int(trace.options.get("batch") or 0),
        trace.samples, amp=str(precision) if precision else "fp32",
        checkpoint=tuple(trace.options.get("checkpoint") or ()), memory_curve=cpu_memory_points_over_step(trace),
        is_stable=found.is_stable, notes=(*found.notes, *(note for note in trace.warnings if note not in found.notes)),
    )  # fmt: skip
