"""Price of streams: inputs whose order differs from the result's touch more cache lines."""

from __future__ import annotations

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.l2_and_dram_traffic import load_store_line_bytes
from roller.templates.gpu.common.price import Phases
from roller.templates.gpu.common.vector_widths import access_width, store_width
from roller.tile.geometry import Floats
from roller.tile.transactions import tile_transaction_bytes


def scattered_access_s(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the additional time, in seconds, that a block's scattered accesses need in the load and store pipe."""
    # Neighbouring threads own neighbouring elements of the result; in an input with a different order, each thread
    # touches a separate line.
    g, line = batch.geometry, load_store_line_bytes(spec)
    total = np.zeros(len(batch))
    if batch.staged or not g.order:
        return total
    lanes, last = batch.lanes(spec.teu.lanes), g.order[-1]
    for a in (*g.reads, g.store):
        size = a.tensor.itemsize_bytes
        width = store_width(batch) if a is g.store else access_width(a, batch)
        tile = lanes.copy()
        tile[:, last] *= width
        touched, _ = tile_transaction_bytes(a, tile, line)
        whole = np.ceil(a.elements(tile) * size / line)
        total = total + a.elements(batch.register) / width * np.maximum(touched / line - 2 * whole, 0.0)
    teus = -(-batch.threads_per_block // spec.teu.lanes)
    pipe = spec.teu.lanes / spec.compute.ops_per_cycle_per_unit["load_store"]
    return np.asarray(total * teus * pipe / spec.clock_hz)


PHASES = Phases(access=scattered_access_s)
