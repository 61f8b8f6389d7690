"""What of a step's traffic stays in a GPU's shared cache: what one kernel wrote, the next may find there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from roller.hardware import DeviceSpec
from roller.insight.cost.gpu import is_view
from roller.insight.cost.gpu.operator_view import View, distinct_bytes, itemsize
from roller.insight.trace.trace import AllocEvent, FreeEvent, Operator, TensorRecord

#: Parts of one to which shares are rounded down, so that equal operators have few different prices.
STEPS = 16


def cached_shares(
    operators: Sequence[Operator], spec: DeviceSpec, events: Iterable[AllocEvent | FreeEvent] = ()
) -> list[float]:
    """Return for each operator the share of its bytes that the shared cache takes from the device's memory.

    Notes
    -----
    The cache is replaced by the least recent use. A kernel finds an input in it if all that was touched since the
    kernel that used the input last began fits into its capacity. A result costs no traffic either if every later read
    finds it and its memory is freed within the step, before the cache evicts it: the cache writes back only what it
    evicts, and the allocator hands a freed block to the next request of its size. The step begins with nothing in the
    cache. All that kernels touch counts against the capacity, what streams through included; ``kept_share`` of the
    specification is a share for one reused tensor of a kernel, whose other traffic is not counted, and does not apply.

    Examples
    --------
    >>> from roller.hardware import load_spec
    >>> x, y, z = (TensorRecord((2**20,), (1,), "float32", n) for n in range(3))
    >>> steps = [Operator(n, "aten.exp.default", "forward", (a,), (b,)) for n, a, b in ((0, x, y), (1, y, z))]
    >>> cached_shares(steps, load_spec("rtx4090")), cached_shares(steps, load_spec("v100"))
    ([0.5, 0.5], [0.0, 0.0])
    """
    cache = spec.memory_layers[-2]
    if not spec.traits.blocks or cache.scope != "device" or not cache.capacity_bytes:
        return [0.0] * len(operators)
    traffic = [_traffic(operator) for operator in operators]
    stack = _Stack(float(cache.capacity_bytes))
    uses = _uses(traffic)
    freed = _freed(operators, events, uses)
    found = [0.0] * len(operators)
    for place, (read, written) in enumerate(traffic):
        hits = stack.resident() & read.keys()
        for storage in read:
            own = uses[storage]
            own.always_found = own.always_found and (storage in hits or own.first_write is None)
        found[place] = float(sum(read[storage] for storage in hits))
        touched, gone = {**read, **written}, freed.get(place, set())
        stack.touch(touched, gone & read.keys() - written.keys())
        rest = gone - touched.keys()
        if rest:  # what the cache no longer holds was written back before it was freed
            for storage in rest - stack.resident():
                uses[storage].always_found = False
            stack.drop(rest)
    for place, (_, written) in enumerate(traffic):
        found[place] += sum(size for storage, size in written.items() if uses[storage].stays)
    whole = [sum(read.values()) + sum(written.values()) for read, written in traffic]
    return [int(STEPS * f / w) / STEPS if w else 0.0 for f, w in zip(found, whole, strict=True)]


@dataclass
class _Use:
    """How a storage is used: the place of its first write, of its last use, whether that is a read, and its free."""

    first_write: int | None = None
    last: int = -1
    ends_read: bool = False
    always_found: bool = True
    is_freed: bool = False

    @property
    def stays(self) -> bool:
        """Whether what is written to it never leaves the cache."""
        return self.first_write is not None and self.ends_read and self.always_found and self.is_freed


def _uses(traffic: Sequence[tuple[dict[int, int], dict[int, int]]]) -> dict[int, _Use]:
    found: dict[int, _Use] = {}
    for place, (read, written) in enumerate(traffic):
        for storage in read:
            use = found.setdefault(storage, _Use())
            use.last, use.ends_read = place, True
        for storage in written:
            use = found.setdefault(storage, _Use(place))
            use.last, use.ends_read = place, False
    return found


def _freed(
    operators: Sequence[Operator], events: Iterable[AllocEvent | FreeEvent], uses: Mapping[int, _Use]
) -> dict[int, set[int]]:
    """Return the storages that are freed at each place, of those that the step writes before it reads them."""
    own = {s: use for s, use in uses.items() if use.first_write is not None}
    frees = [e for e in events if isinstance(e, FreeEvent)]
    if frees:
        places = {operator.index: place for place, operator in enumerate(operators)}
        rows = [(e.storage, places[e.operator]) for e in frees if e.storage in own and e.operator in places]
    else:
        rows = [(s, use.last) for s, use in own.items()]
    found: dict[int, set[int]] = {}
    for storage, place in rows:
        own[storage].is_freed = True
        found.setdefault(place, set()).add(storage)
    return found


@dataclass
class _Stack:
    """Storages by their last use, with the bytes that each use touched."""

    capacity_bytes: float
    groups: list[dict[int, int]] = field(default_factory=list)
    group_of: dict[int, dict[int, int]] = field(default_factory=dict)
    freed_bytes: int = 0

    def resident(self) -> set[int]:
        """Return the storages that the cache holds."""
        found: set[int] = set()
        left = self.capacity_bytes - self.freed_bytes
        for group in reversed(self.groups):
            left -= sum(group.values())
            if left < 0:
                break
            found |= group.keys()
        return found

    def touch(self, storages: dict[int, int], gone: set[int]) -> None:
        """Put storages on top; what is free again went through with them, and leaves its place to what comes next."""
        for storage in storages:
            if storage in self.group_of:
                del self.group_of[storage][storage]
        top = {s: size for s, size in storages.items() if s not in gone}
        for storage in gone:
            self.group_of.pop(storage, None)
        self.freed_bytes = sum(storages[s] for s in gone)
        self.groups.append(top)
        self.group_of.update(dict.fromkeys(top, top))

    def drop(self, gone: set[int]) -> None:
        """Take storages away that are freed after another kernel than their last one."""
        for storage in gone & self.group_of.keys():
            self.freed_bytes += self.group_of.pop(storage).pop(storage)


def _traffic(operator: Operator) -> tuple[dict[int, int], dict[int, int]]:
    """Return the bytes that an operator reads and writes of each storage."""
    view = View(operator)
    if is_view(view):
        return {}, {}
    outputs = (view.out,) if view.in_place and not view.outputs else view.outputs
    return _by_storage(view.inputs), _by_storage(outputs)


def _by_storage(tensors: Sequence[TensorRecord]) -> dict[int, int]:
    found: dict[int, int] = {}
    for t in tensors:
        size = distinct_bytes(t) if 0 in t.stride else math.prod(t.shape) * itemsize(t.dtype)
        if size > found.get(t.storage, 0):
            found[t.storage] = size
    return found
