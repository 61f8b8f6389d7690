"""Memory in the course of the last step of a trace: allocated, reserved, and requested by kind."""

from __future__ import annotations

from roller.hardware import DeviceSpec
from roller.insight.memory.largest_batch import capacity_of
from roller.insight.memory.simulate import Library, add_cublas_workspaces, simulate_memory
from roller.insight.step_profile.step_profile import MemoryPoint
from roller.insight.trace.trace import AllocEvent, Storage, Trace

#: Points of a curve at most: of neighbours the one with the most allocated bytes is kept.
MOST_POINTS = 400


def memory_over_step(trace: Trace, spec: DeviceSpec) -> tuple[MemoryPoint, ...]:
    """Return the memory after each operator of the last step, at most 400 points.

    On a processor, which has no cache of blocks, allocated and reserved bytes are the requested ones.

    Parameters
    ----------
    trace
        The trace.
    spec
        The device.
    """
    discrete = spec.traits.discrete
    library = Library.of(spec) if discrete else Library(workspace_bytes=0)
    allocated = simulate_memory(trace, capacity_of(spec), library=library, timeline=True).timeline if discrete else ()
    first = trace.iterations[-2] if len(trace.iterations) > 1 else 0
    kinds: dict[str, int] = {}
    points: list[MemoryPoint] = []

    def extend(operator: int) -> None:
        for index in range(first + len(points), operator):
            held = sum(kinds.values())
            levels = (allocated[index] if index < len(allocated) else None) if discrete else (held, held)
            if levels is None:  # out of memory
                return
            points.append(MemoryPoint(float(index - first), *levels, dict(kinds)))

    sizes: dict[int, tuple[str, int]] = {}
    for event in add_cublas_workspaces(trace, library):
        extend(event.operator)
        if isinstance(event, AllocEvent):
            known = trace.storages.get(event.storage, Storage("workspace" if event.storage < 0 else "unknown"))
            kind: str = known.kind
            sizes[event.storage] = kind, event.size_bytes
            kinds[kind] = kinds.get(kind, 0) + event.size_bytes
        elif event.storage in sizes:
            kind, size = sizes.pop(event.storage)
            kinds[kind] -= size
    extend(len(trace.operators))
    return _thinned(points)


def _thinned(points: list[MemoryPoint]) -> tuple[MemoryPoint, ...]:
    each = -(-len(points) // MOST_POINTS) or 1
    return tuple(
        max(points[at : at + each], key=lambda p: (p.allocated_bytes, sum(p.kinds.values())))
        for at in range(0, len(points), each)
    )
