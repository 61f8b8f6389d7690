"""Vectors of GPU programs, decided once for construction, templates and price: axis, elements, and access widths."""

from __future__ import annotations

import numpy as np

from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.elements_per_access import elements_per_access
from roller.templates.gpu.common.row_access_widths import row_access_width, row_vector_elements_per_axis
from roller.templates.gpu.common.stored_results import StoredResults
from roller.tile.access import VECTOR_BYTES
from roller.tile.geometry import Access, Ints
from roller.tile.sliding_windows import slide_of
from roller.tile.vector_access_widths import is_in_memory


def vector_elements_per_axis(batch: TileBatch) -> Ints:
    """Return the elements per vector of a thread along each axis, given or chosen, shape ``(N, axes)``."""
    # Chosen vectors take up to 16 bytes of the register tile along the axis contiguous in the result. A fragment
    # determines the results of a thread, and row programs have vectors along their rows.
    g = batch.geometry
    if batch.traits.spreads_reductions or batch.vectors is not None:
        return row_vector_elements_per_axis(batch)
    found = np.ones_like(batch.register)
    if g.order and batch.fragment is None:
        axis, widest = g.order[-1], max(1, VECTOR_BYTES // g.store.tensor.itemsize_bytes)
        held = batch.register[:, axis]
        found[:, axis] = np.minimum(held & -held, min(8, widest))
    return found


def access_width(access: Access, batch: TileBatch) -> Ints:
    """Return the number of elements per memory access of a thread, shape ``(N,)``."""
    if batch.traits.spreads_reductions:
        return row_access_width(access, batch)
    if access.bounds or not is_in_memory(batch.geometry.expr, access.tensor.name):
        return np.ones(len(batch), np.int64)
    return elements_per_access(access, batch.geometry, vector_elements_per_axis(batch))


def store_width(batch: TileBatch) -> Ints:
    """Return the number of elements that a thread of a tiled program or a stream stores at once, shape ``(N,)``."""
    g, width = batch.geometry, np.ones(len(batch), np.int64)
    if not g.order or (batch.traits.slides_windows and threads_move_along_axis(batch, g.order[-1])):
        return width
    for axis, (name, extent) in enumerate(zip(g.names, g.extents.tolist(), strict=True)):
        chunks = vector_elements_per_axis(batch)[:, axis]
        chunks = chunks if batch.traits.reduces else np.gcd(chunks, extent)  # a stream's vectors end with their axis
        for split in (False, True):
            mine, results = (batch.split_k > 1) == split, StoredResults.of_program(g.expr, split=split)
            for chunk in sorted(set(chunks[mine].tolist())):
                if chunk > 1:
                    width[mine & (chunks == chunk)] = results.vector(name, extent, chunk)
    return width


def threads_move_along_axis(batch: TileBatch, axis: int) -> bool:
    """Return whether the threads of window programs move along an axis, so that they store results one by one."""
    slide = slide_of(batch.geometry.expr.anchor)
    return slide is not None and slide.axis == batch.geometry.names[axis]
