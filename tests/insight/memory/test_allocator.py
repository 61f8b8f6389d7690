"""Rules of the caching allocator, one by one, and what holds for any stream of requests."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller.insight.memory.allocator_blocks_and_pools import OutOfDeviceMemoryError
from roller.insight.memory.caching_allocator import CachingAllocator
from roller.insight.memory.settings import AllocatorSettings, AllocatorSettingsError
from tests.offenders import every

MIB = 1 << 20


def free_sizes(allocator):
    return [[b.size for b in blocks if not b.allocated] for blocks in allocator.segments()]


@every(
    "size, block, segment",
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
    ],
)
def test_a_request_alone(size, block, segment):
    a = CachingAllocator()
    a.malloc("x", size)
    rest = segment - block
    attached = block > MIB and rest <= MIB
    assert a.reserved_bytes == segment and a.requested_bytes == size
    assert a.allocated_bytes == (segment if attached else block)
    assert free_sizes(a) == [[] if attached or not rest else [rest]]


def test_up_to_a_mib_stays_attached_to_a_large_block_and_counts_as_allocated():
    a = CachingAllocator()
    a.malloc("x", 19 * MIB)
    assert (a.reserved_bytes, a.allocated_bytes) == (20 * MIB, 20 * MIB)
    b = CachingAllocator()
    b.malloc("x", 19 * MIB - 512)
    assert b.allocated_bytes == 19 * MIB - 512 and free_sizes(b) == [[MIB + 512]]


def test_the_least_block_serves_and_of_equal_ones_the_lowest():
    a = CachingAllocator()
    addresses = {key: a.malloc(key, size * MIB) for key, size in [("a", 12), ("b", 14), ("c", 12)]}
    for key in addresses:
        a.free(key)
    assert a.malloc("x", 12 * MIB) == addresses["a"]
    assert a.malloc("y", 12 * MIB) == addresses["c"]
    assert a.malloc("z", 12 * MIB) == addresses["b"]


def test_neighbours_merge_and_pools_and_streams_stay_apart():
    a = CachingAllocator()
    for key in "abc":
        a.malloc(key, 4 * MIB)
    a.free("a"), a.free("c")
    assert free_sizes(a) == [[4 * MIB, 12 * MIB]]
    a.free("b")
    assert free_sizes(a) == [[20 * MIB]]
    a.malloc("small", 1000), a.malloc("other", 4 * MIB, stream=7)
    assert a.reserved_bytes == 42 * MIB


def test_a_block_that_another_stream_uses_waits_for_it():
    a = CachingAllocator()
    first = a.malloc("x", 12 * MIB)
    a.record_stream("x", 3)
    a.free("x")
    assert a.malloc("y", 12 * MIB) != first and a.allocated_bytes == 12 * MIB
    a.mark_stream_synchronized(3)
    assert a.malloc("z", 12 * MIB) == first


def test_whole_segments_are_released_before_a_request_fails():
    a = CachingAllocator(40 * MIB)
    a.malloc("x", 30 * MIB)
    a.free("x")
    a.malloc("y", 40 * MIB)
    assert (a.reserved_bytes, a.retries) == (40 * MIB, 1)
    with pytest.raises(OutOfDeviceMemoryError, match=r"tried to allocate 2.00 KiB; the device has 40.00 MiB") as caught:
        a.malloc("z", 2048)
    assert caught.value.stats.reserved_bytes == 40 * MIB
    a.free("y")  # and it goes on
    a.malloc("z", 2048)


def test_a_split_segment_is_not_released():
    a = CachingAllocator(40 * MIB)
    a.malloc("x", 4 * MIB), a.malloc("y", 4 * MIB)
    a.free("x")
    with pytest.raises(OutOfDeviceMemoryError):
        a.malloc("z", 30 * MIB)


def test_large_blocks_are_not_split_beyond_the_limit():
    a = CachingAllocator(settings=AllocatorSettings.parse("max_split_size_mb:32"))
    first = a.malloc("x", 64 * MIB)
    a.free("x")
    assert a.malloc("y", 16 * MIB) != first  # less than the limit: never from a block of at least it
    assert a.malloc("z", 60 * MIB) == first and a.live["z"].size == 64 * MIB  # at most 20 MiB more, and whole
    a.free("z")
    assert a.malloc("w", 40 * MIB) != first


def test_oversize_blocks_are_released_for_a_request():
    a = CachingAllocator(128 * MIB, AllocatorSettings.parse("max_split_size_mb:32"))
    for key in "ab":
        a.malloc(key, 40 * MIB)
    a.malloc("small", 24 * MIB)
    a.free("a"), a.free("b")
    a.malloc("x", 64 * MIB)
    assert a.retries == 0 and a.reserved_bytes == 88 * MIB


def test_what_is_old_is_collected_beyond_the_threshold():
    config = "garbage_collection_threshold:0.5,per_process_memory_fraction:0.99"
    a = CachingAllocator(100 * MIB, AllocatorSettings.parse(config))
    for key, size in [("a", 24), ("b", 26), ("c", 10)]:
        a.malloc(key, size * MIB)
    a.free("a")
    for n in range(5):
        a.malloc(n, 10 * MIB - n * 512), a.free(n)
    a.free("b")
    a.malloc("x", 30 * MIB)
    assert a.reserved_bytes < 90 * MIB and a.retries == 0


def test_expandable_segments_grow_in_pages_and_give_them_back():
    a = CachingAllocator(200 * MIB, AllocatorSettings.parse("expandable_segments:True"))
    first = a.malloc("a", 30 * MIB)
    assert a.reserved_bytes == 40 * MIB
    second = a.malloc("b", 30 * MIB)
    assert second == first + 30 * MIB and a.reserved_bytes == 60 * MIB
    a.free("a")
    assert a.malloc("c", 31 * MIB) == second + 30 * MIB and a.reserved_bytes == 100 * MIB
    a.empty_cache()
    assert a.reserved_bytes == 80 * MIB  # one whole page of the 30 MiB, one part behind keeps its page
    a.free("b"), a.free("c")
    a.empty_cache()
    assert a.reserved_bytes == 0


def test_powers_of_two_are_divided():
    rounded = AllocatorSettings.parse("roundup_power2_divisions:[256:1,512:2,>:8]").round_up_bytes
    assert rounded(300 * MIB) == 300 * MIB and rounded(700 * MIB) == 768 * MIB and rounded(1100 * MIB) == 1152 * MIB


@every(
    "text", ["max_split_size_mb:20", "max_split_size_mb", "garbage_collection_threshold:2", "backend:cudaMallocAsync",
             "expandable_segments:yes", "roundup_power2_divisions:3", "fast:True"],
)  # fmt: skip
def test_settings_that_pytorch_refuses(text):
    with pytest.raises(AllocatorSettingsError, match="allocator settings"):
        AllocatorSettings.parse(text)


SIZES = st.one_of(st.integers(1, 4000), st.integers(1, 3 * MIB), st.integers(1, 64 * MIB))
CONFIGS = st.sampled_from(
    ["", "expandable_segments:True", "max_split_size_mb:24", "roundup_power2_divisions:8",
     "garbage_collection_threshold:0.6,per_process_memory_fraction:0.9", "large_segment_size_mb:64"]
)  # fmt: skip


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.just("malloc"), SIZES, st.integers(0, 1))
        | st.tuples(st.sampled_from(["free", "use", "pass", "empty"]), st.integers(0, 99)),
        max_size=60,
    ),
    CONFIGS,
    st.sampled_from([None, 96 * MIB, 200 * MIB]),
)
def test_any_stream_keeps_the_invariants(steps, config, capacity):
    a, live = CachingAllocator(capacity, AllocatorSettings.parse(config)), {}
    for n, (what, *args) in enumerate(steps):
        if what == "malloc":
            try:
                live[n] = (a.malloc(n, args[0], args[1]), args[0])
            except OutOfDeviceMemoryError:
                assert capacity is not None
        elif live and what in ("free", "use"):
            key = sorted(live)[args[0] % len(live)]
            if what == "use":
                a.record_stream(key, 9)
            else:
                a.free(key)
                del live[key]
        elif what == "pass":
            a.mark_stream_synchronized(9)
        elif what == "empty":
            a.empty_cache()
        check(a, live, capacity)


@pytest.mark.parametrize("config", ["", "expandable_segments:True"])
@pytest.mark.parametrize("size", [1, 24 * MIB])
def test_neighbours_that_wait_for_the_same_stream_become_free_one_after_another(config, size):
    a = CachingAllocator(None, AllocatorSettings.parse(config))
    for key in "ab":
        a.malloc(key, size)
        a.record_stream(key, 9)
    for key in "ab":
        a.free(key)
        check(a, {k: (b.address, size) for k, b in a.live.items()}, None)
    a.mark_stream_synchronized(9)
    a.malloc("c", size)
    check(a, {"c": (a.live["c"].address, size)}, None)
    a.free("c")
    a.empty_cache()
    assert a.reserved_bytes == 0


def check(a, live, capacity):
    blocks = [b for segment in a.segments() for b in segment]
    for low, high in itertools.pairwise(blocks):
        assert low.address + low.size <= high.address, "blocks overlap"
        if low.next is high and low.pool.is_small == high.pool.is_small:
            both_free = not (low.allocated or high.allocated or low.users or high.users)
            assert not (both_free and low.mapped == high.mapped and low not in a._waiting and high not in a._waiting)
    held = {b.address: b for b in blocks if b.allocated}
    assert all(address in held and held[address].size >= size for address, size in live.values())
    assert len(held) == len(live)
    assert a.allocated_bytes == sum(b.size for b in held.values())
    assert a.requested_bytes == sum(size for _, size in live.values())
    assert a.reserved_bytes == sum(b.size for b in blocks)
    assert a.reserved_bytes <= a.peak.reserved_bytes and (capacity is None or a.reserved_bytes <= capacity)
    for pool in (a.small, a.large):
        assert pool.keys == sorted(pool.keys) and {k[2] for k in pool.keys} == set(pool.blocks)
        assert all(not b.allocated and b.mapped for b in pool.blocks.values())


def test_a_device_without_memory_has_none_for_expandable_segments():
    allocator = CachingAllocator(0, AllocatorSettings(expandable_segments=True))
    with pytest.raises(OutOfDeviceMemoryError):
        allocator.malloc(1, MIB)
