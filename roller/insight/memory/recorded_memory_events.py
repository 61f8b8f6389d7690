"""Reader for the allocations that a profiler recorded on a device, and their comparison with the simulator."""

# A Kineto trace with memory events has the address and size of every allocation, but not the blocks that were cached
# when the recording began. That initial state is inferred: addresses that are allocated later and are not in use are
# free; a block that begins inside a free range proves that a segment begins there; a better block that was not taken
# must be larger than the addresses seen so far show. Every such fact costs one address, which is excluded from the
# check.

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from roller.errors import MALFORMED, ArtifactError
from roller.insight.memory.allocator_blocks_and_pools import Block, Pool
from roller.insight.memory.caching_allocator import CachingAllocator
from roller.insight.memory.settings import MIN_BLOCK_BYTES, ROUND_LARGE_BYTES, SMALL_BYTES, SMALL_SEGMENT_BYTES
from roller_runtime.core.files import open_regular_file

#: Maximum size of a decompressed trace in bytes: a damaged or hostile file must not fill the memory.
_MOST_BYTES = 1 << 31

#: ``Device Type`` of CUDA in Kineto's memory events.
_CUDA = 1


@dataclass(frozen=True)
class MemoryEvent:
    """An event of the caching allocator; ``size_bytes`` is negative for a free."""

    address: int
    size_bytes: int
    reserved_bytes: int
    device: int = 0


@dataclass(frozen=True)
class AddressCheck:
    """Number of addresses in one pool that can be checked, and number of those that equal the recorded addresses."""

    known: int
    right: int
    #: Number of facts that were inferred about the initial state.
    learnt: int
    #: Positions of the events that differ.
    wrong: tuple[int, ...] = ()


def read_memory_events(path: Path | str) -> list[MemoryEvent]:
    """Return the memory events in a Kineto trace (JSON, plain or gzipped), in order of time."""
    path = Path(path)
    try:
        read = json.loads(_read_decompressed_file(path))
        rows = [e for e in (read if isinstance(read, list) else read["traceEvents"]) if e.get("name") == "[memory]"]
        rows = [e for e in rows if e["args"].get("Device Type") == _CUDA]
        rows.sort(key=lambda e: (e["ts"], e["args"].get("Ev Idx", 0)))
        return [
            MemoryEvent(a["Addr"], a["Bytes"], a.get("Total Reserved", 0), a.get("Device Id", 0))
            for a in (e["args"] for e in rows)
        ]
    except (OSError, ValueError, EOFError, zlib.error, *MALFORMED) as error:
        raise ArtifactError(
            f"{path}: expected a Kineto trace in JSON, got what cannot be read ({error}). Export it with "
            "torch.profiler's export_chrome_trace and profile_memory=True."
        ) from error


def _read_decompressed_file(path: Path) -> bytes:
    """Return the decompressed content of a file; raise ``ValueError`` if it is larger than any trace."""
    with open_regular_file(path) as file:
        if path.suffix != ".gz":
            return file.read()
        with gzip.GzipFile(fileobj=file) as packed:
            data = packed.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it unpacks to more than {_MOST_BYTES} bytes")
    return data


@dataclass
class _FreeRange:
    """Addresses that were free when recording began: observed or proved free up to ``end``, at most up to ``limit``."""

    begin: int
    end: int
    limit: int
    is_small: bool


@dataclass
class _InitialState:
    """The inferred initial state of the allocator."""

    ranges: dict[int, _FreeRange]
    learnt: set[int] = field(default_factory=set)

    def to_allocator(self) -> CachingAllocator:
        """Return an allocator in this state."""
        found = CachingAllocator()
        for r in self.ranges.values():
            pool = found.small if r.is_small else found.large
            block = Block(pool, r.begin, r.end - r.begin, 0, r.begin)
            found.first_blocks[r.begin] = block
            pool.add_block(block)
        return found


def check_simulated_addresses(events: Sequence[MemoryEvent]) -> tuple[AddressCheck, AddressCheck]:
    """Replay one device's events and compare all addresses; return the checks of the small and of the large pool.

    Examples
    --------
    >>> there = 1 << 40
    >>> check_simulated_addresses([MemoryEvent(there, 512, 0), MemoryEvent(there + 512, 512, 0), MemoryEvent(there,
    ...     -512, 0),
    ...                  MemoryEvent(there, 512, 0)])[0]
    AddressCheck(known=3, right=3, learnt=0, wrong=())
    """
    start = _InitialState({r.begin: r for r in _address_ranges_free_at_start(events)})
    while (found := _replay_and_find_mismatches(events, start)) is None:
        pass
    return _count_matching_addresses(events, found, start.learnt, is_small=True), _count_matching_addresses(
        events, found, start.learnt, is_small=False
    )


def _count_matching_addresses(
    events: Sequence[MemoryEvent], wrong: Set[int], learnt: Set[int], *, is_small: bool
) -> AddressCheck:
    asked = {n for n, e in enumerate(events) if e.size_bytes > 0 and (e.size_bytes <= SMALL_BYTES) == is_small}
    known, off = asked - learnt, sorted(asked & wrong)
    return AddressCheck(len(known), len(known) - len(off), len(asked & learnt), tuple(off))


def _address_ranges_free_at_start(events: Sequence[MemoryEvent]) -> Iterator[_FreeRange]:
    """Yield the initially free ranges that are allocated later; small segments are 2 MiB apart."""
    grown = [(b.address, b.reserved_bytes - a.reserved_bytes) for a, b in pairwise(events)]
    new = [(address, address + size) for address, size in grown if size > 0]
    asked = [e for e in events if e.size_bytes > 0 and not any(a <= e.address < b for a, b in new)]
    for is_small in (True, False):
        alike = sorted((e.address, e.size_bytes) for e in asked if (e.size_bytes <= SMALL_BYTES) == is_small)
        merged: list[tuple[int, int]] = []
        for begin, size in alike:
            apart = is_small and begin % SMALL_SEGMENT_BYTES == 0 and (not merged or begin >= merged[-1][1])
            if not merged or begin > merged[-1][1] or apart:
                merged.append((begin, begin + size))
            else:
                merged[-1] = merged[-1][0], max(merged[-1][1], begin + size)
        for n, (begin, end) in enumerate(merged):
            limit = merged[n + 1][0] if n + 1 < len(merged) else 1 << 62
            if is_small:
                limit = min(limit, -(-end // SMALL_SEGMENT_BYTES) * SMALL_SEGMENT_BYTES)
            yield _FreeRange(begin, end, limit, is_small)


def _replay_and_find_mismatches(events: Sequence[MemoryEvent], start: _InitialState) -> set[int] | None:
    """Return the positions of events with a different address; ``None`` if the initial state has been refined."""
    allocator, wrong = start.to_allocator(), set()
    reserved = events[0].reserved_bytes if events else 0
    for position, e in enumerate(events):
        if e.size_bytes < 0:
            allocator.free(e.address)
            continue
        grown, reserved = e.reserved_bytes - reserved, e.reserved_bytes
        if grown > 0:  # the driver chooses the addresses of new segments
            allocator.place = lambda _size, here=e.address: here  # type: ignore[misc]
        if allocator.malloc(e.address, e.size_bytes) != e.address:
            if position not in start.learnt and _refine_initial_state(start, allocator, e, position):
                return None
            if position not in start.learnt:
                wrong.add(position)
            allocator.free(e.address)
            _allocate_at_recorded_address(allocator, e)
    return wrong


def _pool_of_event(allocator: CachingAllocator, e: MemoryEvent) -> Pool:
    return allocator.small if e.size_bytes <= SMALL_BYTES else allocator.large


def _free_block_containing(pool: Pool, address: int) -> Block | None:
    return next((b for b in pool.blocks.values() if b.address <= address < b.address + b.size), None)


def _refine_initial_state(start: _InitialState, allocator: CachingAllocator, e: MemoryEvent, position: int) -> bool:
    """Refine the initial state from an address that differs; return whether that was possible."""
    taken, real = allocator.live[e.address], _free_block_containing(_pool_of_event(allocator, e), e.address)
    if real is None:
        return False
    whole = start.ranges.get(real.segment)
    if real.address < e.address and e.address % ROUND_LARGE_BYTES == 0 and whole is not None:
        start.ranges[e.address] = _FreeRange(e.address, whole.end, whole.limit, whole.is_small)
        start.ranges[whole.begin] = _FreeRange(whole.begin, e.address, e.address, whole.is_small)
        start.learnt.add(position)
        return True
    rest = taken.next if taken.next is not None and not taken.next.allocated else None
    free = taken.size + (rest.size if rest is not None else 0)
    better = start.ranges.get(taken.segment)
    if better is None or taken.address + free != better.end or real.address != e.address:
        return False
    end = better.end + real.size + MIN_BLOCK_BYTES - free
    if end > better.limit:
        return False
    better.end = end
    start.learnt.add(position)
    return True


def _allocate_at_recorded_address(allocator: CachingAllocator, e: MemoryEvent) -> None:
    """Allocate the recorded block, so that one difference does not shift all later addresses."""
    pool = _pool_of_event(allocator, e)
    block = _free_block_containing(pool, e.address)
    if block is None or block.address + block.size < e.address + e.size_bytes:
        return
    pool.remove_block(block)
    if e.address > block.address:
        allocator.split(block, e.address - block.address)
        rest = block.next
        assert rest is not None
        pool.remove_block(rest)
        pool.add_block(block)
        block = rest
    if block.size > e.size_bytes:
        allocator.split(block, e.size_bytes)
    block.allocated, block.requested = True, e.size_bytes
    allocator.live[e.address] = block
    allocator.allocated_bytes += block.size
    allocator.requested_bytes += e.size_bytes
