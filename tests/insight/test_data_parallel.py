"""Data parallel training: buckets as PyTorch fills them, rings by their formula, lanes by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

import roller
from roller.errors import RollerError
from roller.insight.cost.kernel_prices import KernelPricer
from roller.insight.cost.operator_price import Price
from roller.insight.cost.ring_all_reduce import Ring
from roller.insight.cost.step_cost import PricedStep
from roller.insight.forecast import _mean_forecast, forecast
from roller.insight.memory.largest_batch import memory_on_device
from roller.insight.step.breakdown import exposed_network_us
from roller.insight.step.from_trace import build_priced_step_graph
from roller.insight.step.simulate import simulate
from roller.insight.trace.gradient_buckets import buckets, trace_with_bucket_storages
from roller.insight.trace.options import TraceOptions
from roller.insight.trace.retracer import Retracer
from roller.insight.trace.trace import AllocEvent, FreeEvent, Operator, Storage, TensorRecord, Trace
from roller.insight.traced_step import TracedStep
from roller.insight.whatif.add_data_parallel_reductions import add_data_parallelism
from roller.insight.whatif.memory_change_trace_options import MemoryChange

MIB = 1 << 20


def step(*sizes, batch=8):
    """A backward that makes one gradient of so many bytes after the other, and an update."""
    operators, events, storages = [], [], {}
    for index, size in enumerate(sizes):
        out = TensorRecord((size // 4,), (1,), "float32", index)
        operators.append(Operator(index, "aten.relu_.default", "backward", (out,), (out,)))
        events.append(AllocEvent(index, size, index))
        storages[index] = Storage("gradient", f"w{index}", size)
    operators.append(Operator(len(sizes), "aten.mul_.Tensor", "optimizer", (out, out), (out,)))
    return Trace(tuple(operators), tuple(events), storages, (0, len(operators)), {"batch": batch})


def test_buckets_fill_in_the_order_gradients_appear():
    found = buckets(step(512 << 10, 512 << 10, 20 * MIB, 10 * MIB, 30 * MIB, 4))
    assert [b.names for b in found] == [("w0", "w1"), ("w2", "w3"), ("w4",), ("w5",)]
    assert [b.ready for b in found] == [1, 3, 4, 5] and found[1].size_bytes == 30 * MIB
    assert sum(b.size_bytes for b in buckets(step(4, 8, 12), cap_bytes=1)) == 24


def test_a_gradient_counts_once_and_is_whole_behind_its_last_writer():
    made = step(2 * MIB, 3 * MIB)
    again = Operator(2, "aten.add_.Tensor", "backward", made.operators[0].inputs, made.operators[0].outputs)
    both = Trace((*made.operators[:2], again), made.events, made.storages, (0, 3), {})
    assert [(b.names, b.ready) for b in buckets(both)] == [(("w1",), 1), (("w0",), 2)]


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_a_ring_moves_what_its_formula_says(devices):
    n = devices
    assert Ring(n, 1e9, 1e-6).all_reduce_s(8e6) == pytest.approx(2 * (n - 1) / n * 8e-3 + 2 * (n - 1) * 1e-6)


def run_by_hand(trace, copies_s=(0.0, 0.0)):
    """Two devices, kernels of 1 s, links of 4 bytes a second, a bucket for each gradient: a float's bytes take 1 s."""
    priced = tuple((o, Price(1.0, 1.0, 1.0, "dram", 1, "stream")) for o in trace.steady())
    step = PricedStep(
        trace, roller.load_spec("a100"), "library", priced, KernelPricer(roller.load_spec("a100"), "library")
    )
    one, left = build_priced_step_graph(step, 0.0), iter(copies_s)
    assert simulate(one).makespan_us == pytest.approx(1e6 * len(priced))
    two = add_data_parallelism(
        one, Ring(2, 4.0), lambda size, count: (1e6 * next(left), "predicted"), first_bytes=1, bucket_bytes=1
    )
    run = simulate(two)
    links = sum(t.duration_us for t in two.tasks if t.kind == "collective")
    return [us / 1e6 for us in (run.makespan_us, links, exposed_network_us(two, run))]


def test_lanes_solved_by_hand():
    # The first runs from 1 to 4, the second, ready at 2, from 4 to 5; the update starts at 5.
    assert run_by_hand(step(12, 4)) == pytest.approx([6.0, 4.0, 3.0])
    # Copy in to 1.5, ring to 4.5, back from 4.5 to 5; second gradient at 2.5, in at 2.75, ring to 5.5, back to 5.75.
    assert run_by_hand(step(12, 4), (0.5, 0.25)) == pytest.approx([6.75, 4.0, (4.5 - 2.75) + (5.5 - 5.0)])


def test_each_update_waits_for_its_own_buckets():
    # Backward, its update, another backward, its update: as where two optimizers take turns.
    made = step(12, 4)
    first, second, update = made.operators
    its = Operator(1, "aten.mul_.Tensor", "optimizer", first.inputs, first.inputs)
    turns = Trace((first, its, second, update), made.events, made.storages, (0, 4), {})
    # 1, in 1.5, ring to 4.5, back 5, update 6, backward 7, in 7.25, ring to 8.25, back 8.5, update 9.5
    assert run_by_hand(turns, (0.5, 0.25)) == pytest.approx([9.5, 4.0, 3.0 + 1.0])
    alone = Trace((first,), made.events, made.storages, (0, 1), {})
    assert run_by_hand(alone, (0.5,)) == pytest.approx([1.0 + 0.5 + 3.0 + 0.5, 3.0, 3.0])
    both = Trace((first, second), made.events, made.storages, (0, 2), {})
    assert run_by_hand(both, (0.5, 0.25)) == pytest.approx([5.75, 4.0, (4.5 - 2.75) + (5.5 - 5.0)])


def test_a_gradient_that_is_read_and_written_anew_is_reduced_again():
    made = step(2 * MIB, 3 * MIB)
    first, second, update = made.operators
    again = Trace((first, update, second, first, update), made.events, made.storages, (0, 5), {})
    read = Operator(0, "aten.add_.Tensor", "optimizer", first.inputs, ())
    turns = Trace((first, read, second, first, update), made.events, made.storages, (0, 5), {})
    assert [(b.names, b.ready, b.update) for b in buckets(again)] == [(("w1",), 2, 4), (("w0",), 3, 4)]
    assert [(b.names, b.ready, b.update) for b in buckets(turns)] == [(("w0",), 0, 1), (("w1",), 2, 4), (("w0",), 3, 4)]
    held = trace_with_bucket_storages(turns, buckets(turns)).storages
    assert sum(s.size_bytes for s in held.values()) - sum(s.size_bytes for s in made.storages.values()) == 5 * MIB


def test_gradients_that_no_kernel_computes_are_refused_on_several_devices():
    made = step(MIB)
    first, update = made.operators
    viewed = Operator(0, "aten.view.default", "backward", first.inputs, first.inputs)
    with pytest.raises(RollerError, match="got 1 of 1 that none does"):
        forecast(Trace((viewed, update), made.events, made.storages, (0, 2), {"batch": 8}), "a100", devices=2)


def test_a_backward_that_leaves_no_gradient_is_refused_on_several_devices():
    made = step(MIB)
    nameless = Trace(made.operators, made.events, {0: Storage("temporary", "", MIB)}, made.iterations, {"batch": 8})
    assert forecast(nameless, "a100").iteration_s > 0
    with pytest.raises(RollerError, match=r"leaves none\. Ask for one device"):
        forecast(nameless, "a100", devices=2)


def test_more_devices_never_finish_a_step_sooner_and_hold_buckets_too():
    made = step(*[8 * MIB] * 6)
    times = [forecast(made, "a100", devices=n).iteration_s for n in (1, 2, 4, 8)]
    assert times == sorted(times) and times[0] < times[1]
    one, two = (forecast(made, "a100", devices=n) for n in (1, 2))
    assert two.memory.peak.requested_bytes - one.memory.peak.requested_bytes == 48 * MIB
    assert two.throughput == pytest.approx(16 / two.iteration_s) and one.exposed_s == 0 < two.exposed_s <= two.links_s
    assert memory_on_device(trace_with_bucket_storages(made, buckets(made)), "a100").peak == two.memory.peak


def test_waiting_for_links_is_not_waiting_for_launches():
    """A host that keeps its device busy does not hold up several devices, whose links do."""
    (_, update), rows = step(4 * MIB).operators, [TensorRecord((1024, 1024), (1024, 1), "float32", n) for n in range(3)]
    product = Operator(0, "aten.mm.default", "backward", (rows[1], rows[2]), (rows[0],))
    others = [replace(product, outputs=(replace(rows[0], storage=3),))] * 20
    held = {0: Storage("gradient", "w0", 4 * MIB)}
    made = Trace((*others, product, update), (AllocEvent(0, 4 * MIB, 20),), held, (0, 22), {"batch": 8})
    host_op_s = 0.85 * forecast(made, "a100").device_s / 22
    one = forecast(made, "a100", host_op_s=host_op_s)
    spec = roller.load_spec("a100", {"link_bytes_per_s": 4 * MIB / (0.3 * one.device_s)})
    two = forecast(made, spec, host_op_s=host_op_s, devices=2)
    assert two.host_s > 0.5 * two.iteration_s and two.exposed_s > 0.2 * two.iteration_s
    assert (one.bound, two.bound) == ("device", "links")
    assert forecast(made, spec, host_op_s=1e-3, devices=2).bound == "launches"


def test_a_device_without_a_link_says_so():
    for name in ("cpu-avx512", "mi50"):
        with pytest.raises(RollerError, match="link_bytes_per_s"):
            Ring.of(roller.load_spec(name), 2)
    with pytest.raises(RollerError, match="at least 1"):
        forecast(step(MIB), "a100", devices=0)


def test_a_faster_link_leaves_prices_and_their_errors_alone():
    a100 = roller.load_spec("a100")
    fast = roller.load_spec("a100", {"link_bytes_per_s": 1e12})
    assert fast.content_key == a100.content_key and fast.accuracy == a100.accuracy
    made = step(*[8 * MIB] * 6)
    assert forecast(made, fast, devices=4).links_s < forecast(made, a100, devices=4).links_s


def test_what_is_said_of_the_memory_is_that_of_the_fullest_step():
    full = replace(forecast(step(8 * MIB, 8 * MIB), "a100"), notes=("it may not fit.",))
    long = replace(forecast(step(MIB), "a100"), device_s=1.0, notes=())
    for both in (_mean_forecast(full, [long]), _mean_forecast(long, [full])):
        assert (both.memory, both.notes, both.operators) == (full.memory, full.notes, long.operators)


def traced_again(trace):
    return TracedStep.of(trace, Retracer(lambda options: trace, TraceOptions(), TracedStep.of))


def test_the_memory_of_a_change_has_buckets_for_several_devices_only():
    made = traced_again(step(20 * MIB, 10 * MIB))
    alone, two = (made.memory_with(MemoryChange(devices=n), "a100") for n in (1, 2))
    assert alone == made.memory("a100") == made.memory_with(MemoryChange(), "a100")
    assert two.peak.allocated_bytes - alone.peak.allocated_bytes == 30 * MIB
    assert made.memory_with(MemoryChange(), "a100", devices=2) == two


def test_the_memory_of_a_change_is_that_of_the_fullest_of_several_different_steps():
    out = TensorRecord((1,), (1,), "float32", 0)
    for sizes in ((30 * MIB, 10 * MIB), (10 * MIB, 30 * MIB)):
        operators = [Operator(n, "aten.relu_.default", "forward", (out,), (out,), iteration=n) for n in range(2)]
        events = [event for n, size in enumerate(sizes) for event in (AllocEvent(n, size, n), FreeEvent(n, n))]
        storages = {n: Storage("activation", "", size) for n, size in enumerate(sizes)}
        trace = Trace(tuple(operators), tuple(events), storages, (0, 1, 2), {"batch": 8, "unlike_steps": 2})
        for device in ("a100", "cpu-avx2"):
            found = traced_again(trace).memory_with(MemoryChange(), device)
            every = [memory_on_device(one, device) for one in trace.unlike()]
            assert found == max(every, key=lambda memory: memory.peak.reserved_bytes)
            assert found.peak.allocated_bytes == 30 * MIB
