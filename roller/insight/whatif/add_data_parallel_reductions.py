"""A step on several devices: each gradient bucket is reduced around a ring in parallel with the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from roller.errors import RollerError
from roller.insight.cost.ring_all_reduce import Ring
from roller.insight.step.graph import Provenance, StepGraph
from roller.insight.trace.gradient_buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES
from roller.insight.whatif.collective_communication_times import CHANNEL, buckets_by_step
from roller.insight.whatif.insertion import NewTask, insert
from roller.insight.whatif.task_selection import compute_tasks, start_time_sort_key, tasks_by_step


def add_data_parallelism(
    graph: StepGraph,
    ring: Ring,
    copy_us: Callable[[int, int], tuple[float, Provenance]],
    *,
    first_bytes: int = FIRST_BUCKET_BYTES,
    bucket_bytes: int = BUCKET_BYTES,
    interference: float = 1.0,
) -> StepGraph:
    """Return the graph of one of several devices under ``DistributedDataParallel``."""
    if ring.devices > 1 and any(not g.size_bytes for g in graph.gradients):
        raise RollerError(
            f"{graph.name}: gradients: expected the bytes that devices exchange, got a sparse gradient, whose rows a "
            f"trace does not count. Ask for one device, or make the embedding with sparse=False."
        )
    updates, new = tasks_by_step(graph, compute_tasks(graph, "optimizer")), list[NewTask]()

    def append_task(one: NewTask) -> int:
        new.append(one)
        return len(graph.tasks) + len(new) - 1

    for iteration, own in (buckets_by_step(graph, first_bytes, bucket_bytes) if ring.devices > 1 else {}).items():
        last: int | None = None
        unread: list[tuple[NewTask, int]] = []
        for bucket in own:  # copied when its last gradient is ready, and reduced after the previous bucket
            taken_us, provenance = copy_us(bucket.size_bytes, len(bucket.gradients))
            copy = NewTask("bucket", "kernel", taken_us, behind=bucket.ready, provenance=provenance)
            copied = append_task(copy)
            last = append_task(NewTask(
                "all-reduce", "collective", interference * 1e6 * ring.all_reduce_s(bucket.size_bytes), lane=CHANNEL,
                after=(copied, *(() if last is None else (last,))), size_bytes=bucket.size_bytes,
                context=graph.tasks[bucket.ready].context,
            ))  # fmt: skip
            back = replace(copy, name="unbucket", behind=None, after=(last,))
            begun = start_time_sort_key(graph, bucket.ready)  # earlier updates read the gradients of the previous step
            later = (n for n in updates.get(iteration, ()) if start_time_sort_key(graph, n) > begun)
            reader = next(later, None) if bucket.update is None else bucket.update
            if reader is None:
                unread.append((back, copied))
            else:
                append_task(replace(back, ahead=reader))
        behind = unread[-1][1] if unread else 0
        for back, _ in unread:  # no task reads them: they end the step
            behind = append_task(replace(back, behind=behind))
    return insert(graph, *new)
