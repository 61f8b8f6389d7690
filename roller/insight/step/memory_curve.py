"""The memory of each device over a profile: allocated and reserved bytes, the peak, and live allocations."""

# A profile gives the time, size and thread of an allocation: its operator and module are those that were open on the
# thread. It does not give the purpose (parameter, activation, gradient), which is not guessed.

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest

import numpy as np
from numpy.typing import NDArray

from roller.errors import RollerError
from roller.insight.step.graph import TaskContext
from roller.insight.step.kineto_reader import Event, Profile
from roller.insight.step.marks_around_calls import contexts_of_calls
from roller.insight.step.memory_records import MEMORY, UNSAID, MemoryRecords
from roller_runtime.core.gc_pause import gc_paused

#: PyTorch's numbers of device types (``c10/core/DeviceType.h``); its builds for ROCm also write 1.
_DEVICE_TYPES = {
    0: "cpu",
    1: "cuda",
    6: "hip",
    9: "xla",
    12: "xpu",
    13: "mps",
    15: "hpu",
    19: "mtia",
    20: "privateuseone",
}
#: Device name of a curve of the CPU's memory.
HOST = _DEVICE_TYPES[0]
_NO_KINDS = "What the allocations are for (parameters, activations, gradients ...) is not in the profile."


@dataclass(frozen=True)
class LiveAllocation:
    """An allocation that has not yet been freed.

    Parameters
    ----------
    address, size_bytes
        Address and size in bytes, according to the profile.
    since_us
        Time of the allocation.
    context
        Position in the step: ``context.operator`` is the innermost operator that was open on the thread at that time,
        and ``context.module`` the innermost module or region; for a backward operator, the module of its forward
        operator.
    """

    address: int
    size_bytes: int
    since_us: float
    context: TaskContext


@dataclass(frozen=True, eq=False)
class MemoryCurve:
    """The memory of a device over a profile.

    Parameters
    ----------
    device
        PyTorch's name for the device: ``"cuda:0"`` or ``"cpu"``.
    times_us
        Times of changes in the profile, in ascending order, shape ``(n,)``.
    allocated_bytes
        Allocated bytes from each time on, shape ``(n,)``, int64. If ``is_absolute`` is false, bytes that were allocated
        before the profile are not included.
    reserved_bytes
        Bytes that the caching allocator holds from each time on, shape ``(n,)``, int64; empty if the profile does not
        give them.
    is_absolute
        Whether the profile gives allocated bytes; old versions of PyTorch give only changes, which are summed.
    notes
        Facts that the profile does not give, one sentence each.
    """

    device: str
    times_us: NDArray[np.float64] = field(repr=False)
    allocated_bytes: NDArray[np.int64] = field(repr=False)
    reserved_bytes: NDArray[np.int64] = field(repr=False)
    is_absolute: bool
    notes: tuple[str, ...]
    _sizes: NDArray[np.int64] = field(repr=False)
    _addresses: NDArray[np.int64] = field(repr=False)
    _contexts: dict[int, TaskContext] = field(repr=False)

    @property
    def peak_us(self) -> float:
        """The first of ``times_us`` at which the most bytes are allocated."""
        return float(self.times_us[self._peak_index])

    @property
    def peak_bytes(self) -> int:
        """The largest number of allocated bytes."""
        return int(self.allocated_bytes[self._peak_index])

    @property
    def _peak_index(self) -> int:
        return int(np.argmax(self.allocated_bytes))

    def live(self, at_us: float | None = None) -> tuple[LiveAllocation, ...]:
        """Return the allocations that, according to the profile, are live after all changes at a time.

        Allocations from before the profile are not included; :meth:`unknown_bytes` is their size.

        Parameters
        ----------
        at_us
            Time in the profile; by default, the time of the peak.

        Returns
        -------
        tuple[LiveAllocation, ...]
            The allocations, largest first; equal ones are sorted by age, oldest first.

        Raises
        ------
        RollerError
            If the profile does not give addresses, as in old versions of PyTorch.
        """
        if len(self._addresses) and not self._has_addresses:
            raise RollerError(
                f"{self.device}: expected the addresses of allocations, got a profile without them. Record it with a "
                f"newer PyTorch, and profile_memory=True."
            )
        count = self._peak_index + 1 if at_us is None else bisect_right(self.times_us, at_us)
        live: dict[int, int] = {}
        for n, (address, size) in enumerate(
            zip(self._addresses[:count].tolist(), self._sizes[:count].tolist(), strict=True)
        ):
            if size > 0:
                live[address] = n
            else:
                live.pop(address, None)
        found = [
            LiveAllocation(address, int(self._sizes[n]), float(self.times_us[n]), self._contexts[n])
            for address, n in live.items()
        ]
        return tuple(sorted(found, key=lambda x: (-x.size_bytes, x.since_us)))

    def largest_holders(
        self, counts: Sequence[int], name: Callable[[TaskContext], str], most: int
    ) -> Iterator[dict[str, int]]:
        """Yield, for each number of events, the live bytes by name after that many events, largest first.

        Parameters
        ----------
        counts
            Numbers of events, in ascending order.
        name
            Maps the context of an allocation to a name; allocations with the same name are summed.
        most
            Maximum number of names to yield at a time.
        """
        sizes, addresses = self._sizes.tolist(), self._addresses.tolist()
        live: dict[int, int] = {}
        held: dict[str, int] = {}

        def add(n: int, sign: int) -> None:
            key = name(self._contexts[n])
            held[key] = held.get(key, 0) + sign * sizes[n]

        done = 0
        for count in counts if self._has_addresses else ():
            for n in range(done, count):
                before = live.pop(addresses[n], None)
                if before is not None:
                    add(before, -1)
                if sizes[n] > 0:
                    live[addresses[n]] = n
                    add(n, 1)
            done = count
            rows = nlargest(most, held.items(), key=lambda row: row[1])
            yield {key: size for key, size in rows if size > 0}

    @property
    def _has_addresses(self) -> bool:
        return bool((self._addresses != UNSAID).all())

    def unknown_bytes(self, at_us: float | None = None) -> int:
        """Return the allocated bytes that are not in :meth:`live` allocations: bytes from before the profile.

        Raises
        ------
        RollerError
            If the profile does not give addresses or allocated bytes, as in old versions of PyTorch.
        """
        live = sum(x.size_bytes for x in self.live(at_us))
        if not self.is_absolute:
            raise RollerError(
                f"{self.device}: expected allocated bytes, got a profile with changes only. Record it with a newer "
                f"PyTorch, and profile_memory=True."
            )
        count = self._peak_index + 1 if at_us is None else bisect_right(self.times_us, at_us)
        return int(self.allocated_bytes[count - 1] if count else self.allocated_bytes[0] - self._sizes[0]) - live


@gc_paused()
def memory_curves(profile: Profile) -> tuple[MemoryCurve, ...]:
    """Return the memory of each device in a profile, the CPU last.

    Parameters
    ----------
    profile
        A profile from ``read_profile(path, memory=True)``.

    Returns
    -------
    tuple[MemoryCurve, ...]
        One curve for each device with records; empty for a profile without ``profile_memory=True``.

    Raises
    ------
    RollerError
        If the profile was read without its memory records.
    """
    records = profile.memory
    if records is None:
        raise RollerError(
            "memory_curves: expected a profile with records of memory, got one read without. Read it with "
            "read_profile(path, memory=True)."
        )
    names = sorted(records.device_names, key=lambda key: (key[0] == 0, key))
    contexts = _context_by_allocation_record(records, profile.events)
    return tuple(_curve_of_device(records, key, contexts) for key in names)


def _context_by_allocation_record(records: MemoryRecords, events: list[Event]) -> dict[int, TaskContext]:
    """Return the context of each allocating record by its index."""
    lanes, made = list(records.lane_names), [n for n, size in enumerate(records.sizes_bytes) if size > 0]
    calls = [Event(MEMORY, "call", records.times_us[n], 0.0, lanes[records.lanes[n]], None, {}) for n in made]
    return dict(zip(made, contexts_of_calls(calls, events), strict=True))


def _curve_of_device(records: MemoryRecords, key: tuple[int, int], contexts: dict[int, TaskContext]) -> MemoryCurve:
    own = np.flatnonzero(np.asarray(records.devices) == records.device_names[key])
    own = own[np.lexsort((np.asarray(records.order)[own], np.asarray(records.times_us)[own]))]
    times, sizes, addresses, allocated, reserved = (
        np.asarray(part)[own]
        for part in (
            records.times_us, records.sizes_bytes, records.addresses, records.allocated_bytes, records.reserved_bytes
        )
    )  # fmt: skip
    is_absolute, has_reserved = bool((allocated != UNSAID).all()), bool((reserved != UNSAID).all())
    number = "" if key[1] < 0 or key[0] == 0 else f":{key[1]}"
    device = f"{_DEVICE_TYPES.get(key[0], f'device type {key[0]}')}{number}"
    notes = [_NO_KINDS]
    if not is_absolute:
        notes.append(f"{device}: allocated bytes are without those from before the profile, which it does not give.")
    for part in (times, allocated, reserved, sizes, addresses):
        part.flags.writeable = False
    return MemoryCurve(
        device, times, allocated if is_absolute else np.cumsum(sizes), reserved if has_reserved else reserved[:0],
        is_absolute, tuple(notes), sizes, addresses,
        {n: contexts[place] for n, place in enumerate(own.tolist()) if place in contexts},
    )  # fmt: skip
