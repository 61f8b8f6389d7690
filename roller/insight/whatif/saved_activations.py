"""Finds the feature maps that the forward pass saves for the backward pass, as far as a profile shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from roller.errors import RollerError
from roller.insight.step.graph import StepGraph, Task
from roller.insight.step.parse_profile_dtype_names import element_bytes
from roller.insight.whatif.task_selection import (
    compute_tasks,
    matches_layers,
    neighbouring_kernels,
    tasks_by_layer,
    tasks_by_step,
)


class SavedFeatureMap(NamedTuple):
    """The input of a layer, which the layer's backward pass reads."""

    layer: str
    size_bytes: int
    # forward, following: last task of the layer's forward pass, and the next task on its lane or ``None``
    forward: int
    following: int | None
    # backward, preceding: first task of the layer's backward pass, and the previous task on its lane or ``None``
    backward: int
    preceding: int | None


def saved_feature_maps(graph: StepGraph, layers: str | Sequence[str] = ()) -> Mapping[int, Sequence[SavedFeatureMap]]:
    """Return the saved feature maps of each step in the order of its forward pass."""
    before, behind = neighbouring_kernels(graph)
    backward = tasks_by_step(graph, compute_tasks(graph, "backward"))
    found: dict[int, list[SavedFeatureMap]] = {}
    for iteration, own in tasks_by_step(graph, compute_tasks(graph, "forward")).items():
        back = tasks_by_layer(graph, backward.get(iteration, ()))
        for layer, tasks in tasks_by_layer(graph, own).items():
            size = max((_first_input_bytes(graph.tasks[n]) for n in tasks), default=0)
            if layer and layer in back and size and matches_layers(layer, layers):
                following, preceding = behind.get(tasks[-1]), before.get(back[layer][0])
                one = SavedFeatureMap(
                    layer, size, tasks[-1], following.id if following else None, back[layer][0],
                    preceding.id if preceding else None,
                )  # fmt: skip
                found.setdefault(iteration, []).append(one)
    if not found:
        raise RollerError(
            f"{graph.name}: saved feature maps: expected layers with shapes that run forward and backward, got none. "
            f"Record the profile with roller record, or mend the pattern of layers."
        )
    return found


def _first_input_bytes(task: Task) -> int:
    """Return the size in bytes of a task's first input, which is the layer's activation; 0 if unknown."""
    shapes, dtypes = task.context.shapes[:1], task.context.dtypes[:1]
    if not shapes or not dtypes or not shapes[0] or not all(isinstance(n, int) for n in shapes[0]):
        return 0  # the first input is missing or a list of tensors
    elements: int = math.prod(shapes[0])
    return elements * element_bytes(dtypes[0])
