"""The profile of a recording: a file of PyTorch's profiler, measured elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from roller.insight.step.graph import StepGraph, Task, TaskContext
from roller.insight.step.replay import from_kineto
from roller.insight.step.steady_step import step_times_us
from roller.insight.step.wall_time import wall_time_us
from roller.insight.step_profile.node import Node, Seconds
from roller.insight.step_profile.predicted import BETWEEN_CALLS
from roller.insight.step_profile.step_profile import StepProfile
from roller.insight.step_profile.tree import Key, Tree, path_of_call
from roller.insight.step_profile.tree import Path as NodePath


def profile_of_recording(path: str | Path) -> StepProfile:
    """Return the profile of a mean step of a recording.

    Parameters
    ----------
    path
        Kineto's JSON, plain or gzipped. Modules are those that it marks; it knows no lines. Where it marks steps, only
        what is in one counts.

    Raises
    ------
    ArtifactError
        The file cannot be read, is truncated, or is no profile.
    """
    graph = from_kineto(path)
    chosen = [t for t in graph.tasks if t.context.iteration >= 0] or list(graph.tasks)
    steps = max(1, len({t.context.iteration for t in chosen}))
    root = tree_of_recording(graph, chosen, steps)
    starts, ends = ([getattr(t, name) for t in graph.tasks] for name in ("measured_start_us", "measured_end_us"))
    times = sorted(took / 1e6 for took in step_times_us(graph, starts, ends))
    notes = graph.notes if not graph.incomplete else (*graph.notes, graph.incomplete)
    if steps > 1:
        notes = (f"A mean of {steps} steps.", *notes)
    device = graph.device.name if graph.device is not None else ""
    return StepProfile(
        graph.name, "recorded", device, root, root.wall_s, min(times[0], root.wall_s), max(times[-1], root.wall_s),
        notes=notes,
    )  # fmt: skip


def tree_of_recording(graph: StepGraph, tasks: Sequence[Task], steps: int) -> Node:
    """Return the tree of a mean step.

    Parameters
    ----------
    graph
        Of the recording.
    tasks
        Tasks of the steps.
    steps
        Their number.
    """
    starts, ends = ([getattr(t, name) for t in graph.tasks] for name in ("measured_start_us", "measured_end_us"))
    wall_us, rest_us = wall_time_us(graph, starts, ends, tasks)
    path_of = cache(_path_of_context)
    leaves: dict[tuple[NodePath, str], _Sums] = {}
    for task in tasks:
        computes = task.on_device or not graph.has_device
        key = (*path_of(task.context), Key("kernel" if computes else "call", task.name))
        sums = leaves.setdefault((key, task.context.phase), _Sums())
        sums.wall_us += wall_us.get(task.id, 0.0)
        sums.device_us += task.duration_us if computes else 0.0
        sums.host_us += 0.0 if computes else task.duration_us
        sums.calls += 1
    tree = Tree()
    for (path, phase), sums in leaves.items():
        seconds = Seconds(*(us / 1e6 / steps for us in (sums.wall_us, sums.device_us, sums.host_us)))
        tree.add_time(path, phase, seconds, calls=-(-sums.calls // steps))
    if rest_us:
        tree.add_time((BETWEEN_CALLS,), "other", Seconds(rest_us / 1e6 / steps), calls=0)
    return tree.build()


@dataclass
class _Sums:
    wall_us: float = 0.0
    device_us: float = 0.0
    host_us: float = 0.0
    calls: int = 0


def _path_of_context(context: TaskContext) -> NodePath:
    path = path_of_call(context.stack, context.module, context.operator)
    shapes = ", ".join(_shape_text(shape) for shape in context.shapes if shape)
    return (*path, Key("shapes", shapes)) if context.operator and shapes else path


def _shape_text(shape: object) -> str:
    if isinstance(shape, tuple):
        if shape and isinstance(shape[0], tuple):
            return "[" + ", ".join(map(_shape_text, shape)) + "]"
        return "x".join(map(str, shape)) or "()"
    return str(shape)
