"""Replays a profile: whether its graph, with one latency and one gap, takes as long as the profile did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from roller.core.cyclic import held_back
from roller.errors import RollerError
from roller.hardware import DeviceSpec
from roller.insight.renamed import warn
from roller.insight.step.breakdown import BreakdownRow, LanePart, breakdown, lanes
from roller.insight.step.graph import StepGraph
from roller.insight.step.join_ranks import join
from roller.insight.step.kineto_reader import read_profile
from roller.insight.step.missing_device_events import missing, note
from roller.insight.step.overlap import Overlap, overlap
from roller.insight.step.profile_graph import build
from roller.insight.step.simulate import Timeline, simulate
from roller.insight.step.steady_step import steps_us
from roller.insight.step.unexplained_waits import MOST_UNEXPLAINED, explained_part, strays, waits

#: Unexplained waits that data lists, the longest.
_MOST_WAITS = 20


@dataclass(frozen=True)
class Replay:
    """A profile, run again as a graph.

    Parameters
    ----------
    name
        Of the profile.
    graph, timeline
        What was run, and when every task ran.
    measured_us, replayed_us
        First start to last end, in the profile and in the graph.
    unexplained_share
        Share of the profile that device tasks waited for nobody knows what; the replay leaves it out.
    overlap
        Of CPU and device in the replay.
    lanes
        Every lane, those with most of the critical path first.
    """

    name: str
    graph: StepGraph = field(repr=False)
    timeline: Timeline = field(repr=False)
    measured_us: float
    replayed_us: float
    unexplained_share: float
    overlap: Overlap
    lanes: tuple[LanePart, ...]

    @property
    def error(self) -> float:
        """Relative error of the replay."""
        return self.replayed_us / self.measured_us - 1.0 if self.measured_us else 0.0

    @property
    def is_explained(self) -> bool:
        """Whether a change of this profile can be predicted at all."""
        is_known = self.unexplained_share <= MOST_UNEXPLAINED and not self.graph.incomplete
        return is_known and not strays(self.graph, self.replayed_us)

    @property
    def measured_iteration_us(self) -> float:
        """Time of a steady step in the profile: the median of those it has."""
        tasks = self.graph.tasks
        return median(steps_us(self.graph, [t.measured_start_us for t in tasks], [t.measured_end_us for t in tasks]))

    @property
    def iteration_us(self) -> float:
        """Time of a steady step of the replay."""
        return median(steps_us(self.graph, self.timeline.start_us, self.timeline.end_us))

    @cached_property
    def phases(self) -> tuple[BreakdownRow, ...]:
        """What every phase of the step takes, the most of the critical path first."""
        return breakdown(self.graph, self.timeline, "phase")

    @cached_property
    def layers(self) -> tuple[BreakdownRow, ...]:
        """What every layer takes, the most of the critical path first."""
        return breakdown(self.graph, self.timeline, "module")

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        split = self.overlap
        return {
            "name": self.name, "tasks": len(self.graph.tasks), "measured_us": self.measured_us,
            "replayed_us": self.replayed_us, "error": self.error, "unexplained_share": self.unexplained_share,
            "is_explained": self.is_explained, "latency_us": self.graph.latency_us, "gap_us": self.graph.gap_us,
            "breakdown": {
                "cpu_only_us": split.cpu_only_us, "device_only_us": split.device_only_us, "both_us": split.both_us
            },
            "lanes": [
                {"lane": x.lane, "tasks": x.tasks, "busy_us": x.busy_us, "critical_us": x.critical_us}
                for x in self.lanes
            ],
            "iteration_us": self.iteration_us, "measured_iteration_us": self.measured_iteration_us,
            "unexplained": [
                {"lane": x.lane.name, "rank": x.lane.rank, "start_us": x.start_us, "end_us": x.end_us, "task": x.task}
                for x in waits(self.graph)[:_MOST_WAITS]
            ],
            "notes": list(self.graph.notes), "incomplete": self.graph.incomplete,
            "phases": [asdict(x) for x in self.phases], "layers": [asdict(x) for x in self.layers],
        }  # fmt: skip


@held_back()
def from_kineto(
    paths: str | Path | Sequence[str | Path],
    *,
    device: str | DeviceSpec | None = None,
    measured_us: Mapping[str, float] | None = None,
    prices: Mapping[str, float] | None = None,
) -> StepGraph:
    """Return the graph of a profile, or of those of several ranks together.

    Parameters
    ----------
    paths
        Kineto's JSON, plain or gzipped; of a job of several processes one file each, in the order of ranks.
    device
        What it was made on: new and changed kernels are priced by its model.
    measured_us
        Microseconds of kernels that were measured elsewhere, by the name that what-ifs give them: they come before
        what a model says.
    prices
        Former name of ``measured_us``.

    Raises
    ------
    ArtifactError
        A file is no profile.
    RollerError
        No file is named, ranks share no collective, there is no such device, or it is none the profile was made on.
    """
    from roller.arguments import target_of

    if prices is not None:
        warn("from_kineto: prices", "measured_us", 4)
        measured_us = prices
    files = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not files:
        raise RollerError("profiles: expected at least one file, got none. Name one, or one for each rank.")
    graphs = [_read(file, n) for n, file in enumerate(files)]
    spec = None if device is None else target_of(device)[0]
    if spec is not None:
        for graph in graphs:
            _check_kind(graph, spec)
    if len(graphs) == 1:
        return replace(explained_part(graphs[0]), device=spec, measured_kernels_us=dict(measured_us or {}))
    for file, graph in zip(files, graphs, strict=True):
        if not any(task.kind == "collective" for task in graph.tasks):
            raise RollerError(
                f"{file}: expected a rank of a job, got a profile without collectives. Replay it alone, or name the "
                f"ranks of one job."
            )
    return replace(explained_part(join(graphs)), device=spec, measured_kernels_us=dict(measured_us or {}))


def _read(file: str | Path, rank: int) -> StepGraph:
    """Return the graph of a file, which says what is wrong with it and what it lacks."""
    profile = read_profile(file)
    made = build(profile.events, rank=rank, name=Path(file).name, overhead_us=profile.overhead_us)
    notes = (*profile.notes, *note(profile), *made.notes)
    return replace(made, notes=notes, incomplete=missing(profile), world_size=profile.world_size)


def _check_kind(graph: StepGraph, spec: DeviceSpec) -> None:
    """Refuse a GPU as what a profile was made on that has no task of one, and a processor where it has."""
    if (graph.has_device or bool(graph.incomplete)) != spec.traits.blocks:
        gpu = "a GPU, whose kernels it has" if graph.has_device else "a GPU, whose events are missing"
        own = "a processor: no task of it ran on a GPU" if spec.traits.blocks else gpu
        raise RollerError(
            f"{graph.name}: device: expected what the profile was made on, {own}, got {spec.name}. Name that, or "
            f"leave it out; for a device you do not have, write an entry file and ask `roller forecast`."
        )


def replay(graph: StepGraph) -> Replay:
    """Run a graph, and hold it to its profile.

    Examples
    --------
    A call launches a kernel, waits for it, and takes a microsecond to return.

    >>> from roller.insight.step.profile_graph import build
    >>> from roller.insight.step.kineto_reader import Event
    >>> events = [
    ...     Event("cudaLaunchKernel", "call", 0.0, 5.0, "thread 1", 1, {}),
    ...     Event("gemm", "kernel", 8.0, 90.0, "stream 7", 1, {}),
    ...     Event("cudaDeviceSynchronize", "call", 10.0, 89.0, "thread 1", 2, {}),
    ... ]
    >>> found = replay(build(events))
    >>> found.replayed_us, found.overlap.device_only_us, found.graph.latency_us
    (99.0, 88.0, 8.0)
    """
    timeline = simulate(graph)
    return Replay(
        graph.name, graph, timeline, graph.measured_us, timeline.makespan_us, graph.unexplained_share,
        overlap(graph, timeline), lanes(graph, timeline),
    )  # fmt: skip
