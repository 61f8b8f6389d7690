"""Expandable segments: one address range per pool and stream, with pages mapped on demand."""

from __future__ import annotations

from bisect import bisect_left

from roller.insight.memory.allocator_blocks_and_pools import AllocatorHeap, Block, Pool
from roller.insight.memory.settings import SMALL_SEGMENT_BYTES


class ExpandableSegments:
    """The expandable segments of a heap; each segment reserves addresses for 9/8 of the device's memory."""

    def __init__(self, heap: AllocatorHeap) -> None:
        self.heap = heap

    def expand(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Map pages in the lowest part of a segment that can hold ``size`` bytes; return the block, else ``None``."""
        block = self._find_or_reserve_segment(pool, size, stream)
        if not block.mapped:
            found = self._map_pages(block, min(block.size, size))
            if found is None:
                return None
            block = found
        while block.size < size:
            after = block.next  # ``None`` if the range of addresses ends, as on a device without memory
            found = None if after is None else self._map_pages(after, min(size - block.size, after.size))
            if found is None:
                return None
            block = found
        pool.remove_block(block)
        return block

    def _find_or_reserve_segment(self, pool: Pool, size: int, stream: int) -> Block:
        start = bisect_left(pool.unmapped, (stream, 0))
        for owner, address in pool.unmapped[start:]:
            if owner != stream:
                break
            block = pool.without_memory[address]
            if block.prev is not None and block.prev.is_free:
                block = block.prev
            room, part = 0, block
            while part is not None and room < size and part.is_free:
                room, part = room + part.size, part.next  # type: ignore[assignment]
            if room >= size:
                return block
        page = SMALL_SEGMENT_BYTES if pool.is_small else self.heap.settings.large_segment_bytes
        whole = -(-self.heap.device_bytes * 9 // 8 // page) * page
        address = self.heap.place(whole)
        block = Block(pool, address, whole, stream, address)
        block.mapped, block.expandable = False, True
        self.heap.first_blocks[address] = block
        pool.add_unmapped(block)
        return block

    def _map_pages(self, block: Block, size: int) -> Block | None:
        """Map pages for the first ``size`` bytes of an unmapped block; return it, or ``None`` if no memory is left."""
        pool = block.pool
        page = SMALL_SEGMENT_BYTES if pool.is_small else self.heap.settings.large_segment_bytes
        mapped = min(-(-size // page) * page, block.size)
        if self.heap.reserved_bytes + mapped > self.heap.device_bytes:
            return None
        pool.remove_unmapped(block)
        block.mapped = True
        if mapped < block.size:
            rest = Block(pool, block.address + mapped, block.size - mapped, block.stream, block.segment)
            rest.expandable, rest.mapped = True, False
            rest.prev, rest.next = block, block.next
            if block.next is not None:
                block.next.prev = rest
            block.next, block.size = rest, mapped
            pool.add_unmapped(rest)
        self.heap.merge_with_neighbours(block)
        pool.add_block(block)
        self.heap.add_reserved_bytes(mapped)
        return block

    def release_pages(self, block: Block) -> None:
        """Return the whole pages of a free block to the driver, keeping its partial pages."""
        pool = block.pool
        page = SMALL_SEGMENT_BYTES if pool.is_small else self.heap.settings.large_segment_bytes
        begin = block.segment + -(-(block.address - block.segment) // page) * page
        end = block.segment + (block.address + block.size - block.segment) // page * page
        if end <= begin:
            return
        pool.remove_block(block)
        if begin > block.address:
            before = Block(pool, block.address, begin - block.address, block.stream, block.segment)
            before.expandable, before.prev, before.next = True, block.prev, block
            if block.prev is not None:
                block.prev.next = before
            elif block.address == block.segment:
                self.heap.first_blocks[block.segment] = before
            block.prev = before
            pool.add_block(before)
        if end < block.address + block.size:
            after = Block(pool, end, block.address + block.size - end, block.stream, block.segment)
            after.expandable, after.prev, after.next = True, block, block.next
            if block.next is not None:
                block.next.prev = after
            block.next = after
            pool.add_block(after)
        block.address, block.size, block.mapped = begin, end - begin, False
        self.heap.merge_with_neighbours(block)
        pool.add_unmapped(block)
        self.heap.reserved_bytes -= end - begin


def smallest_expandable_block(pool: Pool, at: int, stream: int) -> Block:
    """Return the free block from ``at`` on that is smallest together with the unmapped block that follows it."""
    block = pool.block_at(at, stream)
    assert block is not None
    while (after := pool.block_at(at + 1, stream)) is not None and _bytes_with_unmapped_neighbour(
        after
    ) < _bytes_with_unmapped_neighbour(block):
        block, at = after, at + 1
    return block


def _bytes_with_unmapped_neighbour(block: Block) -> int:
    return block.size + (block.next.size if block.next is not None and not block.next.mapped else 0)
