"""Tasks of a traced step that checkpointing recomputes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from roller.insight.step.graph import StepGraph, Task
from roller.insight.trace.trace import Operator
from roller.insight.whatif.task_selection import compute_tasks, matches_layers


def is_block_recomputed(graph: StepGraph, block: str) -> bool:
    """Return whether the backward pass recomputes a whole block; false for recordings, which do not show this."""
    # the backward pass then reads no result of the first forward pass; the block's last operators may still run only
    # once, since PyTorch stops at the last tensor that the backward pass reads
    again, forward, backward = _operators_of_block(graph, block)
    written = {tensor.storage for operator in forward for tensor in operator.outputs}
    return bool(again) and written.isdisjoint(tensor.storage for operator in backward for tensor in operator.inputs)


def tasks_not_yet_recomputed(graph: StepGraph, block: str, tasks: Sequence[int]) -> tuple[int, ...]:
    """Return those of a block's forward tasks that the backward pass does not yet recompute, in order."""
    repeated = Counter(
        _task_signature(graph.tasks[n]) for n in compute_tasks(graph, layers=block) if n in graph.operators
        and graph.operators[n].recomputed
    )  # fmt: skip
    found = []
    for number in tasks:
        key = _task_signature(graph.tasks[number])
        if repeated[key]:
            repeated[key] -= 1
        else:
            found.append(number)
    return tuple(found)


def _task_signature(task: Task) -> tuple[object, ...]:
    return task.context.iteration, task.context.module, task.context.operator, task.context.shapes


def _operators_of_block(graph: StepGraph, block: str) -> tuple[list[Operator], list[Operator], list[Operator]]:
    again, forward, backward = list[Operator](), list[Operator](), list[Operator]()
    for operator in graph.operators.values():
        if matches_layers(operator.module, (block,)):
            if operator.recomputed:
                again.append(operator)
            elif operator.phase in ("forward", "backward"):
                (forward if operator.phase == "forward" else backward).append(operator)
    return again, forward, backward
