"""The simulated allocator against another one: lists searched from end to end, written from the rules alone."""

from __future__ import annotations

import random

import pytest

from roller.insight.memory.allocator_blocks_and_pools import OutOfDeviceMemoryError
from roller.insight.memory.caching_allocator import CachingAllocator

KIB, MIB = 1 << 10, 1 << 20


class Part:
    """A piece of a segment."""

    def __init__(self, segment, address, size):
        self.segment, self.address, self.size, self.free, self.asked = segment, address, size, True, 0


class Reference:
    """The rules for default settings: one list of parts per segment, every search from its begin."""

    def __init__(self, capacity):
        self.capacity, self.segments, self.live, self.top = capacity, [], {}, 0

    @property
    def reserved(self):
        return sum(part.size for segment in self.segments for part in segment["parts"])

    @property
    def allocated(self):
        return sum(part.size for part in self.live.values())

    def malloc(self, key, size, stream):
        rounded = max(512, -(-size // 512) * 512)
        pool = "small" if rounded <= MIB else "large"
        found = self.cached(pool, stream, rounded) or self.fresh(pool, stream, rounded)
        if found is None:
            self.segments = [s for s in self.segments if not (len(s["parts"]) == 1 and s["parts"][0].free)]
            found = self.fresh(pool, stream, rounded)
        if found is None:
            return None
        rest = found.size - rounded
        if rest >= 512 if pool == "small" else rest > MIB:
            parts = found.segment["parts"]
            parts.insert(parts.index(found) + 1, Part(found.segment, found.address + rounded, rest))
            found.size = rounded
        found.free, self.live[key] = False, found
        return found.address

    def cached(self, pool, stream, size):
        fitting = [
            part for s in self.segments if (s["pool"], s["stream"]) == (pool, stream)
            for part in s["parts"] if part.free and part.size >= size
        ]  # fmt: skip
        return min(fitting, key=lambda part: (part.size, part.address), default=None)

    def fresh(self, pool, stream, size):
        whole = 2 * MIB if pool == "small" else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        if self.reserved + whole > self.capacity:
            return None
        segment = {"pool": pool, "stream": stream, "parts": []}
        segment["parts"].append(Part(segment, place(self, whole), whole))
        self.segments.append(segment)
        return segment["parts"][0]

    def release(self, key):
        part = self.live.pop(key)
        part.free = True
        merged = []
        for other in part.segment["parts"]:
            if merged and merged[-1].free and other.free:
                merged[-1].size += other.size
            else:
                merged.append(other)
        part.segment["parts"] = merged


def place(owner, size):
    """Return addresses that only grow, so that both give a segment the same one."""
    owner.top += size + 2 * MIB
    return owner.top - size


class Places:
    """The same addresses for the simulator."""

    def __init__(self):
        self.top = 0

    def __call__(self, size):
        return place(self, size)


def sizes(choose):
    return choose.choice(
        (
            choose.randint(1, 4 * KIB), choose.randint(1, MIB), choose.randint(MIB - KIB, MIB + KIB),
            choose.randint(MIB, 12 * MIB), choose.randint(9 * MIB, 11 * MIB), choose.randint(10 * MIB, 90 * MIB),
        )
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_random_streams_get_the_same_addresses(seed):
    choose = random.Random(seed)
    capacity = choose.choice((300 * MIB, 900 * MIB, 1 << 40))
    reference, simulated = Reference(capacity), CachingAllocator(capacity, place=Places())
    live, refused = [], 0
    for key in range(700):
        if live and choose.random() < (0.3 if len(live) < 40 else 0.7):
            gone = live.pop(choose.randrange(len(live)))
            reference.release(gone)
            simulated.free(gone)
        else:
            size, stream = sizes(choose), choose.choice((0, 0, 0, 7))
            expected = reference.malloc(key, size, stream)
            try:
                assert simulated.malloc(key, size, stream) == expected
                live.append(key)
            except OutOfDeviceMemoryError:
                assert expected is None
                refused += 1
        assert simulated.stats.reserved_bytes == reference.reserved
        assert simulated.stats.allocated_bytes == reference.allocated
    assert capacity > 1 << 30 or refused
