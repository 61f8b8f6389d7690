"""Row programs: bytes read once or once per stage, shuffles, exchanges in scratchpad, the chain of a block.

Instruction counts are those of PTX and machine code (NVRTC 12.9) of softmax, norms and sums.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.gpu.row_shape import SHUFFLE_LANES, RowShape, keeps, lane_counts, passes, teu_lanes
from roller.perf.gpu.row_widths import LOAD_INSTRUCTIONS, STORE_INSTRUCTIONS, access_width, edge_instructions
from roller.tile.geometry import Access, Floats, Ints
from roller.tile.row_values import Share, row_mix
from roller.tile.transactions import tile_transaction_bytes, touched_bytes

#: A conversion from or to half precision, per element.
HALF_INSTRUCTIONS = 1.0
#: Instructions in the FMA pipes of a special function (exponential: argument reduction; division: Newton steps).
SPECIAL_INSTRUCTIONS = 7.0
#: A shuffle and what combines it.
SHUFFLE_INSTRUCTIONS = 2.0


def row_traffic(batch: TileBatch, spec: DeviceSpec, active: Ints, *, least: bool = False) -> tuple[Floats, Floats]:
    """Return bytes through L2 and for DRAM over the launch; ``least``: without parts of transactions nobody uses.

    A stage that reads a row again finds it in L2 where the rows of all active blocks fit there, else in DRAM.
    """
    shape = RowShape.of(batch.geometry)
    transaction, l2_layer = spec.layer("l2").transaction_bytes, spec.layer("l2")
    fetch = spec.layer("global").fetch_bytes or spec.layer("global").transaction_bytes
    whole = np.where(batch.geometry.spatial, batch.block, batch.geometry.extents)
    rows = sum((r.access.elements(whole) * r.access.tensor.itemsize_bytes for r in shape.reads), np.zeros(len(batch)))
    lost = rows * np.minimum(active, batch.blocks) > l2_layer.kept_bytes
    l2 = dram = np.full(len(batch), float(shape.other_bytes))
    for r in shape.reads:
        a, again = r.access, passes(batch, r)
        moved = a.loaded_elements(batch.block) * a.tensor.itemsize_bytes
        if not least:
            expected, _ = tile_transaction_bytes(a, batch.block, transaction)
            run_rows, run = a.runs(batch.block)
            moved = moved * expected / (run_rows * run * a.tensor.itemsize_bytes)
        l2 = l2 + moved * again
        dram = dram + _touched(a, fetch) * (1 + (again - 1) * (lost & r.wide))
    for a in shape.stores:
        stored = np.full(len(batch), float(a.tensor.nbytes))
        if not least:
            moved, _ = tile_transaction_bytes(a, whole, transaction)
            stored = stored * np.maximum(1.0, moved / (a.elements(whole) * a.tensor.itemsize_bytes))
        l2, dram = l2 + stored, dram + np.minimum(stored, 2.0 * a.tensor.nbytes)
    return l2, dram


def _touched(access: Access, fetch_bytes: int) -> float:
    if fetch_bytes not in access._memo:
        access._memo[fetch_bytes] = touched_bytes(access, fetch_bytes)
    return float(access._memo[fetch_bytes])


def row_instructions(batch: TileBatch) -> tuple[Floats, Floats]:
    """Return a thread's instructions that load, and that store, over the whole launch of its block."""
    shape = RowShape.of(batch.geometry)
    loads, stores = edge_instructions(batch), np.zeros(len(batch))
    steps = batch.steps
    for r in shape.reads:
        a = r.access
        elements = a.elements(batch.register) * np.where(r.wide, steps, 1)
        width = access_width(a, batch)
        half = HALF_INSTRUCTIONS * (a.tensor.itemsize_bytes < 4) * r.passes
        # A held row is written to the scratchpad by the first stage and read by the others.
        held = r.passes if batch.staged and r.keepable else 0
        loads = loads + elements * (LOAD_INSTRUCTIONS * (passes(batch, r) + held) / width + half)
    for a in shape.stores:
        wide = bool(a.uses[~batch.geometry.spatial].any())
        elements = a.elements(batch.register) * np.where(wide, steps, 1)
        half = HALF_INSTRUCTIONS * (a.tensor.itemsize_bytes < 4)
        stores = stores + elements * (STORE_INSTRUCTIONS / access_width(a, batch) + half)
    return loads, stores


def row_access_s(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the seconds a unit's load and store pipe needs for all accesses of one block.

    An access takes a cycle for every line its lanes touch: neighbours share one, lanes with rows of their own do not.
    """
    shape, line = RowShape.of(batch.geometry), _line_bytes(spec)
    lanes = teu_lanes(batch, spec.teu.lanes)
    total = np.zeros(len(batch))
    one = np.ones(len(batch), np.int64)
    for a, times in (*((r.access, passes(batch, r)) for r in shape.reads), *((a, one) for a in shape.stores)):
        wide = bool(a.uses[~batch.geometry.spatial].any())
        width = access_width(a, batch)
        tile = lanes.copy()
        for axis in np.flatnonzero(a.coefficients[-1]) if len(a.coefficients) else ():
            tile[:, axis] *= np.minimum(width, batch.register[:, axis])
        touched, _ = tile_transaction_bytes(a, tile, line)
        accesses = a.elements(batch.register) / width * np.where(wide, batch.steps, 1) * times
        total = total + accesses * touched / line
    for r in shape.reads if batch.staged else ():
        if r.keepable:  # left in the scratchpad once, fetched by the other stages, without conflicts
            moved = r.access.elements(batch.register) * batch.steps * r.access.tensor.itemsize_bytes * r.passes
            total = total + moved * spec.teu.lanes / line
    teus = -(-batch.threads_per_block // spec.teu.lanes)
    pipe = spec.teu.lanes / spec.compute.ops_per_cycle_per_unit["load_store"]
    return np.asarray(total * teus * pipe / spec.clock_hz)


def _line_bytes(spec: DeviceSpec) -> int:
    return spec.layer("l2").line_bytes or 4 * spec.layer("l2").transaction_bytes


def scattered_access_s(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the seconds a unit's load and store pipe needs for a block of a stream beyond those of whole lines.

    Neighbouring threads own neighbouring elements of the result; of an input with another order each touches a line of
    its own.
    """
    g, line = batch.geometry, _line_bytes(spec)
    total = np.zeros(len(batch))
    if batch.staged or not g.order:
        return total
    lanes, last = batch.lanes(spec.teu.lanes), g.order[-1]
    for a in (*g.reads, g.store):
        size = a.tensor.itemsize_bytes
        along = len(a.coefficients) > 0 and abs(int(a.coefficients[-1][last])) == 1
        width = access_width(a, batch) if along else np.ones(len(batch), np.int64)
        tile = lanes.copy()
        tile[:, last] *= width
        touched, _ = tile_transaction_bytes(a, tile, line)
        whole = np.ceil(a.elements(tile) * size / line)
        total = total + a.elements(batch.register) / width * np.maximum(touched / line - 2 * whole, 0.0)
    teus = -(-batch.threads_per_block // spec.teu.lanes)
    pipe = spec.teu.lanes / spec.compute.ops_per_cycle_per_unit["load_store"]
    return np.asarray(total * teus * pipe / spec.clock_hz)


def with_accesses(memory_s: Floats, access_s: Floats, spec: DeviceSpec) -> Floats:
    """Return the time of memory whose requests pass the units' load and store pipes.

    Queueing rounds the knee between the two as it does between few and many TEUs
    (:func:`roller.perf.gpu.traffic.dram_bandwidth`).
    """
    p = spec.layer("global").saturation_exponent or 2.0
    return np.asarray((memory_s**p + access_s**p) ** (1.0 / p))


def row_arithmetic(batch: TileBatch, rates: Mapping[str, float], lanes_cycles: float) -> tuple[Floats, Floats]:
    """Return cycles of a TEU's scheduler for the arithmetic of all stages, and its instructions, per block.

    ``rates`` are operations per cycle and unit, ``lanes_cycles`` lanes times schedulers: one instruction of a TEU takes
    ``lanes_cycles / rate`` cycles. What depends on no column counts once per row; an exponential that two stages share
    counts once where the row is kept.
    """
    points = (batch.register_points * batch.steps * batch.register_outputs).astype(np.float64)
    outputs = batch.register_outputs.astype(np.float64)
    # Computed again in every stage that needs it, unless the row is kept.
    times = {Share.ROW: outputs, Share.ELEMENT: points, Share.AGAIN: np.where(keeps(batch), 0.0, points)}
    cycles = count = np.zeros(len(batch))
    for share, dtype, fn, n in row_mix(batch.geometry.expr):
        rate = rates.get(f"{fn}.{dtype}", rates.get(fn, rates["fma"]))
        each, instructions = lanes_cycles / rate, n
        if fn == "special":
            each = max(each, SPECIAL_INSTRUCTIONS * lanes_cycles / rates["fma"])
            instructions = n * (1.0 + SPECIAL_INSTRUCTIONS)
        cycles, count = cycles + times[share] * n * each, count + times[share] * instructions
    return cycles, count


def row_exchange(batch: TileBatch, spec: DeviceSpec) -> tuple[Floats, Floats]:
    """Return the cycles all lanes of a row need to meet, one block alone, and a thread's instructions for it."""
    shape = RowShape.of(batch.geometry)
    lanes, _ = lane_counts(batch)
    held = batch.register_outputs.astype(np.float64)
    latency = spec.execution.step_latency_s * spec.clock_hz
    barrier = spec.execution.barrier_s * spec.clock_hz
    if shape.neighbours:
        inner = np.log2(np.minimum(lanes, SHUFFLE_LANES))
        warps = np.maximum(1, lanes // SHUFFLE_LANES)
        hops, meets = inner + np.log2(warps), warps > 1
        cycles = hops * (latency + (held - 1) * SHUFFLE_INSTRUCTIONS) + meets * (2 * barrier + latency)
        instructions = held * (hops * SHUFFLE_INSTRUCTIONS + meets * 2 * STORE_INSTRUCTIONS)
    else:
        meets = lanes > 1
        vector = np.where(batch.register_outputs % 4 == 0, 4, np.where(batch.register_outputs % 2 == 0, 2, 1))
        reads = (lanes - 1) * held / vector
        cycles = meets * (barrier + latency + reads + (lanes - 1) * held)
        everyone = shape.reductions > 1 or len(shape.stages) > shape.reductions
        cycles = cycles + everyone * meets * (barrier + latency)
        # Only the first lane adds: its instructions, shared by all threads of the block.
        instructions = meets * (held / vector * 2 + (reads + (lanes - 1) * held) / lanes)
    return np.asarray(cycles * shape.reductions), np.asarray(instructions * shape.reductions)


def row_chain_s(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the memory latencies that one block alone waits for, one after the other.

    A row that is kept comes once; a step waits for its loads before the next one issues its own.
    """
    shape = RowShape.of(batch.geometry)
    far, near = spec.layer("global").latency_s or 0.0, spec.layer("l2").latency_s or 0.0
    readers = sum(1 for s in shape.stages if s.loads and len(s.axes) > batch.geometry.spatial.sum())
    again = max(0, readers - 1)
    once = far + near * any(r.wide and not r.keepable for r in shape.reads)
    scratchpad = spec.layer("shared").latency_s or 0.0
    stepped = batch.steps * (far + again * (scratchpad if batch.staged else near))
    return np.asarray(far + np.where(keeps(batch), once, stepped))
