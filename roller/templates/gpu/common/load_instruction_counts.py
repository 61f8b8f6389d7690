"""Number of instructions that load a block's data into the scratchpad, along windows, or into registers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.matrix_operand_copies import operand_copies
from roller.templates.gpu.common.row_access_widths import GUARD_INSTRUCTIONS
from roller.templates.gpu.common.staged_copy_counts import StagedCopy, staged_copy, staged_tile_axes
from roller.templates.gpu.common.staging_instruction_counts import (
    ASYNC_INSTRUCTIONS,
    SETUP_INSTRUCTIONS,
    copies_asynchronously,
    count_staging_copy_instructions,
)
from roller.templates.gpu.common.staging_instruction_counts import COPY_INSTRUCTIONS as STAGED_INSTRUCTIONS
from roller.templates.gpu.common.vector_widths import access_width
from roller.templates.gpu.common.window_thread_walks import count_window_copy_instructions
from roller.tile.access import VECTOR_BYTES
from roller.tile.geometry import Access, Floats, Ints

#: Instructions per copied vector (load, store, pointer step) in our templates.
COPY_INSTRUCTIONS = 3.0
#: Extra instructions per copied vector for each dimension over which its position is split (a division and a remainder
#: by constants), and for each quasi-affine term that is not hoisted out of a loop. A guarded bound takes
#: ``GUARD_INSTRUCTIONS``.
SPLIT_INSTRUCTIONS, GATHER_INSTRUCTIONS = 4.0, 2.0


def count_load_instructions(batch: TileBatch, spec: DeviceSpec, padding: Mapping[str, Ints]) -> tuple[Floats, Floats]:
    """Return the number of copy instructions per block and step, and the number of address instructions among them."""
    g = batch.geometry
    copies = addresses = np.zeros(len(batch))
    for n, a in enumerate(g.reads):
        if not any(a is x for x in g.loads):  # an epilogue's operands are loaded once per tile, at the store
            continue
        if batch.traits.slides_windows:
            all_of_tile, for_addresses = count_window_copy_instructions(a, batch, spec)
            copies, addresses = copies + all_of_tile, addresses + for_addresses
        elif any(a is x for x in batch.staged_loads):
            all_of_tile, for_addresses = _count_staging_instructions(n, a, batch, spec, padding.get(a.tensor.name))
            copies, addresses = copies + all_of_tile, addresses + for_addresses
        else:
            copies = copies + _count_unstaged_load_instructions(a, batch)
    return copies, addresses


def _count_unstaged_load_instructions(access: Access, batch: TileBatch) -> Floats:
    """Return the number of instructions per block and step that load an operand into registers, shape ``(N,)``."""
    each = COPY_INSTRUCTIONS + _count_address_instructions(access, batch.block)
    return np.asarray(batch.elements_per_block_tile(access) / access_width(access, batch) * each)


def count_unstaged_load_instructions(batch: TileBatch) -> Floats:
    """Return the number of instructions per block and step for all loads that bypass the scratchpad, shape ``(N,)``."""
    staged = batch.staged_loads
    loads = [a for a in batch.geometry.loads if not any(a is x for x in staged)]
    return sum((_count_unstaged_load_instructions(a, batch) for a in loads), np.zeros(len(batch)))


def _count_staging_instructions(
    n: int, access: Access, batch: TileBatch, spec: DeviceSpec, padding: Ints | None
) -> tuple[Floats, Floats]:
    """Return the result of :func:`count_staging_copy_instructions` for the ``n``-th operand."""
    if batch.fragment is not None:
        copy = next(c.copy for c in operand_copies(batch) if c.access is access)
    else:
        copy = staged_copy(access, batch, spec)
        if padding is not None and (padding % copy.width).any():  # rows no longer start where vectors do
            copy = StagedCopy.of(access, batch, staged_tile_axes(access, batch), padding)
            return count_staging_copy_instructions(access, batch, copy, spec)
    key = ("copies", n, copies_asynchronously(batch, spec))
    every, for_addresses = batch.cached_arrays(
        spec, key, lambda: count_staging_copy_instructions(access, batch, copy, spec)
    )
    return every, for_addresses


def least_load_instruction_count(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return a lower bound on the number of copy instructions per block and step, shape ``(N,)``."""
    total = np.zeros(len(batch))
    each = ASYNC_INSTRUCTIONS if copies_asynchronously(batch, spec) else STAGED_INSTRUCTIONS
    for a in batch.geometry.loads:
        # Tiles of windows may start where vectors do.
        vectorised = batch.fragment is not None or batch.traits.slides_windows or _is_vectorisable(a)
        widest = max(1, VECTOR_BYTES // a.tensor.itemsize_bytes) if vectorised else 1
        elements = batch.elements_per_block_tile(a) / widest
        if batch.traits.slides_windows and a.tensor.name not in batch.staged:  # read row by row
            continue
        if any(a is x for x in batch.staged_loads):
            total = total + np.maximum(elements, batch.threads_per_block) * each
            total = total + SETUP_INSTRUCTIONS * batch.threads_per_block
        else:
            total = total + elements * COPY_INSTRUCTIONS
    return total


def _is_vectorisable(access: Access) -> bool:
    """Return whether several elements of a data tile can be copied at once: no bound cuts through its rows."""
    if access.gather or (access.lattice[-1:] > 1).any():
        return False
    return not access.bounds or not access.index or not (access.shared[-1] or access.constants[-1])


def _count_address_instructions(access: Access, block: Ints) -> Floats:
    """Return the number of address instructions per element or vector of a data tile, without the copy itself."""
    guards = GUARD_INSTRUCTIONS * access.bounds
    if access.gather:
        quasi = sum(not t.is_affine for i in access.index for t in i.terms)
        return np.full(len(block), guards + GATHER_INSTRUCTIONS * quasi)
    if not access.coefficients.shape[0]:
        return np.full(len(block), guards)
    wide = (access.extents(block) > 1).sum(axis=1)
    return np.asarray(guards + SPLIT_INSTRUCTIONS * np.maximum(0, wide - 1))
