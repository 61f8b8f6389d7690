"""Number of instructions in cooperative copies into the scratchpad: loads, stores and address arithmetic.

Rounds of a copy step over the leading dimensions of the staged tile
(:func:`roller.tile.staged_tile_layout.copy_leading_dims`). The
counts are rounded from machine code (sm_75, NVRTC 12.9) of two dozen matmuls, convolutions and poolings; individual
kernels deviate by at most a factor of two.
"""

from __future__ import annotations

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.matrix_operand_copies import operand_copies
from roller.templates.gpu.common.staged_copy_counts import StagedCopy, staged_tile_axes
from roller.tile.geometry import Access, Floats, Ints
from roller.tile.vector_access_widths import may_copy_asynchronously

#: Instructions per copied element or vector: a load, a store, half a predicate or pointer step.
COPY_INSTRUCTIONS = 2.5
#: Instructions per element or vector copied asynchronously, where one instruction both loads and stores.
ASYNC_INSTRUCTIONS = 1.5
#: Instructions per thread, staged tile and step for the thread's position and pointers.
SETUP_INSTRUCTIONS = 12.0
#: Instructions for a division with remainder by a constant, and by a power of two.
DIVISION_INSTRUCTIONS, SHIFT_INSTRUCTIONS = 12.0, 2.0
#: Instructions for the branch around a guarded load.
BRANCH_INSTRUCTIONS = 8.0
#: Instructions instead of the branch in an asynchronous copy, which takes the number of valid bytes and fills the rest
#: with zeros.
ASYNC_GUARD_INSTRUCTIONS = 2.0
#: Instructions instead of the branch in a load into registers: a predicate, and a move of zero if the predicate is
#: false.
PREDICATE_INSTRUCTIONS = 1.0
#: Instructions to compare a position with both bounds, if it changes from round to round and if it does not.
GUARD_INSTRUCTIONS, KEPT_GUARD_INSTRUCTIONS = 3.0, 1.0
#: Instructions for one quasi-affine term of an index (a quotient or remainder) whose axis changes from round to round.
QUASI_INSTRUCTIONS = 6.0


def copies_asynchronously(batch: TileBatch, spec: DeviceSpec) -> bool:
    """Return whether the staged tiles of a batch are copied asynchronously, bypassing registers."""
    return batch.is_pipelined and bool(spec.execution.async_copy_bytes)


def count_staging_copy_instructions(
    access: Access, batch: TileBatch, copy: StagedCopy, spec: DeviceSpec
) -> tuple[Floats, Floats]:
    """Return the number of instructions that a block issues to stage a tile, and how many of them compute addresses."""
    threads = batch.threads_per_block  # threads that are idle in a round still issue its instructions
    alone = copies_asynchronously(batch, spec) & may_copy_asynchronously(copy.width * access.tensor.itemsize_bytes)
    unguarded = np.where(alone, ASYNC_INSTRUCTIONS, COPY_INSTRUCTIONS)
    rank = copy.counts.shape[1]
    if not rank:
        return np.asarray(unguarded * threads), np.zeros(len(batch))
    changes = np.arange(rank)[None, :] < copy.lead[:, None]  # dimensions that differ from round to round
    zeros = all(x.outside == 0.0 for x in batch.geometry.expr.anchor.loads if x.tensor == access.tensor.name)
    branch = np.full(
        len(batch), ASYNC_GUARD_INSTRUCTIONS if zeros and copies_asynchronously(batch, spec) else BRANCH_INSTRUCTIONS
    )
    if batch.fragment is not None:  # fetched into registers without a branch
        branch = np.where(alone, branch, PREDICATE_INSTRUCTIONS)
    each = branch * bool(access.bounds) + _count_division_instructions(copy.counts, changes)
    axes = _staged_axes(batch, access)
    if axes:
        each = each + _count_index_instructions(access, [batch.geometry.names.index(a) for a in axes], changes)
    else:
        for d in range(rank):
            guarded = access.bounds and bool(access.constants[d] or access.shared[d])
            each = each + (np.where(changes[:, d], GUARD_INSTRUCTIONS, KEPT_GUARD_INSTRUCTIONS) if guarded else 0.0)
    addresses = threads * copy.rounds * each
    return np.asarray(threads * (copy.rounds * unguarded + SETUP_INSTRUCTIONS) + addresses), np.asarray(addresses)


def _staged_axes(batch: TileBatch, access: Access) -> tuple[str, ...]:
    """Return the axes that index a staged tile; empty if it is a box of the tensor."""
    if batch.fragment is None:
        return staged_tile_axes(access, batch)
    return next(c.operand.layout.axes for c in operand_copies(batch) if c.access is access)


def _count_division_instructions(counts: Ints, changes: np.ndarray) -> Floats:
    """Return the number of instructions that split a flat position over the dimensions that change, shape ``(N,)``."""
    total = np.zeros(len(counts))
    wide = changes & (counts > 1)
    before = [np.zeros(len(counts), bool)]  # whether the position is split over an earlier dimension
    for d in range(counts.shape[1] - 1):
        before.append(before[-1] | wide[:, d])
    for d in range(counts.shape[1] - 1, 0, -1):
        split = wide[:, d] & before[d]
        shift = (counts[:, d] & (counts[:, d] - 1)) == 0
        total = total + np.where(split, np.where(shift, SHIFT_INSTRUCTIONS, DIVISION_INSTRUCTIONS), 0.0)
    return total


def _count_index_instructions(access: Access, positions: list[int], changes: np.ndarray) -> Floats:
    """Return the instructions for quasi-affine indices and guards of a tile indexed by axes, shape ``(N,)``."""
    total = np.zeros(len(changes))
    column = {access.axis_names[p]: d for d, p in enumerate(positions)}
    for i in access.index:
        moving = np.zeros(len(changes), bool)
        for t in i.terms:
            moves = changes[:, column[t.axis]] if t.axis in column else np.zeros(len(changes), bool)
            moving = moving | moves
            if not t.is_affine:
                total = total + QUASI_INSTRUCTIONS * moves
        if access.bounds and i.const:
            total = total + np.where(moving, GUARD_INSTRUCTIONS, KEPT_GUARD_INSTRUCTIONS)
    return total
