"""Groups gradients into the buckets that devices reduce, as ``DistributedDataParallel`` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from roller.errors import RollerError
from roller.insight.trace.trace import AllocEvent, Storage, Trace

#: Capacities, in bytes, of the first bucket and of the others: ``_DEFAULT_FIRST_BUCKET_BYTES`` and ``bucket_cap_mb`` of
#: ``torch.nn.parallel.DistributedDataParallel``.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20


class Gradient(NamedTuple):
    """The gradient of one parameter in one step, which devices reduce.

    ``ready`` and ``update`` are indices of operators in a trace's step, or ids of tasks in a graph.

    Parameters
    ----------
    size_bytes
        Size of the whole gradient in bytes; 0 for a sparse gradient, whose rows a trace does not count.
    ready
        Operator or task whose end completes the gradient.
    iteration
        Step in the profile; 0 for a trace.
    module
        Path of the module whose backward pass last wrote the gradient; ``""`` if a profile does not give it.
    update
        Operator or task that waits for the reduction: in a trace, the first operator after that backward pass, or the
        number of operators if none follows. In a profile, ``None`` if only the phases show it, or nothing follows.
    name
        Name of the parameter; ``""`` if a profile does not give it.
    """

    size_bytes: int
    ready: int
    iteration: int = 0
    module: str = ""
    update: int | None = None
    name: str = ""

    def shift_ids(self, tasks: int, iterations: int = 0) -> Gradient:
        """Return the gradient in a larger graph, where ``tasks`` tasks and ``iterations`` steps precede its own."""
        update = None if self.update is None else self.update + tasks
        return self._replace(ready=self.ready + tasks, iteration=self.iteration + iterations, update=update)


class Bucket(NamedTuple):
    """Gradients that are reduced together, in the order in which they become complete."""

    gradients: tuple[Gradient, ...]

    @property
    def size_bytes(self) -> int:
        """Total bytes of the bucket's gradients."""
        return sum(g.size_bytes for g in self.gradients)

    @property
    def ready(self) -> int:
        """Operator or task after which the last of the bucket's gradients is complete."""
        return self.gradients[-1].ready

    @property
    def update(self) -> int | None:
        """Operator or task that waits for the bucket's gradients; ``None`` as in :class:`Gradient`."""
        return self.gradients[-1].update

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the bucket's parameters."""
        return tuple(g.name for g in self.gradients)


def reduced_gradients(trace: Trace) -> list[Gradient]:
    """Return the gradients that devices reduce in the last step, in order of appearance.

    A gradient to which several backward passes add is reduced once, when it is complete, as under ``no_sync``. A
    gradient that is read and then written again, e.g. if two optimizers take turns, is reduced each time. Indices refer
    to the operators in :meth:`~roller.insight.trace.trace.Trace.steady`.
    """
    step, found = trace.steady(), list[Gradient]()
    written: dict[int, tuple[int, str]] = {}
    after_backward = [len(step)] * len(step)
    for index in range(len(step) - 2, -1, -1):
        after_backward[index] = after_backward[index + 1] if step[index + 1].phase == "backward" else index + 1

    def append_gradient(storage: int) -> None:
        index, module = written.pop(storage)
        size_bytes = trace.allocations[storage].size_bytes
        name = trace.storages[storage].name
        found.append(Gradient(size_bytes, index, 0, module, after_backward[index], name))

    for index, operator in enumerate(step):
        if operator.phase != "backward":
            for storage in {t.storage for t in (*operator.inputs, *operator.outputs)} & written.keys():
                append_gradient(storage)
            continue
        for tensor in operator.outputs:
            held = trace.storages.get(tensor.storage)
            if held is not None and held.kind == "gradient" and held.name:
                written[tensor.storage] = (index, operator.module)
    for storage in list(written):
        append_gradient(storage)
    return sorted(found, key=lambda r: (r.ready, -r.size_bytes))


def buckets(
    trace: Trace, *, first_bytes: int = FIRST_BUCKET_BYTES, cap_bytes: int = BUCKET_BYTES
) -> tuple[Bucket, ...]:
    """Return the buckets for the last step's gradients, as PyTorch fills them once it knows the gradients' order.

    A bucket is full as soon as it reaches its capacity. Gradients for which different operators wait, i.e. those of
    different backward passes, never share a bucket.

    Raises
    ------
    RollerError
        If the step has a backward pass but leaves no parameter gradients, so that it is unknown what devices share.
    """
    whole = sorted(reduced_gradients(trace), key=lambda g: g.update or 0)
    if not whole and any(o.phase == "backward" for o in trace.steady()):
        raise RollerError(
            "devices: expected a step that leaves gradients of the model's parameters, which devices reduce, got one "
            "whose backward pass leaves none. Ask for one device, or leave gradients at the parameters with backward()."
        )
    return tuple(group_into_buckets(whole, first_bytes, cap_bytes))


def group_into_buckets(
    gradients: Sequence[Gradient], first_bytes: int = FIRST_BUCKET_BYTES, cap_bytes: int = BUCKET_BYTES
) -> list[Bucket]:
    """Return the buckets that gradients fill in order; different steps or waiting operators have separate buckets."""
    groups: dict[tuple[int, int | None], list[Gradient]] = {}
    for gradient in gradients:
        groups.setdefault((gradient.iteration, gradient.update), []).append(gradient)
    return [
        Bucket(tuple(own[part]))
        for own in groups.values() for part in bucket_slices([g.size_bytes for g in own], first_bytes, cap_bytes)
    ]  # fmt: skip


def bucket_slices(
    sizes: Sequence[int], first_bytes: int = FIRST_BUCKET_BYTES, cap_bytes: int = BUCKET_BYTES
) -> list[slice]:
    """Return the slice of ``sizes``, in bytes, that fills each bucket; a bucket is full once it reaches its capacity.

    Examples
    --------
    >>> bucket_slices([3, 5, 2, 2, 9, 1], first_bytes=4, cap_bytes=4)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None), slice(5, 6, None)]
    """
    found: list[slice] = []
    begin = held = 0
    for position, size in enumerate(sizes):
        held += size
        if held >= (cap_bytes if found else first_bytes) or position == len(sizes) - 1:
            found.append(slice(begin, position + 1))
            begin, held = position + 1, 0
    return found


def trace_with_bucket_storages(trace: Trace, found: Sequence[Bucket]) -> Trace:
    """Return a trace that allocates the buckets at its start, in addition to the gradients, as PyTorch does by default.

    Buckets whose gradients were already reduced in the same step share memory.
    """
    first, seen = 1 + max(trace.storages, default=0), set[str]()
    held: dict[int, Storage] = {}
    for number, bucket in enumerate(found):
        if not seen.issuperset(bucket.names):
            held[first + number] = Storage("gradient", f"bucket {number}", bucket.size_bytes)
        seen.update(bucket.names)
    events = (*(AllocEvent(n, s.size_bytes, -1) for n, s in held.items()), *trace.events)
    return replace(trace, storages={**trace.storages, **held}, events=events)
