"""The memory of a step on a processor: live bytes, and the heap of the C library, which hands pages back.

The rules are those of glibc's ``malloc``, as ``mallopt(3)`` describes them: a large request is mapped on its own and
unmapped when it is freed, so that every page of it is touched for the first time; much that is free at the end of the
heap is handed back, too.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roller.insight.memory.blocks_and_pools import MemoryStats, OutOfDeviceMemoryError
from roller.insight.memory.simulate import Holder, Memory, holders_of
from roller.insight.trace.trace import AllocEvent, FreeEvent, Trace

#: A request of so much is mapped on its own, at first and at most: it becomes the largest of these that was freed
#: (``M_MMAP_THRESHOLD``, of 64-bit systems).
FIRST_MAPPED_BYTES, MOST_MAPPED_BYTES = 128 << 10, 32 << 20
#: So much that is free at the end of the heap is handed back, until a mapped request was freed: then twice of what is
#: mapped on its own (``M_TRIM_THRESHOLD``).
FIRST_TRIMMED_BYTES = 128 << 10
#: Alignment that PyTorch asks for, and header of a chunk.
_ALIGNMENT, _HEADER = 64, 16
#: Parts of the heap of which the last owner is remembered.
_GRANULE_BYTES = 64 << 10
#: Where addresses begin that belong to no heap.
_MAPPED_AT = 1 << 46


@dataclass(frozen=True)
class Placed:
    """Where a storage is put.

    Parameters
    ----------
    fresh_bytes
        Of it on pages nobody touched since the system handed them out.
    before
        Storage that lay there before; ``None``: nobody knows.
    """

    fresh_bytes: int
    before: int | None


class Heap:
    """The heap of a process, best fit first, and what is mapped beside it.

    Parameters
    ----------
    freed_bytes
        Of the largest request that was freed before.
    """

    def __init__(self, freed_bytes: int = 0) -> None:
        self.mapped_from = min(MOST_MAPPED_BYTES, max(FIRST_MAPPED_BYTES, freed_bytes))
        self._trimmed_from = 2 * self.mapped_from if freed_bytes > FIRST_MAPPED_BYTES else FIRST_TRIMMED_BYTES
        self._top = self._touched = 0
        self._held: dict[int, tuple[int, int]] = {}
        self._free: list[tuple[int, int]] = []  # by size and address
        self._starts: dict[int, int] = {}  # free chunks: address -> size
        self._ends: dict[int, int] = {}  # free chunks: end -> address
        self._owner: dict[int, int] = {}

    def malloc(self, storage: int, size_bytes: int) -> Placed:
        """Serve a request."""
        size = -(-(size_bytes + _HEADER) // _ALIGNMENT) * _ALIGNMENT
        if size > self.mapped_from:
            self._held[storage] = (_MAPPED_AT, size)
            return Placed(size, None)
        address = self._taken(size)
        fresh = max(0, address + size - max(address, self._touched))
        self._touched = max(self._touched, address + size)
        self._held[storage] = (address, size)
        first = -(-address // _GRANULE_BYTES)
        before = self._owner.get(first)
        for granule in range(first, (address + size) // _GRANULE_BYTES):
            self._owner[granule] = storage
        return Placed(fresh, before)

    def free(self, storage: int) -> None:
        """Take back what a storage has; a storage that has nothing is no error."""
        address, size = self._held.pop(storage, (0, 0))
        if not size:
            return
        if address != _MAPPED_AT:
            self._join(address, size)
        elif size <= MOST_MAPPED_BYTES:
            self.mapped_from = max(self.mapped_from, size)
            self._trimmed_from = 2 * self.mapped_from

    def _taken(self, size: int) -> int:
        at = bisect_left(self._free, (size, 0))
        if at == len(self._free):
            address, self._top = self._top, self._top + size
            return address
        found, address = self._free.pop(at)
        self._forget(address, found)
        if found > size:
            self._keep(address + size, found - size)
        return address

    def _join(self, address: int, size: int) -> None:
        """Put a chunk back, as one with its free neighbours."""
        before = self._ends.get(address)
        if before is not None:
            self._drop(before, address - before)
            address, size = before, size + address - before
        behind = self._starts.get(address + size)
        if behind is not None:
            self._drop(address + size, behind)
            size += behind
        if address + size < self._top:
            self._keep(address, size)
            return
        self._top = address
        if self._touched - address >= self._trimmed_from:
            self._touched = address

    def _drop(self, address: int, size: int) -> None:
        self._free.pop(bisect_left(self._free, (size, address)))
        self._forget(address, size)

    def _forget(self, address: int, size: int) -> None:
        del self._starts[address], self._ends[address + size]

    def _keep(self, address: int, size: int) -> None:
        insort(self._free, (size, address))
        self._starts[address], self._ends[address + size] = size, address


def placed(trace: Trace) -> dict[int, Placed]:
    """Return where every storage of a trace's last step is put, once the heap is as many such steps leave it.

    Examples
    --------
    A tensor of 64 MiB is new to the process every time; a smaller one finds the pages of the one before.

    >>> step = (AllocEvent(0, 64 << 20, 0), FreeEvent(0, 0), AllocEvent(1, 1 << 20, 0), FreeEvent(1, 0))
    >>> found = placed(Trace((), step, {}, (0, 1)))
    >>> found[0].fresh_bytes >> 20, found[1].fresh_bytes
    (64, 0)
    """
    # Whoever built a model, or read it from a file, has freed a copy of its largest parameter.
    parameters = (s.size_bytes for s in trace.storages.values() if s.kind == "parameter")
    heap = Heap(max((n for n in parameters if n <= MOST_MAPPED_BYTES), default=0))
    first = trace.iterations[-2]
    before: list[AllocEvent | FreeEvent] = []
    step: list[AllocEvent | FreeEvent] = []
    for event in trace.events:
        (step if event.operator >= first or _starts(trace, event, first) else before).append(event)
    for event in before:
        _serve(heap, event, {})
    kept = _kept(trace, step)
    names: dict[int, int] = {}
    found: dict[int, Placed] = {}
    for turn in range(_TURNS):
        last, names = names, {}
        for event in step:
            if isinstance(event, AllocEvent):
                names[event.storage] = event.storage + (turn + 1) * _APART
            elif event.storage in kept and turn:
                names[event.storage] = last[kept[event.storage]]
            place = _serve(heap, event, names)
            if place is not None:
                found[event.storage] = place
    back = {number: storage for storage, number in (last | names).items()}
    return {s: Placed(p.fresh_bytes, back.get(p.before, p.before)) for s, p in found.items()}  # type: ignore[arg-type]


#: Steps until the heap's thresholds and free parts are those of any later one, and what tells names of their storages.
_TURNS, _APART = 5, 1 << 40


def _starts(trace: Trace, event: AllocEvent | FreeEvent, first: int) -> bool:
    """Return whether a step begins with an event: it drops the gradients of the one before."""
    if not isinstance(event, FreeEvent) or event.operator != first - 1:
        return False
    known = trace.storages.get(event.storage)
    return known is not None and known.kind == "gradient"


def _serve(heap: Heap, event: AllocEvent | FreeEvent, names: Mapping[int, int]) -> Placed | None:
    number = names.get(event.storage, event.storage)
    if isinstance(event, AllocEvent):
        return heap.malloc(number, event.size_bytes)
    heap.free(number)
    return None


def _kept(trace: Trace, step: Sequence[AllocEvent | FreeEvent]) -> Mapping[int, int]:
    """Return for what a step frees of the one before, such as gradients, what it keeps itself for the next one."""
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


def host_memory(trace: Trace, capacity_bytes: int | None, process_bytes: int = 0) -> Memory:
    """Return the memory of a trace in that of a processor: what is live, and nothing kept beside it."""
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
    holders: tuple[Holder, ...] = holders_of(trace, at_peak)
    return Memory(
        MemoryStats(peak, peak, peak), peak + process_bytes, 0, peak_operator, holders,
        oom=None if oom is None else oom[0], oom_operator=None if oom is None else oom[1],
    )  # fmt: skip
