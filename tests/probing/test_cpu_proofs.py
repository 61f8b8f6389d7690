"""A probe withdraws a value whose proof fails: made-up kernels that are bound by something else. No timing here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from roller.hardware import load_spec
from roller.probing import MeasuredValue
from roller.probing.cpu import memory, overheads, rates


class MadeUp:
    """A session whose kernels take the seconds it is told."""

    cores, clock_hz, clocked, windows = 2, 3e9, False, 40

    def __init__(self, seconds):
        self.spec, self._seconds = load_spec("cpu-avx512"), seconds

    def constant(self, name):
        return 1000

    def blocks(self, name, size, count=1, large_pages=True):
        return [64] * count

    def once(self, *args, **options):
        self.last = args

    def seconds(self, kernel, data=(0,), size=0, cores=1, **options):
        told = self._seconds(kernel, size) if callable(self._seconds) else self._seconds[kernel]
        return MeasuredValue(told, 0.01, 40)


def test_a_clock_is_chain_over_time_and_a_second_chain_must_be_free():
    finding = rates.measure_clock(MadeUp({"clock_one": 1e-6, "clock_two": 1.05e-6}))
    assert finding.values["clock_hz"].value == pytest.approx(1e9)
    assert not finding.doubts
    finding = rates.measure_clock(MadeUp({"clock_one": 1e-6, "clock_two": 2e-6}))
    assert "2.00 times as long as one" in finding.doubts["clock_hz"]


def test_cycles_are_counted_with_the_fastest_clock_seen():
    told = {"clock_one": 1e-6, "clock_two": 1e-6}
    session = MadeUp(told)
    rates.measure_clock(session)
    told["clock_one"] = 2e-6
    rates.measure_clock(session)
    assert session.clock_hz == pytest.approx(1e9)


def test_a_latency_that_a_second_chain_lengthens_is_withdrawn():
    assert not rates.measure_fma_latency(MadeUp({"fma_one": 1e-9, "fma_two": 1e-9})).doubts
    assert "execution.step_latency_s" in rates.measure_fma_latency(MadeUp({"fma_one": 1e-9, "fma_two": 2e-9})).doubts


def test_a_peak_that_fewer_accumulators_do_not_reach_is_withdrawn():
    def times(kernel, size):
        return 3e-6 if kernel.endswith("half") else 1e-6

    assert "compute.ops_per_cycle_per_unit.fma" in rates.measure_fma_peak(MadeUp(times)).doubts
    assert not rates.measure_fma_peak(MadeUp(lambda kernel, size: 1e-6)).doubts


@pytest.mark.parametrize(("seconds", "doubted"), [(1024 / 3e9 / 1.1, False), (1024 / 3e9 / 0.07, True)])
def test_exponentials_of_one_lane_are_withdrawn(seconds, doubted):
    finding = rates.measure_special_rate(MadeUp(lambda kernel, size: seconds))
    assert ("compute.ops_per_cycle_per_unit.special" in finding.doubts) is doubted


@pytest.mark.parametrize("true", [32, 64, 128])
def test_the_line_is_the_first_distance_that_costs_more(true):
    finding = memory.measure_line_size(MadeUp(lambda kernel, distance: 5e-9 if distance < true else 9e-9))
    assert {m.value for m in finding.values.values()} == {true}
    assert not memory.measure_line_size(MadeUp(lambda kernel, distance: 5e-9)).values


@pytest.mark.parametrize("true", [48, 64, 96, 128])
def test_the_tlb_holds_the_pages_that_cost_nothing(true):
    session = MadeUp(None)
    session._seconds = lambda kernel, size: 16 * (1e-9 if session.last[3] <= true else 3e-9)
    values = memory.measure_tlb(session).values
    assert values["memory_layers.l1.tlb_entries"].value == true
    assert values["memory_layers.l1.tlb_miss_s"].value == pytest.approx(2e-9)


@pytest.mark.parametrize("b", [2.0, 4.0, 8.0])
def test_the_stations_of_the_law_are_found_again(b):
    def times(kernel, size):
        vectors = size / 64
        return vectors * (1e-9 if kernel == "load_all" or size == 16 << 10 else 1e-9 * (b + 1) / b)

    assert memory.measure_miss_overlap(MadeUp(times)).values["execution.misses_in_flight"].value == pytest.approx(
        b, rel=0.01
    )


def test_a_cache_nobody_describes_is_as_large_as_what_it_holds():
    session = MadeUp(lambda kernel, size: 16e-9 if size <= 48 << 10 else 160e-9)
    found = memory._measure_capacity(session, MeasuredValue(1e-9, 0, 1), MeasuredValue(10e-9, 0, 1), 4096)
    assert found.value == 48 << 10


def test_tasks_and_rows_are_intercepts():
    vector = 64
    finding = overheads.measure_task_overhead(MadeUp(lambda kernel, size: 5e-9 + 1e-9 * (size / vector + 1.5)))
    assert finding.values["execution.barrier_s"].value == pytest.approx(5e-9)
    copied = overheads.measure_element_copies(MadeUp(lambda kernel, size: 128 * (8 / 3e9 + 28 * 2e-10)))
    assert copied.values["execution.element_copy_s"].value == pytest.approx(2e-10)


def test_blocks_fit_their_layer_and_not_the_one_before():
    session = SimpleNamespace(spec=load_spec("cpu-avx512"), cores=2)
    sizes = {n: memory.cache_block_bytes(n, session) for n in ("l1", "l2", "l3")}
    layers = {n: session.spec.layer(n).capacity_bytes for n in sizes}
    assert all(sizes[n] <= layers[n] for n in sizes)
    assert sizes["l2"] > 3 * layers["l1"]
    assert sizes["l3"] > 3 * layers["l2"]
    assert memory.uncached_block_bytes(session) * session.cores >= 4 * layers["l3"]


def test_pages_that_are_no_slower_than_known_ones_are_withdrawn():
    found = memory.pages(MadeUp({"pages_fresh": 1e-3, "pages_known": 1e-6}))
    assert found.values["execution.fault_s"].value == pytest.approx(1e-3 / 512) and not found.doubts
    assert "execution.fault_s" in memory.pages(MadeUp({"pages_fresh": 1e-3, "pages_known": 9e-4})).doubts


@pytest.mark.parametrize(("short_s", "lanes"), [(1e-6, 16), (0.53e-6, 8), (0.27e-6, 4), (0.1e-6, 4)])
def test_the_datapath_is_what_shorter_vectors_are_faster_than_whole_ones_for(short_s, lanes):
    session = MadeUp(lambda kernel, size: short_s if kernel.endswith("_16") else 1e-6)
    assert session.spec.teu.lanes == 16
    assert rates.measure_fma_peak(session).values["teu.datapath_lanes"].value == lanes
