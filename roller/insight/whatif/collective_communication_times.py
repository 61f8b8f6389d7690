"""Computes the time of collectives on a network, and the gradient buckets of each step."""

# In the formulas, S is the number of bytes, n the number of devices, B the number of bytes per second that a link
# transfers in one direction, and a the latency of a hop.

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roller.errors import RollerError, shown
from roller.insight.step.graph import Lane, StepGraph
from roller.insight.trace.gradient_buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, Bucket, group_into_buckets
from roller.insight.whatif.task_selection import parameter_bytes

#: Maximum number of slices of a step's gradients; each slice is two transfers per step.
_MOST_SLICES = 100_000
#: Lane of the collectives that a what-if adds.
CHANNEL = Lane(0, "channel", "network")


def link_rates(graph: StepGraph, bytes_per_s: float | None, latency_us: float | None) -> tuple[float, float]:
    """Return a link's bytes per second and microseconds per hop; by default, those of the profile's device."""
    device = graph.device
    bandwidth = bytes_per_s or (None if device is None else device.link_bytes_per_s)
    if not bandwidth:
        raise RollerError(
            f"{graph.name}: bandwidth: expected bytes a second between devices, got none, and "
            f"{'no device was named' if device is None else f'{device.name} has no link_bytes_per_s'}. Give bandwidth=."
        )
    own = None if device is None else device.link_latency_s
    return bandwidth, 1e6 * (own or 0.0) if latency_us is None else latency_us


def reduce_scatter_us(size_bytes: float, devices: int, bytes_per_s: float, latency_us: float) -> float:
    """Return the time of a reduce-scatter or an all-gather: (n-1)/n S/B + (n-1) a.

    Examples
    --------
    >>> reduce_scatter_us(100e6, 4, 10e9, 5.0)
    7515.0
    """
    hops = devices - 1
    return hops / devices * size_bytes / bytes_per_s * 1e6 + hops * latency_us


def devices_and_bandwidths(levels: Sequence[int], bandwidths: Sequence[float]) -> list[tuple[int, float]]:
    """Return the number of devices and the bytes per second at each network level."""
    if not levels or len(levels) != len(bandwidths) or any(n != int(n) for n in levels):
        raise RollerError(
            f"levels: expected whole numbers of devices, and as many bandwidths, got {shown(levels)} and "
            f"{shown(bandwidths)}. Give one of both for each level."
        )
    return list(zip(levels, bandwidths, strict=True))


def sparse_all_gather_us(
    size_bytes: float, devices: int, bytes_per_s: float, density: float, index_bytes: int, value_bytes: int
) -> float:  # fmt: skip
    """Return the time to all-gather values and indices at density d: (n-1) d S/4 (index + value) / B.

    Examples
    --------
    >>> round(sparse_all_gather_us(100e6, 4, 1e9, 0.01, 4, 4)), round(sparse_all_gather_us(100e6, 4, 1e9, 0.01, 4, 2))
    (6000, 4500)
    """
    kept = density * size_bytes / 4  # gradients are float32
    return (devices - 1) * kept * (index_bytes + value_bytes) / bytes_per_s * 1e6


def check_and_return_gradient_bytes(graph: StepGraph, slice_bytes: float) -> float:
    """Return the size of a step's gradients in bytes; raise an error if slices of ``slice_bytes`` would be too many."""
    size = parameter_bytes(graph)
    if size / slice_bytes > _MOST_SLICES:
        raise RollerError(
            f"ParameterServer: slice_bytes: expected at most {_MOST_SLICES} slices of {size:.0f} bytes, got slices of "
            f"{slice_bytes:g}. Make them larger."
        )
    return size


def buckets_by_step(
    graph: StepGraph, first_bytes: int = FIRST_BUCKET_BYTES, cap_bytes: int = BUCKET_BYTES
) -> Mapping[int, Sequence[Bucket]]:
    """Return the gradient buckets of each step."""
    parameter_bytes(graph)  # refuses a profile without sizes
    found: dict[int, list[Bucket]] = {}
    for bucket in group_into_buckets(graph.gradients, first_bytes, cap_bytes):
        found.setdefault(bucket.gradients[0].iteration, []).append(bucket)
    return found
