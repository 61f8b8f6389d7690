"""Work of row programs: loads and stores, shuffles, exchanges in the scratchpad, and the latency chain of a block.

Instruction counts are from PTX and machine code (NVRTC 12.9) of softmax, norms and sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from roller.expr.dtype_conversion_rates import ops_per_cycle
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.arithmetic_cycles import PLACE_INSTRUCTIONS, BlockWork
from roller.templates.gpu.common.l2_and_dram_traffic import load_store_line_bytes
from roller.templates.gpu.common.lane_exchange import SHUFFLE_LANES, LaneExchange, accumulators_per_access
from roller.templates.gpu.common.row_access_widths import (
    LOAD_INSTRUCTIONS,
    STORE_INSTRUCTIONS,
    count_edge_instructions,
    row_access_width,
)
from roller.templates.gpu.common.row_reads_and_reductions import (
    RowReadsAndReductions,
    RowReduction,
    count_reads_of_input,
    row_teu_lanes_per_axis,
    threads_along_and_across_rows,
    whole_rows_in_registers_mask,
)
from roller.templates.gpu.common.shared_memory_layout import SharedMemoryLayout
from roller.tile.geometry import Floats
from roller.tile.row_kernel_shared_values import InstructionFrequency, row_conversion_rates, row_instruction_mix
from roller.tile.transactions import tile_transaction_bytes

#: Instructions per element for a conversion to or from half precision.
HALF_INSTRUCTIONS = 1.0
#: FMA-pipe instructions for a special function (exponential: argument reduction; division: Newton steps).
SPECIAL_INSTRUCTIONS = 7.0
#: Instructions for a shuffle and the operation that combines its result.
SHUFFLE_INSTRUCTIONS = 2.0


def row_block_work(
    batch: TileBatch, spec: DeviceSpec, copies: tuple[Floats, Floats], laid: SharedMemoryLayout | None
) -> BlockWork:
    """Return the work of each block of row programs, with all stages and steps combined."""
    del copies, laid  # loads go to registers, and threads reread adjacent words of their own
    per_unit, schedulers, lanes = spec.compute.ops_per_cycle_per_unit, spec.teu.schedulers_per_unit, spec.teu.lanes
    rate = per_unit["issue"] / lanes / schedulers
    slot = 1.0 / rate if "integer" in per_unit else max(1.0 / rate, lanes * schedulers / per_unit["add"])
    cycles, instructions = row_arithmetic_cycles(batch, per_unit, float(lanes * schedulers))
    loads, stores = count_row_loads_and_stores(batch)
    meeting, exchanged = lane_exchange_cycles(batch, spec)
    one, zero = np.ones(len(batch)), np.zeros(len(batch))
    return BlockWork(
        teus=(-(-batch.threads_per_block // lanes)).astype(np.float64),
        fma=cycles,
        overhead=zero,
        issue=(instructions + exchanged) / rate,
        scratchpad=zero,
        copies=loads * slot,
        multiplies=zero,
        finish=np.asarray((PLACE_INSTRUCTIONS + stores) * slot),
        groups=one,
        steps=one,
        chain=spec.execution.step_latency_s * spec.clock_hz,
        combine=meeting,
        side_by_side="integer" in per_unit,
    )


def count_row_loads_and_stores(batch: TileBatch) -> tuple[Floats, Floats]:
    """Return the numbers of load and store instructions that a thread executes in the whole kernel."""
    shape = RowReadsAndReductions.of(batch.geometry)
    loads, stores = count_edge_instructions(batch), np.zeros(len(batch))
    steps = batch.steps
    for r in shape.reads:
        a = r.access
        elements = a.elements(batch.register) * np.where(r.wide, steps, 1)
        width = row_access_width(a, batch)
        half = HALF_INSTRUCTIONS * (a.tensor.itemsize_bytes < 4) * r.passes
        # A held row is written to the scratchpad by the first stage and read by the others.
        held = r.passes if batch.staged and r.keepable else 0
        loads = loads + elements * (LOAD_INSTRUCTIONS * (count_reads_of_input(batch, r) + held) / width + half)
    for a in shape.stores:
        wide = bool(a.uses[~batch.geometry.spatial].any())
        elements = a.elements(batch.register) * np.where(wide, steps, 1)
        half = HALF_INSTRUCTIONS * (a.tensor.itemsize_bytes < 4)
        stores = stores + elements * (STORE_INSTRUCTIONS / row_access_width(a, batch) + half)
    return loads, stores


def row_load_store_pipe_s(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the time, in seconds, that a unit's load and store pipe needs for all accesses of one block."""
    # An access takes a cycle per line that its lanes touch: neighbours share lines, but lanes with separate rows do
    # not.
    shape, line = RowReadsAndReductions.of(batch.geometry), load_store_line_bytes(spec)
    lanes = row_teu_lanes_per_axis(batch, spec.teu.lanes)
    total = np.zeros(len(batch))
    one = np.ones(len(batch), np.int64)
    for a, times in (
        *((r.access, count_reads_of_input(batch, r)) for r in shape.reads),
        *((a, one) for a in shape.stores),
    ):
        wide = bool(a.uses[~batch.geometry.spatial].any())
        width = row_access_width(a, batch)
        tile = lanes.copy()
        for axis in np.flatnonzero(a.coefficients[-1]) if len(a.coefficients) else ():
            tile[:, axis] *= np.minimum(width, batch.register[:, axis])
        touched, _ = tile_transaction_bytes(a, tile, line)
        accesses = a.elements(batch.register) / width * np.where(wide, batch.steps, 1) * times
        total = total + accesses * touched / line
    for r in shape.reads if batch.staged else ():
        if r.keepable:  # written to the scratchpad once and fetched by the other stages without conflicts
            moved = r.access.elements(batch.register) * batch.steps * r.access.tensor.itemsize_bytes * r.passes
            total = total + moved * spec.teu.lanes / line
    teus = -(-batch.threads_per_block // spec.teu.lanes)
    pipe = spec.teu.lanes / spec.compute.ops_per_cycle_per_unit["load_store"]
    return np.asarray(total * teus * pipe / spec.clock_hz)


def row_arithmetic_cycles(batch: TileBatch, rates: Mapping[str, float], lanes_cycles: float) -> tuple[Floats, Floats]:
    """Return the number of a scheduler's cycles, and of instructions, for one TEU's arithmetic in all stages."""
    # ``rates``: operations per cycle and unit; ``lanes_cycles``: lanes times schedulers, so that one instruction of a
    # TEU takes ``lanes_cycles / rate`` cycles.
    points = (batch.unrolled_reduction_points * batch.steps * batch.accumulators_per_thread).astype(np.float64)
    outputs = batch.accumulators_per_thread.astype(np.float64)
    # A value is computed again in every stage that needs it, unless the row is kept.
    times = {
        InstructionFrequency.ROW: outputs,
        InstructionFrequency.ELEMENT: points,
        InstructionFrequency.AGAIN: np.where(whole_rows_in_registers_mask(batch), 0.0, points),
    }
    cycles = count = np.zeros(len(batch))
    for share, dtype, fn, n in row_instruction_mix(batch.geometry.expr):
        rate = ops_per_cycle(rates, fn, dtype)
        each, instructions = lanes_cycles / rate, n
        if fn == "special":
            each = max(each, SPECIAL_INSTRUCTIONS * lanes_cycles / rates["fma"])
            instructions = n * (1.0 + SPECIAL_INSTRUCTIONS)
        cycles, count = cycles + times[share] * n * each, count + times[share] * instructions
    for share, narrowing in row_conversion_rates(
        batch.geometry.expr
    ):  # their instructions are among those of the stores
        cycles = cycles + times[share] * lanes_cycles / ops_per_cycle(rates, *narrowing)
    return cycles, count


def lane_exchange_cycles(batch: TileBatch, spec: DeviceSpec) -> tuple[Floats, Floats]:
    """Return the cycles, and the number of instructions per thread, of all exchanges between a lone block's lanes."""
    cycles = instructions = np.zeros(len(batch))
    for r, times in Counter(RowReadsAndReductions.of(batch.geometry).reductions).items():
        way = r.meeting(batch)
        waits, issued = np.zeros((2, len(batch)))
        for ways, terms in (
            ((LaneExchange.SHUFFLES, LaneExchange.WARPS), _shuffle_cycles),
            ((LaneExchange.SCRATCHPAD,), _scratchpad_sum_cycles),
        ):
            mine = np.isin(way, ways)
            if mine.any():
                each = terms(batch, spec, r)
                waits, issued = np.where(mine, each[0], waits), np.where(mine, each[1], issued)
        cycles, instructions = cycles + waits * times, instructions + issued * times
    return cycles, instructions


def _shuffle_cycles(batch: TileBatch, spec: DeviceSpec, reduction: RowReduction) -> tuple[Floats, Floats]:
    """Return the cycles and instructions for shuffles and for one exchange between warps in the scratchpad."""
    del reduction
    (lanes, _), held = threads_along_and_across_rows(batch), batch.accumulators_per_thread.astype(np.float64)
    latency, barrier = _step_and_barrier_cycles(spec)
    inner = np.log2(np.minimum(lanes, SHUFFLE_LANES))
    warps = np.maximum(1, lanes // SHUFFLE_LANES)
    hops, meets = inner + np.log2(warps), warps > 1
    cycles = hops * (latency + (held - 1) * SHUFFLE_INSTRUCTIONS) + meets * (2 * barrier + latency)
    return cycles, held * (hops * SHUFFLE_INSTRUCTIONS + meets * 2 * STORE_INSTRUCTIONS)


def _scratchpad_sum_cycles(batch: TileBatch, spec: DeviceSpec, reduction: RowReduction) -> tuple[Floats, Floats]:
    """Return the cycles and instructions with which the first lane adds all accumulators and shares the result."""
    (lanes, _), held = threads_along_and_across_rows(batch), batch.accumulators_per_thread.astype(np.float64)
    latency, barrier = _step_and_barrier_cycles(spec)
    vector = accumulators_per_access(batch.accumulators_per_thread, reduction.itemsize_bytes)
    reads = (lanes - 1) * held / vector
    cycles = barrier + latency + reads + (lanes - 1) * held
    cycles = cycles + reduction.all_lanes_need_results(batch) * (barrier + latency)
    # Only the first lane adds: its instructions, shared by all threads of the block.
    return cycles, held / vector * 2 + (reads + (lanes - 1) * held) / lanes


def _step_and_barrier_cycles(spec: DeviceSpec) -> tuple[float, float]:
    """Return the latencies of a step and of a barrier, in cycles."""
    return spec.execution.step_latency_s * spec.clock_hz, spec.execution.barrier_s * spec.clock_hz


def row_memory_waits_s(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the total time, in seconds, of the memory latencies for which a lone block waits one after the other."""
    shape = RowReadsAndReductions.of(batch.geometry)
    # A kept row is loaded once; a step waits for its loads before the next one issues its own.
    far, near = spec.layer("global").latency_s or 0.0, spec.layer("l2").latency_s or 0.0
    readers = sum(1 for s in shape.stages if s.loads and len(s.axes) > batch.geometry.spatial.sum())
    again = max(0, readers - 1)
    once = far + near * any(r.wide and not r.keepable for r in shape.reads)
    scratchpad = spec.layer("shared").latency_s or 0.0
    stepped = batch.steps * (far + again * (scratchpad if batch.staged else near))
    return np.asarray(far + np.where(whole_rows_in_registers_mask(batch), once, stepped))
