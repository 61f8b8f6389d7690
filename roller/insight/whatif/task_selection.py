"""Selects a graph's tasks by kind, phase, layer and step; selections compose as sets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise

from roller.errors import RollerError, shown
from roller.insight.step.graph import NETWORK_KINDS, StepGraph, Task
from roller.insight.trace.trace import Phase
from roller.insight.whatif.primitives import select

#: Kinds of compute tasks: on a device, and on threads in a profile without a device.
_COMPUTES, _THREADS = frozenset({"kernel"}), frozenset({"cpu"})


def compute_tasks(graph: StepGraph, *phases: Phase, layers: str | Sequence[str] = ()) -> frozenset[int]:
    """Return the compute tasks in given phases and layers: kernels or, without a device, operators on threads."""
    kinds = _COMPUTES if graph.has_device else _THREADS
    return select(
        graph,
        lambda t: (
            t.kind in kinds and (not phases or t.context.phase in phases) and matches_layers(t.context.module, layers)
        ),
    )


def copy_tasks(graph: StepGraph) -> frozenset[int]:
    """Return the copies and memsets on a device."""
    return select(graph, lambda t: t.kind in ("copy", "set"))


def network_tasks(graph: StepGraph) -> tuple[int, ...]:
    """Return the tasks on a network, sorted by start time."""
    return sort_by_start(graph, select(graph, lambda t: t.kind in NETWORK_KINDS))


def matches_layers(layer: str, patterns: str | Sequence[str]) -> bool:
    """Return whether a layer, or one that contains it, matches a pattern; true if there are no patterns.

    Examples
    --------
    >>> matches_layers("encoder.layer.3.output.dense", ["encoder.layer.3"]), matches_layers("ReLU_7", ["ReLU*"])
    (True, True)
    """
    if isinstance(patterns, str):
        patterns = (patterns,)
    return not patterns or _matches_pattern(layer, tuple(patterns))


@lru_cache(maxsize=65536)
def _matches_pattern(layer: str, patterns: tuple[str, ...]) -> bool:
    return bool(layer) and any(fnmatchcase(layer, p) or fnmatchcase(layer, f"{p}.*") for p in patterns)


def compute_tasks_in_layers(graph: StepGraph, patterns: str | Sequence[str]) -> frozenset[int]:
    """Return the compute tasks in the layers that match a pattern; raise an error if there are none."""
    found = compute_tasks(graph, layers=patterns)
    if not found:
        known = sorted({t.context.module for t in graph.tasks if t.context.module})
        raise RollerError(
            f"layers: expected a pattern of the profile's layers, got {shown(patterns)}, which none of its "
            f"{len(known)} matches ({', '.join(known[:6]) or 'it marks none: record it with roller record'}). "
            f"Correct it."
        )
    return found


def sort_by_start(graph: StepGraph, tasks: Iterable[int]) -> tuple[int, ...]:
    """Return tasks in the order in which they ran."""
    return tuple(sorted(tasks, key=lambda n: start_time_sort_key(graph, n)))


def start_time_sort_key(graph: StepGraph, task: int) -> tuple[float, int]:
    """Return the sort key of a task: its measured start, then its id."""
    return graph.tasks[task].measured_start_us, task


def tasks_by_step(graph: StepGraph, tasks: Iterable[int]) -> Mapping[int, tuple[int, ...]]:
    """Group tasks by step, in the order in which they ran; leave out tasks outside all steps."""
    found: dict[int, list[int]] = defaultdict(list)
    for n in sort_by_start(graph, tasks):
        if graph.tasks[n].context.iteration >= 0:
            found[graph.tasks[n].context.iteration].append(n)
    return {iteration: tuple(own) for iteration, own in sorted(found.items())}


def tasks_by_layer(graph: StepGraph, tasks: Iterable[int]) -> Mapping[str, tuple[int, ...]]:
    """Group tasks by layer, in the order in which the layers began."""
    found: dict[str, list[int]] = defaultdict(list)
    for n in sort_by_start(graph, tasks):
        found[graph.tasks[n].context.module].append(n)
    return {layer: tuple(own) for layer, own in found.items()}


def neighbouring_kernels(graph: StepGraph) -> tuple[Mapping[int, Task], Mapping[int, Task]]:
    """Return two mappings from the id of each kernel: to the previous and to the next kernel on its stream."""
    lanes: dict[object, list[Task]] = defaultdict(list)
    for n in sort_by_start(graph, compute_tasks(graph)):
        lanes[graph.tasks[n].lane].append(graph.tasks[n])
    before, behind = {}, {}
    for own in lanes.values():
        for one, then in pairwise(own):
            before[then.id], behind[one.id] = one, then
    return before, behind


def parameter_bytes(graph: StepGraph, layers: str | Sequence[str] = ()) -> float:
    """Return the size, in bytes, of one step's gradients for the given layers, or for all layers if none are given."""
    if not graph.gradients and graph.operators:
        raise RollerError(
            f"{graph.name}: gradients: expected a step that leaves those of the model's parameters, got one whose "
            f"backward pass leaves none, or that has none. Let a parameter of the model learn."
        )
    if not graph.gradients:
        raise RollerError(
            f"{graph.name}: gradients: expected their sizes, got a profile without shapes. Record it with "
            f"record_shapes=True, or with roller record."
        )
    steps = {g.iteration for g in graph.gradients}
    return sum(g.size_bytes for g in graph.gradients if matches_layers(g.module, layers)) / len(steps)


def total_duration_us(graph: StepGraph, tasks: Collection[int]) -> float:
    """Return the sum of the tasks' durations in microseconds."""
    return sum(graph.tasks[n].duration_us for n in tasks)


def total_size_bytes(graph: StepGraph, tasks: Collection[int]) -> float:
    """Return the sum of the tasks' sizes in bytes."""
    return float(sum(graph.tasks[n].size_bytes for n in tasks))


def shortest_kernel_us(graph: StepGraph) -> float:
    """Return the time of the shortest kernels: the 5th percentile over the profile's kernels."""
    durations = sorted(graph.tasks[n].duration_us for n in compute_tasks(graph))
    return durations[len(durations) // 20] if durations else 0.0


def pick_evenly_spaced_tasks(tasks: Sequence[int], count: int) -> tuple[int, ...]:
    """Return ``count`` evenly spaced tasks.

    Examples
    --------
    >>> pick_evenly_spaced_tasks((3, 4, 5, 6, 7, 8), 3)
    (3, 5, 7)
    """
    return tuple(tasks[int(n * len(tasks) / count)] for n in range(min(count, len(tasks))))
