"""Tasks on lanes and their dependencies: a step that can be changed and simulated."""

# Times are microseconds, as in profiles. Start and end of a task are separate events: a call that waits for a kernel it
# launched delays its own end, which would be a cycle if the task were one event.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from roller.core.renamed import deprecated_method_replacement
from roller.insight.cost.library_settings import DEFAULT_SETTINGS, LibrarySettings
from roller.insight.trace.gradient_buckets import Gradient
from roller.insight.trace.trace import Operator, Phase, Stack

if TYPE_CHECKING:
    from roller.hardware import DeviceSpec

#: Kind of a task.
Kind = Literal["cpu", "launch", "sync", "kernel", "copy", "set", "collective", "send", "receive", "data"]
#: Reason for a dependency.
DependencyKind = Literal[
    "thread", "stream", "launch", "synchronisation", "event", "hand-over", "collective", "communication", "queue"
]
#: Origin of a duration.
Provenance = Literal["measured", "predicted", "assumed", "calibrated"]
#: Kinds of tasks that run on a device.
DEVICE_KINDS = frozenset({"kernel", "copy", "set", "collective"})
#: Kinds of tasks that run on a network.
NETWORK_KINDS = frozenset({"collective", "send", "receive"})


class Lane(NamedTuple):
    """A resource that runs its tasks one after another."""

    #: Index of the process in a job; 0 for a single process.
    rank: int
    #: A ``"thread"`` of the host, a ``"stream"`` of a device, a ``"channel"`` of a network, or a ``"loader"`` process
    #: that loads batches.
    kind: Literal["thread", "stream", "channel", "loader"]
    #: Process and thread, or device and stream, as in the profile.
    name: str


class TaskContext(NamedTuple):
    """The position of a task in a training step: the marks and operators around its call on the thread."""

    #: Index of the step in the profile, from 0; -1 before the first step; 0 if no steps are marked.
    iteration: int = 0
    phase: Phase = "other"
    #: Path of the innermost module, or name of a region; for a task of the backward pass, the module of its forward
    #: operator; ``""`` outside all modules.
    module: str = ""
    #: Innermost operator, as in the profile, and shapes and dtypes of its inputs if known.
    operator: str = ""
    shapes: tuple[Any, ...] = ()
    dtypes: tuple[str, ...] = ()
    #: The project's frames around the operator, outermost first, if known.
    stack: Stack = ()


#: Context of a task without any marks.
NO_CONTEXT = TaskContext()


@dataclass(frozen=True, slots=True)
class Task:
    """The smallest unit with a start and a duration: a call, a kernel or a copy."""

    #: Index in the graph.
    id: int
    name: str
    kind: Kind
    lane: Lane
    #: Time without waits; for a call that waits, the time it takes to return.
    duration_us: float
    #: Times since the profile's first task; a call ends after its wait.
    measured_start_us: float
    measured_end_us: float
    #: Delay of a device task after all its known dependencies, or of a call that only waits, after all tasks that it is
    #: known to wait for.
    unexplained_us: float = 0.0
    provenance: Provenance = "measured"
    #: A removed task stays as an event without duration, which keeps the order of other tasks.
    is_removed: bool = False
    #: Position in the step; for a device task, the position of its call.
    context: TaskContext = NO_CONTEXT
    #: Bytes that a copy, a set or a collective moves; 0 if unknown.
    size_bytes: int = 0
    #: Resource that bounds it according to its price: ``"compute"``, ``"dram"``, ...; ``""`` without a price.
    resource: str = ""
    #: Among tasks that could start on a lane at the same time, the one with the highest priority starts first.
    priority: int = 0

    @property
    def on_device(self) -> bool:
        """Whether the task runs on a device."""
        return self.kind in DEVICE_KINDS


@dataclass(frozen=True, slots=True)
class Dependency:
    """An event of the target task happens at least ``lag_us`` after an event of the source task."""

    source: int
    #: Whether the source's event is its end rather than its start.
    of_end: bool
    target: int
    #: Whether the target's event is its end rather than its start.
    to_end: bool
    lag_us: float
    kind: DependencyKind


@dataclass(frozen=True)
class StepGraph:
    """A step as tasks and dependencies.

    Parameters
    ----------
    tasks
        Tasks by id.
    dependencies
        Dependencies in any order.
    starts_us
        Earliest start times of tasks without dependencies.
    latency_us, gap_us
        Time between a launch and its kernel on an idle stream, and between queued kernels in a stream.
    name
        Name of the profile or trace, and of the changes.
    gradients
        Gradients of all steps, in the order in which they become ready; empty if the profile does not give their
        sizes.
    operators
        Operators of tasks by task id, for a traced step.
    device
        Device of the profile, if it was named; its model prices changed kernels.
    measured_kernels_us
        Measured times of kernels in microseconds, keyed by kernel name; these times take precedence over predictions.
    assumptions
        Assumptions made by the changes, one sentence each.
    overhead_us
        Recording overhead for tasks on threads: within the task, and in the host code after it. Empty if the overhead
        is unknown or was removed.
    policy
        Sort key of tasks that could start on a lane at the same time: the task with the smallest key starts first.
        ``None``: the task with the highest priority.
    is_latency_measured
        Whether ``latency_us`` is measured rather than assumed.
    optimizers
        Classes of the optimizers whose steps the profile marks.
    captured_share
        Share of device tasks whose call launched several tasks at once, as captured graphs do.
    world_size
        Number of processes in the job; 0 if the profile does not give it.
    in_place
        Requested changes that the profile already had, one sentence each.
    notes
        Omitted parts of the profile and defects in its file, one sentence each.
    incomplete
        If device events are missing, the reason why no change can be predicted; otherwise ``""``.
    origin_us
        Time in the profile from which measured starts and ends are counted.
    settings
        Settings of PyTorch and its libraries under which changed kernels are priced.
    """

    tasks: Sequence[Task] = field(repr=False)
    dependencies: Sequence[Dependency] = field(repr=False)
    starts_us: dict[int, float] = field(repr=False)
    latency_us: float
    gap_us: float
    name: str = "profile"
    gradients: Sequence[Gradient] = field(default=(), repr=False)
    operators: Mapping[int, Operator] = field(default_factory=dict, repr=False)
    device: DeviceSpec | None = field(default=None, repr=False)
    measured_kernels_us: Mapping[str, float] = field(default_factory=dict, repr=False)
    assumptions: tuple[str, ...] = ()
    overhead_us: Mapping[int, tuple[float, float]] = field(default_factory=dict, repr=False)
    policy: Callable[[Task], Any] | None = field(default=None, repr=False)
    is_latency_measured: bool = True
    optimizers: tuple[str, ...] = ()
    captured_share: float = 0.0
    world_size: int = 0
    in_place: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    incomplete: str = ""
    origin_us: float = 0.0
    settings: LibrarySettings = DEFAULT_SETTINGS

    @property
    def measured_us(self) -> float:
        """Time from the first start to the last end in the profile."""
        first = min((t.measured_start_us for t in self.tasks), default=0.0)
        return max((t.measured_end_us for t in self.tasks), default=0.0) - first

    @property
    def unexplained_share(self) -> float:
        """Share of the profile's time spent in unexplained waits of device tasks and calls."""
        lanes = {t.lane.rank for t in self.tasks} or {0}
        waited = sum(t.unexplained_us for t in self.tasks)
        return waited / len(lanes) / self.measured_us if self.measured_us else 0.0

    @property
    def has_device(self) -> bool:
        """Whether a device ran any task; if not, threads computed everything."""
        return any(t.on_device for t in self.tasks)

    @property
    def iterations(self) -> tuple[int, ...]:
        """Indices of the steps in the graph, in order."""
        return tuple(sorted({t.context.iteration for t in self.tasks if t.context.iteration >= 0}))

    def what_if(self, *changes: Any, force: bool = False) -> Any:
        """Return the result of :func:`roller.insight.whatif.predict.what_if`; deprecated."""
        return deprecated_method_replacement("StepGraph.what_if", "roller.insight.whatif.predict", "what_if")(
            self, *changes, force=force
        )

    def replay(self) -> Any:
        """Return the result of :func:`roller.insight.step.replay.replay`; deprecated."""
        return deprecated_method_replacement("StepGraph.replay", "roller.insight.step.replay", "replay")(self)
