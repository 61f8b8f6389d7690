"""Streams on a CPU: one pass over all tensors, from the layer that holds them."""

from __future__ import annotations

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.cpu.caches import bandwidth_of, cached_share, tensor_bytes
from roller.perf.cpu.lanes import effective_register, lane_count, lane_distance, room
from roller.tile.geometry import Floats, Geometry, Ints
from roller.tile.program import ALIGNED_TILES


def leaves_caches(geometry: Geometry, spec: DeviceSpec) -> bool:
    """Whether results are gone from the last-level cache before anyone reads them."""
    read_back = any(ld.tensor in geometry.expr.outputs for s in geometry.expr.stages for ld in s.loads)
    return sum(tensor_bytes(geometry)) > room(spec, "l3") and not read_back


def stream_s(batch: TileBatch, spec: DeviceSpec, tasks: Ints, imbalance: Floats) -> dict[str, Floats]:
    """Return seconds that one pass over all tensors takes, under the name of the layer it waits for, ``(N,)`` each.

    Notes
    -----
    Call after call a core works on the same part of the tensors: what fits the L2 of the cores at work comes from
    there, what fits the L3 from the L3, the rest from memory. Beyond the L2 a store reads its line before it writes
    it (write-allocate) and writes it back; non-temporal stores of whole lines only write.
    """
    inputs, outputs = tensor_bytes(batch.geometry)
    both = float(inputs + outputs)
    l2, l3, dram = (spec.layer(n) for n in ("l2", "l3", "dram"))
    active = np.minimum(tasks, spec.units)
    near = 0.0 * active if batch.nontemporal else cached_share(both, room(spec, "l2") * active)
    l2_s = (near * both + _lines_again(batch, spec)) / l2.bandwidth_bytes_per_s * imbalance
    if batch.nontemporal:
        cached = inputs * cached_share(inputs, room(spec, "l3"))
        # A line two rows share goes out twice, and memory reads what such a write leaves of it.
        far = inputs - cached + outputs * (1.0 + 2.0 * _partial_lines(batch, spec))
    else:
        kept = cached_share(both, room(spec, "l3"))
        cached, far = (both + outputs) * kept, np.full(len(batch), (both + outputs) * (1.0 - kept))
    away = (1.0 - near) * imbalance
    return {
        "l2_s": l2_s,
        "l3_s": away * cached / (bandwidth_of(l3, active, spec) * spec.units / active),
        "dram_s": away * far / (bandwidth_of(dram, active, spec) * spec.units / active),
    }


def _lines_again(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return bytes that lanes far apart make L1 load again: of each line they take one element at a time.

    The next elements of the lines are taken at the next step of the axis they lie along. A task that covers it finds
    them in L1 where the lines of one step fit; all others load every line once per element.
    """
    g, v = batch.geometry, batch.vector_axis
    total = np.zeros(len(batch))
    if v is None or not g.spatial.all():
        return total
    line = spec.layer("l1").line_bytes or spec.layer("l1").transaction_bytes
    for a in g.loads:
        along = next((x for x in g.order if lane_distance(a, x) == 1), None)
        if along is None or lane_distance(a, v) < 2:
            continue
        whole = line // a.tensor.itemsize_bytes
        inside = [x for x in g.order[g.order.index(along) + 1 :] if a.uses[x]]
        kept = batch.block[:, inside].prod(axis=1) * line <= room(spec, "l1")
        taken = np.where(kept, np.minimum(batch.block[:, along], whole), 1)
        total = total + float(g.extents[a.uses].prod()) * line * (1.0 / taken - 1.0 / whole)
    return total


def _partial_lines(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the share of written lines that vectors do not fill: those at the ends of rows, or all of short ones."""
    g, v = batch.geometry, batch.vector_axis
    line = spec.layer("l1").line_bytes or 1
    if v is None or lane_distance(g.store, v) != 1:
        return np.ones(len(batch))
    row = int(g.extents[v]) * g.store.tensor.itemsize_bytes
    aligned = -(-g.extents[v] // effective_register(batch, lane_count(spec, 4))[:, v]) >= ALIGNED_TILES
    return np.where(aligned, min(1.0, 2.0 * line / row), 1.0)
