"""The share of a step's memory traffic that a GPU's shared cache saves by keeping data from one kernel to the next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from roller.hardware import DeviceSpec
from roller.insight.cost.gpu import returns_only_views
from roller.insight.cost.gpu.operator_view import OperatorView, distinct_bytes, itemsize
from roller.insight.trace.trace import AllocEvent, FreeEvent, Operator, TensorRecord

#: Shares are rounded down to multiples of 1 / STEPS, so that equal operators have few distinct prices.
STEPS = 16


def cached_byte_shares(
    operators: Sequence[Operator], spec: DeviceSpec, events: Iterable[AllocEvent | FreeEvent] = ()
) -> list[float]:
    """Return, for each operator, the share of its bytes that the shared cache serves instead of device memory.

    Examples
    --------
    >>> from roller.hardware import load_spec
    >>> x, y, z = (TensorRecord((2**20,), (1,), "float32", n) for n in range(3))
    >>> steps = [Operator(n, "aten.exp.default", "forward", (a,), (b,)) for n, a, b in ((0, x, y), (1, y, z))]
    >>> cached_byte_shares(steps, load_spec("rtx4090")), cached_byte_shares(steps, load_spec("v100"))
    ([0.5, 0.5], [0.0, 0.0])
    """
    # The cache evicts the least recently used data and is empty when the step begins. A kernel hits an input if all
    # bytes touched since the input's last use fit the capacity. A result costs no traffic if every later read hits and
    # its memory is freed within the step before eviction: only evicted lines are written back, and the allocator reuses
    # freed blocks. All touched bytes count, including streamed ones. The specification's ``kept_share`` therefore does
    # not apply: it describes one reused tensor of one kernel.
    cache = spec.memory_layers[-2]
    if not spec.traits.blocks or cache.scope != "device" or not cache.capacity_bytes:
        return [0.0] * len(operators)
    traffic = [_bytes_read_and_written_by_storage(operator) for operator in operators]
    stack = _LruStack(float(cache.capacity_bytes))
    uses = _uses_by_storage(traffic)
    freed = _freed_storages_by_operator(operators, events, uses)
    found = [0.0] * len(operators)
    for place, (read, written) in enumerate(traffic):
        hits = stack.resident_storages() & read.keys()
        for storage in read:
            own = uses[storage]
            own.always_found = own.always_found and (storage in hits or own.first_write is None)
        found[place] = float(sum(read[storage] for storage in hits))
        touched, gone = {**read, **written}, freed.get(place, set())
        stack.touch(touched, gone & read.keys() - written.keys())
        rest = gone - touched.keys()
        if rest:  # an evicted storage was written back before it was freed
            for storage in rest - stack.resident_storages():
                uses[storage].always_found = False
            stack.drop(rest)
    for place, (_, written) in enumerate(traffic):
        found[place] += sum(size for storage, size in written.items() if uses[storage].never_reaches_device_memory)
    whole = [sum(read.values()) + sum(written.values()) for read, written in traffic]
    return [int(STEPS * f / w) / STEPS if w else 0.0 for f, w in zip(found, whole, strict=True)]


@dataclass
class _StorageUse:
    """The uses of a storage in the step; ``first_write`` is ``None`` if the storage is read before it is written."""

    first_write: int | None = None
    last: int = -1
    ends_read: bool = False
    always_found: bool = True
    is_freed: bool = False

    @property
    def never_reaches_device_memory(self) -> bool:
        """Whether the bytes that the step writes never reach device memory."""
        return self.first_write is not None and self.ends_read and self.always_found and self.is_freed


def _uses_by_storage(traffic: Sequence[tuple[dict[int, int], dict[int, int]]]) -> dict[int, _StorageUse]:
    found: dict[int, _StorageUse] = {}
    for place, (read, written) in enumerate(traffic):
        for storage in read:
            use = found.setdefault(storage, _StorageUse())
            use.last, use.ends_read = place, True
        for storage in written:
            use = found.setdefault(storage, _StorageUse(place))
            use.last, use.ends_read = place, False
    return found


def _freed_storages_by_operator(
    operators: Sequence[Operator], events: Iterable[AllocEvent | FreeEvent], uses: Mapping[int, _StorageUse]
) -> dict[int, set[int]]:
    """Map each operator's position to the storages freed there; only storages written before they are read count."""
    # If no frees are recorded, each storage counts as freed at its last use.
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
class _LruStack:
    """An LRU stack of storages: one group per kernel, with the bytes that the kernel touched in each storage."""

    capacity_bytes: float
    groups: list[dict[int, int]] = field(default_factory=list)
    group_of: dict[int, dict[int, int]] = field(default_factory=dict)
    freed_bytes: int = 0

    def resident_storages(self) -> set[int]:
        """Return the storages that are still in the cache."""
        found: set[int] = set()
        left = self.capacity_bytes - self.freed_bytes
        for group in reversed(self.groups):
            left -= sum(group.values())
            if left < 0:
                break
            found |= group.keys()
        return found

    def touch(self, storages: dict[int, int], gone: set[int]) -> None:
        """Move storages to the top of the stack and drop those that are freed; the next use takes over their space."""
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
        """Drop storages that are freed at a kernel that does not touch them."""
        for storage in gone & self.group_of.keys():
            self.freed_bytes += self.group_of.pop(storage).pop(storage)


def _bytes_read_and_written_by_storage(operator: Operator) -> tuple[dict[int, int], dict[int, int]]:
    """Return the bytes that an operator reads from each storage, and the bytes that it writes to each storage."""
    view = OperatorView(operator)
    if returns_only_views(view):
        return {}, {}
    outputs = (view.out,) if view.in_place and not view.outputs else view.outputs
    return _bytes_by_storage(view.inputs), _bytes_by_storage(outputs)


def _bytes_by_storage(tensors: Sequence[TensorRecord]) -> dict[int, int]:
    found: dict[int, int] = {}
    for t in tensors:
        size = distinct_bytes(t) if 0 in t.stride else math.prod(t.shape) * itemsize(t.dtype)
        if size > found.get(t.storage, 0):
            found[t.storage] = size
    return found
