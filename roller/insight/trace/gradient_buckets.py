"""Gradients that devices reduce, in buckets: those of ``DistributedDataParallel``, filled in the order they appear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from roller.errors import RollerError
from roller.insight.trace.trace import AllocEvent, Storage, Trace

#: Capacities of the first bucket and of the others: ``_DEFAULT_FIRST_BUCKET_BYTES`` and ``bucket_cap_mb`` of
#: ``torch.nn.parallel.DistributedDataParallel``.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20


class Reduction(NamedTuple):
    """The gradient of one parameter that devices reduce.

    Parameters
    ----------
    name, module
        Of the parameter, and the path of the module whose backward wrote it last.
    size_bytes
        Of the whole gradient.
    ready
        Operator of the step that writes it last before it is read.
    update
        Operator that the reduction holds up: the first one after that backward; the count of operators if none follows.
    """

    name: str
    module: str
    size_bytes: int
    ready: int
    update: int


class Bucket(NamedTuple):
    """Gradients that are reduced together: whole after operator ``ready``, needed by operator ``update``."""

    size_bytes: int
    ready: int
    names: tuple[str, ...]
    update: int


def reductions(trace: Trace) -> list[Reduction]:
    """Return what devices reduce in the last step, in the order in which gradients appear.

    A gradient that several backward passes add to is reduced once, when it is whole, as ``no_sync`` has it. One that is
    read and written anew, as where two optimizers take turns, is reduced each time. Operators are those of
    :meth:`~roller.insight.trace.trace.Trace.steady`.
    """
    step, found = trace.steady(), list[Reduction]()
    written: dict[int, tuple[int, str]] = {}
    after_backward = [len(step)] * len(step)
    for index in range(len(step) - 2, -1, -1):
        after_backward[index] = after_backward[index + 1] if step[index + 1].phase == "backward" else index + 1

    def end(storage: int) -> None:
        index, module = written.pop(storage)
        size_bytes = trace.allocations[storage].size_bytes
        found.append(Reduction(trace.storages[storage].name, module, size_bytes, index, after_backward[index]))

    for index, operator in enumerate(step):
        if operator.phase != "backward":
            for storage in {t.storage for t in (*operator.inputs, *operator.outputs)} & written.keys():
                end(storage)
            continue
        for tensor in operator.outputs:
            held = trace.storages.get(tensor.storage)
            if held is not None and held.kind == "gradient" and held.name:
                written[tensor.storage] = (index, operator.module)
    for storage in list(written):
        end(storage)
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
    whole = sorted(reductions(trace), key=lambda r: r.update)
    if not whole and any(o.phase == "backward" for o in trace.steady()):
        raise RollerError(
            "devices: expected a step that leaves gradients of the model's parameters, which devices reduce, got one "
            "whose backward pass leaves none. Ask for one device, or leave gradients at the parameters with backward()."
        )
    found: list[Bucket] = []
    for update, group in groupby(whole, key=lambda r: r.update):
        own = list(group)
        for part in filled([r.size_bytes for r in own], first_bytes, cap_bytes):
            inside = own[part]
            names = tuple(r.name for r in inside)
            found.append(Bucket(sum(r.size_bytes for r in inside), inside[-1].ready, names, update))
    return tuple(found)


def filled(sizes: Sequence[int], first_bytes: int = FIRST_BUCKET_BYTES, cap_bytes: int = BUCKET_BYTES) -> list[slice]:
    """Return the buckets that gradients of so many bytes fill in order: one is full as soon as it holds its capacity.

    Examples
    --------
    >>> filled([3, 5, 2, 2, 9, 1], first_bytes=4, cap_bytes=4)
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


def with_buckets(trace: Trace, found: Sequence[Bucket]) -> Trace:
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
