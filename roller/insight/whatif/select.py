"""Chooses tasks of a graph by what they are and where they belong; what is found composes as sets do."""

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

#: What a device computes; of a profile without a device, what threads do.
_COMPUTES, _THREADS = frozenset({"kernel"}), frozenset({"cpu"})


def work(graph: StepGraph, *phases: Phase, layers: str | Sequence[str] = ()) -> frozenset[int]:
    """Return the tasks that compute: kernels, or what threads do where there is no device.

    Parameters
    ----------
    graph
        Of a profile, or a traced step.
    phases
        Only these; all where none is named.
    layers
        Patterns of layers, as shells have them: a layer is chosen with all that lies within it. All where none is
        named.
    """
    kinds = _COMPUTES if graph.has_device else _THREADS
    patterns = (layers,) if isinstance(layers, str) else tuple(layers)
    return select(
        graph,
        lambda t: (
            t.kind in kinds and (not phases or t.context.phase in phases) and in_layers(t.context.module, patterns)
        ),
    )


def copies(graph: StepGraph) -> frozenset[int]:
    """Return the copies of a device, and what it sets."""
    return select(graph, lambda t: t.kind in ("copy", "set"))


def transfers(graph: StepGraph) -> tuple[int, ...]:
    """Return what a network carries, in order."""
    return ordered(graph, select(graph, lambda t: t.kind in NETWORK_KINDS))


def in_layers(layer: str, patterns: Sequence[str]) -> bool:
    """Return whether a layer, or one around it, matches one of the patterns; all do where there are none.

    Examples
    --------
    >>> in_layers("encoder.layer.3.output.dense", ["encoder.layer.3"]), in_layers("ReLU_7", ["ReLU*"])
    (True, True)
    """
    return not patterns or _matches(layer, tuple(patterns))


@lru_cache(maxsize=65536)
def _matches(layer: str, patterns: tuple[str, ...]) -> bool:
    return bool(layer) and any(fnmatchcase(layer, p) or fnmatchcase(layer, f"{p}.*") for p in patterns)


def some_layers(graph: StepGraph, patterns: str | Sequence[str]) -> frozenset[int]:
    """Return the tasks that compute in layers.

    Raises
    ------
    RollerError
        No layer matches.
    """
    found = work(graph, layers=patterns)
    if not found:
        known = sorted({t.context.module for t in graph.tasks if t.context.module})
        raise RollerError(
            f"layers: expected a pattern of the profile's layers, got {shown(patterns)}, which none of its "
            f"{len(known)} matches ({', '.join(known[:6]) or 'it marks none: record it with roller record'}). Mend it."
        )
    return found


def ordered(graph: StepGraph, tasks: Iterable[int]) -> tuple[int, ...]:
    """Return tasks in the order in which they ran."""
    return tuple(sorted(tasks, key=lambda n: place_in_time(graph, n)))


def place_in_time(graph: StepGraph, task: int) -> tuple[float, int]:
    """Return what orders tasks as they ran."""
    return graph.tasks[task].measured_start_us, task


def by_iteration(graph: StepGraph, tasks: Iterable[int]) -> Mapping[int, tuple[int, ...]]:
    """Return tasks by the step they belong to, in the order in which they ran; what is outside of all is left out."""
    found: dict[int, list[int]] = defaultdict(list)
    for n in ordered(graph, tasks):
        if graph.tasks[n].context.iteration >= 0:
            found[graph.tasks[n].context.iteration].append(n)
    return {iteration: tuple(own) for iteration, own in sorted(found.items())}


def by_layer(graph: StepGraph, tasks: Iterable[int]) -> Mapping[str, tuple[int, ...]]:
    """Return tasks by their layer, layers in the order in which they began."""
    found: dict[str, list[int]] = defaultdict(list)
    for n in ordered(graph, tasks):
        found[graph.tasks[n].context.module].append(n)
    return {layer: tuple(own) for layer, own in found.items()}


def neighbours(graph: StepGraph) -> tuple[Mapping[int, Task], Mapping[int, Task]]:
    """Return the kernel before and the kernel behind each kernel on its stream, by id."""
    lanes: dict[object, list[Task]] = defaultdict(list)
    for n in ordered(graph, work(graph)):
        lanes[graph.tasks[n].lane].append(graph.tasks[n])
    before, behind = {}, {}
    for own in lanes.values():
        for one, then in pairwise(own):
            before[then.id], behind[one.id] = one, then
    return before, behind


def parameter_bytes(graph: StepGraph, layers: str | Sequence[str] = ()) -> float:
    """Return the bytes of the gradients of one step, of some layers only where they are named.

    Raises
    ------
    RollerError
        The profile does not tell the sizes of its gradients.
    """
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
    patterns = (layers,) if isinstance(layers, str) else tuple(layers)
    steps = {g.iteration for g in graph.gradients}
    return sum(g.size_bytes for g in graph.gradients if in_layers(g.module, patterns)) / len(steps)


def total_us(graph: StepGraph, tasks: Collection[int]) -> float:
    """Return the sum of durations."""
    return sum(graph.tasks[n].duration_us for n in tasks)


def total_bytes(graph: StepGraph, tasks: Collection[int]) -> float:
    """Return the sum of what tasks move."""
    return float(sum(graph.tasks[n].size_bytes for n in tasks))


def shortest_us(graph: StepGraph) -> float:
    """Return what a kernel takes however small it is: one in twenty of the profile's kernels is shorter."""
    durations = sorted(graph.tasks[n].duration_us for n in work(graph))
    return durations[len(durations) // 20] if durations else 0.0


def spread(tasks: Sequence[int], count: int) -> tuple[int, ...]:
    """Return so many of some tasks, spread evenly.

    Examples
    --------
    >>> spread((3, 4, 5, 6, 7, 8), 3)
    (3, 5, 7)
    """
    return tuple(tasks[int(n * len(tasks) / count)] for n in range(min(count, len(tasks))))
