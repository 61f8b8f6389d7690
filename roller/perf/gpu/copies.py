"""Instructions of cooperative copies into the scratchpad: loads and stores, and the arithmetic of their addresses.

The rounds of a copy step over the leading dimensions of the staged tile, as the template lays them out
(:func:`roller.tile.layout.copy_lead`); what only depends on the thread is computed once per copy, the rest per element
or vector. The counts are those of machine code (sm_75, NVRTC 12.9) of two dozen matmuls, convolutions and poolings,
rounded; single kernels lie within a factor of two.
"""

from __future__ import annotations

import numpy as np

from roller.expr import Load
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.gpu.matrix_copies import operand_copies
from roller.tile.geometry import Access, Floats, Ints, product
from roller.tile.layout import copy_lead, staged_axes

#: Instructions per copied element or vector: a load, a store, half a predicate or pointer step.
COPY_INSTRUCTIONS = 2.5
#: The same where the copy is asynchronous: one instruction does both.
ASYNC_INSTRUCTIONS = 1.5
#: Instructions of one thread per staged tile and step: its own position and pointers.
SETUP_INSTRUCTIONS = 12.0
#: A division with its remainder by a constant, and by a power of two.
DIVISION_INSTRUCTIONS, SHIFT_INSTRUCTIONS = 12.0, 2.0
#: The branch around a guarded load.
BRANCH_INSTRUCTIONS = 8.0
#: What an asynchronous copy has instead: it is told how many bytes are there, and fills the rest with zeros.
ASYNC_GUARD_INSTRUCTIONS = 2.0
#: What a load into registers has instead: it is predicated, and a zero moved where it is not done.
PREDICATE_INSTRUCTIONS = 1.0
#: Comparing a position with both bounds; where it does not change from round to round.
GUARD_INSTRUCTIONS, KEPT_GUARD_INSTRUCTIONS = 3.0, 1.0
#: One quasi-affine term of an index (a quotient or remainder) whose axis changes from round to round.
QUASI_INSTRUCTIONS = 6.0


def asynchronous(batch: TileBatch, spec: DeviceSpec) -> bool:
    """Whether the staged tiles of a batch are copied asynchronously, without passing registers."""
    return batch.pipelined and bool(spec.execution.async_copy_bytes)


def copy_instructions(access: Access, batch: TileBatch, width: Ints, spec: DeviceSpec) -> tuple[Floats, Floats]:
    """Return the instructions all threads of a block issue to stage one data tile, and those for addresses of elements.

    ``width`` elements are copied at once. Threads that idle in a round issue its instructions all the same.
    """
    threads = batch.threads_per_block
    alone = asynchronous(batch, spec)
    # Narrower than a word is narrower than any asynchronous copy.
    unguarded = np.where(alone & (width * access.tensor.itemsize_bytes >= 4), ASYNC_INSTRUCTIONS, COPY_INSTRUCTIONS)
    axes = _staged_axes(batch, access)
    positions = [batch.geometry.names.index(a) for a in axes]
    counts = batch.block[:, positions] if axes else access.extents(batch.block)
    if not counts.shape[1]:
        return np.asarray(unguarded * threads), np.zeros(len(batch))
    counts = counts.copy()
    counts[:, -1] = -(-counts[:, -1] // width)
    lead = copy_lead(counts, threads)
    rank = counts.shape[1]
    changes = np.arange(rank)[None, :] < lead[:, None]  # dimensions that differ from round to round
    outer = product(np.where(changes, counts, 1), range(rank))
    together = np.maximum(1, threads // np.maximum(1, product(counts, range(rank)) // np.maximum(1, outer)))
    rounds = -(-outer // np.where(lead == rank, threads, together))
    zeros = alone and all(x.outside == 0.0 for x in batch.geometry.expr.anchor.loads if x.tensor == access.tensor.name)
    branch = np.full(len(batch), ASYNC_GUARD_INSTRUCTIONS if zeros else BRANCH_INSTRUCTIONS)
    if batch.fragment is not None:  # fetched into registers without a branch
        branch = np.where(alone & (width * access.tensor.itemsize_bytes >= 4), branch, PREDICATE_INSTRUCTIONS)
    each = branch * bool(access.bounds) + _divisions(counts, changes)
    if axes:
        each = each + _index_instructions(access, positions, changes)
    else:
        for d in range(rank):
            guarded = access.bounds and bool(access.constants[d] or access.windows[d])
            each = each + (np.where(changes[:, d], GUARD_INSTRUCTIONS, KEPT_GUARD_INSTRUCTIONS) if guarded else 0.0)
    addresses = threads * rounds * each
    return np.asarray(threads * (rounds * unguarded + SETUP_INSTRUCTIONS) + addresses), np.asarray(addresses)


def _staged_axes(batch: TileBatch, access: Access) -> tuple[str, ...]:
    """Return the axes a staged tile is indexed by; empty where it is a box of the tensor."""
    if batch.fragment is None:
        return staged_axes(batch.geometry.expr.anchor, _load(batch, access), access.tensor)
    return next(c.operand.layout.axes for c in operand_copies(batch) if c.access is access)


def _load(batch: TileBatch, access: Access) -> Load:
    anchor = batch.geometry.expr.anchor
    return next(x for x in anchor.loads if x.tensor == access.tensor.name and x.index == access.index)


def _divisions(counts: Ints, changes: np.ndarray) -> Floats:
    """Instructions that split the number of an element over the dimensions that change, ``(N,)``."""
    total = np.zeros(len(counts))
    wide = changes & (counts > 1)
    before = [np.zeros(len(counts), bool)]  # whether a dimension in front of each is split over
    for d in range(counts.shape[1] - 1):
        before.append(before[-1] | wide[:, d])
    for d in range(counts.shape[1] - 1, 0, -1):
        split = wide[:, d] & before[d]
        shift = (counts[:, d] & (counts[:, d] - 1)) == 0
        total = total + np.where(split, np.where(shift, SHIFT_INSTRUCTIONS, DIVISION_INSTRUCTIONS), 0.0)
    return total


def _index_instructions(access: Access, positions: list[int], changes: np.ndarray) -> Floats:
    """Instructions of quasi-affine indices and of guards of a tile staged by axes, ``(N,)``."""
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
