"""Registers and scratchpad of a block, and the number of blocks that fit on one unit."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.matrix_operand_copies import fetched_element_registers, gather_address_registers
from roller.templates.gpu.common.row_reads_and_reductions import exchange_scratchpad_bytes, row_registers_per_thread
from roller.templates.gpu.common.staged_copy_counts import staged_copy, staged_tile_axes, tile_extents
from roller.templates.gpu.common.staging_instruction_counts import copies_asynchronously
from roller.templates.gpu.common.window_thread_walks import window_walk
from roller.tile.geometry import Access, Ints, product_of_columns
from roller.tile.matrix_operands import accumulator_row_bytes, matrix_block_scratchpad_bytes, program_operands
from roller.tile.program import RProgram
from roller.tile.scratchpad_bytes import round_up_to_vectors, staged_tile_bytes
from roller.tile.staged_tile_layout import axis_of_staged_rows
from roller.tile.vector_access_widths import staged_itemsize
from roller_runtime.core.dtypes import DTYPE_BYTES

#: Registers per thread in our templates in addition to accumulators and operand fragments (addresses, loop counters).
BASE_REGISTERS = 24
#: Registers per thread for the positions of a pipeline's slots, as in machine code (sm_80).
SLOT_REGISTERS = 8
#: Registers per thread in addition to accumulators and fragments if a matrix unit computes, as in machine code (sm_80,
#: NVRTC 12.9), which uses 6 to 24 if registers are scarce.
MATRIX_BASE_REGISTERS = 20
#: Registers per thread in addition to the sums of warp groups (sm_90a); machine code uses 26 to 48, or more if one
#: group alone copies large tiles.
GROUP_BASE_REGISTERS = 40


def operand_registers(batch: TileBatch) -> Ints:
    """Return the number of 32-bit registers per thread for accumulators and operand fragments, shape ``(N,)``."""
    if batch.fragment is not None:
        return _matrix_operand_registers(batch)
    if batch.traits.slides_windows:
        return window_walk(batch).count_thread_registers(batch)
    if batch.traits.spreads_reductions:
        return row_registers_per_thread(batch)
    acc = max(1, batch.geometry.store.tensor.itemsize_bytes // 4)
    words = batch.accumulators_per_thread * acc
    for a in batch.geometry.loads:
        words = words + batch.elements_per_register_tile(a) * max(1, a.tensor.itemsize_bytes // 4)
    return words


def registers_needed_per_thread(
    batch: TileBatch, spec: DeviceSpec, padding: Mapping[str, Ints] = MappingProxyType({})
) -> Ints:
    """Return the number of 32-bit registers per thread that the compiler needs, not rounded to allocation units."""
    if batch.fragment is not None:
        return _matrix_operand_registers(batch) + fetched_element_registers(batch, spec) + _matrix_base_registers(batch)
    if batch.traits.slides_windows:
        return window_walk(batch).count_thread_registers(batch) + BASE_REGISTERS
    g = batch.geometry
    if batch.traits.spreads_reductions:
        return row_registers_per_thread(batch) + BASE_REGISTERS
    words = batch.accumulators_per_thread * max(1, g.store.tensor.itemsize_bytes // 4)
    reductions = np.flatnonzero(~g.spatial)
    for a in g.loads:
        mine = batch.elements_per_register_tile(a) * max(1, a.tensor.itemsize_bytes // 4)
        if batch.staged and len(reductions) and _row_axis(batch, a) == g.names[reductions[-1]]:
            # A vector read along the innermost reduction axis brings several points of the step, and the fragment holds
            # them all, unless padding moves rows away from the positions where vectors start.
            step = (batch.block[:, reductions[-1]] | padding.get(a.tensor.name, 0)) * a.tensor.itemsize_bytes // 4
            ahead = np.where(step & 3 == 0, 4, 2 - (step & 1))
            mine = mine * np.maximum(1, ahead // np.maximum(1, batch.unrolled_reduction_points))
        words = words + mine
    return words + registers_for_prefetched_tile(batch, spec) + BASE_REGISTERS


def registers_for_prefetched_tile(batch: TileBatch, spec: DeviceSpec) -> Ints:
    """Return the number of registers per thread that hold the next tile of a pipeline without asynchronous copies."""
    total = np.zeros(len(batch), np.int64)
    if not batch.is_pipelined or copies_asynchronously(batch, spec):
        return total
    for a in batch.staged_loads:
        copy = staged_copy(a, batch, spec)
        total = total + copy.rounds * np.maximum(1, copy.width * a.tensor.itemsize_bytes // 4)
    return total


def operand_register_limit(batch: TileBatch, spec: DeviceSpec) -> Ints:
    """Return the number of 32-bit registers per thread that accumulators and operands may take, shape ``(N,)``."""
    lim = spec.limits
    if batch.fragment is None:
        return np.full(len(batch), lim.usable_registers_per_thread or 0, np.int64)
    # A matrix unit's registers are counted one by one, so only the hard limits of a thread and of its block apply.
    hard = lim.registers_per_thread or lim.usable_registers_per_thread or 0
    assert lim.registers_per_unit  # the schema requires it for a GPU
    most = np.minimum(hard, lim.registers_per_unit // np.maximum(1, batch.threads_per_block))
    return np.asarray(
        most
        - _matrix_base_registers(batch)
        - fetched_element_registers(batch, spec)
        - gather_address_registers(batch, spec)
    )


def _matrix_base_registers(batch: TileBatch) -> int:
    return GROUP_BASE_REGISTERS if batch.fragment and batch.fragment.reads_scratchpad else MATRIX_BASE_REGISTERS


def _matrix_operand_registers(batch: TileBatch) -> Ints:
    """Return the number of registers per thread for the accumulators and operand fragments of a matrix program."""
    f, g = batch.fragment, batch.geometry
    assert f is not None
    acc = batch.accumulators_per_thread * DTYPE_BYTES[f.accumulator]
    if f.reads_scratchpad:
        return -(-acc // (4 * f.threads))
    operands = sum((batch.elements_per_register_tile(a) * a.tensor.itemsize_bytes for a in g.loads), np.zeros_like(acc))
    return -(-(acc + f.operand_copies * operands) // (4 * f.threads))


def _row_axis(batch: TileBatch, access: Access) -> str | None:
    if "row_axis" not in access._memo:
        anchor = batch.geometry.expr.anchor
        load = next(x for x in anchor.loads if x.tensor == access.tensor.name and x.index == access.index)
        access._memo["row_axis"] = axis_of_staged_rows(anchor, load, access.tensor)
    name: str | None = access._memo["row_axis"]
    return name


def scratchpad_bytes(batch: TileBatch, padding: Mapping[str, Ints] | None = None) -> Ints:
    """Return the scratchpad bytes of one block, including storage padding and all stages, shape ``(N,)``."""
    total = np.zeros(len(batch), np.int64)
    if batch.traits.spreads_reductions:
        return exchange_scratchpad_bytes(batch)
    staged = batch.staged_loads
    if not staged:
        return total
    tiles = [_staged_bytes(batch, a, (padding or {}).get(a.tensor.name, 0)) for a in staged]
    alike = batch.fragment is None and batch.traits.reuses and len({a.tensor.dtype for a in staged}) == 1
    total = staged_tile_bytes(tiles, alike)
    if batch.fragment is not None:  # results reuse the memory of the tiles afterwards
        n = batch.register[:, batch.geometry.names.index(batch.matrix_axes[1])]
        columns, which = np.unique(n, return_inverse=True)
        spread = np.array([accumulator_row_bytes(batch.fragment, int(c)) for c in columns], np.int64)[which]
        total = np.maximum(total, spread * batch.threads_per_block // batch.fragment.threads)
    return total


def _staged_bytes(batch: TileBatch, access: Access, padding: Ints | int) -> Ints:
    """Return the bytes of all slots of an operand's staged tile, shape ``(N,)``."""
    if batch.fragment is not None:  # no gaps: a matrix unit reads rows of adjacent elements
        elements = product_of_columns(batch.block, access.used_axes)
        rows = elements // _row_extent(batch, access)
    else:  # a tile that reaches beyond the axes is stored whole: threads of the padded part read it
        extents = tile_extents(access, batch, staged_tile_axes(access, batch))
        rank = extents.shape[1]
        elements, rows = product_of_columns(extents, range(rank)), product_of_columns(extents, range(rank - 1))
    if batch.traits.slides_windows:  # rows start and end where vectors do
        elements = rows * window_walk(batch).extent
    elements, size = elements + rows * padding, staged_itemsize(batch.geometry.expr, access.tensor)
    if batch.fragment is None and batch.is_pipelined:
        elements = np.where(np.asarray(batch.stages) > 1, round_up_to_vectors(elements, size), elements)
    return elements * size * batch.stages


def matrix_scratchpad_bytes(program: RProgram) -> int:
    """Return the scratchpad bytes of a ``"matrix"`` program's block with the layouts of its operands."""
    return matrix_block_scratchpad_bytes(program, program_operands(program))


def _row_extent(batch: TileBatch, access: Access) -> Ints:
    """Return the number of elements per row of a staged tile, excluding storage padding, shape ``(N,)``."""
    axis = _row_axis(batch, access)
    if axis is not None:
        return batch.block[:, batch.geometry.names.index(axis)]
    steps = np.abs(access.coefficients[-1]) if access.coefficients.shape[0] else 0
    return np.asarray(1 + ((batch.block - 1) * steps).sum(axis=1))


def blocks_per_unit_by_resource(
    batch: TileBatch, spec: DeviceSpec, scratchpad: Ints, registers: Ints
) -> dict[str, Ints]:
    """Return the number of blocks that each resource of a unit can hold, keyed by resource, each of shape ``(N,)``."""
    lim, teus = spec.limits, -(-batch.threads_per_block // spec.teu.lanes)
    assert lim.registers_per_unit and lim.threads_per_unit and lim.blocks_per_unit  # the schema requires them for a GPU
    most = np.full(len(batch), lim.blocks_per_unit, np.int64)
    # The register file is split evenly among the schedulers, and a TEU's registers lie in one part.
    parts = spec.teu.schedulers_per_unit
    held = lim.registers_per_unit // parts // (registers * spec.teu.lanes) * parts // teus
    shared = spec.layer("shared")
    taken = np.maximum(scratchpad, 1) + (shared.reserved_bytes or 0)
    room = np.where(scratchpad > 0, shared.capacity_bytes // taken, lim.blocks_per_unit)
    threads = lim.threads_per_unit // (teus * spec.teu.lanes)
    return {"blocks": most, "threads": threads, "registers": held, "scratchpad": room}


def occupancy(
    batch: TileBatch, spec: DeviceSpec, scratchpad: Ints, padding: Mapping[str, Ints] = MappingProxyType({})
) -> tuple[Ints, Ints]:
    """Return the number of co-resident blocks per unit (0 if none can run), and the number of registers per thread."""
    return blocks_per_unit_with_registers(batch, spec, scratchpad, registers_needed_per_thread(batch, spec, padding))


def blocks_per_unit_with_registers(
    batch: TileBatch, spec: DeviceSpec, scratchpad: Ints, wanted: Ints
) -> tuple[Ints, Ints]:
    """Return the :func:`occupancy` of blocks whose threads need ``wanted`` registers each."""
    lim = spec.limits
    threads = batch.threads_per_block
    unit = max(1, (lim.register_allocation_unit or 1) // spec.teu.lanes)  # allocated per TEU
    most = lim.registers_per_thread or lim.usable_registers_per_thread or 0
    # If accumulators and operands leave no registers, the compiler keeps fewer addresses and fragments in registers or,
    # at worst, spills them.
    registers = np.minimum(-(-wanted // unit) * unit, -(-most // unit) * unit)
    blocks = np.minimum.reduce(list(blocks_per_unit_by_resource(batch, spec, scratchpad, registers).values()))
    shared = spec.layer("shared")
    assert lim.threads_per_block and lim.usable_registers_per_thread and lim.registers_per_unit  # by schema
    budget = shared.usable_bytes or shared.capacity_bytes
    fits = (threads <= lim.threads_per_block) & (scratchpad <= budget)
    fits &= operand_registers(batch) <= operand_register_limit(batch, spec)
    if batch.fragment is None and batch.is_pipelined:
        # A large block has no registers left for the positions of slots, and only spilling would free any.
        fits &= wanted + SLOT_REGISTERS <= lim.registers_per_unit // np.maximum(threads, 1)
    if batch.fragment is None and batch.is_pipelined and not copies_asynchronously(batch, spec):
        # Registers hold one step ahead, and the data they hold must not be spilled.
        fits &= (wanted <= most) & (batch.stages == 2)
    return np.where(fits, blocks, 0).astype(np.int64), registers
