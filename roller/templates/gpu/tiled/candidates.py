"""Candidate tiled GPU programs for one canonical form, as arrays (scale-up, then scale-out)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.data_reuse_score import traffic_and_footprint
from roller.templates.common.growth_trace import GrowthTrace
from roller.templates.common.options import ConstructOptions
from roller.templates.common.padding_limit import allowed_padding_mask
from roller.templates.common.reduction_steps import reduction_steps
from roller.templates.common.scale_up import (
    best_children,
    construct_register_tiles,
    factorisations_of_lanes,
    round_up_to_whole_teus,
    unique_rows,
)
from roller.templates.gpu.common.occupancy import operand_registers, scratchpad_bytes
from roller.templates.gpu.tiled.price import PHASES
from roller.tile.geometry import Geometry, Ints, product_of_columns
from roller.tile.structures import TILED, structure_of

#: Maximum number of reduction steps tried per block tile.
_STEPS = 8


#: Numbers of parts into which a reduction is split if there are few blocks; maximum number of blocks per unit; minimum
#: number of steps per part.
SPLITS, _FULL, _LEAST_STEPS = (2, 4, 8, 16), 4, 2

#: Number of register tiles kept per size (power of two of their outputs); more if the form has few axes.
_KERNELS = 4
#: Maximum number of block tiles grown together per step, and number of ways in which each grows.
_STATES, _BRANCH = 256, 2


def plain_tiled_candidates(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return the batch of programs without a pipeline, at most ``options.pool`` before reductions are split."""
    return [_unpipelined_batch(geometry, spec, options)] if structure_of(geometry).reuses else []


def _unpipelined_batch(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> TileBatch:
    a, registers = len(geometry.names), grow_register_tiles(geometry, spec)
    steps = reduction_steps_by_register_tile(geometry, registers)
    visited = blocks(geometry, spec, registers, options)
    visited = states_with_least_bounds(
        geometry, spec, visited, steps, -(-options.pool // max(len(t) for t in steps.values()))
    )
    register, block = visited[:, :a], visited[:, :a] * visited[:, a:]
    registers_, blocks_ = [], []
    for key, table in steps.items():
        mine = (register[:, ~geometry.spatial] == np.array(key)[~geometry.spatial]).all(axis=1)
        for step in table:
            registers_.append(register[mine])
            blocks_.append(np.where(geometry.spatial, block[mine], step))
    return _filter_and_split_programs(geometry, spec, np.concatenate(registers_), np.concatenate(blocks_), options)


def blocks(
    geometry: Geometry, spec: DeviceSpec, registers: Ints, options: ConstructOptions, seen: GrowthTrace | None = None
) -> Ints:
    """Return the blocks grown from register tiles, as states ``[register tile | threads]`` of whole TEUs."""
    starts = []
    for r in registers:
        seeds = factorisations_of_lanes(-(-geometry.extents // r), geometry.spatial, spec.teu.lanes)
        starts.append(np.concatenate([np.broadcast_to(r, seeds.shape), seeds], axis=1))
    return _grow_threads(geometry, spec, np.concatenate(starts), options, seen)


def reduction_steps_by_register_tile(geometry: Geometry, registers: Ints) -> dict[tuple[int, ...], Ints]:
    """Return the reduction steps to try, by the register tiles' extents along the reduction axes."""
    return {
        key: reduction_steps(geometry, np.array(key), limit=_STEPS)
        for key in sorted({tuple(int(x) for x in np.where(geometry.spatial, 1, r)) for r in registers})
    }


def grow_register_tiles(geometry: Geometry, spec: DeviceSpec, seen: GrowthTrace | None = None) -> Ints:
    """Return the register tiles from which blocks are grown, shape ``(N, axes)``; ``seen`` records their growth."""
    one, usable = np.ones(1, np.int64), spec.limits.usable_registers_per_thread or 0

    def fits(tiles: Ints) -> np.ndarray:
        return operand_registers(TileBatch(geometry, TILED.name, tiles, tiles, one, geometry.load_names)) <= usable

    keep = max(_KERNELS, 4 * _KERNELS // max(1, int(geometry.spatial.sum())))  # with few axes, a TEU has few shapes
    start = np.ones(len(geometry.names), np.int64)
    registers = construct_register_tiles(geometry, fits, keep, start, seen)
    # The innermost window is also tried unrolled with the outputs, which then share operands.
    if geometry.window_axes[~geometry.spatial].all():
        last = int(np.flatnonzero(~geometry.spatial)[-1])
        start[last] = geometry.extents[last]
        registers = unique_rows(
            np.concatenate([registers, construct_register_tiles(geometry, fits, keep, start, seen)])
        )
    return registers


def states_with_least_bounds(
    geometry: Geometry, spec: DeviceSpec, visited: Ints, steps: dict[tuple[int, ...], Ints], count: int
) -> Ints:
    """Return the ``count`` states with the smallest bound (arithmetic or shared cache), in the order visited."""
    if len(visited) <= count:
        return visited
    a = len(geometry.names)
    register, block = visited[:, :a], visited[:, :a] * visited[:, a:]
    for key, table in steps.items():
        mine = (register[:, ~geometry.spatial] == np.array(key)[~geometry.spatial]).all(axis=1)
        block[mine] = np.where(geometry.spatial, block[mine], table[0])
    batch = TileBatch(geometry, TILED.name, register, block, np.ones(len(block), np.int64), geometry.load_names)
    moved_s = traffic_and_footprint(geometry, block)[0] / spec.layer("l2").bandwidth_bytes_per_s
    bound = np.maximum(PHASES.arithmetic(batch, spec), moved_s)
    return visited[np.sort(np.argsort(bound, kind="stable")[:count])]


def _even_sample(rows: Ints, count: int) -> Ints:
    """Return at most ``count`` rows, evenly spread over the order in which they were visited."""
    return rows if len(rows) <= count else rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]


def _filter_and_split_programs(
    geometry: Geometry, spec: DeviceSpec, register: Ints, block: Ints, options: ConstructOptions
) -> TileBatch:
    """Keep tiles that fit in the scratchpad and have allowed padding; add split-K variants if there are few blocks."""
    batch = TileBatch(geometry, TILED.name, register, block, np.ones(len(block), np.int64), geometry.load_names)
    keep = scratchpad_bytes(batch) <= spec.layer("shared").budget_bytes
    keep &= allowed_padding_mask(geometry, block, options)
    batch = batch.take(np.flatnonzero(keep)[: options.pool])
    if not options.split_k:
        return batch
    return join_batches([batch, *with_split_reductions(batch, spec)])


def join_batches(parts: Sequence[TileBatch]) -> TileBatch:
    """Return the programs of batches that differ only in tiles and splits as one batch, in the given order."""
    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[0],
        register=np.concatenate([p.register for p in parts]),
        block=np.concatenate([p.block for p in parts]),
        split_k=np.concatenate([p.split_k for p in parts]),
    )


def with_split_reductions(batch: TileBatch, spec: DeviceSpec) -> list[TileBatch]:
    """Return the programs with their reduction split over blocks if the outputs yield too few blocks."""
    found = []
    for split in split_part_counts(spec):
        some = np.flatnonzero(useful_split_mask(batch.blocks, batch.steps, split, spec))
        if len(some):
            chosen = batch.take(some)
            found.append(replace(chosen, split_k=chosen.split_k * split))
    return found


def useful_split_mask(blocks: Ints, steps: Ints, parts: Ints | int, spec: DeviceSpec) -> np.ndarray:
    """Return the mask of tiles to split into ``parts``: they leave units idle, and every part has enough steps."""
    further = np.asarray(parts) > max(SPLITS)  # only if fewer parts leave units idle and if there are steps to overlap
    useful = (blocks < spec.units) & (steps > 1) & (blocks * parts <= _FULL * spec.units)
    useful &= steps >= parts * np.where(further, _LEAST_STEPS, 1)
    return np.asarray(useful & (~further | (4 * blocks * parts > 3 * spec.units)))


def split_part_counts(spec: DeviceSpec) -> tuple[int, ...]:
    """Return the numbers of parts to try for a reduction, up to a few blocks per unit for a single tile."""
    return (*SPLITS, *(1 << n for n in range(max(SPLITS).bit_length(), (_FULL * spec.units).bit_length())))


def _grow_threads(
    geometry: Geometry, spec: DeviceSpec, states: Ints, options: ConstructOptions, seen: GrowthTrace | None
) -> Ints:
    """Grow blocks by threads per axis; a state is ``[register tile | threads]`` (rows of ``2 * axes``)."""
    a = len(geometry.names)
    visited = [states]
    limit = spec.limits.threads_per_block or 0
    spatial_axes = np.flatnonzero(geometry.spatial)
    jumps = [_next_dividing_thread_counts(int(geometry.extents[x]), states[:, x], limit) for x in spatial_axes]
    for _ in range(5):  # the threads double, cover their axis, or advance to the next number that divides it
        register, threads = states[:, :a], states[:, a:]
        useful = -(-geometry.extents // register)
        table = np.repeat(states[None], 2 * len(spatial_axes), axis=0)
        grows = np.empty(table.shape[:2], bool)
        for n, axis in enumerate(spatial_axes):
            now, most = threads[:, axis], useful[:, axis]
            double = np.where((now & (now - 1)) == 0, 2 * now, most)  # powers of two, then all that the axis has
            further = np.where(now < most, np.minimum(double, most), now), jumps[n][register[:, axis], now]
            table[2 * n : 2 * n + 2, :, a + axis] = further
            grows[2 * n : 2 * n + 2] = further > now
        both = np.concatenate([(register * threads)[None], table[:, :, :a] * table[:, :, a:]])  # base and children
        traffic, footprint = (
            x.reshape(both.shape[:2]) for x in _traffic_and_footprint_per_point(geometry, both.reshape(-1, a))
        )
        cost = np.maximum(footprint[1:] - footprint[0], 1e-9)
        score = (traffic[0] - traffic[1:]) / cost
        if seen is not None:
            seen.note(states, table, score, grows)
        chosen = best_children(table, score, grows, _BRANCH)
        chosen = chosen[product_of_columns(chosen, a + spatial_axes) <= limit]
        if not len(chosen):
            break
        states = _even_sample(unique_rows(chosen), _STATES)
        visited.append(states)
    # Shrinking a grown tile until there are enough blocks leads back to a state visited on the way up, so the
    # smaller states are the shrunk ones; without shrinking, only tiles that nothing can enlarge remain.
    found = unique_rows(np.concatenate(visited if options.shrink else visited[-1:]))
    whole = round_up_to_whole_teus(found[:, a:], geometry.spatial, spec.teu.lanes, limit)
    return unique_rows(np.concatenate([found[whole[:, -1], :a], whole[:, :-1]], axis=1))


def _next_dividing_thread_counts(extent: int, registers: Ints, limit: int) -> Ints:
    """Return the next larger number of threads that divides an axis's tiles, per register extent and threads."""
    now = np.arange(limit + 1)
    table = np.empty((int(registers.max()) + 1, limit + 1), np.int64)
    for r in np.flatnonzero(np.bincount(registers)):
        tiles = -(-extent // int(r))
        possible = now[1 : min(tiles, limit) + 1]
        divisors = possible[tiles % possible == 0]
        place = np.searchsorted(divisors, now, side="right")
        table[r] = np.where(place < len(divisors), divisors[np.minimum(place, len(divisors) - 1)], now)
    return table


def _traffic_and_footprint_per_point(geometry: Geometry, block: Ints) -> tuple[np.ndarray, np.ndarray]:
    """Return the traffic and footprint, in bytes, of one reduction point per block, from which scores are computed."""
    outputs = geometry.blocks(block).astype(np.float64)
    loads = sum((a.elements(block) * float(a.tensor.itemsize_bytes) for a in geometry.loads), np.zeros(len(block)))
    return loads * outputs, loads
