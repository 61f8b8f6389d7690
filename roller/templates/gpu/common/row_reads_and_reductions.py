"""Reads, stores and reductions of a row program, and the registers that hold its data.

Which inputs a thread may keep follows from the expression
(:func:`roller.tile.row_stages_and_shared_loads.loads_kept_in_registers`); whether
it can depends on the tile: its register tile must hold all columns of a row, so that the block needs only one step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from roller.expr import Bound, Index, Load, Stage, TensorExpr
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.lane_exchange import (
    LaneExchange,
    choose_lane_exchange,
    count_threads_storing_accumulators,
)
from roller.tile.geometry import Access, Floats, Geometry, Ints, access_of, product_of_columns
from roller.tile.row_kernel_shared_values import extra_registers_of_shared_values
from roller.tile.row_stages_and_shared_loads import (
    loads_kept_in_registers,
    most_contiguous_axis,
    row_stages,
    rows_are_independent,
)
from roller_runtime.core.dtypes import DTYPE_BYTES

#: Identity of an access: tensor, index and guard.
AccessKey = tuple[str, tuple[Index, ...], tuple[Bound, ...]]
#: Maximum number of words of unkept operands that the compiler holds at a time (from machine code of norms).
STREAMED_WORDS = 16


class VectorRule(Enum):
    """How a kernel's accesses follow the vectors of its program."""

    #: Element by element.
    NONE = "none"
    #: In the widest aligned pieces of every vector.
    PIECES = "pieces"
    #: In whole vectors, otherwise element by element.
    WHOLE = "whole"


@dataclass(frozen=True)
class RowRead:
    """An input as the stages read it: in ``passes`` stages, or once if the tile keeps it (``keepable``)."""

    access: Access
    passes: int
    keepable: bool
    wide: bool  # moves along the columns of a row
    moments: int = 0  # passes of sums that could be computed in another sum's pass (Welford's mean and variance)


@dataclass(frozen=True)
class RowReduction:
    """A reduction whose accumulators lanes combine, and whether a later stage of its kernel reads its results."""

    itemsize_bytes: int
    along: bool
    is_read_again: bool

    def meeting(self, batch: TileBatch) -> Ints:
        """Return how lanes combine, as values of :class:`LaneExchange`, shape ``(N,)``."""
        return choose_lane_exchange(*threads_along_and_across_rows(batch), self.itemsize_bytes, along=self.along)

    def all_lanes_need_results(self, batch: TileBatch) -> np.ndarray:
        """Return the mask of programs in which all lanes need the results; lanes of a split reduction need none."""
        return np.asarray(self.is_read_again & (batch.split_k == 1))


@dataclass(frozen=True)
class RowReadsAndReductions:
    """Reads, stores and reductions of a row expression.

    Parameters
    ----------
    other_bytes
        Bytes accessed along columns other than the anchor's columns.
    reductions
        Reductions of the program's kernel.
    neighbours
        Whether lanes of a row are neighbouring threads, because the row's elements are contiguous in memory.
    vectors
        How each access follows the program's vectors.
    """

    reads: tuple[RowRead, ...]
    stores: tuple[Access, ...]
    other_bytes: int
    stages: tuple[Stage, ...]
    results: int
    reductions: tuple[RowReduction, ...]
    neighbours: bool
    vectors: Mapping[AccessKey, VectorRule]

    @classmethod
    def of(cls, geometry: Geometry) -> RowReadsAndReductions:
        """Return the row shape of an expression, memoized on the expression."""
        found = geometry.expr._memo.get("row_shape")
        if found is None:
            found = geometry.expr._memo["row_shape"] = _find_reads_and_reductions(geometry)
        shape: RowReadsAndReductions = found
        return shape


def _find_reads_and_reductions(geometry: Geometry) -> RowReadsAndReductions:
    expr = geometry.expr
    inputs = {t.name for t in expr.inputs}
    columns = {a.name for a in expr.anchor.reduction_axes}
    kept, reads, stores, other = loads_kept_in_registers(expr), dict[Load, int](), [], 0
    sums, vectors = dict[Load, int](), dict[AccessKey, VectorRule]()
    stages, fuses = row_stages(expr), rows_are_independent(expr)
    along = most_contiguous_axis(expr.anchor, expr.tensors) in columns
    for s in stages:
        mine = [ld for ld in s.stage.loads if ld.tensor in inputs]
        known = s.aligned or not s.columns
        for ld in mine if known else ():
            reads[ld] = reads.get(ld, 0) + 1
            # Registers are filled with loads that move along a row; other loads are read where they are needed.
            pieces = (fuses or ld in expr.anchor.loads) and not ld.guard and _index_uses_columns(ld, columns)
            vectors[ld.tensor, ld.index, ld.guard] = VectorRule.PIECES if pieces else VectorRule.NONE
            sums[ld] = sums.get(ld, 0) + (s.stage.combiner == "sum")
        output = s.stage.output
        if s.stage.name in expr.outputs and known:
            stores.append(access_of(expr, output, s.stage.store, (), every_step=False))
            own = fuses or s.stage.name == expr.anchor.name  # stages that do not fuse have separate mappings
            rule = VectorRule.PIECES if s.columns else VectorRule.WHOLE
            vectors[output.name, s.stage.store, ()] = rule if own else VectorRule.NONE
        other += sum(expr.tensors[ld.tensor].nbytes for ld in mine) if not known else 0
        other += output.nbytes if not known and s.stage.name in expr.outputs else 0
    accesses = [
        RowRead(
            access_of(expr, expr.tensors[ld.tensor], ld.index, ld.guard, every_step=False),
            count_reads_of_input,
            ld in kept,
            _index_uses_columns(ld, columns),
            max(0, sums[ld] - 1),
        )
        for ld, count_reads_of_input in reads.items()
    ]
    return RowReadsAndReductions(
        tuple(accesses),
        tuple(stores),
        other,
        tuple(s.stage for s in stages),
        sum(1 for s in stages if s.stage.combiner is not None or not s.columns),
        _kernel_reductions(expr, along),
        along,
        vectors,
    )


def _index_uses_columns(load: Load, columns: Collection[str]) -> bool:
    return any(a in columns for i in load.index for a in i.axes)


def _kernel_reductions(expr: TensorExpr, along: bool) -> tuple[RowReduction, ...]:
    """Return the reductions of a program's kernel: only the anchor's if the stages do not fuse."""
    stages = [s.stage for s in row_stages(expr)] if rows_are_independent(expr) else [expr.anchor]
    return tuple(
        RowReduction(
            DTYPE_BYTES[s.acc_dtype], along, any(ld.tensor == s.name for later in stages[n + 1 :] for ld in later.loads)
        )
        for n, s in enumerate(stages)
        if s.combiner is not None
    )


def whole_rows_in_registers_mask(batch: TileBatch) -> np.ndarray:
    """Return the mask of programs that keep whole rows in registers."""
    fuse = rows_are_independent(batch.geometry.expr)
    return np.asarray((batch.steps == 1) & (batch.split_k == 1) & (fuse and not batch.staged))


def count_reads_of_input(batch: TileBatch, read: RowRead) -> Ints:
    """Return how many times each program reads an input, shape ``(N,)``."""
    every = read.passes - (read.moments if batch.moments_together else 0)
    return np.where((whole_rows_in_registers_mask(batch) | bool(batch.staged)) & read.keepable, 1, every)


def row_registers_per_thread(batch: TileBatch) -> Ints:
    """Return the 32-bit registers per thread for results and for the elements held at a time, shape ``(N,)``."""
    shape = RowReadsAndReductions.of(batch.geometry)
    acc = max(1, DTYPE_BYTES[batch.geometry.expr.anchor.acc_dtype] // 4)
    kept = whole_rows_in_registers_mask(batch)
    words = batch.accumulators_per_thread * acc * shape.results
    streamed = np.zeros(len(batch), np.int64)
    for r in shape.reads:
        mine = r.access.elements(batch.register) * max(1, r.access.tensor.itemsize_bytes // 4) * r.wide
        words = words + np.where(kept & r.keepable, mine, 0)
        streamed = streamed + np.where(kept & r.keepable, 0, mine)
    elements = batch.unrolled_reduction_points * batch.accumulators_per_thread
    words = words + np.where(kept, elements * acc * extra_registers_of_shared_values(batch.geometry.expr), 0)
    # A loop holds all unkept elements of a step until its next loads; straight-line code is scheduled to fit.
    return words + np.where(kept, np.minimum(streamed, STREAMED_WORDS), streamed)


def threads_along_and_across_rows(batch: TileBatch) -> tuple[Ints, Ints]:
    """Return, for each block, the number of threads that share a row and the number of threads across rows."""
    spatial = batch.geometry.spatial
    return product_of_columns(batch.threads, np.flatnonzero(~spatial)), product_of_columns(
        batch.threads, np.flatnonzero(spatial)
    )


def row_teu_lanes_per_axis(batch: TileBatch, width: int) -> Ints:
    """Return a TEU's lanes per axis, shape ``(N, axes)``; rows are filled first if their lanes are neighbours."""
    g = batch.geometry
    reductions = [int(a) for a in np.flatnonzero(~g.spatial)]
    order = (*g.order, *reductions) if RowReadsAndReductions.of(g).neighbours else (*reductions, *g.order)
    out, left = np.ones_like(batch.block), np.full(len(batch), width, np.int64)
    for a in reversed(order):
        out[:, a] = np.minimum(batch.threads[:, a], left)
        left = np.maximum(1, left // out[:, a])
    return out


def exchange_scratchpad_bytes(batch: TileBatch) -> Ints:
    """Return the scratchpad bytes per block for exchanges between lanes and for staged rows, shape ``(N,)``."""
    lanes, rows = threads_along_and_across_rows(batch)
    parts = totals = np.zeros(len(batch), np.int64)
    # Reductions use the same memory one after the other.
    for r in RowReadsAndReductions.of(batch.geometry).reductions:
        way, size = r.meeting(batch), batch.accumulators_per_thread * r.itemsize_bytes
        parts = np.maximum(parts, count_threads_storing_accumulators(way, lanes, rows) * size)
        totals = np.maximum(totals, (r.all_lanes_need_results(batch) & (way == LaneExchange.SCRATCHPAD)) * rows * size)
    return staged_row_bytes(batch) + parts + totals


def staged_row_bytes(batch: TileBatch) -> Ints:
    """Return the scratchpad bytes per block that staged rows occupy, shape ``(N,)``."""
    total = np.zeros(len(batch), np.int64)
    reductions = np.flatnonzero(~batch.geometry.spatial)
    steps = product_of_columns(batch.counts, reductions)
    for r in RowReadsAndReductions.of(batch.geometry).reads if batch.staged else ():
        if r.keepable:
            # Every thread has space for whole register tiles, even beyond the end of a row.
            own = product_of_columns(batch.register, np.flatnonzero(r.access.uses))
            total = total + own * steps * batch.threads_per_block * r.access.tensor.itemsize_bytes
    return total


def words_in_flight(batch: TileBatch, most: float) -> Floats:
    """Return the number of 4-byte loads, at most ``most``, that a thread issues before it must wait, shape ``(N,)``."""
    words = np.zeros(len(batch))
    for r in RowReadsAndReductions.of(batch.geometry).reads:
        if r.wide and r.keepable:
            words = words + r.access.elements(batch.block) * (r.access.tensor.itemsize_bytes / 4)
    return np.asarray(np.minimum(words / batch.threads_per_block, most))
