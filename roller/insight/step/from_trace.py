"""The graph of a traced step on a device; it has the type of a profile's graph, so that all what-ifs apply."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace

from roller.hardware import DeviceSpec
from roller.insight.cost.compiled import captured_launch_predicate
from roller.insight.cost.host_copies import host_copy_notes
from roller.insight.cost.operator_price import Price
from roller.insight.cost.step_cost import HOST_OP_S, PricedStep, price_step
from roller.insight.step.graph import Dependency, Kind, Lane, Provenance, StepGraph, Task, TaskContext
from roller.insight.step.simulate import simulate
from roller.insight.trace.gradient_buckets import Gradient, reduced_gradients
from roller.insight.trace.trace import Operator, Trace
from roller_runtime.core.gc_pause import gc_paused

#: Host time of an operator that only makes a view. Assumed, like the host time of a launching operator.
HOST_VIEW_S = 2e-6
_THREAD, _STREAM = Lane(0, "thread", "host"), Lane(0, "stream", "device")


@gc_paused()
def from_trace(
    trace: Trace, device: str | DeviceSpec, *, policy: str = "library", host_op_s: float = HOST_OP_S
) -> StepGraph:
    """Return the graph of a trace's last, steady step: one thread launches, and one stream computes.

    Its simulated time is exactly the time that :func:`roller.insight.forecast.forecast` predicts. All its times are
    predicted or assumed.

    Parameters
    ----------
    trace
        A trace from :func:`roller.trace`.
    device
        The specification of a GPU or a CPU, or its name.
    policy
        ``"library"``: kernels of PyTorch and its libraries. ``"roller"``: the fastest constructed programs.
    host_op_s
        Host time in seconds per launched kernel; on a CPU, per computing operator.

    Raises
    ------
    RollerError
        If the device or policy is unknown, or the device is neither a GPU nor a CPU.

    Examples
    --------
    >>> from roller.insight.trace.trace import TensorRecord
    >>> x, w, y = (TensorRecord((2048, 2048), (2048, 1), "float32", n) for n in range(3))
    >>> step = Trace((Operator(0, "aten.mm.default", "forward", (x, w), (y,)),), (), {}, (0, 1), {"batch": 2048})
    >>> graph = from_trace(step, "a100")
    >>> [(task.kind, task.resource) for task in graph.tasks]
    [('launch', ''), ('kernel', 'compute')]
    """
    from roller.compile_arguments import spec_and_local_device

    graph = build_priced_step_graph(price_step(trace, spec_and_local_device(device)[0], policy), host_op_s)
    run = simulate(graph)
    tasks = [replace(t, measured_start_us=run.start_us[t.id], measured_end_us=run.end_us[t.id]) for t in graph.tasks]
    spec, several = graph.device, len(trace.unlike())
    far = host_copy_notes(trace.steady(), run.makespan_us / 1e6) if spec is not None and spec.traits.discrete else ()
    last = (f"what-ifs are asked of the last of {several} steps that differ.",) if several > 1 else ()
    return replace(graph, tasks=tasks, notes=(*trace.warnings, *far, *last))


@gc_paused()
def build_priced_step_graph(step: PricedStep, host_op_s: float = HOST_OP_S) -> StepGraph:
    """Return the graph of a priced step, without measured times."""
    # The host takes ``host_op_s`` per launch; the device starts an operator when the host has issued it and the
    # previous operator has ended. A CPU computes an operator before it issues the next.
    steps = _StepGraphBuilder(host_op_s, step.spec.traits.discrete)
    is_captured = captured_launch_predicate(step.trace)
    for operator, price in step.operators:
        steps.add_operator(operator, price, is_captured=is_captured(operator))
    steps.add_host_time()
    return StepGraph(
        steps.tasks, steps.dependencies, {0: 0.0} if steps.tasks else {}, 1e6 * host_op_s, 0.0,
        f"step on {step.spec.name}", _gradients_with_ready_tasks(step.trace, steps), steps.operators, step.spec,
        settings=step.settings,
    )  # fmt: skip


@dataclass
class _StepGraphBuilder:
    """Builds the tasks and dependencies of a step."""

    host_op_s: float
    has_device: bool = True
    tasks: list[Task] = field(default_factory=list)
    dependencies: list[Dependency] = field(default_factory=list)
    operators: dict[int, Operator] = field(default_factory=dict)
    kernel_of: list[int | None] = field(default_factory=list)
    behind_s: float = 0.0
    last: dict[Lane, int] = field(default_factory=dict)

    def add_operator(self, operator: Operator, price: Price, *, is_captured: bool = False) -> None:
        """Add an operator; a view takes only host time, and a launch inside a captured graph takes no time."""
        if not price.kernels:
            self.behind_s += 0.0 if is_captured else min(self.host_op_s, HOST_VIEW_S)
        else:
            context = _task_context_of_operator(operator)
            if not self.has_device:  # the thread issues an operator and computes it before the next one
                self.behind_s += self.host_op_s
            if not self.tasks:
                self.add_host_time()
            if self.has_device:
                took_us = 0.0 if is_captured else 1e6 * self.host_op_s * price.kernels
                launch = self._add_task(_THREAD, "launch", "launch", took_us, context)
                task = self._add_task(_STREAM, operator.name, "kernel", 1e6 * price.seconds, context, price.resource)
                self.dependencies.append(Dependency(launch, False, task, False, took_us, "launch"))
            else:
                task = self._add_task(_THREAD, operator.name, "cpu", 1e6 * price.seconds, context, price.resource)
            self.operators[task] = operator
        self.kernel_of.append(self.last.get(_STREAM if self.has_device else _THREAD))
        if price.waits and _STREAM in self.last:
            sync = self._add_task(_THREAD, "wait", "sync", 0.0, _task_context_of_operator(operator), price.resource)
            self.dependencies.append(Dependency(self.last[_STREAM], True, sync, True, 0.0, "synchronisation"))

    def add_host_time(self) -> None:
        """Add a task for the host time before the first call or after the last one."""
        if self.behind_s:
            number, took = len(self.tasks), 1e6 * self.behind_s
            self.tasks.append(Task(number, "views", "cpu", _THREAD, took, 0.0, 0.0, provenance="assumed"))
            if _THREAD in self.last:
                self.dependencies.append(Dependency(self.last[_THREAD], True, number, False, 0.0, "thread"))
            self.last[_THREAD], self.behind_s = number, 0.0

    def _add_task(
        self, lane: Lane, name: str, kind: Kind, took_us: float, context: TaskContext, resource: str = ""
    ) -> int:
        number, on_device, before = len(self.tasks), lane is _STREAM, self.last.get(lane)
        source: Provenance = "assumed" if kind == "launch" else "predicted"
        self.tasks.append(
            Task(number, name, kind, lane, took_us, 0.0, 0.0, provenance=source, context=context, resource=resource)
        )
        if before is not None and on_device:
            self.dependencies.append(Dependency(before, True, number, False, 0.0, "stream"))
        elif before is not None:
            self.dependencies.append(Dependency(before, True, number, False, 1e6 * self.behind_s, "thread"))
        if not on_device:
            self.behind_s = 0.0
        self.last[lane] = number
        return number


def _task_context_of_operator(operator: Operator) -> TaskContext:
    return TaskContext(
        0, operator.phase, operator.module, operator.name, operator.input_shapes,
        operator.input_dtypes, operator.stack,
    )  # fmt: skip


def _gradients_with_ready_tasks(trace: Trace, steps: _StepGraphBuilder) -> tuple[Gradient, ...]:
    """Return the gradients of parameters, each ready after the last backward kernel that writes it."""
    work = sorted(steps.operators)
    found = []
    for gradient in reduced_gradients(trace):
        kernel, before = steps.kernel_of[gradient.ready], steps.kernel_of[(gradient.update or 0) - 1]
        if kernel is not None and before is not None:
            following = bisect_right(work, before)
            update = work[following] if following < len(work) else None
            found.append(gradient._replace(ready=kernel, update=update))
    return tuple(found)
