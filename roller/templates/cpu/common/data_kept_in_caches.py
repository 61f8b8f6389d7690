"""Data that CPU caches hold from call to call, and the bandwidth of the layer that holds data of a given size."""

from __future__ import annotations

from typing import Any

import numpy as np

from roller.hardware import DeviceSpec, MemoryLayer
from roller.perf.tile_batch import TileBatch
from roller.templates.cpu.common.lanes_and_cache_room import usable_cache_bytes
from roller.tile.geometry import Floats, Geometry, Ints


def bandwidth_of_holding_layer(size_bytes: Any, spec: DeviceSpec) -> Floats:
    """Return the bandwidth (bytes per second) of the fastest layer that holds ``size_bytes``."""
    l1, l2, l3 = (spec.layer(n) for n in ("l1", "l2", "l3"))
    slower = np.where(
        size_bytes <= usable_cache_bytes(spec, "l3"),
        l3.bandwidth_bytes_per_s,
        spec.layer("dram").bandwidth_bytes_per_s,
    )
    inner = np.where(size_bytes <= usable_cache_bytes(spec, "l2"), l2.bandwidth_bytes_per_s, slower)
    return np.where(size_bytes <= usable_cache_bytes(spec, "l1"), l1.bandwidth_bytes_per_s, inner)


def bandwidth_of_active_cores(layer: MemoryLayer, active: Ints, spec: DeviceSpec) -> Floats:
    """Return the bandwidth (bytes per second) that ``active`` cores together draw from a layer, shape ``(N,)``."""
    # A single core draws ``bandwidth_per_teu_bytes_per_s`` if it is known, else its share.
    share = layer.bandwidth_bytes_per_s / spec.units
    alone = max(share, layer.bandwidth_per_teu_bytes_per_s or 0.0)
    return np.asarray(np.minimum(active * alone, layer.bandwidth_bytes_per_s))


def share_still_cached(working_set_bytes: float, capacity_bytes: Any) -> Floats:
    """Return the fraction of a working set that a cache still holds when a loop over it repeats.

    Examples
    --------
    >>> [round(float(share_still_cached(n, 1.0)), 2) for n in (1.0, 1.2, 2.0, 4.0)]
    [1.0, 0.69, 0.2, 0.02]
    """
    # Pure LRU would keep nothing as soon as the set exceeds the cache. Large caches are hashed over slices and replace
    # pseudo-randomly: a line survives the ``(1 - h) W / C`` evictions per line until its next use with probability
    # ``h = exp(-(1 - h) W / C)``.
    ratio = np.maximum(working_set_bytes / np.asarray(capacity_bytes, float), 1.0)
    share = np.zeros_like(ratio)
    for _ in range(60):
        share = np.exp((share - 1.0) * ratio)
    return np.where(ratio <= 1.0, 1.0, share)


def dram_traffic_bytes(batch: TileBatch, spec: DeviceSpec) -> float:
    """Return how many bytes cross the memory bus because the last-level cache did not keep them since the last call."""
    inputs, outputs = read_and_written_bytes(batch.geometry)
    # Write-allocate reads a line before it is written.
    return float((inputs + 2 * outputs) * (1.0 - share_still_cached(inputs + outputs, usable_cache_bytes(spec, "l3"))))


def read_and_written_bytes(geometry: Geometry) -> tuple[int, int]:
    """Return the number of bytes in all tensors that are read (each counted once) and in all that are written."""
    read = {a.tensor.name: a.tensor.nbytes for a in geometry.reads}
    return sum(read.values()), sum(t.nbytes for t in geometry.expr.output_tensors)
