"""Gradients that devices reduce, in buckets: those of ``DistributedDataParallel``, filled in the order they appear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from roller.errors import RollerError
from roller.insight.trace.trace import AllocEvent, Storage, Trace

#: Capacities of the first bucket and of the others: ``_DEFAULT_FIRST_BUCKET_BYTES`` and ``bucket_cap_mb`` of
#: ``torch.nn.parallel.DistributedDataParallel``.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20


class Gradient(NamedTuple):
    """The gradient of one parameter in one step, which devices reduce.

    ``ready`` and ``update`` are operators of a trace's step, or tasks of a graph.

    Parameters
    ----------
    size_bytes
        Of the whole gradient; 0 of a sparse one, whose rows a trace does not count.
    ready
        After the end of which it is whole.
    iteration
        Step of the profile; 0 of a trace.
    module
        Path of the module whose backward wrote it last; ``""`` where a profile does not tell.
    update
        What the reduction holds up: in a trace the first operator after that backward, the count of operators if none
        follows. ``None`` where only the phases of a profile tell, or nothing follows.
    name
        Of the parameter; ``""`` where a profile does not tell.
    """

    size_bytes: int
    ready: int
    iteration: int = 0
    module: str = ""
    update: int | None = None
    name: str = ""

    def shift_ids(self, tasks: int, iterations: int = 0) -> Gradient:
        """Return the gradient in a graph that has so many tasks, and steps, ahead of these."""
        update = None if self.update is None else self.update + tasks
        return self._replace(ready=self.ready + tasks, iteration=self.iteration + iterations, update=update)


class Bucket(NamedTuple):
    """Gradients that are reduced together, in the order in which they are whole."""

    gradients: tuple[Gradient, ...]

    @property
    def size_bytes(self) -> int:
        """Of all its gradients."""
        return sum(g.size_bytes for g in self.gradients)

    @property
    def ready(self) -> int:
        """What the last of its gradients is whole after."""
        return self.gradients[-1].ready

    @property
    def update(self) -> int | None:
        """What needs them."""
        return self.gradients[-1].update

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return tuple(g.name for g in self.gradients)


def gradients_of(trace: Trace) -> list[Gradient]:
    """Return what devices reduce in the last step, in the order in which gradients appear.

    A gradient that several backward passes add to is reduced once, when it is whole, as ``no_sync`` has it. One that is
    read and written anew, as where two optimizers take turns, is reduced each time. Operators are those of
    :meth:`~roller.insight.trace.trace.Trace.steady`.
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
    """Return the buckets of the last step's gradients, as they are filled once PyTorch knows their order.

    A bucket is full as soon as it holds its capacity. Gradients that hold up different operators, those of different
    backward passes, never share one.

    Raises
    ------
    RollerError
        The step has a backward pass, but leaves no gradient of a parameter: what devices share is unknown.
    """
    whole = sorted(gradients_of(trace), key=lambda g: g.update or 0)
    if not whole and any(o.phase == "backward" for o in trace.steady()):
        raise RollerError(
            "devices: expected a step that leaves gradients of the model's parameters, which devices reduce, got one "
            "whose backward pass leaves none. Ask for one device, or leave gradients at the parameters with backward()."
        )
    return tuple(group_into_buckets(whole, first_bytes, cap_bytes))


def group_into_buckets(
    gradients: Sequence[Gradient], first_bytes: int = FIRST_BUCKET_BYTES, cap_bytes: int = BUCKET_BYTES
) -> list[Bucket]:
    """Return the buckets that gradients fill in order; those of other steps, or that others need, never share one."""
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
    """Return the buckets that gradients of so many bytes fill in order: one is full as soon as it holds its capacity.

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


def add_bucket_storages(trace: Trace, found: Sequence[Bucket]) -> Trace:
    """Return a trace that holds the buckets from its begin, beside the gradients, as PyTorch does by default.

    Buckets whose gradients were reduced before in the same step are the same memory.
    """
    first, seen = 1 + max(trace.storages, default=0), set[str]()
    held: dict[int, Storage] = {}
    for number, bucket in enumerate(found):
        if not seen.issuperset(bucket.names):
            held[first + number] = Storage("gradient", f"bucket {number}", bucket.size_bytes)
        seen.update(bucket.names)
    events = (*(AllocEvent(n, s.size_bytes, -1) for n, s in held.items()), *trace.events)
    return replace(trace, storages={**trace.storages, **held}, events=events)
