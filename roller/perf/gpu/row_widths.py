"""How wide a row program's accesses are: vectors of its register tile, of shifted positions where rows start anywhere.

Positions (:mod:`roller.tile.row_shift`) cost predicates at both edges of a row and a way element by element there. Rows
that hold many elements per thread win, those of few do not.
"""

from __future__ import annotations

import numpy as np

from roller.perf.batch import TileBatch
from roller.perf.gpu.row_shape import SHUFFLE_LANES, RowShape, lane_counts, passes
from roller.tile.access import VECTOR_BYTES
from roller.tile.geometry import Access, Floats, Geometry, Ints
from roller.tile.row_shift import RowShift, row_shift
from roller.tile.rows import contiguous_axis
from roller.tile.transactions import row_alignment_bytes

#: Instructions of a load, and of a store: the access and its share of addresses and predicates.
LOAD_INSTRUCTIONS, STORE_INSTRUCTIONS = 2.0, 3.0
#: A guarded bound of an element or vector.
GUARD_INSTRUCTIONS = 2.0
#: Chunks of a row that may lie in it in part: its first and its last.
_EDGES = 2


def shifts(geometry: Geometry) -> tuple[RowShift, ...]:
    """Return the shifts that align an expression's rows, the widest first; none where they are aligned (memoised)."""
    expr = geometry.expr
    if "row_shifts" not in expr._memo:
        anchor = expr.anchor
        narrowest = min((expr.tensors[ld.tensor].itemsize_bytes for ld in anchor.loads), default=VECTOR_BYTES)
        widths = [w for w in (16, 8, 4, 2) if w * narrowest <= VECTOR_BYTES]
        along = [row_shift(anchor, expr.tensors, w) for w in widths]
        fast = contiguous_axis(anchor, expr.tensors)
        expr._memo["row_shifts"] = tuple(s for s in along if s is not None and s.axis == fast)
    found: tuple[RowShift, ...] = expr._memo["row_shifts"]
    return found


def shifted_elements(batch: TileBatch) -> Ints:
    """Return the elements of a vector of shifted positions, ``(N,)``; 1: rows are read as they start.

    The widest one that the register tile is made of, that needs no step more, and that takes fewer instructions.
    """
    return _shifted(batch)[0]


def edge_instructions(batch: TileBatch) -> Floats:
    """Return a thread's instructions at the edges of shifted rows, ``(N,)``."""
    return _shifted(batch)[1]


def _shifted(batch: TileBatch) -> tuple[Ints, Floats]:
    """Return what :func:`shifted_elements` and :func:`edge_instructions` say, once for a batch and parts of it."""
    if "shifted" not in batch._memo:
        source = batch._memo.get("source")
        known = source[0]._memo.get("shifted") if source else None
        batch._memo["shifted"] = tuple(x[source[1]] for x in known) if source and known else _choose(batch)
    found: tuple[Ints, Floats] = batch._memo["shifted"]
    return found


def _choose(batch: TileBatch) -> tuple[Ints, Floats]:
    chosen, instructions = np.ones(len(batch), np.int64), np.zeros(len(batch))
    for shift in shifts(batch.geometry) if batch.structure == "rows" else ():
        fits = (chosen == 1) & _fits(batch, shift)
        if fits.any():
            edges = _edges(batch, shift)
            pays = fits & (_saved(batch, shift) > edges)
            chosen, instructions = np.where(pays, shift.width, chosen), np.where(pays, edges, instructions)
    return chosen, instructions


def unshifted_elements(geometry: Geometry) -> int:
    """Return the widest vector (elements) that every row is whole ones of as it starts."""
    found = shifts(geometry)
    return found[-1].width // 2 if found else VECTOR_BYTES


def access_width(access: Access, batch: TileBatch) -> Ints:
    """Return the elements of one access of a thread, ``(N,)``."""
    width = _aligned_width(access, batch)
    if batch.structure != "rows" or access.bounds or access.gather:
        return width
    for shift in shifts(batch.geometry):
        chosen = shifted_elements(batch)
        width = np.where(chosen == shift.width, _shifted_width(access, shift), width)
    return width


def _aligned_width(access: Access, batch: TileBatch) -> Ints:
    """Whole vectors of the register tile that are aligned in memory without a shift."""
    size = access.tensor.itemsize_bytes
    aligned = np.minimum(row_alignment_bytes(access, batch.register, VECTOR_BYTES), VECTOR_BYTES)
    run = access.row_elements(batch.register) * size
    widest: Ints = np.maximum(1, np.minimum(aligned, run & -run) // size)
    if batch.structure == "rows":
        widest = np.minimum(widest, unshifted_elements(batch.geometry))
    return np.ones_like(widest) if access.bounds or access.gather else widest


def _shifted_width(access: Access, shift: RowShift) -> int:
    if shift not in access._memo:
        aligned = shift.aligned_elements(access.index, access.tensor)
        access._memo[shift] = min(aligned, VECTOR_BYTES // access.tensor.itemsize_bytes)
    return int(access._memo[shift])


def _fits(batch: TileBatch, shift: RowShift) -> np.ndarray:
    """Mask of programs whose register tile is whole vectors and whose steps hold all positions.

    An operand that is shifted with the rows but does not move with them would be held once per row of a thread.
    """
    column = batch.geometry.names.index(shift.axis)
    extent = int(batch.geometry.extents[column])
    fits = (batch.register[:, column] % shift.width == 0) & (
        shift.positions(extent) <= batch.counts[:, column] * batch.block[:, column]
    )
    wide = [r.access for r in RowShape.of(batch.geometry).reads if r.wide]
    apart = any(shift.aligned_elements(a.index, a.tensor) < shift.width for a in wide)
    return np.asarray(fits & ((batch.register_outputs == 1) | (not apart)))


def _saved(batch: TileBatch, shift: RowShift) -> Floats:
    """Return a thread's load and store instructions that shifted vectors save, ``(N,)``."""
    shape, saved = RowShape.of(batch.geometry), np.zeros(len(batch))
    columns = ~batch.geometry.spatial
    reads = [(r.access, LOAD_INSTRUCTIONS * passes(batch, r)) for r in shape.reads if r.wide]
    stores = [(a, np.full(len(batch), STORE_INSTRUCTIONS)) for a in shape.stores if a.uses[columns].any()]
    for a, instructions in (*reads, *stores):
        if not a.bounds and not a.gather:
            elements = a.elements(batch.register) * batch.steps
            per_element = 1.0 / _aligned_width(a, batch) - 1.0 / _shifted_width(a, shift)
            saved = saved + elements * instructions * per_element
    return saved


def _edges(batch: TileBatch, shift: RowShift) -> Floats:
    """Return a thread's instructions at the edges of its rows, ``(N,)``.

    Every stage guards the elements of the edge chunks. One TEU of a row's takes the way element by element at each.
    """
    shape, (lanes, _) = RowShape.of(batch.geometry), lane_counts(batch)
    columns = ~batch.geometry.spatial
    moved = sum((passes(batch, r) for r in shape.reads if r.wide), np.zeros(len(batch)))
    moved = moved + sum(1 for a in shape.stores if a.uses[columns].any())
    stages = sum(1 for s in shape.stages if len(s.axes) > batch.geometry.spatial.sum())
    alone = shift.width * (STORE_INSTRUCTIONS + GUARD_INSTRUCTIONS) * np.minimum(1.0, SHUFFLE_LANES / lanes)
    guards = stages * shift.width * GUARD_INSTRUCTIONS + moved * GUARD_INSTRUCTIONS
    return np.asarray(_EDGES * batch.register_outputs * (guards + moved * alone))
