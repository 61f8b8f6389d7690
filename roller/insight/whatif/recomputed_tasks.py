"""Tasks of a traced step that checkpointing runs a second time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from roller.insight.step.graph import StepGraph, Task
from roller.insight.trace.trace import Operator
from roller.insight.whatif.select import compute_tasks, in_layers


def is_recomputed(graph: StepGraph, block: str) -> bool:
    """Return whether a whole block is recomputed: its backward reads nothing that its first forward wrote.

    The last operators of a checkpointed block may run once: PyTorch stops at the last tensor that backward reads. False
    for a recording, which does not tell repeated operators from others.
    """
    again, forward, backward = _operators(graph, block)
    written = {tensor.storage for operator in forward for tensor in operator.outputs}
    return bool(again) and written.isdisjoint(tensor.storage for operator in backward for tensor in operator.inputs)


def without_repeated(graph: StepGraph, block: str, tasks: Sequence[int]) -> tuple[int, ...]:
    """Return those tasks of a block's forward that its backward does not repeat already, in their order."""
    repeated = Counter(
        _key(graph.tasks[n]) for n in compute_tasks(graph, layers=block) if n in graph.operators
        and graph.operators[n].recomputed
    )  # fmt: skip
    found = []
    for number in tasks:
        key = _key(graph.tasks[number])
        if repeated[key]:
            repeated[key] -= 1
        else:
            found.append(number)
    return tuple(found)


def _key(task: Task) -> tuple[object, ...]:
    return task.context.iteration, task.context.module, task.context.operator, task.context.shapes


def _operators(graph: StepGraph, block: str) -> tuple[list[Operator], list[Operator], list[Operator]]:
    """Return the operators of a block that are recomputed, and the others of forward and of backward."""
    again, forward, backward = list[Operator](), list[Operator](), list[Operator]()
    for operator in graph.operators.values():
        if in_layers(operator.module, (block,)):
            if operator.recomputed:
                again.append(operator)
            elif operator.phase in ("forward", "backward"):
                (forward if operator.phase == "forward" else backward).append(operator)
    return again, forward, backward
