"""Pipelines, orders of blocks and other splits for the most promising tiled programs.

These choices change neither tiles nor layouts, so only programs that could win are priced with each choice, and a
choice is offered if it makes its program faster.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roller.core.smallest_positions import smallest_positions
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.options import ConstructOptions
from roller.templates.gpu.tiled.candidates import split_part_counts as splits_of
from roller.templates.gpu.tiled.candidates import useful_split_mask
from roller.templates.gpu.tiled.price import PHASES
from roller.tile.geometry import Ints
from roller.tile.program import RProgram

#: Maximum number of programs selected by the bound of the plain program, and then by the bound of a pipeline.
_PLAIN, _PIPELINED = 1024, 160
#: Number of programs priced with other orders of blocks.
_RASTERED = 32
#: Number of tiles whose reduction is split into other numbers of parts; those numbers; waves of one block per unit that
#: count as few; maximum waves that parts may form.
_SPLIT_TILES, _PARTS, _FEW_WAVES, _MOST_WAVES = 40, (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64), 3, 12
#: Waves of one block per unit that parts may fill exactly.
_FULL_WAVES = (1, 2, 4, 8)
#: Numbers of copies of a tile, without and with asynchronous copying.
STAGES_THROUGH_REGISTERS, STAGES = (2,), (2, 3, 4)
#: Numbers of tiles along the slower axis that blocks cover before they advance along the faster axis.
RASTERS = (4, 8, 16)


def pipeline_stage_counts(spec: DeviceSpec) -> tuple[int, ...]:
    """Return the numbers of copies of a tile that a pipeline may have on a device."""
    return STAGES if spec.execution.async_copy_bytes else STAGES_THROUGH_REGISTERS


def tiled_variants(batch: TileBatch, spec: DeviceSpec, splits: bool = False) -> list[TileBatch]:
    """Return the tiled programs that a pipeline or a different order of blocks makes faster."""
    if not batch.traits.reuses or batch.fragment is not None or not batch.staged_loads or not len(batch):
        return []
    bounds = _VariantBounds(batch, spec)
    some, tried = batch.take(bounds.promising_rows(np.arange(len(batch)))), (1, *pipeline_stage_counts(spec))
    others = promising_other_splits(batch, spec, bounds) if splits else some.take(np.arange(0))
    first_other = len(some)
    some = _join_batches(some, others) if len(others) else some
    programs = np.arange(len(some))
    plain, pipelines = _predicted_seconds(some, spec), _predicted_seconds(some.with_stages_and_rasters(tried[1:]), spec)
    seconds = np.concatenate([plain, pipelines]).reshape(len(tried), -1)
    stages, raster = np.repeat(tried, len(some)).reshape(seconds.shape), np.ones(seconds.shape, np.int64)
    seconds[stages > np.maximum(some.steps, 1)] = np.inf  # slots that no step would fill
    if operands_exceed_shared_cache(batch, spec):
        best, least = stages[seconds.argmin(axis=0), programs], seconds.min(axis=0)
        kinds = (programs[:first_other], programs[first_other:])
        first = np.concatenate([rows[np.argsort(least[rows], kind="stable")[:_RASTERED]] for rows in kinds])
        orders = _times_of_block_orders(some, best, first, spec)
        seconds, stages = np.concatenate([seconds, orders]), np.concatenate([stages, [best] * len(RASTERS)])
        raster = np.concatenate([raster, np.repeat(RASTERS, len(some)).reshape(orders.shape)])
    chosen = seconds.argmin(axis=0), programs  # among equals, the first, which is the simplest
    seconds, stages, raster = seconds[chosen], stages[chosen], raster[chosen]
    found = [others.priced(spec, plain[first_other:])] if len(others) else []
    for alone in (True, False):
        rows = np.flatnonzero(((stages == 1) == alone) & (stages * raster > 1) & np.isfinite(seconds))
        if len(rows):
            varied = replace(some.take(rows), stages=1 if alone else stages[rows], raster=raster[rows])
            found.append(varied.priced(spec, seconds[rows]))
    return found


def _join_batches(one: TileBatch, other: TileBatch) -> TileBatch:
    """Return the programs of two batches that differ only in tiles and splits."""
    register, block, split_k = (
        np.concatenate([getattr(b, name) for b in (one, other)]) for name in ("register", "block", "split_k")
    )
    return replace(one, register=register, block=block, split_k=split_k)


def _times_of_block_orders(batch: TileBatch, stages: Ints, first: np.ndarray, spec: DeviceSpec) -> np.ndarray:
    """Return the seconds of programs ``first`` with each order of blocks, shape ``(orders, N)``; inf for others."""
    seconds = np.full((len(RASTERS), len(batch)), np.inf)
    for rows in (first[stages[first] == 1], first[stages[first] > 1]):
        n = 1 if (stages[rows] == 1).all() else np.tile(stages[rows], len(RASTERS))
        orders = batch.chosen(np.tile(rows, len(RASTERS)), n, np.repeat(RASTERS, len(rows)))
        seconds[:, rows] = _predicted_seconds(orders, spec).reshape(len(RASTERS), -1)
    return seconds


def pipeline_variants_of_program(program: RProgram, spec: DeviceSpec) -> list[RProgram]:
    """Return a plain tiled program's variants with all other choices of stages and raster; empty for other programs."""
    plain = program.traits.reuses and program.fragment is None and (program.stages, program.raster) == (1, 1)
    if not plain or not program.staged:
        return []
    both = [(n, r) for n in (1, *pipeline_stage_counts(spec)) for r in (1, *RASTERS)]
    return [replace(program, stages=n, raster=r) for n, r in both if (n, r) != (1, 1)]


class _VariantBounds:
    """Bounds on the programs of a batch and on their pipelines, each computed once."""

    def __init__(self, batch: TileBatch, spec: DeviceSpec) -> None:
        self._batch, self._spec = batch, spec
        self._two = np.full(len(batch), np.nan)

    def bounds_of_pipelines(self, rows: np.ndarray) -> np.ndarray:
        """Return the bounds of ``rows`` as programs with two stages, shape ``(N,)``."""
        new = rows[np.isnan(self._two[rows])]
        if len(new):
            self._two[new] = PHASES.bound(self._batch.chosen(new, 2, 1), self._spec)
        return np.asarray(self._two[rows])

    def promising_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return those of ``rows`` that are most likely to become the fastest programs as pipelines."""
        if len(rows) > _PLAIN:
            rows = rows[smallest_positions(PHASES.bound(self._batch, self._spec)[rows], _PLAIN)]
        if len(rows) > _PIPELINED:
            rows = rows[smallest_positions(self.bounds_of_pipelines(rows), _PIPELINED)]
        return rows


def _predicted_seconds(batch: TileBatch, spec: DeviceSpec) -> np.ndarray:
    return np.asarray(PHASES.price(batch, spec)["seconds"]) if len(batch) else np.zeros(0)


def operands_exceed_shared_cache(batch: TileBatch, spec: DeviceSpec) -> bool:
    """Return whether an operand exceeds the shared cache; if so, the order of blocks matters."""
    capacity = spec.layer("l2").kept_bytes
    return any(a.tensor.nbytes > capacity for a in batch.geometry.reads)


def promising_other_splits(batch: TileBatch, spec: DeviceSpec, bounds: _VariantBounds | None = None) -> TileBatch:
    """Return the most promising tiles with few blocks, split into the number of parts that suits them best."""
    bounds = bounds or _VariantBounds(batch, spec)
    rows = bounds.promising_rows(np.flatnonzero(batch.blocks // batch.split_k < _FEW_WAVES * spec.units))
    tiles = np.concatenate([batch.register[rows], batch.block[rows]], axis=1)
    rows = rows[np.sort(np.unique(tiles, axis=0, return_index=True)[1])]
    rows = rows[np.argsort(bounds.bounds_of_pipelines(rows), kind="stable")[:_SPLIT_TILES]]
    whole = replace(batch.take(rows), split_k=np.ones(len(rows), np.int64))
    if not len(whole):
        return whole
    parts = _part_counts_to_try(whole.blocks, spec)
    useful = (whole.steps >= parts) & (whole.blocks * parts <= _MOST_WAVES * spec.units)
    # Many parts are used only if the device has room for them and if each part has steps to overlap.
    many = np.arange(len(parts))[:, None] >= len(_PARTS)
    useful &= ~many | ((parts > max(_PARTS)) & (2 * whole.blocks * parts > spec.units) & (whole.steps >= 2 * parts))
    n, rows = np.nonzero(useful)
    seconds = np.full(useful.shape, np.inf)
    seconds[n, rows] = _predicted_seconds(replace(whole.take(rows), split_k=parts[n, rows], stages=2), spec)
    best = np.take_along_axis(parts, seconds.argmin(axis=0)[None], axis=0)[0]
    known = np.isin(best, splits_of(spec)) & useful_split_mask(
        whole.blocks, whole.steps, best, spec
    )  # the pool has them
    return replace(whole, split_k=best).take(np.flatnonzero(np.isfinite(seconds.min(axis=0)) & ~known))


def _part_counts_to_try(blocks: Ints, spec: DeviceSpec) -> Ints:
    """Return the part counts to try for tiles with ``blocks`` blocks, shape ``(parts, N)``: fixed and full waves."""
    steps = [n for k in range(max(_PARTS).bit_length(), 31) for n in (3 << k - 2, 1 << k)]
    many = np.array([n for n in steps if n <= _MOST_WAVES * spec.units], np.int64)
    full = spec.units * np.array(_FULL_WAVES)[:, None] // blocks
    return np.concatenate([np.repeat(np.array([*_PARTS, *many])[:, None], len(blocks), axis=1), np.maximum(full, 1)])


def variants_if_pipelining(batch: TileBatch, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return :func:`tiled_variants` of a batch if the options ask for pipelines."""
    return tiled_variants(batch, spec, options.split_k) if options.pipelining else []
