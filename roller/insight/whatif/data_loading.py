"""Batches that workers load: what each takes, and the tasks of the workers beside the training."""

from __future__ import annotations

from collections.abc import Sequence

from roller.insight.step.graph import Lane, StepGraph, TaskContext
from roller.insight.step.simulate import simulate
from roller.insight.step.steady_step import steady_step_us
from roller.insight.whatif.insertion import New
from roller.insight.whatif.primitives import select
from roller.insight.whatif.select import ordered

#: Steps until a pipeline of workers is steady, as seen from its first batch.
STEADY = 4


def loads_of(graph: StepGraph) -> tuple[int, ...]:
    """Return the loading of batches on the thread that trains, in order."""
    return ordered(graph, select(graph, lambda t: t.kind == "data" and t.lane.kind == "thread"))


def load_us(graph: StepGraph, loads: Sequence[int], of: int | None) -> list[float]:
    """Return what every batch takes to load: on the thread that trains, or a worker, of which ``of`` take turns."""
    if of is None:
        return [graph.tasks[n].duration_us for n in loads]
    return [of * steady_step_us(graph, simulate(graph))] * len(loads)


def worker_tasks(loads: Sequence[int], took_us: Sequence[float], workers: int, ready: int, *, told: bool) -> list[New]:
    """Return the loading on workers: they begin one after another, and are ``ready`` batches ahead at most.

    Parameters
    ----------
    told
        Whether the profile tells what a batch takes; else it is worked out from how often one comes.
    """
    return [
        New("load", "data", min(1.0, (at + 1) / workers) * took_us[at],
            lane=Lane(0, "loader", f"worker {at % workers}"),
            after=(loads[at - ready],) if at >= ready else (), before=(load,),
            provenance="measured" if told else "calibrated", context=TaskContext(-1, "data"))
        for at, load in enumerate(loads)
    ]  # fmt: skip
