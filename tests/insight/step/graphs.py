"""Small training steps as graphs, whose times can be worked out by hand."""

from __future__ import annotations

from roller.insight.step.graph import Dependency, Lane, StepGraph, Task, TaskContext
from roller.insight.trace.gradient_buckets import Gradient

THREAD, STREAM = Lane(0, "thread", "1"), Lane(0, "stream", "7")
#: Of a call, behind it on the thread, from a call to its kernel, and between kernels.
CALL_US, THINK_US, LATENCY_US, GAP_US = 4.0, 2.0, 8.0, 1.0
#: Layer, operator, duration, shape of the input: 1 MiB floats a thousand microseconds and so on.
STEP = (
    ("forward", "conv1", "aten::convolution", 100.0, (262144,)),
    ("forward", "norm1", "aten::batch_norm", 40.0, (262144,)),
    ("forward", "relu1", "aten::relu", 20.0, (262144,)),
    ("forward", "conv2", "aten::convolution", 200.0, (262144,)),
    ("backward", "conv2", "aten::convolution_backward", 300.0, ()),
    ("backward", "relu1", "aten::threshold_backward", 30.0, ()),
    ("backward", "norm1", "aten::native_batch_norm_backward", 60.0, ()),
    ("backward", "conv1", "aten::convolution_backward", 150.0, ()),
    ("optimizer", "", "aten::add_", 10.0, ()),
    ("optimizer", "", "aten::add_", 10.0, ()),
)
#: Kernels of one step with the gaps between them: the device is the bottleneck, and starts behind the first launch.
KERNELS_US = sum(row[3] for row in STEP)


def training(steps=1, rows=STEP, data_us=0.0, copy_us=0.0, gradients=((4, 2_000_000), (7, 1_000_000))):
    """Return so many steps of a thread that launches and of a stream that computes.

    ``gradients`` are places among the rows and bytes: each is there when the kernel of its row has ended. With
    ``data_us`` a batch is loaded before the first launch of each step, and the step before has ended by then.
    """
    tasks, dependencies, found = [], [], []
    last = {}

    def add(name, kind, lane, took, context, lag=0.0, size_bytes=0):
        number = len(tasks)
        tasks.append(Task(number, name, kind, lane, took, 0.0, 0.0, context=context, size_bytes=size_bytes))
        if lane in last:
            because = "stream" if lane is STREAM else "thread"
            dependencies.append(Dependency(last[lane], True, number, False, lag, because))
        last[lane] = number
        return number

    for step in range(steps):
        if data_us:
            load = add("load", "data", THREAD, data_us, TaskContext(step, "data"), THINK_US)
            if step:
                dependencies.append(Dependency(last[STREAM], True, load, False, 0.0, "hand-over"))
        if copy_us:
            call = add("cudaMemcpyAsync", "sync", THREAD, CALL_US, TaskContext(step, "forward"), THINK_US)
            copy = add(
                "Memcpy HtoD (Pageable -> Device)", "copy", STREAM, copy_us, TaskContext(step, "forward"), GAP_US, 4096
            )
            dependencies.append(Dependency(call, False, copy, False, LATENCY_US, "launch"))
            dependencies.append(Dependency(copy, True, call, True, 0.0, "synchronisation"))
        for row, (phase, layer, operator, took, shape) in enumerate(rows):
            context = TaskContext(step, phase, layer, operator, (shape,) if shape else (), ("float",) if shape else ())
            call = add("cudaLaunchKernel", "launch", THREAD, CALL_US, context, THINK_US)
            kernel = add(f"{operator[6:]} {layer}".strip(), "kernel", STREAM, took, context, GAP_US)
            dependencies.append(Dependency(call, False, kernel, False, LATENCY_US, "launch"))
            found += [Gradient(size, kernel, step, layer) for where, size in gradients if where == row]
    graph = StepGraph(tasks, dependencies, {0: 0.0}, LATENCY_US, GAP_US, gradients=found)
    return measured(graph)


def measured(graph):
    """Return a graph whose measured times are those of its own run."""
    from dataclasses import replace

    from roller.insight.step.simulate import simulate

    run = simulate(graph)
    tasks = [replace(t, measured_start_us=run.start_us[t.id], measured_end_us=run.end_us[t.id]) for t in graph.tasks]
    return replace(graph, tasks=tasks)


def shapes_of(buckets):
    """Return bytes, gradients and last task of buckets."""
    return [(b.size_bytes, len(b.gradients), b.ready) for b in buckets]
