"""The graph of a traced step on a device that is not here: of the same type as a profile's, so every what-if works."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from roller.core.cyclic import held_back
from roller.hardware import DeviceSpec
from roller.insight.forecast import HOST_OP_S, forecast
from roller.insight.lanes import HOST_VIEW_S
from roller.insight.parallel import reductions
from roller.insight.price.operators import Price
from roller.insight.records import Operator, Trace
from roller.insight.whatif.graph import Dependency, Gradient, Graph, Kind, Lane, Phase, Place, Task
from roller.insight.whatif.simulate import simulate

_THREAD, _STREAM = Lane(0, "thread", "host"), Lane(0, "stream", "device")
_PHASES: Mapping[str, Phase] = {"forward": "forward", "backward": "backward", "optimizer": "update"}


@held_back()
def from_trace(
    trace: Trace, device: str | DeviceSpec, *, policy: str = "library", host_op_s: float = HOST_OP_S
) -> Graph:
    """Return the graph of the last, steady step of a trace: one thread that launches, one stream that computes.

    Run unchanged it takes what :func:`roller.insight.forecast.forecast` says, to the last digit. All its times are
    predicted, or assumed.

    Parameters
    ----------
    trace
        As :func:`roller.trace` gives it.
    device
        The specification of a GPU or a processor, or its name.
    policy
        ``"library"``: kernels of PyTorch and the libraries below it. ``"roller"``: the fastest constructed programs.
    host_op_s
        Host time of one operator that launches.

    Raises
    ------
    RollerError
        No such device or policy, or a device of another kind.

    Examples
    --------
    >>> from roller.insight.records import TensorRecord
    >>> x, w, y = (TensorRecord((2048, 2048), (2048, 1), "float32", n) for n in range(3))
    >>> step = Trace((Operator(0, "aten.mm.default", "forward", (x, w), (y,)),), (), {}, (0, 1), {"batch": 2048})
    >>> graph = from_trace(step, "a100")
    >>> [(task.kind, task.resource) for task in graph.tasks]
    [('launch', ''), ('kernel', 'compute')]
    """
    from roller.arguments import target_of

    spec = target_of(device)[0]
    steps = _Steps(host_op_s, spec.traits.discrete)
    for operator, price in forecast(trace, spec, policy=policy, host_op_s=host_op_s).operators:
        steps.add(operator, price)
    steps.end()
    graph = Graph(
        steps.tasks, steps.dependencies, {0: 0.0} if steps.tasks else {}, 1e6 * host_op_s, 0.0,
        f"step on {spec.name}", _gradients(trace, steps), steps.operators, spec,
    )  # fmt: skip
    run = simulate(graph)
    tasks = [replace(t, measured_start_us=run.start_us[t.id], measured_end_us=run.end_us[t.id]) for t in graph.tasks]
    return replace(graph, tasks=tasks)


@dataclass
class _Steps:
    """Tasks while they grow, by the rules of :func:`roller.insight.lanes.run_lanes`."""

    host_op_s: float
    has_device: bool = True
    tasks: list[Task] = field(default_factory=list)
    dependencies: list[Dependency] = field(default_factory=list)
    operators: dict[int, Operator] = field(default_factory=dict)
    kernel_of: list[int | None] = field(default_factory=list)
    behind_s: float = 0.0
    last: dict[Lane, int] = field(default_factory=dict)

    def add(self, operator: Operator, price: Price) -> None:
        """Add an operator: views only take the host's time, which lies between calls."""
        if price.kernels and not self.has_device:  # the thread issues it, and computes it before the next
            self.behind_s += self.host_op_s
            if not self.tasks:
                self.end()
            self.operators[self._task(_THREAD, operator.name, "cpu", price.seconds, operator, price)] = operator
        elif price.kernels:
            if not self.tasks:
                self.end()
            took = self.host_op_s * price.kernels
            launch = self._task(_THREAD, "launch", "launch", took, operator, price)
            kernel = self._task(_STREAM, operator.name, "kernel", price.seconds, operator, price)
            self.dependencies.append(Dependency(launch, False, kernel, False, 1e6 * took, "launch"))
            self.operators[kernel] = operator
        else:
            self.behind_s += min(self.host_op_s, HOST_VIEW_S)
        self.kernel_of.append(self.last.get(_STREAM if self.has_device else _THREAD))
        if price.waits and _STREAM in self.last:
            sync = self._task(_THREAD, "wait", "sync", 0.0, operator, price)
            self.dependencies.append(Dependency(self.last[_STREAM], True, sync, True, 0.0, "synchronisation"))

    def end(self) -> None:
        """Let the host's time that stands behind no call, or ahead of none, be a task."""
        if self.behind_s:
            number, took = len(self.tasks), 1e6 * self.behind_s
            self.tasks.append(Task(number, "views", "cpu", _THREAD, took, 0.0, 0.0, provenance="assumed"))
            if _THREAD in self.last:
                self.dependencies.append(Dependency(self.last[_THREAD], True, number, False, 0.0, "thread"))
            self.last[_THREAD], self.behind_s = number, 0.0

    def _task(self, lane: Lane, name: str, kind: Kind, seconds: float, operator: Operator, price: Price) -> int:
        number = len(self.tasks)
        place = Place(
            0, _PHASES.get(operator.phase, "other"), operator.module, operator.name,
            tuple(t.shape for t in operator.inputs), tuple(t.dtype for t in operator.inputs),
        )  # fmt: skip
        on_device, priced = lane is _STREAM, kind != "launch"
        self.tasks.append(
            Task(number, name, kind, lane, 1e6 * seconds, 0.0, 0.0, provenance="predicted" if priced else "assumed",
                 place=place, resource=price.resource if priced else "")
        )  # fmt: skip
        if lane in self.last:
            lag = 0.0 if on_device else 1e6 * self.behind_s
            self.dependencies.append(
                Dependency(self.last[lane], True, number, False, lag, "stream" if on_device else "thread")
            )
        if not on_device:
            self.behind_s = 0.0
        self.last[lane] = number
        return number


def _gradients(trace: Trace, steps: _Steps) -> tuple[Gradient, ...]:
    """Return the gradients of parameters, each behind the last kernel of the backward that writes it."""
    work = [task.id for task in steps.tasks if task.kind == ("kernel" if steps.has_device else "cpu")]
    found = []
    for gradient in reductions(trace):
        kernel, before = steps.kernel_of[gradient.ready], steps.kernel_of[gradient.update - 1]
        if kernel is not None and before is not None:
            following = bisect_right(work, before)
            update = work[following] if following < len(work) else None
            found.append(Gradient(gradient.size_bytes, kernel, 0, gradient.module, update))
    return tuple(found)
