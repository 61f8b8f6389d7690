"""Gradients in a profile: their sizes, and the tasks after which they are ready."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from roller.insight.step.kineto_reader import Event
from roller.insight.step.parse_profile_dtype_names import element_bytes
from roller.insight.step.task_drafts import TaskDraft
from roller.insight.trace.gradient_buckets import Gradient

#: Operator with which the backward pass ends for each parameter that has a gradient.
_SUMS = "torch::autograd::AccumulateGrad"
#: Bytes per element in older profiles, which have no dtypes: the bytes of float32.
_UNSAID_BYTES = 4


def profile_gradients(events: Sequence[Event], threads: Mapping[str, Sequence[TaskDraft]]) -> tuple[Gradient, ...]:
    """Return the gradients in the order in which they become ready; ``()`` for a profile without shapes."""
    found = []
    starts = {lane: [item.start for item in own] for lane, own in threads.items()}
    makers = {lane: list(_last_launched_tasks(own)) for lane, own in threads.items()}
    for event in sorted((e for e in events if e.name == _SUMS), key=lambda e: (e.start_us, e.lane)):
        shapes = event.arguments.get("shapes")
        at = bisect_right(starts.get(event.lane, ()), event.end_us) - 1
        if not shapes or at < 0 or not isinstance(shapes[0], tuple) or not all(isinstance(n, int) for n in shapes[0]):
            continue
        dtypes = event.arguments.get("dtypes") or ("float",)
        size = math.prod(shapes[0]) * element_bytes(str(dtypes[0]), _UNSAID_BYTES)
        own = threads[event.lane]
        maker = makers[event.lane][at]
        task = own[at] if maker is None else maker
        found.append(Gradient(size, task.id, own[at].context.iteration, own[at].context.module))
    return tuple(found)


def _last_launched_tasks(calls: Sequence[TaskDraft]) -> Iterator[TaskDraft | None]:
    """Yield, for each call, the last device task that it or, failing that, an earlier call launched; else ``None``."""
    task = None
    for call in calls:
        task = call.last or task
        yield task
