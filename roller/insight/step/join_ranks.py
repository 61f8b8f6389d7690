"""Joint graph of a job's ranks, whose clocks are aligned by the collectives they share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from roller.insight.step.graph import Dependency, StepGraph, Task
from roller.insight.trace.gradient_buckets import Gradient


def join_ranks(graphs: Sequence[StepGraph]) -> StepGraph:
    """Return one graph for several ranks; the transfer of a collective begins when the last rank reaches it."""
    # Clocks are aligned by the ends of shared collectives. Without waits, a collective takes its shortest duration
    # among all ranks.
    tasks: list[Task] = []
    dependencies: list[Dependency] = []
    starts: dict[int, float] = {}
    members: dict[tuple[str, int], list[int]] = defaultdict(list)
    reduced: list[Gradient] = []
    overhead: dict[int, tuple[float, float]] = {}
    shifts = _clock_offset_per_rank_us(graphs)
    for rank, (graph, shift) in enumerate(zip(graphs, shifts, strict=True)):
        base = len(tasks)
        seen: dict[str, int] = defaultdict(int)
        for task in graph.tasks:
            if task.kind == "collective":
                members[task.name, seen[task.name]].append(base + task.id)
                seen[task.name] += 1
            tasks.append(
                replace(
                    task, id=base + task.id, lane=task.lane._replace(rank=rank),
                    measured_start_us=task.measured_start_us + shift, measured_end_us=task.measured_end_us + shift,
                )
            )  # fmt: skip
        dependencies += [replace(d, source=d.source + base, target=d.target + base) for d in graph.dependencies]
        starts |= {base + n: at + shift for n, at in graph.starts_us.items()}
        reduced += [g.shift_ids(base) for g in graph.gradients]
        overhead |= {base + n: took for n, took in graph.overhead_us.items()}
    for group in members.values():
        if len(group) < 2:
            continue
        transfer = min(tasks[n].measured_end_us - tasks[n].measured_start_us for n in group)
        for one in group:
            tasks[one] = replace(tasks[one], duration_us=transfer)
            dependencies += [Dependency(n, False, one, True, 0.0, "collective") for n in group if n != one]
    latency, gap = median(g.latency_us for g in graphs), median(g.gap_us for g in graphs)
    name = f"{graphs[0].name} and {len(graphs) - 1} more ranks" if len(graphs) > 1 else graphs[0].name
    notes = tuple(f"Rank {rank}: {said}" for rank, g in enumerate(graphs) for said in g.notes)
    lacks = [f"Rank {rank}: {g.incomplete}" for rank, g in enumerate(graphs) if g.incomplete]
    return StepGraph(tasks, dependencies, starts, latency, gap, name, reduced, overhead_us=overhead, notes=notes,
                 incomplete=" ".join(lacks))  # fmt: skip


def _clock_offset_per_rank_us(graphs: Sequence[StepGraph]) -> list[float]:
    """Return the clock offset for each rank that makes the collectives of all ranks end together."""

    def collective_ends(graph: StepGraph) -> dict[tuple[str, int], float]:
        seen: dict[str, int] = defaultdict(int)
        found = {}
        for task in graph.tasks:
            if task.kind == "collective":
                found[task.name, seen[task.name]] = task.measured_end_us
                seen[task.name] += 1
        return found

    first, shifts = collective_ends(graphs[0]), [0.0]
    for graph in graphs[1:]:
        own = collective_ends(graph)
        both = [first[key] - own[key] for key in first.keys() & own.keys()]
        shifts.append(median(both) if both else 0.0)
    return [s - min(shifts) for s in shifts]
