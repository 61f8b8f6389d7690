"""Where tasks belong: iterations, phases, layers, operators; and the loading of batches as a task of its own."""

from __future__ import annotations

import pytest

from roller.insight.step.kineto_reader import Event
from roller.insight.step.profile_graph import build_graph
from roller.insight.step.replay import replay

MAIN, AUTOGRAD, STREAM = "process 1, thread 1", "process 1, thread 2", "device 0, stream 7"
LOADING = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def mark(name, start, end, lane=MAIN):
    return Event(name, "mark", start, end - start, lane, None, {})


def operator(name, start, end, lane=MAIN, **said):
    return Event(name, "operator", start, end - start, lane, None, said)


def launch(number, start, kernel, lane=MAIN):
    yield Event("cudaLaunchKernel", "call", start, 4.0, lane, number, {})
    yield Event(kernel, "kernel", start + 8.0, 3.0, STREAM, number, {})


def step(at, number=1):
    """Return a step: a batch, a linear layer within a block, its backward on another thread, and an update."""
    seq = 70 + number
    return [
        mark(f"ProfilerStep#{number}", at, at + 1000),
        mark(LOADING, at + 5, at + 200),
        mark("nn.Module: Block_0", at + 210, at + 300),
        mark("nn.Module: Linear_0", at + 220, at + 290),
        operator("aten::linear", at + 230, at + 280, shapes=((8, 4), (2, 4)), dtypes=("float", "float"), sequence=seq),
        operator("aten::addmm", at + 240, at + 270, sequence=seq),
        *launch(10 * number, at + 250, "gemm"),
        mark("DistributedDataParallel.forward", at + 301, at + 340),
        *launch(10 * number + 1, at + 310, "relu"),
        operator("autograd::engine::evaluate_function: AddmmBackward0", at + 400, at + 480, AUTOGRAD, sequence=seq),
        operator("aten::mm", at + 410, at + 470, AUTOGRAD),
        *launch(10 * number + 2, at + 420, "gemm_grad", AUTOGRAD),
        operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at + 490, at + 530, AUTOGRAD),
        *launch(10 * number + 3, at + 500, "sum", AUTOGRAD),
        mark("Optimizer.step#Adam.step", at + 800, at + 900),
        *launch(10 * number + 4, at + 810, "adam"),
    ]  # fmt: skip


def by_name(graph):
    return {task.name: task.context for task in graph.tasks}


def test_a_device_task_belongs_where_its_call_does():
    found = by_name(build_graph(step(0)))
    gemm = found["gemm"]
    assert (gemm.iteration, gemm.phase, gemm.module, gemm.operator) == (0, "forward", "Linear_0", "aten::addmm")
    assert gemm.shapes == ((8, 4), (2, 4)) and gemm.dtypes == ("float", "float")
    assert (found["relu"].phase, found["relu"].module) == ("forward", "")
    assert (found["adam"].phase, found["adam"].module) == ("optimizer", "")


def test_backward_has_the_layer_of_its_forward_and_sums_that_of_the_operator_before():
    found = by_name(build_graph(step(0)))
    assert (found["gemm_grad"].phase, found["gemm_grad"].module) == ("backward", "Linear_0")
    assert (found["sum"].phase, found["sum"].module) == ("backward", "Linear_0")


def test_steps_are_counted_and_what_is_outside_of_them_is_other():
    events = [*step(0), *step(2000, 2), *launch(99, 1500, "between")]
    graph = build_graph(events)
    assert {t.context.iteration for t in graph.tasks} == {0, 1}
    assert by_name(graph)["between"].phase == "other"


def test_work_from_before_the_profile_and_lost_launches():
    events = [*step(100), Event("early", "kernel", 50.0, 10.0, STREAM, None, {})]
    lost = [e for e in events if not (e.kind == "call" and e.correlation == 11)]
    found = by_name(build_graph(lost))
    assert (found["early"].iteration, found["early"].phase) == (-1, "other")
    assert (found["relu"].phase, found["relu"].operator) == ("forward", "")


def test_loading_is_a_task_unless_calls_are_made_meanwhile():
    graph = build_graph(step(0))
    (data,) = [t for t in graph.tasks if t.kind == "data"]
    assert (data.duration_us, data.context.phase) == (195.0, "data")
    assert abs(replay(graph).error) < 1e-6
    busy = build_graph([*step(0), *launch(98, 100, "copy")])
    assert [t.kind for t in busy.tasks].count("data") == 0 and by_name(busy)["copy"].phase == "data"


def test_operators_of_a_profile_without_a_device_are_tasks_with_places():
    events = [e for e in step(0) if e.kind in ("mark", "operator")]
    found = {t.name: t for t in build_graph(events).tasks}
    assert (
        found["aten::linear"].context.module == "Linear_0" and found["aten::linear"].context.operator == "aten::linear"
    )
    assert found["autograd::engine::evaluate_function: AddmmBackward0"].context.module == "Linear_0"
    assert found[LOADING].kind == "data"


@pytest.mark.parametrize(
    ("event", "size"),
    [
        (Event("Memcpy HtoD", "copy", 0, 1, STREAM, 1, {"bytes": 512}), 512),
        (Event("ncclKernel", "collective", 0, 1, STREAM, 1, {"elements": 100, "dtype": "BFloat16"}), 200),
        (Event("gemm", "kernel", 0, 1, STREAM, 1, {}), 0),
    ],
)
def test_what_is_moved_is_known_where_the_profile_says_it(event, size):
    assert build_graph([event]).tasks[0].size_bytes == size


def test_a_gradient_is_ready_with_the_last_task_that_its_thread_launched_before():
    def accumulate(at):
        return operator("torch::autograd::AccumulateGrad", at, at + 10, AUTOGRAD, shapes=((3, 5),), dtypes=("double",))

    query = [Event("cudaFuncGetAttributes", "call", at, 1.0, AUTOGRAD, None, {}) for at in (5.0, 62.0, 82.0)]
    events = [*query, accumulate(4), *launch(1, 20, "first", AUTOGRAD), *launch(2, 40, "second", AUTOGRAD),
              accumulate(60), accumulate(80)]  # fmt: skip
    graph = build_graph(events)
    ready = [graph.tasks[g.ready] for g in graph.gradients]
    # where nothing was launched before, the call itself
    assert [(t.name, t.measured_start_us) for t in ready] == [
        ("cudaFuncGetAttributes", 0.0), ("second", 43.0), ("second", 43.0)
    ]  # fmt: skip
    assert [g.size_bytes for g in graph.gradients] == [120] * 3
