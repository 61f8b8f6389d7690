"""Simulation of PyTorch's caching allocator: it touches no memory, but addresses and peaks equal the device's."""

# The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` of torch 2.13 for one device. A *segment* is memory from
# the driver, and a *block* is a part of a segment. Requests of up to 1 MiB use the small pool, and all others use the
# large pool; a block never changes its pool or stream. The smallest free block that fits serves a request; among blocks
# of equal size, the one at the lowest address does.

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from roller.insight.memory.allocator_blocks_and_pools import AllocatorHeap, Block, OutOfDeviceMemoryError, Pool
from roller.insight.memory.expandable_segments import ExpandableSegments, smallest_expandable_block
from roller.insight.memory.settings import MIN_BLOCK_BYTES, SMALL_BYTES, AllocatorSettings


class CachingAllocator(AllocatorHeap):
    """The caching allocator of one device and process.

    Examples
    --------
    >>> a = CachingAllocator()
    >>> first = a.malloc("x", 1000)
    >>> a.malloc("y", 3 << 20) > first, a.stats
    (True, MemoryStats(requested_bytes=3146728, allocated_bytes=3146752, reserved_bytes=23068672))
    >>> a.free("x"); a.stats.allocated_bytes
    3145728
    """

    def __init__(
        self,
        capacity_bytes: int | None = None,
        settings: AllocatorSettings | None = None,
        place: Callable[[int], int] | None = None,
    ) -> None:
        # ``capacity_bytes`` is the device's memory without contexts and other processes; ``None`` sets no limit.
        # ``place`` returns the address of a new segment of the given size in bytes; by default, addresses begin at
        # 2**40, with gaps. A replay of a real trace passes the real addresses, on which best fit depends.
        super().__init__(capacity_bytes, settings, place)
        self._has_fraction = self.settings.memory_fraction < 1.0
        self._expandable = ExpandableSegments(self)
        self.live: dict[Hashable, Block] = {}
        self._waiting: list[Block] = []
        self.retries = 0

    def malloc(self, key: Hashable, size_bytes: int, stream: int = 0) -> int:
        """Serve a request; return the block's address, or 0 for zero bytes. ``key`` names it until :meth:`free`."""
        if not size_bytes:
            return 0
        self._free_synchronized_blocks()
        size = self.settings.round_up_bytes(size_bytes)
        pool = self.small if size <= SMALL_BYTES else self.large
        block = self._take_free_block(pool, size, stream)
        if block is None:
            block = self._allocate_segment(pool, size, stream, size_bytes)
        if self._should_split(block, size):
            self.split(block, size)
        block.allocated, block.requested = True, size_bytes
        self.live[key] = block
        self.allocated_bytes += block.size
        self.requested_bytes += size_bytes
        if self.allocated_bytes > self.peak.allocated_bytes or self.requested_bytes > self.peak.requested_bytes:
            self.update_peak()
        return block.address

    def free(self, key: Hashable) -> None:
        """Return a block to its pool; a block that other streams still use waits for those streams."""
        block = self.live.pop(key, None)
        if block is None:  # a request of zero bytes
            return
        self.allocated_bytes -= block.size
        self.requested_bytes -= block.requested
        block.allocated = False
        if block.users:
            block.waits = True
            self._waiting.append(block)
        else:
            self._return_to_pool(block)

    def record_stream(self, key: Hashable, stream: int) -> None:
        """Record that a stream other than the block's own uses the block (``Tensor.record_stream``)."""
        block = self.live.get(key)
        if block is not None and stream != block.stream:
            block.users.add(stream)

    def mark_stream_synchronized(self, stream: int) -> None:
        """Mark a stream as synchronized; blocks that wait only for that stream become free at the next request."""
        for block in self._waiting:
            block.users.discard(stream)
        for block in self.live.values():
            block.users.discard(stream)

    def empty_cache(self) -> None:
        """Return free segments to the driver (``torch.cuda.empty_cache``)."""
        for block in self._waiting:
            block.users.clear()
        self._free_synchronized_blocks()
        for pool in (self.large, self.small):
            for block in [pool.blocks[a] for _, _, a in pool.keys]:
                if block.expandable:
                    self._expandable.release_pages(block)
                elif not block.is_split:
                    self.release_segment(block)

    def segments(self) -> Iterator[list[Block]]:
        """Yield the segments by address, each as a list of its mapped blocks."""
        for address in sorted(self.first_blocks):
            block: Block | None = self.first_blocks[address]
            found = []
            while block is not None:
                if block.mapped:
                    found.append(block)
                block = block.next
            if found:
                yield found

    # Free blocks

    def _take_free_block(self, pool: Pool, size: int, stream: int) -> Block | None:
        if self._has_fraction and self.settings.gc_threshold:
            pool.calls += 1
        at = pool.best_fit_position(stream, size)
        block = pool.block_at(at, stream)
        if block is None:
            return None
        if block.expandable:
            block = smallest_expandable_block(pool, at, stream)
        limit = self.settings.max_split_bytes
        if limit is not None:
            if size < limit <= block.size:
                return None
            if size >= limit and block.size >= size + self.settings.large_segment_bytes:
                return None
        pool.remove_block(block)
        return block

    def _should_split(self, block: Block, size: int) -> bool:
        rest = block.size - size
        if block.pool.is_small or self.settings.expandable_segments:
            return rest >= MIN_BLOCK_BYTES
        limit = self.settings.max_split_bytes
        return (limit is None or size < limit) and rest > SMALL_BYTES

    def _return_to_pool(self, block: Block) -> None:
        self.merge_with_neighbours(block)
        block.pool.add_block(block)

    def _free_synchronized_blocks(self) -> None:
        if self._waiting:
            done = [b for b in self._waiting if not b.users]
            self._waiting = [b for b in self._waiting if b.users]
            for block in done:  # one after another: a neighbour that comes later is in no pool yet
                block.waits = False
                self._return_to_pool(block)

    # The driver

    def _allocate_segment(self, pool: Pool, size: int, stream: int, wanted: int) -> Block:
        """Return a block from a new segment; release cached blocks if the driver has no memory left."""
        if self._has_fraction and self.settings.gc_threshold:
            self._release_long_unused_blocks()
        asked = self.settings.segment_bytes(size)
        block = self._request_segment_from_driver(pool, size, asked, stream)
        if block is None and self._release_oversize_blocks(pool, size, stream):
            block = self._request_segment_from_driver(pool, size, asked, stream)
        if block is None:
            self.retries += 1
            self.empty_cache()
            block = self._request_segment_from_driver(pool, size, asked, stream)
        if block is None:
            raise OutOfDeviceMemoryError(wanted, self.capacity_bytes, self.stats)
        return block

    def _request_segment_from_driver(self, pool: Pool, size: int, asked: int, stream: int) -> Block | None:
        if self._has_fraction and self.reserved_bytes + asked > self.capacity_bytes:
            return None
        if self.settings.expandable_segments:
            return self._expandable.expand(pool, size, stream)
        if self.reserved_bytes + asked > self.device_bytes:
            return None
        address = self.place(asked)
        block = Block(pool, address, asked, stream, address)
        self.first_blocks[address] = block
        self.add_reserved_bytes(asked)
        return block

    def _release_oversize_blocks(self, pool: Pool, size: int, stream: int) -> bool:
        """Release as few blocks above the split limit as suffice; return whether they suffice."""
        limit = self.settings.max_split_bytes
        if limit is None:
            return False
        wanted = max(size, limit)
        at = pool.best_fit_position(stream, wanted)
        block = pool.block_at(at, stream)
        if block is not None:
            if block.is_split or block.expandable:
                return False
            self.release_segment(block)
            return True
        released = 0
        while released < wanted and at > 0:
            at -= 1
            block = pool.block_at(at, stream)
            if block is None or block.size < limit:
                break
            if not block.expandable and not block.is_split:
                released += block.size
                self.release_segment(block)
        return released >= wanted

    def _release_long_unused_blocks(self) -> None:
        """Release large unsplit blocks that have long been unused until the threshold is reached."""
        target = self.reserved_bytes - self.settings.gc_threshold * self.capacity_bytes
        blocks = [b for b in self.large.blocks.values() if not b.is_split and not b.expandable]
        total = sum(self.large.calls - b.age for b in blocks)
        freed, goes_on = 0, True
        while freed < target and goes_on and blocks:
            mean, goes_on, kept = total / len(blocks), False, []
            for block in sorted(blocks, key=lambda b: (b.stream, b.size, b.address)):
                age = self.large.calls - block.age
                if age < mean:
                    kept.append(block)
                    continue
                goes_on, freed, total = True, freed + block.size, total - age
                self.release_segment(block)
            blocks = kept
