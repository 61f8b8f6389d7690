"""Data parallel training over devices of one machine: gradients in buckets, each reduced while backward goes on.

PyTorch's ``DistributedDataParallel`` fills buckets with gradients in the order they appear, copies each gradient into
its bucket, reduces a full bucket around a ring, one after the other, and copies the result back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from roller.errors import RollerError, SpecError, shown
from roller.hardware import DeviceSpec
from roller.insight.records import Alloc, Storage, Trace

#: Capacities of the first bucket and of the others: ``_DEFAULT_FIRST_BUCKET_BYTES`` and ``bucket_cap_mb`` of
#: ``torch.nn.parallel.DistributedDataParallel``.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20


@dataclass(frozen=True)
class Bucket:
    """Gradients that are reduced together: ``size_bytes`` of ``names``, whole behind operator ``ready``."""

    size_bytes: int
    ready: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Ring:
    """Devices of one kind in a ring.

    Parameters
    ----------
    devices
        How many.
    bytes_per_s
        Bandwidth of a link in one direction.
    latency_s
        Of one hop.
    """

    devices: int
    bytes_per_s: float
    latency_s: float = 0.0

    @classmethod
    def of(cls, spec: DeviceSpec, devices: int) -> Ring:
        """Return the ring of so many devices in one machine.

        Raises
        ------
        SpecError
            The specification knows no link.
        """
        if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
            raise RollerError(f"devices: expected a whole number of at least 1, got {shown(devices)}. Raise it.")
        if devices > 1 and spec.link_bytes_per_s is None:
            raise SpecError(
                f"{spec.name}: link_bytes_per_s: expected the bandwidth between devices, got none. Give it in the "
                f"specification, or with --set link_bytes_per_s=NUMBER."
            )
        return cls(devices, spec.link_bytes_per_s or float("inf"), spec.link_latency_s or 0.0)

    def all_reduce_s(self, size_bytes: float) -> float:
        """Return the time of an all-reduce, S bytes around n devices at B with hops of a: 2 (n-1)/n S/B + 2 (n-1) a.

        Examples
        --------
        >>> round(Ring(4, 300e9, 3e-6).all_reduce_s(25 << 20) * 1e6, 1)
        149.1
        """
        hops = self.devices - 1
        return 2 * hops / self.devices * size_bytes / self.bytes_per_s + 2 * hops * self.latency_s


def buckets(
    trace: Trace, *, first_bytes: int = FIRST_BUCKET_BYTES, cap_bytes: int = BUCKET_BYTES
) -> tuple[Bucket, ...]:
    """Return the buckets of the last step's gradients, as they are filled once PyTorch knows their order.

    A bucket is full as soon as it holds its capacity; a gradient is whole behind the last operator of backward that
    writes it. ``ready`` counts operators of :meth:`Trace.steady`.
    """
    last: dict[int, tuple[int, int]] = {}
    for index, operator in enumerate(trace.steady()):
        if operator.phase == "backward":
            for tensor in operator.outputs:
                held = trace.storages.get(tensor.storage)
                if held is not None and held.kind == "gradient" and held.name:
                    last[tensor.storage] = (index, trace.allocations[tensor.storage].size_bytes)
    found: list[Bucket] = []
    names: list[str] = []
    filled, ready = 0, 0
    ordered = sorted(last.items(), key=lambda item: item[1])
    for position, (storage, (index, size)) in enumerate(ordered):
        names.append(trace.storages[storage].name)
        filled, ready = filled + size, index
        if filled >= (cap_bytes if found else first_bytes) or position == len(ordered) - 1:
            found.append(Bucket(filled, ready, tuple(names)))
            names, filled = [], 0
    return tuple(found)


def with_buckets(trace: Trace, found: Sequence[Bucket]) -> Trace:
    """Return a trace that holds the buckets from its begin, beside the gradients, as PyTorch does by default."""
    first = 1 + max(trace.storages, default=0)
    held = {first + n: Storage("gradient", f"bucket {n}", b.size_bytes) for n, b in enumerate(found)}
    events = (*(Alloc(n, s.size_bytes, -1) for n, s in held.items()), *trace.events)
    return replace(trace, storages={**trace.storages, **held}, events=events)
