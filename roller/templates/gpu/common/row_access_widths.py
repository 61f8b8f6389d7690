"""Widths of a row program's accesses: vectors of its register tile, shifted if rows may start anywhere.

Shifted positions (:mod:`roller.tile.misaligned_row_starts`) cost predicates at both edges of a row and an element-wise
path there; they pay off if a thread has many elements.
"""

from __future__ import annotations

import numpy as np

from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.elements_per_access import elements_per_access
from roller.templates.gpu.common.lane_exchange import SHUFFLE_LANES
from roller.templates.gpu.common.row_reads_and_reductions import (
    RowReadsAndReductions,
    VectorRule,
    count_reads_of_input,
    threads_along_and_across_rows,
)
from roller.tile.access import VECTOR_BYTES
from roller.tile.geometry import Access, Floats, Geometry, Ints
from roller.tile.misaligned_row_starts import RowShift, row_shift
from roller.tile.row_stages_and_shared_loads import most_contiguous_axis

#: Instructions per load and per store: the access and its share of addresses and predicates.
LOAD_INSTRUCTIONS, STORE_INSTRUCTIONS = 2.0, 3.0
#: Instructions per guarded bound of an element or vector.
GUARD_INSTRUCTIONS = 2.0
#: Number of chunks that may lie only partly in a row: the first and the last.
_EDGES = 2


def alignment_shifts(geometry: Geometry) -> tuple[RowShift, ...]:
    """Return the shifts that align an expression's rows, widest first; none if rows are aligned (memoized)."""
    expr = geometry.expr
    if "row_shifts" not in expr._memo:
        anchor = expr.anchor
        narrowest = min((expr.tensors[ld.tensor].itemsize_bytes for ld in anchor.loads), default=VECTOR_BYTES)
        widths = [w for w in (16, 8, 4, 2) if w * narrowest <= VECTOR_BYTES]
        along = [row_shift(anchor, expr.tensors, w) for w in widths]
        fast = most_contiguous_axis(anchor, expr.tensors)
        expr._memo["row_shifts"] = tuple(s for s in along if s is not None and s.axis == fast)
    found: tuple[RowShift, ...] = expr._memo["row_shifts"]
    return found


def row_vector_elements_per_axis(batch: TileBatch) -> Ints:
    """Return the elements per vector of a thread along each axis, shape ``(N, axes)``; a vector has up to 16 bytes."""
    if batch.vectors is not None:
        return batch.vectors
    if "vectors" not in batch._memo:
        source = batch._memo.get("source")
        known = source[0]._memo.get("vectors") if source else None
        batch._memo["vectors"] = (
            known[source[1]] if source and known is not None else _compute_row_vector_elements(batch)
        )
    vectors: Ints = batch._memo["vectors"]
    return vectors


def _compute_row_vector_elements(batch: TileBatch) -> Ints:
    found, chosen = np.ones_like(batch.register), _chosen_shift_elements(batch)
    found[:, _contiguous_axis(batch.geometry)] = np.where(chosen > 1, chosen, _unshifted_vector_elements(batch))
    return found


def shifted_vector_elements(batch: TileBatch) -> Ints:
    """Return the number of elements in a vector of shifted positions, shape ``(N,)``; 1 if rows are not shifted."""
    return _shifted_vectors_and_edges(batch)[0]


def count_edge_instructions(batch: TileBatch) -> Floats:
    """Return the number of a thread's instructions at the edges of shifted rows, shape ``(N,)``."""
    return _shifted_vectors_and_edges(batch)[1]


def _shifted_vectors_and_edges(batch: TileBatch) -> tuple[Ints, Floats]:
    """Return both :func:`shifted_vector_elements` and :func:`count_edge_instructions`."""
    if "shifted" not in batch._memo:
        elements, instructions = np.ones(len(batch), np.int64), np.zeros(len(batch))
        for shift in row_shifts_of_batch(batch):
            column = batch.geometry.names.index(shift.axis)
            mine = (row_vector_elements_per_axis(batch)[:, column] == shift.width) & _covers_all_positions_mask(
                batch, shift
            )
            elements = np.where(mine, shift.width, elements)
            instructions = (
                np.where(mine, _count_edge_instructions_of_shift(batch, shift), instructions)
                if mine.any()
                else instructions
            )
        batch._memo["shifted"] = elements, instructions
    found: tuple[Ints, Floats] = batch._memo["shifted"]
    return found


def row_shifts_of_batch(batch: TileBatch) -> tuple[RowShift, ...]:
    """Return the row shifts for the widths of the batch's vectors."""
    if batch.vectors is None:
        return alignment_shifts(batch.geometry)
    expr = batch.geometry.expr
    found = [row_shift(expr.anchor, expr.tensors, w) for w in sorted(set(batch.vectors.ravel().tolist()))]
    return tuple(s for s in found if s is not None)


def _chosen_shift_elements(batch: TileBatch) -> Ints:
    """Return the width, in elements, of the widest shift that fits and saves instructions, shape ``(N,)``; else 1."""
    chosen = np.ones(len(batch), np.int64)
    for shift in alignment_shifts(batch.geometry):
        fits = (chosen == 1) & _shift_fits_mask(batch, shift)
        if fits.any():
            chosen = np.where(
                fits & (_count_instructions_saved(batch, shift) > _count_edge_instructions_of_shift(batch, shift)),
                shift.width,
                chosen,
            )
    return chosen


def _unshifted_vector_elements(batch: TileBatch) -> Ints:
    """Return the widest vector, in elements, that divides the register tile of an unshifted row, shape ``(N,)``."""
    g, fast = batch.geometry, _contiguous_axis(batch.geometry)
    found = alignment_shifts(g)
    aligned = found[-1].width // 2 if found else VECTOR_BYTES
    widest = min(VECTOR_BYTES // narrowest_element_bytes(g), aligned)
    held = np.gcd(batch.register[:, fast], int(g.extents[fast]))
    return np.minimum(held & -held, widest)


def _contiguous_axis(geometry: Geometry) -> int:
    """Return the axis along which a row program loads vectors."""
    return geometry.names.index(most_contiguous_axis(geometry.expr.anchor, geometry.expr.tensors))


def narrowest_element_bytes(geometry: Geometry) -> int:
    """Return the bytes of the anchor's narrowest loaded elements, or of its stored elements if it loads none."""
    tensors = [a.tensor for a in geometry.loads] or [geometry.expr.anchor.output]
    return min(t.itemsize_bytes for t in tensors)


def row_access_width(access: Access, batch: TileBatch) -> Ints:
    """Return the number of elements per access of a row program's thread, shape ``(N,)``."""
    width = _unshifted_access_width(access, batch, row_vector_elements_per_axis(batch))
    rule = _vector_rule(access, batch)
    for shift in row_shifts_of_batch(batch) if rule is VectorRule.PIECES else ():
        width = np.where(shifted_vector_elements(batch) == shift.width, _shifted_access_width(access, shift), width)
    return width


def _vector_rule(access: Access, batch: TileBatch) -> VectorRule:
    return RowReadsAndReductions.of(batch.geometry).vectors[access.tensor.name, access.index, access.guard]


def _unshifted_access_width(access: Access, batch: TileBatch, vectors: Ints) -> Ints:
    """Return the number of elements in an access that follows ``vectors`` without a shift, shape ``(N,)``."""
    rule = _vector_rule(access, batch)
    if rule is VectorRule.NONE:
        return np.ones(len(batch), np.int64)
    return elements_per_access(access, batch.geometry, vectors, whole=rule is VectorRule.WHOLE)


def _shifted_access_width(access: Access, shift: RowShift) -> int:
    if shift not in access._memo:
        access._memo[shift] = shift.vector_elements(access.index, access.tensor)
    return int(access._memo[shift])


def _covers_all_positions_mask(batch: TileBatch, shift: RowShift) -> np.ndarray:
    """Return the mask of programs whose steps cover all positions of a shifted row."""
    column = batch.geometry.names.index(shift.axis)
    covered = batch.counts[:, column] * batch.block[:, column]
    return np.asarray(shift.fits(int(batch.geometry.extents[column]), covered))


def _shift_fits_mask(batch: TileBatch, shift: RowShift) -> np.ndarray:
    """Return the mask of programs whose register tiles consist of whole vectors and whose steps cover all positions."""
    # An operand that is shifted with the rows but does not move with them would be held once per row of a thread.
    column = batch.geometry.names.index(shift.axis)
    fits = (batch.register[:, column] % shift.width == 0) & _covers_all_positions_mask(batch, shift)
    wide = [r.access for r in RowReadsAndReductions.of(batch.geometry).reads if r.wide]
    apart = any(shift.aligned_elements(a.index, a.tensor) < shift.width for a in wide)
    return np.asarray(fits & ((batch.accumulators_per_thread == 1) | (not apart)))


def _count_instructions_saved(batch: TileBatch, shift: RowShift) -> Floats:
    """Return the number of a thread's load and store instructions that shifted vectors save, shape ``(N,)``."""
    shape, saved = RowReadsAndReductions.of(batch.geometry), np.zeros(len(batch))
    vectors = np.ones_like(batch.register)
    vectors[:, _contiguous_axis(batch.geometry)] = _unshifted_vector_elements(batch)
    columns = ~batch.geometry.spatial
    reads = [(r.access, LOAD_INSTRUCTIONS * count_reads_of_input(batch, r)) for r in shape.reads if r.wide]
    stores = [(a, np.full(len(batch), STORE_INSTRUCTIONS)) for a in shape.stores if a.uses[columns].any()]
    for a, instructions in (*reads, *stores):
        if _vector_rule(a, batch) is VectorRule.PIECES:
            elements = a.elements(batch.register) * batch.steps
            per_element = 1.0 / _unshifted_access_width(a, batch, vectors) - 1.0 / _shifted_access_width(a, shift)
            saved = saved + elements * instructions * per_element
    return saved


def _count_edge_instructions_of_shift(batch: TileBatch, shift: RowShift) -> Floats:
    """Return the number of a thread's instructions at the edges of its rows, shape ``(N,)``."""
    # Every stage guards the elements of the edge chunks; one TEU per row takes the element-wise path at each edge.
    shape, (lanes, _) = RowReadsAndReductions.of(batch.geometry), threads_along_and_across_rows(batch)
    columns = ~batch.geometry.spatial
    moved = sum((count_reads_of_input(batch, r) for r in shape.reads if r.wide), np.zeros(len(batch)))
    moved = moved + sum(1 for a in shape.stores if a.uses[columns].any())
    stages = sum(1 for s in shape.stages if len(s.axes) > batch.geometry.spatial.sum())
    alone = shift.width * (STORE_INSTRUCTIONS + GUARD_INSTRUCTIONS) * np.minimum(1.0, SHUFFLE_LANES / lanes)
    guards = stages * shift.width * GUARD_INSTRUCTIONS + moved * GUARD_INSTRUCTIONS
    return np.asarray(_EDGES * batch.accumulators_per_thread * (guards + moved * alone))
