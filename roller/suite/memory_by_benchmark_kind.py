"""The memory of a step by the kinds of the published benchmark, which add up exactly to the total."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from roller.hardware import DeviceSpec
from roller.insight.memory.simulate import Library, Memory, events_with_workspaces
from roller.insight.trace.trace import AllocEvent, Trace

#: Kind of a storage -> published kind. Buffers and inputs, which are not published, have separate rows.
PUBLISHED_KINDS: Mapping[str, str] = {
    "parameter": "weights", "gradient": "gradients", "activation": "feature maps", "temporary": "workspace",
    "workspace": "workspace", "optimizer_state": "dynamic", "buffer": "buffers", "input": "inputs",
}  # fmt: skip
#: All rows in print order: ``rounding`` is the excess of blocks over requests, ``cached`` is unused memory of the
#: allocator, ``context`` is outside the allocator, and ``pages`` is rounding by the driver.
ROWS = (
    "weights", "gradients", "feature maps", "workspace", "dynamic", "buffers", "inputs", "other", "rounding", "cached",
    "context", "pages",
)  # fmt: skip


def memory_by_kind(memory: Memory) -> Mapping[str, int]:
    """Return the number of bytes of each of :data:`ROWS` at the peak of the total; they add up to ``total_bytes``.

    Examples
    --------
    >>> from roller.insight.memory.allocator_blocks_and_pools import MemoryStats
    >>> from roller.insight.memory.simulate import MemoryHolder
    >>> held = (MemoryHolder("parameter", "fc", None, 4000, 1), MemoryHolder("temporary", "fc", None, 1000, 1))
    >>> found = memory_by_kind(Memory(MemoryStats(5000, 5120, 2 << 20), 4 << 20, 0, 0, held, context_bytes=100))
    >>> {row: size for row, size in found.items() if size}
    {'weights': 4000, 'workspace': 1000, 'rounding': 120, 'cached': 2092032, 'context': 100, 'pages': 2097052}
    """
    parts = memory.parts_at_peak()
    found = dict.fromkeys(ROWS, 0)
    for kind, size_bytes in parts.requested_bytes.items():
        found[PUBLISHED_KINDS.get(kind, "other")] += size_bytes
    found |= {
        "rounding": parts.rounding_bytes, "cached": parts.cached_bytes, "context": parts.context_bytes,
        "pages": parts.page_rounding_bytes,
    }  # fmt: skip
    return found


def peak_bytes_by_kind(trace: Trace, spec: DeviceSpec) -> Mapping[str, int]:
    """Return the peak number of bytes requested for tensors of each kind; the peaks may be at different times.

    Examples
    --------
    >>> from roller.hardware import load_spec
    >>> from roller.insight.trace.trace import FreeEvent, Storage
    >>> events = (AllocEvent(1, 300, -1), AllocEvent(2, 50, -1), FreeEvent(1, -1), AllocEvent(3, 100, -1))
    >>> kinds = {1: Storage("activation"), 2: Storage("activation"), 3: Storage("temporary")}
    >>> dict(peak_bytes_by_kind(Trace((), events, kinds, (0, 0)), load_spec("v100")))
    {'feature maps': 350, 'workspace': 100}
    """
    # allocators keep reserved memory, so the peak of the total may come after the peak of feature maps
    live, most, sizes = Counter[str](), Counter[str](), dict[int, tuple[str, int]]()
    library = Library.of(spec, trace.options) if spec.traits.discrete else Library(workspace_bytes=0)
    for event in events_with_workspaces(trace, library):
        if isinstance(event, AllocEvent):
            storage = trace.storages.get(event.storage)
            own = PUBLISHED_KINDS.get("workspace" if storage is None else storage.kind, "other")
            sizes[event.storage] = own, event.size_bytes
            live[own] += event.size_bytes
            most[own] = max(most[own], live[own])
        else:
            own, size_bytes = sizes.pop(event.storage)
            live[own] -= size_bytes
    return {row: most[row] for row in ROWS if row in most}
