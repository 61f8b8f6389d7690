"""Memory of a step on a CPU: live bytes, and the C library's heap, which returns pages to the system."""

# The rules are those of glibc's ``malloc`` in ``mallopt(3)``: a large request is served by ``mmap`` and unmapped when
# it is freed, so that each of its pages faults; free memory at the top of the heap is trimmed.

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roller.insight.memory.allocator_blocks_and_pools import MemoryStats, OutOfDeviceMemoryError
from roller.insight.memory.simulate import Memory, MemoryHolder, group_allocations_by_holder
from roller.insight.trace.trace import AllocEvent, FreeEvent, Trace

#: Initial and largest size threshold above which ``mmap`` serves a request; it grows to the largest such request freed
#: (``M_MMAP_THRESHOLD``, on 64-bit systems).
FIRST_MAPPED_BYTES, MOST_MAPPED_BYTES = 128 << 10, 32 << 20
#: Number of free bytes at the top of the heap from which on they are trimmed. Once a mapped request is freed, the
#: number is twice the mapping threshold (``M_TRIM_THRESHOLD``).
FIRST_TRIMMED_BYTES = 128 << 10
#: Alignment that PyTorch requests, and size of a chunk's header, in bytes.
_ALIGNMENT, _HEADER = 64, 16
#: Size in bytes of the parts of the heap whose last owner is recorded.
_GRANULE_BYTES = 64 << 10
#: Address of mapped requests, outside the heap.
_MAPPED_AT = 1 << 46


@dataclass(frozen=True)
class Placement:
    """The memory that a storage gets."""

    #: Number of bytes on pages that have not been touched since the system mapped them.
    fresh_bytes: int
    #: Storage that had this memory before; ``None`` if unknown.
    before: int | None


class GlibcHeap:
    """The heap of a process, allocated by best fit, and the process's mapped requests."""

    def __init__(self, freed_bytes: int = 0) -> None:
        # ``freed_bytes`` is the size of the largest request that was freed earlier.
        self.mapped_from = min(MOST_MAPPED_BYTES, max(FIRST_MAPPED_BYTES, freed_bytes))
        self._trimmed_from = 2 * self.mapped_from if freed_bytes > FIRST_MAPPED_BYTES else FIRST_TRIMMED_BYTES
        self._top = self._touched = 0
        self._held: dict[int, tuple[int, int]] = {}
        self._free: list[tuple[int, int]] = []  # by size and address
        self._starts: dict[int, int] = {}  # free chunks: address -> size
        self._ends: dict[int, int] = {}  # free chunks: end -> address
        self._owner: dict[int, int] = {}

    def malloc(self, storage: int, size_bytes: int) -> Placement:
        """Serve a request and return its placement."""
        size = -(-(size_bytes + _HEADER) // _ALIGNMENT) * _ALIGNMENT
        if size > self.mapped_from:
            self._held[storage] = (_MAPPED_AT, size)
            return Placement(size, None)
        address = self._take_chunk_address(size)
        fresh = max(0, address + size - max(address, self._touched))
        self._touched = max(self._touched, address + size)
        self._held[storage] = (address, size)
        first = -(-address // _GRANULE_BYTES)
        before = self._owner.get(first)
        for granule in range(first, (address + size) // _GRANULE_BYTES):
            self._owner[granule] = storage
        return Placement(fresh, before)

    def free(self, storage: int) -> None:
        """Free the memory of a storage, if it has any."""
        address, size = self._held.pop(storage, (0, 0))
        if not size:
            return
        if address != _MAPPED_AT:
            self._free_chunk(address, size)
        elif size <= MOST_MAPPED_BYTES:
            self.mapped_from = max(self.mapped_from, size)
            self._trimmed_from = 2 * self.mapped_from

    def _take_chunk_address(self, size: int) -> int:
        at = bisect_left(self._free, (size, 0))
        if at == len(self._free):
            address, self._top = self._top, self._top + size
            return address
        found, address = self._free.pop(at)
        self._forget_free_chunk_bounds(address, found)
        if found > size:
            self._add_free_chunk(address + size, found - size)
        return address

    def _free_chunk(self, address: int, size: int) -> None:
        """Free a chunk and merge it with its free neighbours."""
        before = self._ends.get(address)
        if before is not None:
            self._remove_free_chunk(before, address - before)
            address, size = before, size + address - before
        behind = self._starts.get(address + size)
        if behind is not None:
            self._remove_free_chunk(address + size, behind)
            size += behind
        if address + size < self._top:
            self._add_free_chunk(address, size)
            return
        self._top = address
        if self._touched - address >= self._trimmed_from:
            self._touched = address

    def _remove_free_chunk(self, address: int, size: int) -> None:
        self._free.pop(bisect_left(self._free, (size, address)))
        self._forget_free_chunk_bounds(address, size)

    def _forget_free_chunk_bounds(self, address: int, size: int) -> None:
        del self._starts[address], self._ends[address + size]

    def _add_free_chunk(self, address: int, size: int) -> None:
        insort(self._free, (size, address))
        self._starts[address], self._ends[address + size] = size, address


def placements_by_storage(trace: Trace) -> dict[int, Placement]:
    """Return the placement of each storage in a trace's last step once the heap is in a steady state.

    Examples
    --------
    A tensor of 64 MiB gets new pages every time; a smaller tensor reuses the pages of the previous one.

    >>> step = (AllocEvent(0, 64 << 20, 0), FreeEvent(0, 0), AllocEvent(1, 1 << 20, 0), FreeEvent(1, 0))
    >>> found = placements_by_storage(Trace((), step, {}, (0, 1)))
    >>> found[0].fresh_bytes >> 20, found[1].fresh_bytes
    (64, 0)
    """
    # Building a model, or reading it from a file, frees a copy of its largest parameter.
    parameters = (s.size_bytes for s in trace.storages.values() if s.kind == "parameter")
    heap = GlibcHeap(max((n for n in parameters if n <= MOST_MAPPED_BYTES), default=0))
    first = trace.iterations[-2]
    before: list[AllocEvent | FreeEvent] = []
    step: list[AllocEvent | FreeEvent] = []
    for event in trace.events:
        (step if event.operator >= first or _frees_previous_gradient(trace, event, first) else before).append(event)
    for event in before:
        _apply_event(heap, event, {})
    kept = _kept_storages_by_freed_storage(trace, step)
    names: dict[int, int] = {}
    found: dict[int, Placement] = {}
    for turn in range(_TURNS):
        last, names = names, {}
        for event in step:
            if isinstance(event, AllocEvent):
                names[event.storage] = event.storage + (turn + 1) * _APART
            elif event.storage in kept and turn:
                names[event.storage] = last[kept[event.storage]]
            place = _apply_event(heap, event, names)
            if place is not None:
                found[event.storage] = place
    back = {number: storage for storage, number in (last | names).items()}
    return {s: Placement(p.fresh_bytes, back.get(p.before, p.before)) for s, p in found.items()}  # type: ignore[arg-type]


#: Number of steps until the heap is in a steady state, and distance between a storage's numbers in successive steps.
_TURNS, _APART = 5, 1 << 40


def _frees_previous_gradient(trace: Trace, event: AllocEvent | FreeEvent, first: int) -> bool:
    """Return whether an event before a step belongs to it, since a step frees the previous step's gradients."""
    if not isinstance(event, FreeEvent) or event.operator != first - 1:
        return False
    known = trace.storages.get(event.storage)
    return known is not None and known.kind == "gradient"


def _apply_event(heap: GlibcHeap, event: AllocEvent | FreeEvent, names: Mapping[int, int]) -> Placement | None:
    number = names.get(event.storage, event.storage)
    if isinstance(event, AllocEvent):
        return heap.malloc(number, event.size_bytes)
    heap.free(number)
    return None


def _kept_storages_by_freed_storage(trace: Trace, step: Sequence[AllocEvent | FreeEvent]) -> Mapping[int, int]:
    """Map each earlier storage that a step frees, e.g. a gradient, to the new storage that replaces it."""
    made = {e.storage: e.size_bytes for e in step if isinstance(e, AllocEvent)}
    freed = {e.storage for e in step if isinstance(e, FreeEvent)}
    before = sorted(freed - made.keys())
    left = [n for n in made if n not in freed]
    found: dict[int, int] = {}
    for old in before:
        size = trace.allocations[old].size_bytes if old in trace.allocations else 0
        new = next((n for n in left if made[n] == size), None)
        if new is not None:
            left.remove(new)
            found[old] = new
    return found


def simulate_cpu_memory(trace: Trace, capacity_bytes: int | None, process_bytes: int = 0) -> Memory:
    """Return the memory of a trace on a CPU: live bytes, without a caching allocator."""
    live = peak = peak_operator = 0
    held: dict[int, AllocEvent] = {}
    at_peak: dict[int, AllocEvent] = {}
    oom: tuple[OutOfDeviceMemoryError, int] | None = None
    grown = False
    for event in trace.events:
        if isinstance(event, FreeEvent):
            if grown and live == peak:
                at_peak, grown = dict(held), False
            freed = held.pop(event.storage, None)
            live -= freed.size_bytes if freed else 0
            continue
        if capacity_bytes is not None and process_bytes + live + event.size_bytes > capacity_bytes:
            stats = MemoryStats(live, live, live)
            oom = OutOfDeviceMemoryError(event.size_bytes, capacity_bytes - process_bytes, stats), event.operator
            break
        held[event.storage] = event
        live += event.size_bytes
        if live > peak:
            peak, peak_operator, grown = live, event.operator, True
    if grown and live == peak:
        at_peak = held
    holders: tuple[MemoryHolder, ...] = group_allocations_by_holder(trace, at_peak)
    return Memory(
        MemoryStats(peak, peak, peak), peak + process_bytes, 0, peak_operator, holders,
        oom=None if oom is None else oom[0], oom_operator=None if oom is None else oom[1],
        at_peak=MemoryStats(peak, peak, peak), context_bytes=process_bytes, held=dict(at_peak),
    )  # fmt: skip
