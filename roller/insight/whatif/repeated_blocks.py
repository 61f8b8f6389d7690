"""Finds the repeated blocks of a model in the module paths of a step's tasks."""

from __future__ import annotations

from collections.abc import Iterator

from roller.insight.step.graph import StepGraph
from roller.insight.whatif.task_selection import compute_tasks


def find_repeated_blocks(graph: StepGraph) -> tuple[str, ...]:
    """Return the outermost numbered blocks with inner layers, from lists with at least two such blocks."""
    # ``--checkpoint yes`` takes the same blocks if all layers of a list have one class, which profiles do not contain
    forward, backward = (
        {graph.tasks[n].context.module for n in compute_tasks(graph, phase)} for phase in ("forward", "backward")
    )
    lists: dict[str, set[str]] = {}
    for around, number in (part for path in forward & backward for part in _numbered_path_parts(path)):
        lists.setdefault(around, set()).add(number)
    outermost = [x for x in sorted(lists) if not any(x.startswith(f"{o}.") for o in lists if len(lists[o]) > 1)]
    return tuple(f"{x}.{n}" for x in outermost if len(lists[x]) > 1 for n in sorted(lists[x], key=int))


def _numbered_path_parts(path: str) -> Iterator[tuple[str, str]]:
    """Yield each inner numbered part of a module path and the path before it."""
    parts = path.split(".")
    for at in range(1, len(parts) - 1):
        if parts[at].isdecimal():
            yield ".".join(parts[:at]), parts[at]
