"""What-if: BlueConnect, an all-reduce made of reduce-scatters down the network levels and all-gathers back up."""

from __future__ import annotations

from dataclasses import dataclass, field

from roller.insight.step.graph import Lane, StepGraph
from roller.insight.whatif.collective_communication_times import devices_and_bandwidths, reduce_scatter_us
from roller.insight.whatif.insertion import NewTask, insert
from roller.insight.whatif.primitives import remove
from roller.insight.whatif.task_selection import network_tasks
from roller.insight.whatif.what_if import WhatIf, minimum_value_metadata


@dataclass(frozen=True)
class BlueConnect(WhatIf):
    """Split every all-reduce over network levels; buckets overlap on the channels of different levels.

    Parameters
    ----------
    levels
        Number of devices per level, innermost first, e.g. 4 in each of 2 machines.
    bandwidths
        Bytes per second of a link at each level.
    latency_us
        Latency of one hop.
    """

    levels: tuple[int, ...] = (4, 2)
    bandwidths: tuple[float, ...] = (300e9, 12.5e9)
    latency_us: float = field(default=5.0, metadata=minimum_value_metadata(0))
    of_several_ranks = True

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph with all-reduces replaced with reduce-scatters and all-gathers."""
        gone = [n for n in network_tasks(graph) if graph.tasks[n].size_bytes and graph.tasks[n].kind == "collective"]
        readers = {n: [d.target for d in graph.dependencies if d.source == n and d.of_end and d.target not in gone]
                   for n in gone}  # fmt: skip
        new: list[NewTask] = []
        down = list(enumerate(devices_and_bandwidths(self.levels, self.bandwidths)))
        for task in (graph.tasks[n] for n in gone):
            sizes = [float(task.size_bytes)]
            for devices in self.levels:
                sizes.append(sizes[-1] / devices)
            for step, (level, (devices, bandwidth)) in enumerate([*down, *reversed(down)]):
                number, is_last = len(graph.tasks) + len(new), step == 2 * len(down) - 1
                new.append(NewTask("reduce-scatter" if step < len(down) else "all-gather", "collective",
                               reduce_scatter_us(sizes[level], devices, bandwidth, self.latency_us),
                               lane=Lane(task.lane.rank, "channel", f"level {level}"), context=task.context,
                               after=(number - 1 if step else task.id,),
                               before=readers[task.id] if is_last else ()))  # fmt: skip
        return insert(remove(graph, gone), *new)
