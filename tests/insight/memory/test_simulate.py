"""A trace through the allocator: peaks, holders, workspaces, out of memory, the largest batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller.errors import NoCandidateError
from roller.hardware import load_spec
from roller.insight.memory.largest_batch import largest_batch, largest_batch_on_device
from roller.insight.memory.simulate import Library, simulate_memory
from roller.insight.trace.trace import AllocEvent, Frame, FreeEvent, Operator, Storage, Trace

MIB = 1 << 20
BARE = Library(workspace_bytes=0)


def step(batch=1, layers=3):
    """Weights, activations that live until their backward operator, a gradient each."""
    operators, events, storages = [], [], {}
    for n in range(layers):
        storages[n] = Storage("parameter", f"layer{n}.weight", 4 * MIB)
        events.append(AllocEvent(n, 4 * MIB, -1))
    for n in range(layers):
        operators.append(
            Operator(n, "aten.mm.default", "forward", (), (), module=f"layer{n}", stack=(Frame("net.py", 10 + n),))
        )
        events.append(AllocEvent(10 + n, batch * 3 * MIB, n))
        storages[10 + n] = Storage("activation")
    for n in reversed(range(layers)):
        at = len(operators)
        operators.append(Operator(at, "aten.mm.default", "backward", (), (), module=f"layer{n}"))
        events += [AllocEvent(20 + n, 4 * MIB, at), FreeEvent(10 + n, at)]
        storages[20 + n] = Storage("gradient", f"layer{n}.weight")
    return Trace(tuple(operators), tuple(events), storages, (0, len(operators)), {"batch": batch})


def test_peaks_and_who_holds_them():
    found = simulate_memory(step(), library=BARE, timeline=True)
    assert found.fits and found.peak.requested_bytes == 27 * MIB and found.peak_operator == 5
    assert found.by_kind() == {"parameter": 12 * MIB, "gradient": 12 * MIB, "activation": 3 * MIB}
    assert [(h.kind, h.module, h.source) for h in found.holders if h.kind == "activation"] == [
        ("activation", "layer0", ("net.py", 10))
    ]
    assert len(found.timeline) == 6 and max(a for a, _ in found.timeline) <= found.peak.allocated_bytes
    assert 24 * MIB <= found.timeline[-1][0] < 26 * MIB


def test_each_thread_has_a_workspace_of_cublas():
    bare, found = (
        simulate_memory(step(), library=BARE),
        simulate_memory(step(), library=Library(context_bytes=MIB // 2)),
    )
    assert found.peak.requested_bytes == bare.peak.requested_bytes + 2 * 8_519_680
    assert found.by_kind()["workspace"] == 2 * 8_519_680
    assert found.total_bytes % (2 * MIB) == 0 and found.total_bytes >= found.peak.reserved_bytes + MIB // 2


def test_out_of_memory_says_where_and_what():
    found = simulate_memory(step(batch=4), 50 * MIB, library=BARE)
    assert not found.fits and found.oom_operator == 2 and found.oom.wanted_bytes == 12 * MIB
    assert "50.00 MiB" in str(found.oom) and found.peak.reserved_bytes <= 50 * MIB
    assert simulate_memory(step(batch=4), found.oom.capacity_bytes * 2, library=BARE).fits


@given(st.integers(45, 4000), st.integers(1, 8))
def test_the_largest_batch_fits_and_one_more_does_not(capacity_mib, layers):
    def memory_of(batch):
        return simulate_memory(step(batch, layers), capacity_mib * MIB, library=BARE)

    try:
        found = largest_batch(memory_of, capacity_mib * MIB)
    except NoCandidateError:
        assert not memory_of(1).fits
        return
    assert memory_of(found.batch).fits and not memory_of(found.batch + 1).fits
    assert found.memory.fits and not found.over.fits and len(found.tried) < 20


def test_a_search_without_an_end_says_so():
    with pytest.raises(NoCandidateError, match="expected a limit, but 32 samples fit"):
        largest_batch(lambda batch: simulate_memory(step(batch), library=BARE), 1 << 40, most=32)


def test_a_step_that_always_fits_is_traced_at_few_batches():
    asked = []

    def traced(batch):
        asked.append(batch)
        return replace(step(batch), events=())

    with pytest.raises(NoCandidateError, match="expected a limit, but 16777216 samples fit"):
        largest_batch_on_device(traced, "h100")
    assert sorted(asked) == [1, 4, 8, 1 << 24]


def test_what_a_device_takes_is_of_its_specification():
    h100, v100 = (Library.of(load_spec(name)) for name in ("h100", "v100"))
    assert (h100.workspace_bytes, v100.workspace_bytes) == (33_554_432, 8_519_680)
    assert v100.context_bytes == load_spec("v100").process_bytes
    least, most = load_spec("v100").process_least_bytes, load_spec("v100").process_most_bytes
    assert (v100.context_least_bytes, v100.context_most_bytes) == (least, most)
    assert v100.context_error_bytes == max(v100.context_bytes - least, most - v100.context_bytes)
    assert replace(load_spec("v100"), process_bytes=1).content_key == load_spec("v100").content_key


def test_a_process_holds_what_its_libraries_and_its_release_load():
    a100 = load_spec("a100")
    lazy, convolves, eager = (
        Library.of(a100, options)
        for options in ({}, {"libraries": ["cublas", "cudnn"]}, {"torch_release": "1.10", "libraries": ["cublas"]})
    )
    assert (lazy.context_bytes >> 20, convolves.context_bytes >> 20, eager.context_bytes >> 20) == (1237, 1920, 1823)
    for library in (lazy, convolves, eager):
        assert library.context_least_bytes <= library.context_bytes <= library.context_most_bytes
    by_hand = Library.of(load_spec("a100", {"process_bytes": 600 << 20}), {"libraries": ["cublas", "cudnn"]})
    assert by_hand.context_bytes == 600 << 20 and by_hand.context_error_bytes == 0


def test_errors_of_the_model_and_of_the_environment_are_apart():
    library = Library(context_bytes=1000 * MIB, context_least_bytes=700 * MIB, context_most_bytes=1100 * MIB)
    found = simulate_memory(step(), library=library)
    assert found.environment_error_bytes == 300 * MIB
    assert found.model_error_bytes == int(0.03 * found.peak.reserved_bytes)
    assert found.total_error_bytes == found.model_error_bytes + found.environment_error_bytes
