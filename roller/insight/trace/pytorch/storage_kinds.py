"""Classifies each storage in a trace by its lifetime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roller.insight.trace.trace import AllocEvent, FreeEvent, Kind, Operator, Storage


def classify_storages(
    operators: Sequence[Operator], events: Sequence[AllocEvent | FreeEvent], storages: Mapping[int, Storage]
) -> dict[int, Storage]:
    """Return the storages with their kinds.

    A storage of unknown kind is an activation if it is allocated in a forward pass, including a recomputed one, and
    lives until the backward pass; otherwise, it is temporary.
    """
    freed = {event.storage: event.operator for event in events if isinstance(event, FreeEvent)}
    made = {event.storage: event.operator for event in events if isinstance(event, AllocEvent)}
    last_forward = _next_backward_operator_indices(operators)
    found: dict[int, Storage] = {}
    for number, storage in storages.items():
        kind: Kind = storage.kind
        if kind == "unknown":
            operator = operators[made[number]] if made[number] >= 0 else None
            kind = "temporary"
            if operator is not None and (operator.phase == "forward" or operator.recomputed):
                end = freed.get(number, len(operators))
                until = last_forward[operator.index]
                if until is not None and end >= until:
                    kind = "activation"
        found[number] = Storage(kind, storage.name, storage.size_bytes)
    return found


def _next_backward_operator_indices(operators: Sequence[Operator]) -> list[int | None]:
    """Return, for each operator, the index of the next backward operator of its step that is not recomputed."""
    following: list[int | None] = [None] * len(operators)
    found: int | None = None
    step = -1
    for operator in reversed(operators):
        if operator.iteration != step:
            step, found = operator.iteration, None
        if operator.phase == "backward" and not operator.recomputed:
            found = operator.index
        following[operator.index] = found
    return following
