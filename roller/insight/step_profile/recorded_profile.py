"""Creates profiles from recordings, which are files written by PyTorch's profiler."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from roller.errors import RollerError
from roller.insight.step.divide_wall_time_among_tasks import wall_time_us
from roller.insight.step.graph import StepGraph, Task, TaskContext
from roller.insight.step.kineto_reader import read_profile
from roller.insight.step.memory_curve import HOST, MemoryCurve, memory_curves
from roller.insight.step.replay import build_profile_graph
from roller.insight.step.step_categories import step_categories
from roller.insight.step_profile.memory_curve import MOST_HOLDERS, MOST_POINTS
from roller.insight.step_profile.node import Seconds
from roller.insight.step_profile.predicted_profile import BETWEEN_CALLS
from roller.insight.step_profile.step_profile import MemoryPoint, StepProfile
from roller.insight.step_profile.tree_builder import NodeKey, TreeBuilder, tree_path_of_call
from roller.insight.step_profile.tree_builder import Path as NodePath


def profile_of_recording(path: str | Path) -> StepProfile:
    """Return the profile of a recording's mean step."""
    recording = read_profile(path, memory=True)
    graph = build_profile_graph(recording, Path(path).name)
    categories = step_categories(recording)
    tree, notes = TreeBuilder(), [*categories.notes, *graph.notes, *filter(None, [graph.incomplete])]
    steps = len(categories.steps)
    is_marked = bool(categories.steps[0].name)
    tasks = [t for t in graph.tasks if not is_marked or 0 <= t.context.iteration < steps]
    spans = [(step.start_us - graph.origin_us, step.end_us - graph.origin_us) for step in categories.steps]
    add_recorded_time(tree, graph, tasks, spans)
    curves = memory_curves(recording)
    points: tuple[MemoryPoint, ...] = ()
    if curves:
        points = _thin_memory_points_of_curve(curves[0])
        notes += [*_add_peak_memory(tree, curves[0]), *curves[0].notes]
        if others := [curve.device for curve in curves[1:] if curve.device != HOST]:
            notes.append(f"Memory is that of {curves[0].device}, without that of {', '.join(others)}.")
    if steps > 1:
        notes.insert(0, f"A mean of {steps} steps.")
    root, times = tree.build(), [step.duration_us / 1e6 for step in categories.steps]
    device = device_name_of_recording(graph, curves)
    return StepProfile(
        graph.name, "recorded", device, root, root.wall_s, min(*times, root.wall_s), max(*times, root.wall_s),
        memory_curve=points, categories={name: us / 1e6 for name, us in categories.mean_us.items()},
        notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def device_name_of_recording(graph: StepGraph, curves: Sequence[MemoryCurve]) -> str:
    """Return the device of a recording in PyTorch's spelling; ``""`` if it is unknown."""
    if curves:
        return curves[0].device
    return "" if graph.has_device or graph.incomplete else "cpu"


def add_recorded_time(
    tree: TreeBuilder, graph: StepGraph, tasks: Sequence[Task], steps: Sequence[tuple[float, float]]
) -> None:
    """Add the times of the mean step to a tree."""
    starts, ends = ([getattr(t, name) for t in graph.tasks] for name in ("measured_start_us", "measured_end_us"))
    wall_us, rest_us = wall_time_us(graph, starts, ends, tasks, steps)
    path_of, count = cache(_tree_path_of_task_context), len(steps)
    leaves: dict[tuple[NodePath, str], _LeafSums] = {}
    for task in tasks:
        computes = task.on_device or not graph.has_device
        key = (*path_of(task.context), NodeKey("kernel" if computes else "call", task.name))
        sums = leaves.setdefault((key, task.context.phase), _LeafSums())
        sums.wall_us += wall_us.get(task.id, 0.0)
        sums.device_us += task.duration_us if computes else 0.0
        sums.host_us += 0.0 if computes else task.duration_us
        sums.calls += 1
    for (path, phase), sums in leaves.items():
        seconds = Seconds(*(us / 1e6 / count for us in (sums.wall_us, sums.device_us, sums.host_us)))
        tree.add_time(path, phase, seconds, calls=-(-sums.calls // count))
    if rest_us > 0.0:
        tree.add_time((BETWEEN_CALLS,), "other", Seconds(rest_us / 1e6 / count), calls=0)


def _add_peak_memory(tree: TreeBuilder, curve: MemoryCurve) -> list[str]:
    """Add the bytes at the memory peak to a tree; return notes on unknown parts."""
    if not curve.is_absolute:
        return ["The recording has changes of memory only: bytes at the peak are not known."]
    at = _memory_peak_index(curve)
    when, allocated = float(curve.times_us[at]), int(curve.allocated_bytes[at])
    at_time = bisect_right(curve.times_us, when) - 1
    try:
        live = curve.live(when) if at_time == at else ()
    except RollerError as error:
        return [str(error)]
    path_of, notes = cache(_tree_path_of_task_context), list[str]()
    before = allocated - sum(allocation.size_bytes for allocation in live)
    if before < 0:
        live, before = (), allocated
        notes.append(f"{curve.device}: its allocations are more than its allocated bytes: which are live is not known.")
    for allocation in live:
        tree.add_bytes(path_of(allocation.context), "allocated", held=allocation.size_bytes)
    rest = (NodeKey("overhead", "memory of no operator in the recording"),)
    if before > 0:
        tree.add_bytes(rest, "allocated_before", held=before, tensors=0)
    if len(curve.reserved_bytes) and curve.reserved_bytes[at] > allocated:  # a CPU reserves nothing
        tree.add_bytes(rest, "cached", held=int(curve.reserved_bytes[at]) - allocated, tensors=0)
    return [*notes, "Memory is that of the allocator: a recording does not tell the context of the process."]


def _memory_peak_index(curve: MemoryCurve) -> int:
    """Return the index of the point with the most reserved bytes and, among those, the most allocated bytes."""
    if not len(curve.reserved_bytes):
        return int(np.argmax(curve.allocated_bytes))
    most = curve.reserved_bytes == curve.reserved_bytes.max()
    return int(np.argmax(np.where(most, curve.allocated_bytes, -1)))


def _thin_memory_points_of_curve(curve: MemoryCurve) -> tuple[MemoryPoint, ...]:
    count = len(curve.times_us)
    each = -(-count // MOST_POINTS) or 1
    kept = [first + int(np.argmax(curve.allocated_bytes[first : first + each])) for first in range(0, count, each)]
    holders = list(curve.largest_holders([at + 1 for at in kept], _holder_name, MOST_HOLDERS)) or [{} for _ in kept]
    found = []
    for at, held in zip(kept, holders, strict=True):
        reserved = int(curve.reserved_bytes[at]) if len(curve.reserved_bytes) else 0
        seconds = float(curve.times_us[at] - curve.times_us[0]) / 1e6
        found.append(MemoryPoint(seconds, int(curve.allocated_bytes[at]), reserved, {}, held))
    return tuple(found)


def _holder_name(context: TaskContext) -> str:
    return " ".join(filter(None, (context.module, context.operator))) or "no operator"


@dataclass
class _LeafSums:
    wall_us: float = 0.0
    device_us: float = 0.0
    host_us: float = 0.0
    calls: int = 0


def _tree_path_of_task_context(context: TaskContext) -> NodePath:
    path = tree_path_of_call(context.stack, context.module, context.operator)
    shapes = ", ".join(_shape_text(shape) for shape in context.shapes if shape)
    return (*path, NodeKey("shapes", shapes)) if context.operator and shapes else path


def _shape_text(shape: object) -> str:
    if isinstance(shape, tuple):
        if shape and isinstance(shape[0], tuple):
            return "[" + ", ".join(map(_shape_text, shape)) + "]"
        return "x".join(map(str, shape)) or "()"
    return str(shape)
