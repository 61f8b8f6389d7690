"""Blocks, pools and segments of the caching allocator: splitting, merging and counting, but not the request rules."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass

from roller.errors import RollerError
from roller.insight.memory.settings import AllocatorSettings

#: First address of simulated segments, 2 MiB aligned, and the gap after each, so that none merges with another.
_FIRST_ADDRESS, _GAP_BYTES = 1 << 40, 1 << 30
#: Memory in bytes of a device without a limit.
_UNLIMITED_BYTES = 1 << 46


@dataclass(frozen=True)
class MemoryStats:
    """Bytes at one moment: requested by tensors, allocated in their blocks, and reserved from the driver."""

    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int


class OutOfDeviceMemoryError(RollerError, MemoryError):
    """No block or segment can serve a request, and no cached memory is left to release."""

    def __init__(self, wanted_bytes: int, capacity_bytes: int, stats: MemoryStats) -> None:
        self.wanted_bytes, self.capacity_bytes, self.stats = wanted_bytes, capacity_bytes, stats
        free = stats.reserved_bytes - stats.allocated_bytes
        super().__init__(
            f"out of memory: tried to allocate {_size_text(wanted_bytes)}; the device has {_size_text(capacity_bytes)} "
            f"for the process, of which {_size_text(stats.allocated_bytes)} are allocated and {_size_text(free)} are "
            "reserved but unallocated. Use a smaller batch, checkpointing or a narrower dtype."
        )


def _size_text(size_bytes: int) -> str:
    """Format a number of bytes as PyTorch does."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.2f} {unit}"
    return f"{size_bytes} bytes"


class Block:
    """A part of a segment; ``prev`` and ``next`` are its neighbours in the segment."""

    __slots__ = ("address", "age", "allocated", "expandable", "mapped", "next", "pool", "prev", "requested", "segment",
                 "size", "stream", "users", "waits")  # fmt: skip

    def __init__(self, pool: Pool, address: int, size: int, stream: int, segment: int) -> None:
        self.pool, self.address, self.size, self.stream, self.segment = pool, address, size, stream, segment
        self.allocated, self.mapped, self.expandable = False, True, False
        self.requested = self.age = 0
        self.prev: Block | None = None
        self.next: Block | None = None
        #: Other streams that use it, which must be synchronized before it is free.
        self.users: set[int] = set()
        #: Whether it was freed but is in no pool yet, since its users are not synchronized.
        self.waits = False

    @property
    def is_free(self) -> bool:
        """Whether the block is unallocated and no stream still uses it."""
        return not (self.allocated or self.waits or self.users)

    @property
    def is_split(self) -> bool:
        """Whether the block's segment contains other blocks."""
        return self.prev is not None or self.next is not None


class Pool:
    """The free blocks of one pool, ordered by stream, size and address."""

    def __init__(self, *, is_small: bool) -> None:
        self.is_small, self.calls = is_small, 0
        self.keys: list[tuple[int, int, int]] = []
        self.blocks: dict[int, Block] = {}
        #: Stream and address of each part of an expandable segment that has no memory, in ascending order.
        self.unmapped: list[tuple[int, int]] = []
        self.without_memory: dict[int, Block] = {}

    def add_block(self, block: Block) -> None:
        """Add a free block."""
        block.age = self.calls
        insort(self.keys, (block.stream, block.size, block.address))
        self.blocks[block.address] = block

    def remove_block(self, block: Block) -> None:
        """Remove a free block that is about to be allocated or released."""
        del self.keys[bisect_left(self.keys, (block.stream, block.size, block.address))]
        del self.blocks[block.address]

    def best_fit_position(self, stream: int, size: int) -> int:
        """Return the position at which a stream's smallest block of at least ``size`` bytes is, if it exists."""
        return bisect_left(self.keys, (stream, size, 0))

    def block_at(self, position: int, stream: int) -> Block | None:
        """Return the block at a position; ``None`` if the block does not belong to the stream."""
        if position < len(self.keys) and self.keys[position][0] == stream:
            return self.blocks[self.keys[position][2]]
        return None

    def add_unmapped(self, block: Block) -> None:
        """Add an unmapped block of an expandable segment."""
        insort(self.unmapped, (block.stream, block.address))
        self.without_memory[block.address] = block

    def remove_unmapped(self, block: Block) -> None:
        """Remove an unmapped block that is about to be mapped."""
        del self.unmapped[bisect_left(self.unmapped, (block.stream, block.address))]
        del self.without_memory[block.address]


class AllocatorHeap:
    """The pools and segments of one device, without request rules; see ``CachingAllocator`` for the arguments."""

    def __init__(
        self, capacity_bytes: int | None, settings: AllocatorSettings | None, place: Callable[[int], int] | None
    ) -> None:
        self.settings = settings or AllocatorSettings()
        self.device_bytes = _UNLIMITED_BYTES if capacity_bytes is None else capacity_bytes
        self.capacity_bytes = int(self.device_bytes * self.settings.memory_fraction)
        self.place = place or self._next_address
        self._top = _FIRST_ADDRESS
        self.small, self.large = Pool(is_small=True), Pool(is_small=False)
        #: Maps the address of each segment to the segment's first block.
        self.first_blocks: dict[int, Block] = {}
        self.requested_bytes = self.allocated_bytes = self.reserved_bytes = 0
        self.peak = MemoryStats(0, 0, 0)
        self.segment_requests = 0

    @property
    def stats(self) -> MemoryStats:
        """The current numbers of bytes."""
        return MemoryStats(self.requested_bytes, self.allocated_bytes, self.reserved_bytes)

    def split(self, block: Block, size: int) -> None:
        """Split a block: the block keeps the low addresses, and the rest becomes a free block."""
        rest = Block(block.pool, block.address + size, block.size - size, block.stream, block.segment)
        rest.expandable = block.expandable
        rest.prev, rest.next = block, block.next
        if block.next is not None:
            block.next.prev = rest
        block.next, block.size = rest, size
        block.pool.add_block(rest)

    def merge_with_neighbours(self, block: Block) -> None:
        """Merge a block with each free neighbour that, like the block, is mapped or unmapped."""
        before, after = block.prev, block.next
        if before is not None and self._can_merge(before, block):
            self._remove_from_pool(before)
            if self.first_blocks.get(before.address) is before:
                self.first_blocks[before.address] = block
            block.address, block.size, block.prev = before.address, block.size + before.size, before.prev
            if block.prev is not None:
                block.prev.next = block
        if after is not None and self._can_merge(after, block):
            self._remove_from_pool(after)
            block.size, block.next = block.size + after.size, after.next
            if block.next is not None:
                block.next.prev = block

    @staticmethod
    def _can_merge(other: Block, block: Block) -> bool:
        return other.is_free and other.mapped == block.mapped

    @staticmethod
    def _remove_from_pool(block: Block) -> None:
        (block.pool.remove_block if block.mapped else block.pool.remove_unmapped)(block)

    def _next_address(self, size: int) -> int:
        address = self._top
        self._top += -(-size // _GAP_BYTES) * _GAP_BYTES + _GAP_BYTES
        return address

    def add_reserved_bytes(self, size: int) -> None:
        """Count bytes that have been reserved from the driver."""
        self.reserved_bytes += size
        self.segment_requests += 1
        if self.reserved_bytes > self.peak.reserved_bytes:
            self.update_peak()

    def update_peak(self) -> None:
        """Raise each peak to the current count if that is higher."""
        now, peak = self.stats, self.peak
        self.peak = MemoryStats(
            max(now.requested_bytes, peak.requested_bytes),
            max(now.allocated_bytes, peak.allocated_bytes),
            max(now.reserved_bytes, peak.reserved_bytes),
        )

    def release_segment(self, block: Block) -> None:
        """Return a free block that spans a whole segment to the driver."""
        block.pool.remove_block(block)
        del self.first_blocks[block.address]
        self.reserved_bytes -= block.size
