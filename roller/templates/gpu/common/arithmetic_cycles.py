"""Cycles of a block's arithmetic: FMA pipes, issue slots, scratchpad reads, and the latency of a step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from roller.expr import Cast, Load, instruction_mix, walk_scalar_tree
from roller.expr.dtype_conversion_rates import (
    conversion_of_stored_result,
    conversion_rate_key,
    dtypes_by_tensor,
    instruction_mix_by_dtype,
    ops_per_cycle,
)
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.bank_conflicts import scratchpad_banks
from roller.templates.gpu.common.shared_memory_layout import SharedMemoryLayout
from roller.templates.gpu.common.vector_widths import store_width
from roller.tile.geometry import Floats, Ints

#: Number of instructions that compute the positions of a thread and its block, and number per stored vector, as in
#: machine code.
PLACE_INSTRUCTIONS, STORE_INSTRUCTIONS = 60.0, 3.0
#: Share of integer multiplications among the address instructions, as in machine code; they run in the FMA pipes even
#: if other integer instructions have pipes of their own.
MULTIPLY_SHARE = 0.38


def _operand_wavefronts(batch: TileBatch, spec: DeviceSpec, laid: SharedMemoryLayout | None) -> tuple[Floats, Floats]:
    """Return the number of scratchpad wavefronts, and of load instructions, that one warp needs for a register tile."""
    banks, width = scratchpad_banks(spec)
    words_per_wavefront = banks * width // 4
    warp = batch.register * batch.lanes(spec.teu.lanes)
    step_tile = np.where(batch.geometry.spatial, batch.register, batch.block)
    wavefronts = instructions = np.zeros(len(batch))
    conflicts, spread = (laid.conflicts, laid.spread) if laid else ({}, {})
    for a in batch.geometry.loads:
        words = batch.elements_per_register_tile(a) * spread.get(a.tensor.name, 1.0) * a.tensor.itemsize_bytes / 4
        # A thread's elements along the tensor's last dimension, over the unrolled step, are read as vectors.
        count = words
        if not a.coefficients.shape[0] or np.count_nonzero(a.coefficients[-1]) <= 1:  # windows are not aligned
            padding = laid.padding.get(a.tensor.name, 0) if laid else 0
            run = (a.row_elements(step_tile) | padding) * a.tensor.itemsize_bytes // 4
            count = words / np.where(run & 3 == 0, 4, 2 - (run & 1))
        unique = a.elements(warp) * a.tensor.itemsize_bytes / 4
        wavefronts = wavefronts + np.maximum(count, unique / words_per_wavefront) * conflicts.get(a.tensor.name, 1.0)
        instructions = instructions + count
    return wavefronts, instructions


@dataclass(frozen=True)
class BlockWork:
    """Work of one block per reduction step, in cycles of a scheduler or of the scratchpad pipeline.

    Parameters
    ----------
    fma, overhead
        Cycles per TEU and register tile, in the FMA pipe, and for operand loads and the loop.
    issue
        Cycles of issue slots per TEU and register tile.
    scratchpad
        Cycles of the scratchpad pipeline per TEU and register tile.
    copies, finish
        Cycles of issue slots per TEU, for the copies of one step, and for all instructions outside the reduction.
    multiplies
        Cycles per TEU and step that copies take from the FMA pipe.
    groups
        Register tiles per step.
    chain
        Latency of one register tile.
    combine
        Cycles of the final exchange.
    side_by_side
        Whether integer instructions have pipes of their own, so that copies overlap the arithmetic of other blocks.
    """

    teus: Floats
    fma: Floats
    overhead: Floats
    issue: Floats
    scratchpad: Floats
    copies: Floats
    multiplies: Floats
    finish: Floats
    groups: Floats
    steps: Floats
    chain: Floats | float
    combine: Floats
    side_by_side: bool

    def spread(self) -> BlockWork:
        """Return the work as if the TEUs of blocks were distributed evenly among schedulers."""
        return replace(self, fma=np.zeros_like(self.fma), overhead=self.overhead + self.fma)

    def arithmetic(self, blocks: Ints | float, schedulers: int) -> Floats:
        """Return the cycles that one unit needs for the arithmetic of ``blocks`` co-resident blocks."""
        return self.details(blocks, schedulers)["cycles"]

    def details(self, blocks: Ints | float, schedulers: int) -> dict[str, Floats]:
        """Return the ``cycles`` of :meth:`arithmetic` and the values from which they are computed, keyed by name."""
        teus = self.teus * blocks
        share = teus / schedulers
        whole = np.ceil(share)  # TEUs do not move between schedulers, and a block waits for its slowest TEU
        fma, overhead = whole * self.fma, share * self.overhead
        busy = self.chain + fma + overhead
        issue, scratchpad = share * self.issue, teus * self.scratchpad
        group = np.maximum(np.maximum(busy, issue), scratchpad)
        groups, multiplies = self.groups * group, share * self.multiplies
        step = groups + multiplies
        steps = self.steps * step
        return {
            "whole": whole, "fma": fma, "overhead": overhead, "busy": busy, "issue": issue, "scratchpad": scratchpad,
            "group": group, "groups": groups, "multiplies": multiplies, "step": step, "steps": steps,
            "cycles": np.asarray(steps + self.combine),
        }  # fmt: skip

    def copy_cycles(self, blocks: Ints | float, schedulers: int) -> Floats:
        """Return the cycles that one unit needs for the copy and store instructions of ``blocks`` blocks."""
        return np.asarray(self.teus * blocks / schedulers * (self.steps * self.copies + self.finish))

    def store_cycles(self, blocks: Ints | float, schedulers: int) -> Floats:
        """Return the part of :meth:`copy_cycles` after all steps: epilogue and stores."""
        return np.asarray(self.teus * blocks / schedulers * self.finish)

    def busy(self, schedulers: int) -> Floats:
        """Return the number of cycles for which one block's arithmetic keeps a unit's pipes busy."""
        return np.asarray(self.teus / schedulers * self.steps * self.groups * self.fma)

    def issue_cycles(self, blocks: Ints | float, schedulers: int) -> Floats:
        """Return the number of cycles that the schedulers need to issue all instructions of ``blocks`` blocks."""
        share = self.teus * blocks / schedulers
        return np.asarray(share * self.steps * self.groups * self.issue + self.copy_cycles(blocks, schedulers))


def register_tile_cycles(batch: TileBatch, spec: DeviceSpec, fragments: bool) -> tuple[Floats, Floats]:
    """Return the pipe cycles and the number of instructions (without loads and conversions) for one register tile."""
    # If ``fragments`` is set, operands are converted once per element of the tile's data; otherwise, they are converted
    # at every product.
    g, per_unit = batch.geometry, spec.compute.ops_per_cycle_per_unit
    width = spec.teu.lanes * spec.teu.schedulers_per_unit
    anchor, dtypes = g.expr.anchor, dtypes_by_tensor(g.expr)
    mix = instruction_mix_by_dtype(anchor.body, anchor.combiner, dtypes, anchor.acc_dtype)
    once = {n: n.arg.tensor for n in walk_scalar_tree(anchor.body) if isinstance(n, Cast) and isinstance(n.arg, Load)}
    rates = {tensor: conversion_rate_key(dtypes[tensor], n.dtype) for n, tensor in once.items()} if fragments else {}
    for tensor in once.values() if fragments else ():
        rate = rates[tensor]
        if rate is not None:
            mix[rate] -= 1.0
    cycles = sum(n * width / ops_per_cycle(per_unit, *kind) for kind, n in mix.items())
    count = (batch.accumulators_per_thread * batch.unrolled_reduction_points).astype(np.float64)
    conversions = np.zeros(len(batch))
    for a in g.loads if fragments else ():
        rate = rates.get(a.tensor.name)
        if rate is not None:
            conversions = conversions + batch.elements_per_register_tile(a) * (width / ops_per_cycle(per_unit, *rate))
    return count * cycles + conversions, count * sum(mix.values())


def block_work(
    batch: TileBatch, spec: DeviceSpec, copies: tuple[Floats, Floats], laid: SharedMemoryLayout | None
) -> BlockWork:
    """Return the work of each block; ``copies`` holds the copy and address instructions per block and step."""
    ex = spec.execution
    per_unit = spec.compute.ops_per_cycle_per_unit
    schedulers, lanes = spec.teu.schedulers_per_unit, spec.teu.lanes
    cycles, instructions = batch.cached_arrays(
        spec, "arithmetic", lambda: register_tile_cycles(batch, spec, bool(batch.staged))
    )
    zero = np.zeros(len(batch))
    wavefronts = loads = zero
    if batch.staged and laid and laid.spread:  # exact: the layout of these programs is known
        wavefronts, loads = _operand_wavefronts(batch, spec, laid)
    elif batch.staged:
        wavefronts, loads = batch.cached_arrays(
            spec, ("reads", laid is None), lambda: _operand_wavefronts(batch, spec, laid)
        )
    (finish,) = batch.cached_arrays(spec, "finish", lambda: (_count_finish_instructions(batch),))
    rate = per_unit["issue"] / lanes / schedulers  # instructions per cycle and scheduler
    # If integer instructions have no pipes of their own, addresses take the slots of additions in the FMA pipes.
    slot = 1.0 / rate if "integer" in per_unit else max(1.0 / rate, lanes * schedulers / per_unit["add"])
    latency = ex.step_latency_s * spec.clock_hz
    inner, combine = batch.reduction_points_per_step / batch.unrolled_reduction_points, zero
    return BlockWork(
        teus=(-(-batch.threads_per_block // lanes)).astype(np.float64),
        fma=cycles,
        # The measured issue time applies to a step with up to four vector loads; more loads take more slots.
        overhead=ex.step_issue_s * spec.clock_hz * np.maximum(1.0, loads / 4),
        issue=(instructions + loads) / rate,
        scratchpad=wavefronts * lanes / per_unit["load_store"],
        copies=copies[0] / np.maximum(1, batch.threads_per_block) * slot,
        multiplies=copies[1]
        / np.maximum(1, batch.threads_per_block)
        * (lanes * schedulers / per_unit["fma"] * MULTIPLY_SHARE if "integer" in per_unit else 0.0),
        finish=np.asarray(finish * slot + batch.accumulators_per_thread * _store_conversion_cycles(batch, spec)),
        groups=inner,
        steps=batch.steps.astype(np.float64),
        chain=latency,
        combine=combine,
        side_by_side="integer" in per_unit,
    )


def _store_conversion_cycles(batch: TileBatch, spec: DeviceSpec) -> float:
    """Return the cycles that a scheduler needs to convert one output to the dtypes in which it is stored."""
    per_unit, width = spec.compute.ops_per_cycle_per_unit, spec.teu.lanes * spec.teu.schedulers_per_unit
    found = (conversion_of_stored_result(s) for s in batch.geometry.expr.stages)
    return sum(width / ops_per_cycle(per_unit, *rate) for rate in found if rate is not None)


def _count_finish_instructions(batch: TileBatch) -> Floats:
    """Return the number of a thread's instructions outside the reduction: for position, epilogue and stores."""
    g = batch.geometry
    epilogue = float(sum(sum(instruction_mix(x.body, None).values()) for x in g.expr.stages if x is not g.expr.anchor))
    stored = STORE_INSTRUCTIONS / store_width(batch)
    return np.asarray(PLACE_INSTRUCTIONS + batch.accumulators_per_thread * (stored + epilogue))


def unit_flops_per_s(spec: DeviceSpec, register_elements: Floats, warps: Floats) -> Floats:
    """Return one unit's floating-point operations per second for a matmul register tile."""
    # The compute term alone, as the published table measures it; ``warps`` are resident on the unit.
    schedulers = spec.teu.schedulers_per_unit
    cycles = spec.teu.lanes * schedulers / spec.compute.ops_per_cycle_per_unit["fma"]
    busy = np.maximum(1.0, warps / schedulers) * register_elements * cycles
    step = spec.execution.step_latency_s * spec.clock_hz + busy
    step = step + warps / schedulers * spec.execution.step_issue_s * spec.clock_hz
    return 2.0 * register_elements * spec.teu.lanes * warps * spec.clock_hz / step
