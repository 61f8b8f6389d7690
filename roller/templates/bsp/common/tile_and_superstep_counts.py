"""Counts of a bulk-synchronous program that both its price and its code use: tiles, supersteps and bytes.

A unit computes one tile of a program's ``scratchpad`` layer at a time, in one superstep per reduction step, after it
has received the step's data tiles through the exchange. Accumulators stay in place between steps; ``split_k`` spreads
the parts of a reduction over several units and adds a superstep that combines them. If there are more tiles than units,
they run in waves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from roller.expr import Stage
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.tile.geometry import Floats, Ints, store_order
from roller.tile.tensor_boxes import WORD_BYTES, boxes_of
from roller_runtime.core.dtypes import DTYPE_BYTES


@dataclass(frozen=True)
class TileAndSuperstepCounts:
    """Counts for the programs of a batch; arrays have shape ``(N,)``.

    Parameters
    ----------
    tasks
        Number of output tiles times number of parts of a split reduction.
    waves, steps
        Number of tiles that a unit computes one after another, and of reduction steps per tile.
    supersteps
        Number of compute phases of the whole program, each preceded by a synchronization.
    received_bytes
        Bytes that a unit receives in one reduction step, in whole words of the exchange.
    other_bytes
        Bytes of inputs that only stages other than the anchor read; a unit receives them once per tile.
    result_bytes
        Bytes of one tile's results that a unit sends to their home memory.
    partial_bytes
        Bytes of the accumulators that the other parts of a split reduction send to the unit that combines them.
    working_bytes
        Bytes of one unit's data tiles, intermediates, accumulators and results.
    resident_bytes, kept_bytes
        Bytes of the caller's tensors, and of the part that fits in the units' scratchpads next to their tiles.
    streamed_bytes
        Bytes moved to and from the memory outside the device.
    """

    tasks: Ints
    waves: Ints
    steps: Ints
    supersteps: Ints
    received_bytes: Floats
    other_bytes: Floats
    result_bytes: Floats
    partial_bytes: Floats
    working_bytes: Floats
    resident_bytes: float
    kept_bytes: Floats
    streamed_bytes: Floats


def count_tiles_and_supersteps(batch: TileBatch, spec: DeviceSpec) -> TileAndSuperstepCounts:
    """Return the counts of a batch's programs, computed once."""
    found: TileAndSuperstepCounts | None = batch._memo.get(("bsp", spec.content_key))
    if found is None:
        found = batch._memo["bsp", spec.content_key] = _compute_tile_and_superstep_counts(batch, spec)
    return found


def fits_scratchpad(batch: TileBatch, spec: DeviceSpec) -> np.ndarray:
    """Return the mask of programs whose tiles fit in a unit's scratchpad."""
    return np.asarray(
        count_tiles_and_supersteps(batch, spec).working_bytes <= spec.layer(spec.traits.scratchpad).budget_bytes
    )


def results_per_worker_piece(vector: Any, itemsize_bytes: int) -> Any:
    """Return the number of neighbouring results that one worker computes together: whole vectors in whole memory words.

    Examples
    --------
    >>> results_per_worker_piece(2, 4), results_per_worker_piece(2, 1)
    (2, 4)
    """
    several = max(1, WORD_BYTES // itemsize_bytes)  # stores write words: no two workers may share one
    return -(-vector // several) * several


def axes_contiguous_last(stage: Stage) -> list[str]:
    """Return the axes of a stage's results, ending with the contiguous axis."""
    names = tuple(a.name for a in stage.axes)
    return [names[a] for a in store_order(stage, names)]


def pieces_per_tile(stage: Stage, batch: TileBatch) -> Ints:
    """Return the number of pieces into which a unit divides its tile of a stage's results, shape ``(N,)``."""
    tile, order = unit_tile_extents(batch), axes_contiguous_last(stage)
    extents = {a.name: np.asarray(tile.get(a.name, a.extent)) for a in stage.axes}
    axis, total = batch.vector_axis, np.ones(len(batch), np.int64)
    vector = 1 if axis is None else batch.register[:, axis]
    for n in order:
        piece = results_per_worker_piece(vector, stage.output.itemsize_bytes) if n == order[-1] else 1
        total = total * -(-extents[n] // piece)
    return total


def unit_tile_extents(batch: TileBatch) -> dict[str, Ints]:
    """Return the extents of a unit's tile, keyed by axis, each of shape ``(N,)``."""
    return {n: batch.block[:, a] for a, n in enumerate(batch.geometry.names)}


def accumulates_across_supersteps(batch: TileBatch) -> Floats:
    """Return the mask of programs whose accumulators outlive a superstep: several steps, or parts on several units."""
    return np.asarray((batch.steps > 1) | (batch.split_k > 1))


def count_other_stage_phases(batch: TileBatch) -> int:
    """Return the number of compute phases per tile besides the anchor's: one for each stage other than the anchor."""
    return len(batch.geometry.expr.stages) - 1


def _compute_tile_and_superstep_counts(batch: TileBatch, spec: DeviceSpec) -> TileAndSuperstepCounts:
    expr, tile = batch.geometry.expr, unit_tile_extents(batch)
    boxes, word = boxes_of(expr), spec.home.transaction_bytes
    size = {n: np.broadcast_to(_round_up_to_words(b.elements(tile) * b.tensor.itemsize_bytes, word), (len(batch),))
            for n, b in boxes.items()}  # fmt: skip
    inputs = [t.name for t in expr.inputs if t.name in boxes]
    accumulators = _anchor_outputs_per_tile(batch) * DTYPE_BYTES[expr.anchor.acc_dtype]
    steps, waves = batch.steps, -(-batch.blocks // spec.units)
    own = {load.tensor for load in expr.anchor.loads}
    received = sum((size[n] for n in inputs if n in own), np.zeros(len(batch)))
    other = sum((size[n] for n in inputs if n not in own), np.zeros(len(batch)))
    result = sum((size[n] for n in expr.outputs), np.zeros(len(batch)))
    partial = np.where(batch.split_k > 1, (batch.split_k - 1) * accumulators, 0).astype(float)
    working = sum(size.values(), np.zeros(len(batch))) + np.where(accumulates_across_supersteps(batch), accumulators, 0)
    working = working + np.where(batch.split_k > 1, accumulators, 0)  # the other parts are received one at a time
    resident = float(sum(t.nbytes for t in (*expr.inputs, *expr.output_tensors)))
    spare = np.maximum(0.0, spec.layer(spec.traits.scratchpad).budget_bytes - working) * spec.units
    kept = np.minimum(resident, spare)
    supersteps = waves * (steps + count_other_stage_phases(batch) + (batch.split_k > 1))
    away = 1.0 - kept / resident
    several = np.minimum(batch.blocks, spec.units)
    # Units that need the same elements in one superstep share one stream.
    read = sum((np.minimum(size[n] * several, expr.tensors[n].nbytes) * np.where(n in own, steps, 1) for n in inputs),
               np.zeros(len(batch)))  # fmt: skip
    streamed = away * (read * waves + sum(t.nbytes for t in expr.output_tensors))
    moved = [np.asarray(x, np.float64) for x in (received, other, result, partial, working)]
    return TileAndSuperstepCounts(batch.blocks, waves, steps, supersteps, moved[0], moved[1], moved[2], moved[3],
                                  moved[4],
                         resident,
                    kept, streamed)  # fmt: skip


def _anchor_outputs_per_tile(batch: TileBatch) -> Ints:
    total = np.ones(len(batch), np.int64)
    for a in batch.geometry.spatial_axes:
        total = total * batch.block[:, a]
    return total


def _round_up_to_words(count: Ints, word: int) -> Ints:
    return np.asarray(-(-count // word) * word)


def stage_points_per_step(stage: Stage, batch: TileBatch) -> Ints:
    """Return the number of a stage's points that one unit computes in one step; axes without a tile count in full."""
    tile, total = unit_tile_extents(batch), np.ones(len(batch), np.int64)
    for a in stage.axes:
        total = total * tile.get(a.name, a.extent)
    return total
