"""Tasks on lanes, and what holds each back: a profile that can be simulated, and changed before it is.

Times are microseconds, as profiles have them. Start and end of a task are separate events: a call that waits for a
kernel it launched holds back its own end, and would be a cycle were it one event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from roller.insight.renamed import deprecated
from roller.insight.trace.gradient_buckets import Gradient
from roller.insight.trace.trace import Operator, Phase, Stack

if TYPE_CHECKING:
    from roller.hardware import DeviceSpec

#: What a task is.
Kind = Literal["cpu", "launch", "sync", "kernel", "copy", "set", "collective", "send", "receive", "data"]
#: What created a dependency.
DependencyKind = Literal[
    "thread", "stream", "launch", "synchronisation", "event", "hand-over", "collective", "communication", "queue"
]
#: Where a duration is from.
Provenance = Literal["measured", "predicted", "assumed", "calibrated"]
#: Kinds that run on a device.
DEVICE_KINDS = frozenset({"kernel", "copy", "set", "collective"})
#: Kinds that a network runs.
NETWORK_KINDS = frozenset({"collective", "send", "receive"})


class Lane(NamedTuple):
    """What runs its tasks one after another.

    Parameters
    ----------
    rank
        Process of a job of several; 0 of one alone.
    kind
        ``"thread"``, ``"stream"``, ``"channel"`` of a network, or ``"loader"``, a process that loads batches.
    name
        Process and thread, or device and stream, as the profile names them.
    """

    rank: int
    kind: Literal["thread", "stream", "channel", "loader"]
    name: str


class TaskContext(NamedTuple):
    """Where in a training step a task belongs: what stood around its call on the thread.

    Parameters
    ----------
    iteration
        Step of the profile, from 0; -1 before the first. 0 where no steps are marked.
    phase
        Of the step.
    module
        Path of the innermost module, or name of a region, of a backward task that of its forward; ``""`` outside.
    operator
        Innermost operator, as the profile names it.
    shapes, dtypes
        Of the operator's inputs, where the profile has them.
    stack
        The project's frames around the operator, outermost first, where they are known.
    """

    iteration: int = 0
    phase: Phase = "other"
    module: str = ""
    operator: str = ""
    shapes: tuple[Any, ...] = ()
    dtypes: tuple[str, ...] = ()
    stack: Stack = ()


#: Of a task that nothing is known of.
NO_CONTEXT = TaskContext()


@dataclass(frozen=True, slots=True)
class Task:
    """The smallest unit with a start and a duration: a call, a kernel, a copy.

    Parameters
    ----------
    id
        Its place in the graph.
    name
        Of the call or kernel.
    kind, lane
        What it is, and where it runs.
    duration_us
        Without what it waits for: of a call that waits, what it takes to return.
    measured_start_us, measured_end_us
        In the profile, from its first task on; the end of a call includes its wait.
    unexplained_us
        By how much a device task started later than all that is known to hold it back, or a call that only waits went
        on when all that it is known to wait for had ended.
    provenance
        Where the duration is from: the profile, a price, or an assumption.
    is_removed
        Whether a change took it out: it stays as an event of no duration, through which others keep their order.
    place
        Where in the step it belongs; a device task belongs where its call does.
    size_bytes
        What a copy, a set or a collective moves; 0 where the profile does not say.
    resource
        What limits it, as its price says: ``"compute"``, ``"dram"``, ...; ``""`` where it has none.
    priority
        Of tasks that could start on a lane at the same time the one of the highest goes first.
    """

    id: int
    name: str
    kind: Kind
    lane: Lane
    duration_us: float
    measured_start_us: float
    measured_end_us: float
    unexplained_us: float = 0.0
    provenance: Provenance = "measured"
    is_removed: bool = False
    context: TaskContext = NO_CONTEXT
    size_bytes: int = 0
    resource: str = ""
    priority: int = 0

    @property
    def on_device(self) -> bool:
        """Whether a device runs it."""
        return self.kind in DEVICE_KINDS


@dataclass(frozen=True, slots=True)
class Dependency:
    """One event of a task holds back one of another, by ``lag_us`` more.

    Parameters
    ----------
    source, of_end
        The task that goes first, and whether its end counts, or its start.
    target, to_end
        The task that is held back, and whether its end is, or its start.
    lag_us
        Between the two events.
    kind
        What created it.
    """

    source: int
    of_end: bool
    target: int
    to_end: bool
    lag_us: float
    kind: DependencyKind


@dataclass(frozen=True)
class StepGraph:
    """A profile as tasks and dependencies.

    Parameters
    ----------
    tasks
        By id.
    dependencies
        In the order they were found.
    starts_us
        When a task may start at the earliest, of those that nothing else holds back.
    latency_us, gap_us
        Between a launch and its kernel on an idle stream, and between kernels that were queued long before: one number
        each for a device.
    name
        What it was made of, and what was changed.
    gradients
        Of every step, in the order in which they appear; none where the profile does not tell their sizes.
    operators
        What a task computes, of tasks that a trace tells it of.
    device
        What the profile was made on, where that was said: changed kernels are priced by its model.
    measured_kernels_us
        Microseconds of kernels that were measured, by name: they come before every prediction.
    assumptions
        What changes took for granted, a sentence each.
    overhead_us
        What recording took, of tasks on threads: within the task, and in the host's code behind it. Empty where that is
        not known, or was taken out.
    policy
        Of tasks that could start on a lane at the same time the one of the smallest goes first; ``None`` goes by their
        priority.
    is_latency_measured
        Whether the profile tells ``latency_us``; else it is assumed.
    optimizers
        Classes of the optimizers whose steps it marks.
    captured_share
        Share of its device tasks that calls launched which launch several at once, as captured graphs do.
    world_size
        Processes of its job, where the profile says so; else 0.
    in_place
        Changes that were asked for and were in place already, a sentence each.
    notes
        What of the profile was left off or is wrong with its file, a sentence each.
    incomplete
        Why no change can be asked, as it lacks what its device did; ``""`` where it does not.
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

    @property
    def measured_us(self) -> float:
        """Time from the first start to the last end in the profile."""
        first = min((t.measured_start_us for t in self.tasks), default=0.0)
        return max((t.measured_end_us for t in self.tasks), default=0.0) - first

    @property
    def unexplained_share(self) -> float:
        """Share of the profile's time that device tasks and calls waited for nobody knows what."""
        lanes = {t.lane.rank for t in self.tasks} or {0}
        waited = sum(t.unexplained_us for t in self.tasks)
        return waited / len(lanes) / self.measured_us if self.measured_us else 0.0

    @property
    def has_device(self) -> bool:
        """Whether a device ran anything; else threads did all the work."""
        return any(t.on_device for t in self.tasks)

    @property
    def iterations(self) -> tuple[int, ...]:
        """Steps it holds, in order."""
        return tuple(sorted({t.context.iteration for t in self.tasks if t.context.iteration >= 0}))

    def what_if(self, *changes: Any, force: bool = False) -> Any:
        """Return what :func:`roller.insight.whatif.predict.what_if` does: deprecated."""
        return deprecated("StepGraph.what_if", "roller.insight.whatif.predict", "what_if")(self, *changes, force=force)

    def replay(self) -> Any:
        """Return what :func:`roller.insight.step.replay.replay` does: deprecated."""
        return deprecated("StepGraph.replay", "roller.insight.step.replay", "replay")(self)
