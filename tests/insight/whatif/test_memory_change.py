"""The memory of what-ifs: options under which the step is traced again, nothing where tensors stay, else words."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from roller.errors import RollerError
from roller.insight.memory.allocator_blocks_and_pools import MemoryStats, OutOfDeviceMemoryError
from roller.insight.memory.simulate import Memory
from roller.insight.step.graph import TaskContext
from roller.insight.trace.options import FixedOptionError
from roller.insight.whatif.memory_change_trace_options import MemoryChange
from roller.insight.whatif.memory_effect import MemoryEffect, memory_effect
from roller.insight.whatif.repeated_blocks import find_repeated_blocks
from roller.insight.whatif.search import search
from roller.insight.whatif.whatifs import (
    AMP,
    DDP,
    Batch,
    CudaGraph,
    Device,
    FusedOptimizer,
    LoaderWorkers,
    OtherNetwork,
    Recompute,
    ZeroTime,
)
from tests.insight.step.graphs import training
from tests.offenders import every

#: Change of the tensors -> bytes of the process.
TOTALS = {
    MemoryChange(): 1000, MemoryChange(amp="bf16"): 600, MemoryChange(checkpoint=("b.0",)): 700,
    MemoryChange(amp="bf16", checkpoint=("b.0",)): 350,
}  # fmt: skip


def memory(total_bytes, fits=True):
    stats = MemoryStats(total_bytes, total_bytes, total_bytes)
    return Memory(stats, total_bytes, 0, 0, (), oom=None if fits else OutOfDeviceMemoryError(10, 100, stats))


def memory_of(change):
    return memory(TOTALS[change])


@every(
    ("change", "wanted"),
    [
        (AMP(), MemoryChange(amp="bf16")), (AMP("fp16"), MemoryChange(amp="fp16")),
        (Recompute(("b.0", "b.1")), MemoryChange(checkpoint=("b.0", "b.1"))), (Recompute(("b.*",)), None),
        (Batch(2.0), MemoryChange(batch_factor=2.0)), (Device("t4"), MemoryChange(device="t4")),
        (DDP(4), MemoryChange(devices=4)), (DDP(4, bucket_bytes=1 << 20), None),
        (OtherNetwork(), MemoryChange()), (ZeroTime(phase="optimizer"), MemoryChange()),
        (LoaderWorkers(), MemoryChange()), (CudaGraph(), None), (FusedOptimizer(), None),
    ],
)  # fmt: skip
def test_a_change_says_how_a_step_with_its_memory_is_traced(change, wanted):
    assert change.memory_change() == wanted


def test_changes_follow_one_another():
    first = MemoryChange(amp="bf16", batch_factor=2.0)
    both = first.combine_with(MemoryChange(amp="fp16", batch_factor=1.5, devices=4))
    assert both == MemoryChange(amp="fp16", batch_factor=3.0, devices=4)
    assert first.combine_with(MemoryChange()) == first and not first.keeps_tensors and MemoryChange().keeps_tensors


def test_the_effect_is_the_difference_of_two_traces():
    graph = training()
    assert memory_effect(graph, [AMP()], memory_of) == MemoryEffect(-400)
    assert memory_effect(graph, [AMP(), Recompute(("b.0",))], memory_of) == MemoryEffect(-650)
    assert memory_effect(graph, [ZeroTime(kind="copy"), OtherNetwork()], None) == MemoryEffect(0)


def test_what_is_not_known_is_said_and_never_zero():
    graph = training()
    assert memory_effect(graph, [CudaGraph()], memory_of) == MemoryEffect(None, "not modelled")
    assert memory_effect(graph, [AMP(), CudaGraph()], memory_of).delta_bytes is None
    alone = memory_effect(graph, [AMP()], None)
    assert alone == MemoryEffect(None, "not modelled: the step cannot be traced again") and alone.has_specific_reason
    assert alone.in_short == "not modelled" and MemoryEffect(0).in_short == ""

    def fails(change):
        raise RollerError("trace: amp: expected fp32 on a CPU, got 'bf16'. Leave it out.")

    assert memory_effect(graph, [AMP()], fails).reason.startswith("not modelled: trace: amp: expected fp32 on a CPU")


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (True, False, "does not fit with the change"), (False, False, "still does not fit"),
        (False, True, "fits with the change, in 600 B"),
    ],
)  # fmt: skip
def test_memory_before_a_failure_is_no_difference(before, after, reason):
    def of(change):
        return memory(1000, before) if change.keeps_tensors else memory(600, after)

    found = memory_effect(training(), [AMP()], of)
    assert found == MemoryEffect(None, reason) and found.in_short == reason.partition(",")[0]


def test_what_is_in_place_changes_nothing():
    tasks = [replace(t, context=t.context._replace(dtypes=("c10::Half",))) for t in training().tasks]
    graph = replace(training(), tasks=tasks)
    assert AMP().in_place(graph)
    assert memory_effect(graph, [AMP()], None) == MemoryEffect(0)
    found = {x.name: x for x in search(graph)}
    assert found["AMP()"].memory_effect(graph, None) == MemoryEffect(0)


def test_blocks_that_repeat_are_the_outermost_numbered_layers_with_inner_ones():
    layers = ("net.10.a.0.conv", "net.2.a.0.conv", "net.2.a.1.conv", "head", "alone.0.conv")
    both = [t for p in ("forward", "backward") for t in _tasks(p, (*layers, "flat.0", "flat.1"))]
    graph = replace(training(), tasks=both)
    assert find_repeated_blocks(graph) == ("net.2", "net.10")
    forward = [t for t in both if t.context.phase == "forward"]
    assert find_repeated_blocks(replace(graph, tasks=forward)) == ()


def _tasks(phase, layers):
    first = next(t for t in training().tasks if t.kind == "kernel" and t.context.phase == phase)
    start = 0 if phase == "forward" else len(layers)
    return [replace(first, id=start + n, context=TaskContext(0, phase, layer)) for n, layer in enumerate(layers)]


def test_a_step_that_chooses_an_option_itself_says_so_in_short():
    def memory_of(change):
        if change.amp:
            raise FixedOptionError("train.py: amp: expected none. Pass it.", "a training script chooses its precision")
        return memory(1000)

    effect = memory_effect(training(), (AMP(),), memory_of)
    assert effect == (None, "not modelled: a training script chooses its precision.")
    error = pickle.loads(pickle.dumps(FixedOptionError("why", "in short")))
    assert (str(error), error.in_short) == ("why", "in short")
