"""Memory during the last step of a trace: allocated, reserved, and requested by kind."""

from __future__ import annotations

from collections import deque

from roller.hardware import DeviceSpec
from roller.insight.memory.largest_batch import allocator_settings_for_trace, device_capacity_bytes
from roller.insight.memory.simulate import (
    Library,
    MemoryHolder,
    events_with_workspaces,
    group_allocations_by_holder,
    simulate_memory,
)
from roller.insight.step_profile.step_profile import MemoryPoint
from roller.insight.trace.trace import AllocEvent, Storage, Trace

#: Maximum number of points in a curve; of neighbouring points, the one with the most allocated bytes is kept.
MOST_POINTS = 400
#: Maximum number of memory holders listed per point.
MOST_HOLDERS = 8


def memory_points_over_step(trace: Trace, spec: DeviceSpec) -> tuple[MemoryPoint, ...]:
    """Return the memory on a device after each operator of the last step, thinned to at most 400 points."""
    if not spec.traits.discrete:
        return cpu_memory_points_over_step(trace)
    library = Library.of(spec, trace.options)
    settings = allocator_settings_for_trace(trace)
    memory = simulate_memory(trace, device_capacity_bytes(spec), settings=settings, library=library, timeline=True)
    levels = memory.timeline if memory.oom_operator is None else memory.timeline[: memory.oom_operator + 1]
    kinds = _requested_bytes_after_operators(trace, library)
    first = len(trace.operators) - len(kinds)
    rows = zip(levels[first:], kinds, strict=False)  # levels end at the operator that runs out of memory
    points = _thin_memory_points([MemoryPoint(float(n), *level, held) for n, (level, held) in enumerate(rows)])
    return _points_with_memory_holders(points, trace, library)


def cpu_memory_points_over_step(trace: Trace) -> tuple[MemoryPoint, ...]:
    """Return the requested bytes after each operator of the last step, thinned to at most 400 points."""
    library = Library(workspace_bytes=0)
    kinds = _requested_bytes_after_operators(trace, library)
    sizes = [sum(held.values()) for held in kinds]
    points = _thin_memory_points([MemoryPoint(float(n), sizes[n], sizes[n], held) for n, held in enumerate(kinds)])
    return _points_with_memory_holders(points, trace, library)


def _requested_bytes_after_operators(trace: Trace, library: Library) -> list[dict[str, int]]:
    first = trace.iterations[-2] if len(trace.iterations) > 1 else 0
    kinds: dict[str, int] = {}
    sizes: dict[int, tuple[str, int]] = {}
    found: list[dict[str, int]] = []
    for event in events_with_workspaces(trace, library):
        found += [dict(kinds) for _ in range(first + len(found), event.operator)]
        if isinstance(event, AllocEvent):
            known = trace.storages.get(event.storage, Storage("workspace" if event.storage < 0 else "unknown"))
            kind: str = known.kind
            sizes[event.storage] = kind, event.size_bytes
            kinds[kind] = kinds.get(kind, 0) + event.size_bytes
        elif event.storage in sizes:
            kind, size = sizes.pop(event.storage)
            kinds[kind] -= size
    return [*found, *(dict(kinds) for _ in range(first + len(found), len(trace.operators)))]


def _points_with_memory_holders(
    points: tuple[MemoryPoint, ...], trace: Trace, library: Library
) -> tuple[MemoryPoint, ...]:
    first = trace.iterations[-2] if len(trace.iterations) > 1 else 0
    held: dict[int, AllocEvent] = {}
    waiting, found = deque(points), list[MemoryPoint]()

    def emit_points_before(operator: int) -> None:  # events before an operator happen after the previous one
        while waiting and first + waiting[0].at < operator:
            holders = group_allocations_by_holder(trace, held)[:MOST_HOLDERS]
            found.append(waiting.popleft()._replace(holders={_holder_name(x): x.requested_bytes for x in holders}))

    for event in events_with_workspaces(trace, library):
        emit_points_before(event.operator)
        if isinstance(event, AllocEvent):
            held[event.storage] = event
        else:
            held.pop(event.storage, None)
    emit_points_before(first + len(trace.operators) + 1)
    return tuple(found)


def _holder_name(holder: MemoryHolder) -> str:
    place = "" if holder.source is None else f"{holder.source[0]}:{holder.source[1]}"
    return " ".join(filter(None, (holder.kind.replace("_", " "), holder.module, place)))


def _thin_memory_points(points: list[MemoryPoint]) -> tuple[MemoryPoint, ...]:
    each = -(-len(points) // MOST_POINTS) or 1
    return tuple(
        max(points[at : at + each], key=lambda p: (p.allocated_bytes, sum(p.kinds.values())))
        for at in range(0, len(points), each)
    )
