"""Replay of a profile: its graph is simulated, and the simulated time is compared with the profile's time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from roller.core.renamed import warn_renamed
from roller.errors import RollerError
from roller.hardware import DeviceSpec
from roller.insight.step.breakdown import BreakdownRow, LaneCost, breakdown, lanes
from roller.insight.step.cpu_device_overlap import Overlap, overlap_of_cpu_and_device
from roller.insight.step.graph import StepGraph
from roller.insight.step.join_ranks import join_ranks
from roller.insight.step.kineto_reader import Profile, read_profile
from roller.insight.step.missing_device_events import missing_events_notes, missing_events_reason
from roller.insight.step.profile_graph import build_graph
from roller.insight.step.simulate import Timeline, simulate
from roller.insight.step.steady_step_time import step_times_us
from roller.insight.step.unexplained_waits import (
    MOST_UNEXPLAINED,
    drop_unexplained_start,
    replay_disagrees,
    unexplained_waits,
)
from roller_runtime.core.gc_pause import gc_paused

#: Maximum number of unexplained waits in the JSON data, which contains only the longest ones.
_MOST_WAITS = 20


@dataclass(frozen=True)
class Replay:
    """The simulation of a profile's graph."""

    name: str
    graph: StepGraph = field(repr=False)
    timeline: Timeline = field(repr=False)
    #: Time from the first start to the last end, in the profile and in the simulation.
    measured_us: float
    replayed_us: float
    #: Share of the profile's time in unexplained waits, which the replay leaves out.
    unexplained_share: float
    overlap: Overlap
    #: All lanes, ordered by their share of the critical path.
    lanes: tuple[LaneCost, ...]

    @property
    def error(self) -> float:
        """Relative error of the replay."""
        return self.replayed_us / self.measured_us - 1.0 if self.measured_us else 0.0

    @property
    def is_explained(self) -> bool:
        """Whether changes to this profile can be predicted."""
        is_known = self.unexplained_share <= MOST_UNEXPLAINED and not self.graph.incomplete
        return is_known and not replay_disagrees(self.graph, self.replayed_us)

    @property
    def measured_iteration_us(self) -> float:
        """Time of a steady step in the profile: the median of its steps."""
        tasks = self.graph.tasks
        return median(
            step_times_us(self.graph, [t.measured_start_us for t in tasks], [t.measured_end_us for t in tasks])
        )

    @property
    def iteration_us(self) -> float:
        """Time of a steady step in the replay: the median of its steps."""
        return median(step_times_us(self.graph, self.timeline.start_us, self.timeline.end_us))

    @cached_property
    def phases(self) -> tuple[BreakdownRow, ...]:
        """Cost of each phase of the step, ordered by its share of the critical path."""
        return breakdown(self.graph, self.timeline, "phase")

    @cached_property
    def layers(self) -> tuple[BreakdownRow, ...]:
        """Cost of each layer, ordered by its share of the critical path."""
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
                for x in unexplained_waits(self.graph)[:_MOST_WAITS]
            ],
            "notes": list(self.graph.notes), "incomplete": self.graph.incomplete,
            "phases": [asdict(x) for x in self.phases], "layers": [asdict(x) for x in self.layers],
        }  # fmt: skip


@gc_paused()
def from_kineto(
    paths: str | Path | Sequence[str | Path],
    *,
    device: str | DeviceSpec | None = None,
    measured_us: Mapping[str, float] | None = None,
    prices: Mapping[str, float] | None = None,
) -> StepGraph:
    """Return the graph of a profile, or the joint graph of the profiles of several ranks.

    Parameters
    ----------
    paths
        Kineto's JSON, plain or gzipped; for a job with several processes, one file per rank, in order.
    device
        Device of the profile; its model prices new and changed kernels.
    measured_us
        Times in microseconds of kernels that were measured elsewhere, keyed by the names that what-ifs give them; these
        times take precedence over predictions.
    prices
        Former name of ``measured_us``.

    Raises
    ------
    ArtifactError
        If a file is not a profile.
    RollerError
        If no file is named, ranks do not share a collective, the device is unknown, or its kind is not the profile's.
    """
    from roller.compile_arguments import spec_and_local_device

    if prices is not None:
        warn_renamed("from_kineto: prices", "measured_us", 4)
        measured_us = prices
    files = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not files:
        raise RollerError("profiles: expected at least one file, got none. Name one, or one for each rank.")
    graphs = [_read_graph(file, n) for n, file in enumerate(files)]
    spec = None if device is None else spec_and_local_device(device)[0]
    if spec is not None:
        for graph in graphs:
            _check_profile_matches_device_kind(graph, spec)
    if len(graphs) == 1:
        return replace(drop_unexplained_start(graphs[0]), device=spec, measured_kernels_us=dict(measured_us or {}))
    for file, graph in zip(files, graphs, strict=True):
        if not any(task.kind == "collective" for task in graph.tasks):
            raise RollerError(
                f"{file}: expected a rank of a job, got a profile without collectives. Replay it alone, or name the "
                f"ranks of one job."
            )
    return replace(drop_unexplained_start(join_ranks(graphs)), device=spec, measured_kernels_us=dict(measured_us or {}))


def _read_graph(file: str | Path, rank: int) -> StepGraph:
    return build_profile_graph(read_profile(file), Path(file).name, rank)


def build_profile_graph(profile: Profile, name: str, rank: int = 0) -> StepGraph:
    """Return the whole graph of a profile, with notes on its defects and missing events."""
    made = build_graph(profile.events, rank=rank, name=name, overhead_us=profile.overhead_us)
    notes = (*profile.notes, *missing_events_notes(profile), *made.notes)
    return replace(made, notes=notes, incomplete=missing_events_reason(profile), world_size=profile.world_size)


def _check_profile_matches_device_kind(graph: StepGraph, spec: DeviceSpec) -> None:
    """Raise an error for a GPU if the profile has no GPU tasks, and for a CPU if the profile has GPU tasks."""
    if (graph.has_device or bool(graph.incomplete)) != spec.traits.blocks:
        gpu = "a GPU, whose kernels it has" if graph.has_device else "a GPU, whose events are missing"
        own = "a processor: no task of it ran on a GPU" if spec.traits.blocks else gpu
        raise RollerError(
            f"{graph.name}: device: expected what the profile was made on, {own}, got {spec.name}. Name that, or "
            f"leave it out; for a device you do not have, write an entry file and ask `roller forecast`."
        )


def replay(graph: StepGraph) -> Replay:
    """Simulate a graph and compare the simulated time with the profile's time.

    Examples
    --------
    A call launches a kernel, waits for it, and takes a microsecond to return.

    >>> from roller.insight.step.profile_graph import build_graph
    >>> from roller.insight.step.kineto_reader import Event
    >>> events = [
    ...     Event("cudaLaunchKernel", "call", 0.0, 5.0, "thread 1", 1, {}),
    ...     Event("gemm", "kernel", 8.0, 90.0, "stream 7", 1, {}),
    ...     Event("cudaDeviceSynchronize", "call", 10.0, 89.0, "thread 1", 2, {}),
    ... ]
    >>> found = replay(build_graph(events))
    >>> found.replayed_us, found.overlap.device_only_us, found.graph.latency_us
    (99.0, 88.0, 8.0)
    """
    timeline = simulate(graph)
    return Replay(
        graph.name, graph, timeline, graph.measured_us, timeline.makespan_us, graph.unexplained_share,
        overlap_of_cpu_and_device(graph, timeline), lanes(graph, timeline),
    )  # fmt: skip
