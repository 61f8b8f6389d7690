"""What a row program reads, keeps and writes: the accesses of all its stages, and the registers that hold them.

Which inputs a thread keeps is a property of the expression (:func:`roller.tile.rows.kept_loads`); whether it can is one
of the tile: its register tile must hold all columns of a row, so that the block takes one step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roller.expr import DTYPE_BYTES, Load, Stage
from roller.perf.batch import TileBatch
from roller.tile.geometry import Access, Floats, Geometry, Ints, access_of, product
from roller.tile.row_values import shared_words
from roller.tile.rows import contiguous_axis, kept_loads, row_stages

#: Words of operands that are not kept which the compiler holds at a time, at most (machine code of norms).
STREAMED_WORDS = 16
#: Lanes that shuffle with each other: those of the templates, whatever the TEU (:data:`roller.codegen.gpu.nest.WARP`).
SHUFFLE_LANES = 32


@dataclass(frozen=True)
class RowRead:
    """An input as the stages read it: in ``passes`` of them, once where the tile keeps it (``keepable``)."""

    access: Access
    passes: int
    keepable: bool
    wide: bool


@dataclass(frozen=True)
class RowShape:
    """A row expression: its reads, its stores, bytes of what moves with other columns, and its reductions.

    ``neighbours``: lanes of a row are neighbouring threads (its elements are contiguous in memory).
    """

    reads: tuple[RowRead, ...]
    stores: tuple[Access, ...]
    other_bytes: int
    stages: tuple[Stage, ...]
    results: int
    reductions: int
    neighbours: bool

    @classmethod
    def of(cls, geometry: Geometry) -> RowShape:
        """Return the shape of an expression (memoised on it)."""
        found = geometry.expr._memo.get("row_shape")
        if found is None:
            found = geometry.expr._memo["row_shape"] = _shape(geometry)
        shape: RowShape = found
        return shape


def _shape(geometry: Geometry) -> RowShape:
    expr = geometry.expr
    inputs = {t.name for t in expr.inputs}
    columns = {a.name for a in expr.anchor.reduction_axes}
    kept, reads, stores, other = kept_loads(expr), dict[Load, int](), [], 0
    stages = row_stages(expr)
    for s in stages:
        mine = [ld for ld in s.stage.loads if ld.tensor in inputs]
        known = s.aligned or not s.columns
        for ld in mine if known else ():
            reads[ld] = reads.get(ld, 0) + 1
        output = s.stage.output
        if s.stage.name in expr.outputs and known:
            stores.append(access_of(expr, output, s.stage.store, 0, every_step=False))
        other += sum(expr.tensors[ld.tensor].nbytes for ld in mine) if not known else 0
        other += output.nbytes if not known and s.stage.name in expr.outputs else 0
    accesses = [
        RowRead(
            access_of(expr, expr.tensors[ld.tensor], ld.index, len(ld.guard), every_step=False),
            passes,
            ld in kept,
            any(a in columns for i in ld.index for a in i.axes),
        )
        for ld, passes in reads.items()
    ]
    return RowShape(
        tuple(accesses),
        tuple(stores),
        other,
        tuple(s.stage for s in stages),
        sum(1 for s in stages if s.stage.combiner is not None or not s.columns),
        sum(1 for s in stages if s.stage.combiner is not None),
        contiguous_axis(expr.anchor, expr.tensors) in columns,
    )


def keeps(batch: TileBatch) -> np.ndarray:
    """Mask of programs whose register tiles hold all columns of a row."""
    return np.asarray((batch.steps == 1) & (batch.split_k == 1) & (not batch.staged))


def passes(batch: TileBatch, read: RowRead) -> Ints:
    """Return how often a program reads an input, ``(N,)``."""
    return np.where((keeps(batch) | bool(batch.staged)) & read.keepable, 1, read.passes)


def held_words(batch: TileBatch) -> Ints:
    """Return 32-bit registers of results and of elements held at a time, ``(N,)``."""
    shape = RowShape.of(batch.geometry)
    acc = max(1, DTYPE_BYTES[batch.geometry.expr.anchor.acc_dtype] // 4)
    kept = keeps(batch)
    words = batch.register_outputs * acc * shape.results
    streamed = np.zeros(len(batch), np.int64)
    for r in shape.reads:
        mine = r.access.elements(batch.register) * max(1, r.access.tensor.itemsize_bytes // 4) * r.wide
        words = words + np.where(kept & r.keepable, mine, 0)
        streamed = streamed + np.where(kept & r.keepable, 0, mine)
    elements = batch.register_points * batch.register_outputs
    words = words + np.where(kept, elements * acc * shared_words(batch.geometry.expr), 0)
    # Of what is not kept a step holds all in a loop, whose next loads wait; a straight line is scheduled as fits.
    return words + np.where(kept, np.minimum(streamed, STREAMED_WORDS), streamed)


def lane_counts(batch: TileBatch) -> tuple[Ints, Ints]:
    """Return threads that share a row, and threads along rows, per block."""
    spatial = batch.geometry.spatial
    return product(batch.threads, np.flatnonzero(~spatial)), product(batch.threads, np.flatnonzero(spatial))


def teu_lanes(batch: TileBatch, width: int) -> Ints:
    """Return the lanes of one TEU per axis: along the row first where they are neighbours, ``(N, axes)``."""
    g = batch.geometry
    reductions = [int(a) for a in np.flatnonzero(~g.spatial)]
    order = (*g.order, *reductions) if RowShape.of(g).neighbours else (*reductions, *g.order)
    out, left = np.ones_like(batch.block), np.full(len(batch), width, np.int64)
    for a in reversed(order):
        out[:, a] = np.minimum(batch.threads[:, a], left)
        left = np.maximum(1, left // out[:, a])
    return out


def exchange_bytes(batch: TileBatch) -> Ints:
    """Return bytes of scratchpad in which lanes meet, ``(N,)``."""
    lanes, rows = lane_counts(batch)
    each = rows * batch.register_outputs * max(4, DTYPE_BYTES[batch.geometry.expr.anchor.acc_dtype])
    held = held_bytes(batch)
    if RowShape.of(batch.geometry).neighbours:
        return held + np.where(lanes > SHUFFLE_LANES, each * (lanes // SHUFFLE_LANES), 0)
    return held + np.where(lanes > 1, each * (lanes + 1), 0)


def held_bytes(batch: TileBatch) -> Ints:
    """Return bytes of scratchpad that staged programs hold their rows in, ``(N,)``."""
    total = np.zeros(len(batch), np.int64)
    reductions = np.flatnonzero(~batch.geometry.spatial)
    steps = product(batch.counts, reductions)
    for r in RowShape.of(batch.geometry).reads if batch.staged else ():
        if r.keepable:
            # Every thread has room for whole register tiles, beyond the end of a row too.
            own = product(batch.register, np.flatnonzero(r.access.uses))
            total = total + own * steps * batch.threads_per_block * r.access.tensor.itemsize_bytes
    return total


def words_in_flight(batch: TileBatch, most: float) -> Floats:
    """Return 4-byte loads a thread issues before it must wait: those of a row, or of a step, ``(N,)``."""
    words = np.zeros(len(batch))
    for r in RowShape.of(batch.geometry).reads:
        if r.wide and r.keepable:
            words = words + r.access.elements(batch.block) * (r.access.tensor.itemsize_bytes / 4)
    return np.asarray(np.minimum(words / batch.threads_per_block, most))
