"""Programs of GPU libraries: the templates' programs, restricted to kernels that a :class:`LibraryPolicy` describes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.library_kernel_limits import LibraryPolicy
from roller.templates.common.options import ConstructOptions
from roller.templates.gpu.common.occupancy import scratchpad_bytes
from roller.templates.gpu.common.row_reads_and_reductions import (
    RowReadsAndReductions,
    threads_along_and_across_rows,
    whole_rows_in_registers_mask,
)
from roller.templates.gpu.common.thread_limits import fills_whole_teus
from roller.templates.gpu.tiled.candidates import join_batches, with_split_reductions
from roller.tile.geometry import Geometry, product_of_columns
from roller.tile.structures import TILED, structure_of


def restrict_options_to_library(options: ConstructOptions, policy: LibraryPolicy) -> ConstructOptions:
    """Return the options restricted to the mechanisms that the policy allows."""
    return replace(
        options,
        winograd=options.winograd and policy.winograd,
        matrix_units=options.matrix_units and policy.matrix_units,
    )


def library_product_programs(geometry: Geometry, spec: DeviceSpec, policy: LibraryPolicy) -> list[TileBatch]:
    """Return the SIMT programs for a matrix product with the policy's tiles, or none for other expressions."""
    # A product has one wide axis per operand and one reduction axis; other axes are a batch of products.
    sides = _product_axes(geometry)
    if sides is None or not structure_of(geometry).reuses:
        return []
    rows, columns, k = sides
    register = np.ones((len(policy.product_tiles), len(geometry.names)), np.int64)
    block = register.copy()
    for n, (height, width, threads) in enumerate(policy.product_tiles):
        block[n, [rows, columns]] = height, width
        register[n, [rows, columns]] = _tile_per_thread(height, width, threads)
    block[:, k] = policy.product_step
    one = np.ones(len(block), np.int64)
    batch = TileBatch(
        geometry, TILED.name, register, block, one, geometry.load_names, stages=policy.product_stages
    )  # fmt: skip
    fits = fills_whole_teus(batch, spec) & (scratchpad_bytes(batch) <= spec.layer("shared").budget_bytes)
    batch = batch.take(np.flatnonzero(fits))
    return [join_batches([batch, *with_split_reductions(batch, spec)])] if len(batch) else []


def _product_axes(geometry: Geometry) -> tuple[int, int, int] | None:
    """Return the positions of a product's row, column and reduction axes, or ``None`` if it has no such axes."""
    reduced = [a for a in geometry.reduced_axes if geometry.extents[a] > 1] or list(geometry.reduced_axes[:1])
    if len(geometry.loads) != 2 or len(reduced) != 1:
        return None
    wide = geometry.spatial & (geometry.extents > 1)
    one, other = (np.flatnonzero(wide & a.uses & ~b.uses) for a, b in (geometry.loads, geometry.loads[::-1]))
    if not len(one) or not len(other):
        return None
    largest = [int(own[np.argmax(geometry.extents[own])]) for own in (one, other)]
    largest.sort(key=geometry.order.index)  # columns run along the result's rows
    return largest[0], largest[1], int(reduced[0])


def _tile_per_thread(height: int, width: int, threads: int) -> tuple[int, int]:
    """Return the tile of a thread, which is square or twice as long along the block's longer side."""
    outputs = height * width // threads
    shorter = 1 << ((outputs.bit_length() - 1) // 2)
    longer = outputs // shorter
    return (longer, shorter) if height >= width else (shorter, longer)


def library_row_programs(batch: TileBatch, spec: DeviceSpec, policy: LibraryPolicy) -> TileBatch:
    """Return the row programs in which a TEU holds a row in registers, or a block rereads its single row."""
    g, (lanes, rows) = batch.geometry, threads_along_and_across_rows(batch)
    columns = int(product_of_columns(g.extents[None], g.reduced_axes)[0])
    vector, moments = _vector_elements(batch, policy), any(r.moments for r in RowReadsAndReductions.of(g).reads)
    if columns <= policy.kept_columns and not moments:  # sums of one pass (moments) read their rows twice
        chosen = (
            whole_rows_in_registers_mask(batch)
            & (lanes == spec.teu.lanes)
            & (batch.threads_per_block == policy.kept_threads)
        )
    else:
        chosen = (
            (rows == 1) & (product_of_columns(batch.block, g.spatial_axes) == 1) & ~whole_rows_in_registers_mask(batch)
        )
        chosen &= product_of_columns(batch.register, g.reduced_axes) == vector
        chosen &= lanes == (policy.moment_threads if moments else _threads_per_row(columns, vector, spec, policy))
        chosen &= (batch.split_k == 1) & (not batch.staged)
    few = not chosen.any() and not batch.staged  # no kernel of the policy suits short rows, so all programs are kept
    return replace(batch.take(np.flatnonzero(chosen | few)), moments_together=moments)


def _vector_elements(batch: TileBatch, policy: LibraryPolicy) -> int:
    widest = max((a.tensor.itemsize_bytes for a in batch.geometry.reads), default=4)
    return max(1, policy.vector_bytes // widest)


def _threads_per_row(columns: int, vector: int, spec: DeviceSpec, policy: LibraryPolicy) -> int:
    """Return the number of threads in a block with one row: at least half as many as vectors, up to a limit."""
    wanted, threads = min(-(-columns // vector), policy.row_threads), spec.teu.lanes
    while threads < wanted / 2:
        threads *= 2
    return threads


def library_stream_programs(batch: TileBatch, policy: LibraryPolicy) -> TileBatch:
    """Return the element-wise programs whose threads take one vector each, or all programs if there are none."""
    vector = _vector_elements(batch, policy)
    one = product_of_columns(batch.register, range(len(batch.geometry.names))) == vector
    one &= not batch.staged
    return batch.take(np.flatnonzero(one)) if one.any() or batch.staged else batch


def restrict_to_library(batches: Iterable[TileBatch], spec: DeviceSpec, policy: LibraryPolicy) -> list[TileBatch]:
    """Return the programs that resemble the policy's kernels; batches of other structures are unchanged."""
    found = []
    for batch in batches:
        if batch.traits.spreads_reductions:
            some = library_row_programs(batch, spec, policy)
        elif not batch.traits.reduces:
            some = library_stream_programs(batch, policy)
        else:
            some = batch
        found.append(some)
    return [b for b in found if len(b)]
