"""The lanes of a step: the host that issues, the device that computes, the links that reduce gradients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from roller.insight.parallel import Bucket, Ring
from roller.insight.price.operators import Price

#: Host time of an operator that only makes a view. Assumed, as that of one that launches.
HOST_VIEW_S = 2e-6


@dataclass(frozen=True)
class Exchange:
    """Gradients that devices reduce between them.

    Parameters
    ----------
    buckets
        In the order in which they are reduced.
    ring
        What reduces them.
    copy_s
        Per bucket the time of copying it in, and once more back, on the device.
    """

    buckets: Sequence[Bucket]
    ring: Ring
    copy_s: Sequence[float]


@dataclass(frozen=True)
class Lanes:
    """When a step's lanes end.

    Parameters
    ----------
    end_s
        The last of them.
    host_s
        What the host takes to issue everything, waits left out.
    links_s
        What the links take for all buckets.
    exposed_s
        What the device waits for links.
    """

    end_s: float
    host_s: float
    links_s: float = 0.0
    exposed_s: float = 0.0


def run_lanes(prices: Sequence[Price], host_op_s: float, exchange: Exchange | None = None) -> Lanes:
    """Run a step once.

    The host takes ``host_op_s`` for each launch, and the device starts an operator when the host has issued it and the
    one before has ended. A bucket is copied and reduced as soon as its last gradient is there and the bucket before is
    through; the operator that it holds up waits for it.
    """
    due: dict[int, list[int]] = defaultdict(list)
    back: dict[int, float] = defaultdict(float)
    for number, bucket in enumerate(() if exchange is None else exchange.buckets):
        due[bucket.ready].append(number)
        back[bucket.update] += exchange.copy_s[number]  # type: ignore[union-attr]
    host = device = issued = links = busy = exposed = 0.0
    for index, price in enumerate(prices):
        if index in back:
            exposed += max(0.0, links - device)
            device = max(device, links) + back[index]
        step = host_op_s * max(1, price.kernels) if price.kernels else min(host_op_s, HOST_VIEW_S)
        host, issued = host + step, issued + step
        if price.kernels:
            device = max(device, host) + price.seconds
        if price.waits:
            host = max(host, device)
        if exchange is not None:
            for number in due.get(index, ()):
                device += exchange.copy_s[number]
                taken = exchange.ring.all_reduce_s(exchange.buckets[number].size_bytes)
                links, busy = max(links, device) + taken, busy + taken
    if len(prices) in back:
        exposed += max(0.0, links - device)
        device = max(device, links) + back[len(prices)]
    return Lanes(max(host, device), issued, busy, exposed)


def run_in_series(prices: Sequence[Price], host_op_s: float) -> Lanes:
    """Run a step once on the processor that issues it: each operator is computed before the next one is issued."""
    issued = sum(host_op_s if p.kernels else min(host_op_s, HOST_VIEW_S) for p in prices)
    return Lanes(issued + sum(p.seconds for p in prices), issued)
