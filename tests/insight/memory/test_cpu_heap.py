"""Memory of a step on a processor: live bytes, and which pages the heap hands out anew."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

import roller
from roller.insight.memory.cpu_heap import MOST_MAPPED_BYTES, GlibcHeap, placements_by_storage, simulate_cpu_memory
from roller.insight.memory.largest_batch import memory_on_device
from roller.insight.trace.trace import AllocEvent, FreeEvent, Operator, Storage, Trace

MIB = 1 << 20


def trace(events, kinds=(), operators=4):
    made = {e.storage: e.size_bytes for e in events if isinstance(e, AllocEvent)}
    storages = {n: Storage(dict(kinds).get(n, "temporary"), size_bytes=size) for n, size in made.items()}
    rows = tuple(Operator(n, "aten.relu.default", "forward", (), ()) for n in range(operators))
    return Trace(rows, tuple(events), storages, (0, operators))


EVENTS = (
    AllocEvent(0, 4 * MIB, -1),
    AllocEvent(1, 2 * MIB, 0),
    AllocEvent(2, 3 * MIB, 1),
    FreeEvent(1, 2),
    AllocEvent(3, MIB, 3),
)


def test_the_peak_is_what_is_live():
    found = simulate_cpu_memory(trace(EVENTS, {0: "parameter"}.items()), 16 * MIB)
    assert found.fits and found.peak.requested_bytes == found.peak.reserved_bytes == found.total_bytes == 9 * MIB
    assert found.peak_operator == 1 and found.by_kind() == {"temporary": 5 * MIB, "parameter": 4 * MIB}


def test_what_memory_does_not_hold():
    found = simulate_cpu_memory(trace(EVENTS), 8 * MIB)
    assert not found.fits and found.oom_operator == 1 and found.oom.wanted_bytes == 3 * MIB


def test_a_processor_has_no_caching_allocator():
    spec = roller.load_spec("cpu-avx2")
    assert memory_on_device(trace(EVENTS), spec).peak.reserved_bytes == 9 * MIB
    assert not memory_on_device(trace([AllocEvent(0, 1 << 50, 0)]), spec).fits


def test_large_requests_are_mapped_and_others_find_their_pages():
    events = [
        AllocEvent(0, 40 * MIB, 0),
        FreeEvent(0, 1),
        AllocEvent(1, 20 * MIB, 1),
        FreeEvent(1, 2),
        AllocEvent(2, 20 * MIB, 2),
        FreeEvent(2, 3),
    ]
    found = placements_by_storage(trace(events))
    assert found[0].fresh_bytes >= 40 * MIB and found[1].fresh_bytes == found[2].fresh_bytes == 0
    assert found[2].before == 1


def test_the_end_of_the_heap_is_handed_back():
    """Five tensors at once, freed together: twice the largest that was freed before is too much to keep."""
    together = [AllocEvent(n, 8 * MIB, n) for n in range(5)] + [FreeEvent(n, 5) for n in range(5)]
    assert sum(p.fresh_bytes for p in placements_by_storage(trace(together, operators=6)).values()) > 30 * MIB
    larger = trace([AllocEvent(9, 30 * MIB, -1), *together], {9: "parameter"}.items(), operators=6)
    assert sum(p.fresh_bytes for p in placements_by_storage(larger).values()) == 0


def test_gradients_of_a_step_take_the_place_of_those_before():
    rows = tuple(Operator(n, "aten.relu.default", "forward", (), (), iteration=n // 2) for n in range(4))
    events = (AllocEvent(0, MIB, 1), FreeEvent(0, 1), AllocEvent(1, MIB, 3))
    found = placements_by_storage(Trace(rows, events, dict.fromkeys((0, 1), Storage("gradient", "w", MIB)), (0, 2, 4)))
    assert found[1].fresh_bytes == 0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, MOST_MAPPED_BYTES)), max_size=60))
def test_no_two_storages_share_bytes(calls):
    heap, held = GlibcHeap(), {}
    for number, (name, size) in enumerate(calls):
        if name in held:
            heap.free(held.pop(name))
        else:
            held[name] = number
            placed_at = heap.malloc(number, size)
            assert 0 <= placed_at.fresh_bytes <= size + 128
        ranges = sorted(heap._held[n] for n in held.values() if heap._held[n][0] < 1 << 46)
        assert all(a + n <= b for (a, n), (b, _) in pairwise(ranges))
