"""A change that a profile has already changes nothing, and says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roller.errors import RollerError
from roller.insight.cost.host_costs import load_host_costs
from roller.insight.step.graph import Lane, Task
from roller.insight.step.kineto_reader import Event
from roller.insight.step.profile_graph import build_graph
from roller.insight.whatif.predict import what_if
from roller.insight.whatif.search import search
from roller.insight.whatif.whatifs import (
    AMP,
    DDP,
    CudaGraph,
    ForeachOptimizer,
    FusedOptimizer,
    FusePointwise,
    LoaderWorkers,
    OtherOptimizer,
)
from tests.insight.step.graphs import STEP, training
from tests.offenders import every

WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def loading(data_us=50_000.0, name=WORKERS, steps=6):
    graph = training(steps=steps, data_us=data_us)
    return replace(graph, tasks=[replace(t, name=name) if t.kind == "data" else t for t in graph.tasks])


def renamed(graph, phase, kernel=None, operator=None, dtypes=None):
    """Return a graph whose kernels of a phase are called otherwise."""
    return replace(graph, tasks=[
        replace(t, name=kernel or t.name, context=t.context._replace(
            operator=operator or t.context.operator, dtypes=dtypes or t.context.dtypes))
        if t.kind == "kernel" and t.context.phase in phase else t for t in graph.tasks
    ])  # fmt: skip


def half(graph):
    shapes, dtypes = ((64, 64), (64, 64)), ("c10::BFloat16", "c10::BFloat16")
    return replace(graph, tasks=[
        replace(t, context=t.context._replace(operator="aten::mm", shapes=shapes, dtypes=dtypes))
        if "conv" in t.context.module and t.kind == "kernel" else t for t in graph.tasks
    ])  # fmt: skip


def updated(operator):
    return renamed(training(), "optimizer", operator=operator)


IN_PLACE = {
    "workers, of which nobody says how many": (loading(), LoaderWorkers(8)),
    "as many workers": (loading(), LoaderWorkers(2, of=2)),
    "more workers than anybody waits for": (loading(data_us=load_host_costs().fetch_us), LoaderWorkers(8, of=2)),
    "captured graphs": (replace(training(), captured_share=0.9), CudaGraph()),
    "an optimizer that is fused by its operator": (updated("aten::_fused_adam_"), FusedOptimizer()),
    "one by its kernel": (
        renamed(training(), "optimizer", "multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata>"),
        FusedOptimizer()),
    "one by its class": (replace(training(), optimizers=("FusedAdam",)), FusedOptimizer()),
    "one by its few kernels": (replace(training(), optimizers=("Adam",)), FusedOptimizer()),
    "a grouped optimizer": (updated("aten::_foreach_add_"), ForeachOptimizer()),
    "a fused one, which is grouped": (updated("aten::_fused_adamw_"), ForeachOptimizer()),
    "16 bits by their dtypes": (half(training()), AMP()),
    "16 bits by their kernels": (
        renamed(training(rows=[(p, layer, o, t, ()) for p, layer, o, t, _ in STEP]), ("forward", "backward"),
                "ampere_bf16_s16816gemm_bf16"), AMP("fp16")),
    "16 bits where all is bound by memory": (
        renamed(training(rows=[r for r in STEP if "conv" not in r[1]], gradients=()), ("forward", "backward"),
                dtypes=("c10::Half",)), AMP()),
    "a fused one of another library": (
        renamed(training(), "optimizer", "multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>"),
        FusedOptimizer()),
    "workers of another loader": (
        loading(name="enumerate(DataLoader)#_StatefulMultiProcessingDataLoaderIter.__next__"), LoaderWorkers()),
    "compiled chains": (renamed(training(), ("forward", "backward"), "triton_poi_fused_add_relu_0"), FusePointwise()),
    "the same optimizer": (replace(training(), optimizers=("SGD",)), OtherOptimizer(to="sgd")),
    "as many devices": (
        replace(training(), world_size=4, tasks=[*training().tasks, Task(
            len(training().tasks), "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "collective", Lane(0, "stream", "20"),
            100.0, 0.0, 100.0)]), DDP(4, bandwidth=1e9)),
}  # fmt: skip


@every("kind", IN_PLACE)
def test_a_change_that_is_in_place_changes_nothing_and_says_why(kind):
    graph, change = IN_PLACE[kind]
    found = what_if(graph, change)
    assert (found.speedup, found.is_changed, found.lower_us) == (1.0, False, found.upper_us)
    assert len(found.in_place) == 1 and found.in_place[0].startswith(f"{change} is in place already: ")
    assert found.to_dict()["in_place"] == list(found.in_place)


NOT_IN_PLACE = {
    "loading on the thread that trains": (loading(name=WORKERS.replace("Multi", "Single")), LoaderWorkers()),
    "few captured graphs": (replace(training(), captured_share=0.2), CudaGraph()),
    "an optimizer that only groups": (
        replace(updated("aten::_foreach_add_"), optimizers=("SGD",)), FusedOptimizer()),
    "one of many kernels": (replace(training(rows=(*STEP, *STEP[-1:] * 10)), optimizers=("Adam",)), FusedOptimizer()),
    "an optimizer per parameter": (training(), ForeachOptimizer()),
    "32 bits": (training(), AMP(prices="factor")),
    "chains": (training(rows=[(p, "norm1", o, t, s) for p, _, o, t, s in STEP]), FusePointwise()),
    "one device": (replace(training(), world_size=4), DDP(4, bandwidth=1e9, latency_us=0.0)),
}  # fmt: skip


@every("kind", NOT_IN_PLACE)
def test_a_change_that_is_not_in_place_is_made(kind):
    graph, change = NOT_IN_PLACE[kind]
    priced = replace(graph, measured_kernels_us={"bucket": 1.0, "unbucket": 1.0})
    found = what_if(priced, change)
    assert found.is_changed and not found.in_place


def test_more_workers_than_the_profile_had_are_predicted_by_how_often_a_batch_comes():
    graph = loading()
    # a step takes 50 ms of waiting and a little more; two workers come to it together, so four take half as long
    four = what_if(graph, LoaderWorkers(4, of=2))
    assert four.speedup == pytest.approx(2.0, rel=0.01) and four.rests_on == "assumed"
    assert what_if(graph, LoaderWorkers(1, of=2)).speedup == pytest.approx(0.5, rel=0.01)
    # beyond what the training takes itself they bring nothing more
    most = what_if(graph, LoaderWorkers(400, of=2)).iteration_us
    assert most == pytest.approx(937 + load_host_costs().fetch_us, rel=0.05)


def test_workers_keep_up_only_as_fast_as_they_load():
    graph = loading(name="load", data_us=50_000.0, steps=3)
    assert what_if(graph, LoaderWorkers(4)).iteration_us == pytest.approx(50_000 / 4, rel=0.02)
    assert what_if(graph, LoaderWorkers(1)).iteration_us == pytest.approx(50_000, rel=0.02)


@every(
    ("graph", "change", "match"),
    [
        (loading(name="load"), LoaderWorkers(4, of=2), "batches come from workers"),
        (training(), LoaderWorkers(), "the loading of batches, got a profile that marks none"),
        (loading(data_us=1000.0), LoaderWorkers(1, of=2), "at least the 2 of the profile"),
        (replace(training(), optimizers=("SGD",)), OtherOptimizer(to="adamw"), "of: expected sgd or momentum"),
        (IN_PLACE["as many devices"][0], DDP(8, bandwidth=1e9), "of a job of 4 processes, with 1 reductions"),
    ],
)  # fmt: skip
def test_what_the_profile_does_not_tell_is_refused(graph, change, match):
    with pytest.raises(RollerError, match=match):
        what_if(graph, change)


def test_a_profile_tells_its_optimizer_and_its_graphs():
    thread = "process 1, thread 1"
    events = [
        Event("Optimizer.step#AdamW.step", "mark", 0.0, 100.0, thread, None, {}),
        Event("cudaGraphLaunch", "call", 10.0, 4.0, thread, 1, {}),
        *(Event("k", "kernel", 20.0 + 10 * n, 9.0, "device 0, stream 7", 1, {}) for n in range(3)),
        Event("cudaLaunchKernel", "call", 50.0, 4.0, thread, 2, {}),
        Event("k", "kernel", 60.0, 9.0, "device 0, stream 7", 2, {}),
    ]
    graph = build_graph(events)
    assert graph.optimizers == ("AdamW",) and graph.captured_share == 0.75
    assert "75 % of the device's tasks" in what_if(graph, CudaGraph()).in_place[0]


def test_a_search_marks_what_is_in_place_and_what_is_assumed():
    graph = replace(loading(), optimizers=("SGD",), captured_share=1.0)
    found = {x.name: x.answer for x in search(graph)}
    assert found["LoaderWorkers()"].in_place and found["CudaGraph()"].in_place
    assert found["RestructuredNorm()"].rests_on == "assumed"
    assert found["ZeroTime(kind=data)"].rests_on == "measured"
    assert "FusedOptimizer(optimizer=momentum)" in found  # SGD does not say whether it has momentum
