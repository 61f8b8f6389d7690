"""Time that a CPU program spends packing, and the effect of packing on memory-bus traffic."""

from __future__ import annotations

import numpy as np

from roller.expr import strided_run_along
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.cpu.common.conversion_costs import load_conversion_cycles
from roller.templates.cpu.common.data_kept_in_caches import bandwidth_of_holding_layer, dram_traffic_bytes
from roller.templates.cpu.common.lanes_and_cache_room import lane_distance, usable_cache_bytes
from roller.templates.cpu.decisions import BOX, IN_PLACE, PANEL, decisions_for_device, run_copied_in_vectors
from roller.tile.geometry import Access, Floats, Ints

# Measured with our templates as LLVM compiles them on AVX-512: constants of templates and compiler, not of a device.

#: Cycles per copied row in addition to the cycles of its elements.
ROW_CYCLES = 8.0
#: Cost per element relative to a plain copy, for a panel copied in whole vectors or in blocks transposed in registers,
#: and for a box whose rows have the same bounds in every task, different bounds, or columns sorted by phase.
WHOLE_ROWS, SHUFFLED, FIXED_BOX, MOVED_BOX, PHASED_BOX = 1.7, 2.0, 0.9, 2.2, 4.5
#: Cost per element relative to a plain gather, for elements transposed one by one, read through a divided index, or
#: read through a guarded index, in rows of vectors or one at a time (0.4 to 1.4 ns on AVX-512).
TRANSPOSED, DIVIDED, GUARDED_ROWS, GUARDED_ONES = 2.7, 5.4, 9.0, 6.2


def packing_s(batch: TileBatch, spec: DeviceSpec, tasks: Ints) -> Floats:
    """Return the time (seconds) spent packing staged operands: the copy's instructions and its cache traffic."""
    # Panels of constants are packed before the first call; boxes are packed by each task.
    g, v = batch.geometry, batch.vector_axis
    total = np.zeros(len(batch))
    if not batch.staged:
        return total
    d = decisions_for_device(batch, spec)
    task = np.where(g.spatial, np.minimum(d.per_task * d.tile, g.extents), g.extents)
    packed: Floats
    copy, _ = _cycles_per_copied_element(spec)
    for a in g.loads:
        how = d.staging(a)
        if how == IN_PLACE or (how == PANEL and a.tensor.name in batch.constants):
            continue
        step = 0 if v is None else lane_distance(a, v)
        if how == BOX:
            box = a.elements(task) * d.held_itemsize_bytes(a)
            packed = a.elements(task).astype(np.float64) * tasks
            # Strided columns are sorted by their phase, in one loop per phase with shuffled loads.
            phases = d.phases(a)
            along = np.flatnonzero((a.coefficients[-1] != 0) & g.spatial)
            fixed = (task[:, along] >= g.extents[along]).all(axis=1)  # every task copies the same columns
            share = np.where(fixed, FIXED_BOX, PHASED_BOX if phases > 1 else MOVED_BOX)
            cost = copy * share
            rows, _ = a.runs(task)
            cost = cost + rows * phases * ROW_CYCLES / np.maximum(1, a.elements(task))
            # The box is written once and read at least once from the layer that holds it.
            total = total + 2.0 * box * tasks / bandwidth_of_holding_layer(box, spec)
        else:
            panel, held = d.panel_bytes(a) * d.packing_count(a), _bytes_from_packing_to_use(a, batch, spec)
            packed = panel / d.held_itemsize_bytes(a)
            lone = v is None or not a.uses[v] or step != 1
            inner = np.where(lone, 1, d.tile[:, v or 0])
            cost = np.where(
                inner >= spec.teu.lanes,
                _cycles_per_row_element(a, batch, spec),
                _cycles_per_gathered_element(a, batch, spec),
            )
            read = packed * a.tensor.itemsize_bytes
            total = (
                total
                + read / bandwidth_of_holding_layer(a.tensor.nbytes, spec)
                + panel / bandwidth_of_holding_layer(held, spec)
            )
        cost = cost + load_conversion_cycles(a, spec) / spec.teu.lanes
        total = total + packed * cost / (spec.clock_hz * spec.units)
    return total


def _bytes_from_packing_to_use(access: Access, batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return how many bytes pass through a cache between the packing of a panel and its use."""
    # A panel packed before the tasks is used after the whole tensor and the whole panel have passed; otherwise every
    # task packs its own part.
    d = decisions_for_device(batch, spec)
    mine, whole = d.panel_bytes(access, d.per_task), d.panel_bytes(access) + access.tensor.nbytes
    return np.where(d.upfront(access), whole, mine)


def _cycles_per_copied_element(spec: DeviceSpec) -> tuple[float, float]:
    """Return the number of cycles per element that is copied in rows, and per element that is gathered."""
    ex = spec.execution
    return (ex.element_copy_s or 0.0) * spec.clock_hz, (ex.element_gather_s or 0.0) * spec.clock_hz


def _cycles_per_row_element(access: Access, batch: TileBatch, spec: DeviceSpec) -> float:
    """Return the number of cycles per element of a panel whose rows along the vector axis are whole vectors."""
    copy, gather = _cycles_per_copied_element(spec)
    v = batch.vector_axis
    if not access.gather:
        return WHOLE_ROWS * copy
    if v is None:
        return DIVIDED * gather
    along = access.index, access.tensor.shape, access.axis_names[v], int(access.axis_extents[v])
    if access.bounds:
        run = strided_run_along(*along)
        whole = run is not None and run.step == 1 and run.length >= access.axis_extents[v]
        return WHOLE_ROWS * copy if whole else GUARDED_ROWS * gather
    run = run_copied_in_vectors(*along, int(decisions_for_device(batch, spec).lanes.max()))
    if run is None:
        return DIVIDED * gather
    return WHOLE_ROWS * copy if run.step == 1 else TRANSPOSED * gather


def _cycles_per_gathered_element(access: Access, batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the number of cycles per element of a panel without vector rows; contiguous rows are shuffled."""
    g, v = batch.geometry, batch.vector_axis
    copy, gather = _cycles_per_copied_element(spec)
    used = v is not None and bool(access.uses[v])
    if access.gather and access.bounds and not used:
        return np.full(len(batch), GUARDED_ONES * gather)
    contiguous = any(lane_distance(access, int(x)) == 1 and g.extents[x] >= 16 for x in np.flatnonzero(~g.spatial))
    if v is None or not used or access.gather or access.bounds or not contiguous:
        return np.full(len(batch), TRANSPOSED * gather)
    return np.where(decisions_for_device(batch, spec).tile[:, v] >= 4, SHUFFLED * copy, TRANSPOSED * gather)


def task_dram_bytes(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return how many bytes cross the memory bus while the tasks run, shape ``(N,)``."""
    # Operands packed before the tasks have already been read; their panels come from memory if they exceed the
    # last-level cache. Tasks that pack the same part of a tensor each read it again.
    total = np.full(len(batch), dram_traffic_bytes(batch, spec))
    if not total.any():
        return total
    d = decisions_for_device(batch, spec)
    for a in d.staged(PANEL):
        if a.tensor.name not in batch.constants:
            instead = np.where(
                _bytes_from_packing_to_use(a, batch, spec) > usable_cache_bytes(spec, "l3"), d.panel_bytes(a), 0.0
            )
            again = (
                (d.packing_count(a) - 1.0) * a.tensor.nbytes
                if a.tensor.nbytes > usable_cache_bytes(spec, "l3")
                else 0.0
            )
            total = total + np.where(d.upfront(a), instead - a.tensor.nbytes, again)
    return total
