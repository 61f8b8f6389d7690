"""Bytes that a block moves through L2 and DRAM, and the available bandwidth."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.load_instruction_counts import count_load_instructions
from roller.templates.gpu.common.matrix_operand_copies import l2_bytes_with_cached_windows
from roller.templates.gpu.common.row_reads_and_reductions import RowReadsAndReductions, words_in_flight
from roller.templates.gpu.common.row_traffic import row_traffic, touched_dram_bytes
from roller.templates.gpu.common.tlb_misses import tlb_miss_traffic
from roller.templates.gpu.common.warm_inputs import is_in_shared_cache
from roller.templates.gpu.common.window_thread_walks import l1_reload_factor, words_in_flight_along_walk
from roller.tile.geometry import Access, Floats, Geometry, Ints, product_of_columns
from roller.tile.transactions import counted_transaction_bytes, tile_transaction_bytes
from roller_runtime.core.dtypes import DTYPE_BYTES

#: One source of traffic: its name, its bytes through L2, and its bytes to and from DRAM.
TrafficShare: TypeAlias = tuple[str, Floats, "Floats | float"]
#: Maximum number of independent loads that a thread of our templates keeps in flight (unrolled copies).
LOADS_IN_FLIGHT = 8.0
#: The same for rows and streams, whose threads load all vectors of their tile before the first is used.
ROW_LOADS_IN_FLIGHT = 16.0


def counted_l2_bytes(batch: TileBatch, spec: DeviceSpec) -> dict[int, Floats]:
    """Return the launch's bytes through L2 for accesses that can be counted, keyed by position; stores are last."""
    g, transaction = batch.geometry, spec.layer("l2").transaction_bytes
    once = np.where(g.spatial, batch.block, g.extents)  # an output tile is stored once, not in every reduction step
    found = {}
    for n, a in enumerate((*g.reads, g.written)):
        known = counted_transaction_bytes(a, once if a is g.written else batch.block, transaction)
        if not np.isnan(known).all():
            found[n] = known
    return found


def traffic_bytes_and_instructions(
    batch: TileBatch,
    spec: DeviceSpec,
    resident: Ints,
    counted: Mapping[int, Floats] = MappingProxyType({}),
    padding: Mapping[str, Ints] = MappingProxyType({}),
    details: list[TrafficShare] | None = None,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the bytes through L2 and DRAM, and the numbers of copy and address instructions per block and step.

    ``counted`` is the result of :func:`counted_l2_bytes` if it is known; otherwise, transactions are expected values.
    ``padding`` elements are appended to the rows of staged tiles. ``details`` collects the shares of all tensors.
    """
    if batch.traits.spreads_reductions:
        zero = np.zeros(len(batch))  # rows/block_work.py counts the instructions of loads
        return *moved_bytes(batch, spec, resident, counted, details), zero, zero
    return *moved_bytes(batch, spec, resident, counted, details), *count_load_instructions(batch, spec, padding)


def moved_bytes(
    batch: TileBatch,
    spec: DeviceSpec,
    resident: Ints,
    counted: Mapping[int, Floats] = MappingProxyType({}),
    details: list[TrafficShare] | None = None,
) -> tuple[Floats, Floats]:
    """Return the bytes through L2 and the bytes to and from DRAM; see :func:`traffic_bytes_and_instructions`."""
    g, block = batch.geometry, batch.block
    if batch.traits.spreads_reductions:
        l2, dram = row_traffic(batch, spec, resident)
        partial = _partial_result_bytes(batch)
        if details is not None:
            details += [("rows and results", l2, dram), ("partial results", partial, partial)]
        return l2 + partial, dram + partial
    transaction = spec.layer("l2").transaction_bytes
    fetch = spec.layer("global").fetch_bytes or spec.layer("global").transaction_bytes
    l2 = dram = np.zeros(len(batch))
    wave = _tile_of_wave(batch, resident)
    capacity = spec.layer("l2").kept_bytes
    cached = l2_bytes_with_cached_windows(batch, spec, resident / spec.units) if batch.fragment is not None else {}
    missed = tlb_miss_traffic(batch, spec, (wave, _tile_of_wave(batch, resident, turned=True)))
    for n, a in enumerate(g.reads):
        expected = functools.partial(_load_transaction_bytes, a, block, transaction)
        through = _counted_or_expected_bytes(counted.get(n), batch, spec, ("loaded", n, transaction), expected)
        touched = touched_dram_bytes(a, fetch)
        through = np.minimum(through, cached[n]) if n in cached else through
        if batch.traits.slides_windows:
            through = through * l1_reload_factor(a, batch, spec.layer("shared").capacity_bytes, resident / spec.units)
        l2 = l2 + through
        # Blocks of a wave find in L2 the data that another block has loaded: shared operands, halos, transactions at
        # their borders. `touched` includes gaps of strided rows.
        again = _dram_load_bytes(a, wave, g)
        fetched = touched if a.tensor.nbytes <= capacity else np.maximum(touched, again)
        if n in missed:
            lost, alone = missed[n]
            fetched = fetched + lost * np.maximum(alone - fetched, 0.0)
        fetched = 0.0 if is_in_shared_cache(a, batch, spec) else fetched
        dram = dram + fetched
        if details is not None:
            details.append((f"loads of {a.tensor.name}", through, fetched))
    expected = functools.partial(_store_transaction_bytes, g.written, block, transaction)
    stored = _counted_or_expected_bytes(counted.get(len(g.reads)), batch, spec, ("stored", transaction), expected)
    partial, written = _partial_result_bytes(batch), np.minimum(stored, 2.0 * g.written.tensor.nbytes)
    if details is not None:
        details += [(f"stores of {g.store.tensor.name}", stored, written), ("partial results", partial, partial)]
    return l2 + stored + partial, dram + written + partial


def _counted_or_expected_bytes(
    counted: Floats | None, batch: TileBatch, spec: DeviceSpec, key: Any, expected: Callable[[], tuple[Floats]]
) -> Floats:
    """Return the counted bytes, and the expected bytes where bytes are not counted."""
    if counted is None:
        return batch.cached_arrays(spec, key, expected)[0]
    unknown = np.isnan(counted)
    return np.where(unknown, batch.cached_arrays(spec, key, expected)[0], counted) if unknown.any() else counted


def stored_traffic_shares(
    batch: TileBatch, spec: DeviceSpec, l2_bytes: Floats, dram_bytes: Floats
) -> tuple[Floats, Floats]:
    """Return the shares of stores in the L2 bytes and in the DRAM bytes of tiled programs."""
    transaction, store = spec.layer("l2").transaction_bytes, batch.geometry.written
    (stored,) = batch.cached_arrays(
        spec, ("stored", transaction), functools.partial(_store_transaction_bytes, store, batch.block, transaction)
    )
    parts = 0.5 * _partial_result_bytes(batch)
    through, written = stored + parts, np.minimum(stored, 2.0 * store.tensor.nbytes) + parts
    return np.minimum(through / l2_bytes, 1.0), np.minimum(written / dram_bytes, 1.0)


def _load_transaction_bytes(access: Access, block: Ints, transaction_bytes: int) -> tuple[Floats]:
    """Return the bytes that all tiles of a launch load in whole transactions."""
    moved, _ = tile_transaction_bytes(access, block, transaction_bytes)
    rows, run = access.runs(block)
    waste = moved / (rows * run * access.tensor.itemsize_bytes)
    return (access.elements_loaded_per_launch(block) * access.tensor.itemsize_bytes * waste,)


def _store_transaction_bytes(access: Access, block: Ints, transaction_bytes: int) -> tuple[Floats]:
    """Return the bytes of whole transactions in which all output tiles are stored."""
    moved, _ = tile_transaction_bytes(access, block, transaction_bytes)
    size = access.tensor.itemsize_bytes
    return (np.asarray(access.tensor.nbytes * np.maximum(1.0, moved / (access.elements(block) * size))),)


def least_traffic_bytes(batch: TileBatch, spec: DeviceSpec) -> tuple[Floats, Floats]:
    """Return lower bounds on the bytes through L2 and DRAM, each of shape ``(N,)``."""
    g = batch.geometry
    if batch.traits.spreads_reductions:
        l2, dram = row_traffic(batch, spec, np.ones(len(batch), np.int64), least=True)
        return l2 + _partial_result_bytes(batch), dram + _partial_result_bytes(batch)
    fetch = spec.layer("global").fetch_bytes or spec.layer("global").transaction_bytes
    once = g.written.tensor.nbytes + _partial_result_bytes(batch)
    cached = l2_bytes_with_cached_windows(batch, spec, np.ones(len(batch))) if batch.fragment is not None else {}
    loaded = _used_load_bytes(batch, spec)
    l2 = once + sum(np.minimum(x, cached[n]) if n in cached else x for n, x in enumerate(loaded))
    return np.asarray(l2), np.asarray(once + sum(touched_dram_bytes(a, fetch) for a in g.reads))


def _used_load_bytes(batch: TileBatch, spec: DeviceSpec) -> tuple[Floats, ...]:
    """Return, for each read, the bytes that all tiles of a launch use, shape ``(N,)``."""
    g = batch.geometry
    return batch.cached_arrays(
        spec,
        "least loaded",
        lambda: tuple(a.elements_loaded_per_launch(batch.block) * a.tensor.itemsize_bytes for a in g.reads),
    )


def least_counted_l2_bytes(batch: TileBatch, spec: DeviceSpec) -> dict[int, Floats]:
    """Return a lower bound on :func:`counted_l2_bytes`: used bytes instead of whole transactions."""
    stored = np.full(len(batch), float(batch.geometry.written.tensor.nbytes))
    return dict(enumerate((*_used_load_bytes(batch, spec), stored)))


def _dram_load_bytes(access: Access, wave: Ints, geometry: Geometry) -> Floats:
    """Return the bytes that waves of blocks load from DRAM, shape ``(N,)``; blocks of a wave share loads in L2."""
    # Points of a gathered tile that share an element of a window follow each other closely, so a tensor is loaded once
    # for every wave tile along the axes on which it does not depend.
    loaded = access.elements_loaded_per_launch(wave) * access.tensor.itemsize_bytes
    if not access.gather:
        return loaded
    others = np.flatnonzero(geometry.spatial & ~access.uses & access.reloads)
    return np.asarray(
        np.minimum(loaded, product_of_columns(geometry.counts(wave), others) * float(access.tensor.nbytes))
    )


def _partial_result_bytes(batch: TileBatch) -> Floats:
    """Return the bytes of writing and rereading a split reduction's partial results, shape ``(N,)``."""
    g = batch.geometry
    each = g.store.tensor.elements * DTYPE_BYTES[g.expr.anchor.acc_dtype]  # parts stay in the accumulator's type
    return np.asarray(np.where(batch.split_k > 1, 2.0 * batch.split_k, 0.0) * each)


def _tile_of_wave(batch: TileBatch, resident: Ints, turned: bool = False) -> Ints:
    """Return the tile that all blocks of one wave cover together."""
    # Blocks run along the output's contiguous axis first, or along the next one if ``turned``. With ``raster``, they
    # cover that many tiles of the second axis with several tiles before they advance along the first.
    left = np.minimum(resident, batch.blocks)
    tiles = batch.block.copy()
    taken = np.ones_like(tiles)
    order = list(reversed(batch.geometry.order))
    if turned:
        order[:2] = order[1::-1]
    if np.max(batch.raster, initial=1) > 1:
        several = batch.counts[:, order] > 1
        slower = several & (several.cumsum(axis=1) == 2)  # the second axis with several tiles
        for n, a in enumerate(order):
            taken[:, a] = np.where(slower[:, n], np.minimum(np.minimum(batch.counts[:, a], batch.raster), left), 1)
        left = -(-left // taken.prod(axis=1))
    for a in order:
        in_wave = np.minimum(-(-batch.counts[:, a] // taken[:, a]), left)
        tiles[:, a] = tiles[:, a] * np.minimum(in_wave * taken[:, a], batch.counts[:, a])
        left = -(-left // in_wave)
    return tiles


def dram_bandwidth(spec: DeviceSpec, warps: Floats | Ints, peak: Floats | float | None = None) -> Floats:
    """Return the DRAM bandwidth, in bytes per second, that ``warps`` resident warps of the device achieve together."""
    # ``((warps * per_teu) ** -p + peak ** -p) ** (-1 / p)``: few warps are bound by latency, many warps are bound by
    # the bus, and queueing rounds the knee (``v100_glbmem_small.csv``).
    layer = spec.layer("global")
    peak = layer.bandwidth_bytes_per_s if peak is None else peak
    if not layer.bandwidth_per_teu_bytes_per_s:
        return np.full(np.shape(warps), peak)
    p = layer.saturation_exponent or 2.0
    linear = np.maximum(warps, 1e-9) * layer.bandwidth_per_teu_bytes_per_s
    return np.asarray(((linear / peak) ** -p + 1.0) ** (-1.0 / p) * peak)


def peak_bandwidth(batch: TileBatch, spec: DeviceSpec, launch_bytes: Floats) -> Floats | float:
    """Return DRAM's peak bandwidth, in bytes per second, for the batch's mix of reads and writes, shape ``(N,)``."""
    # Buses turn around between reads and writes. Micro-benchmarks give the bandwidth if none, a third or half of the
    # bytes are written; bandwidths in between are interpolated, and kernels that write more are priced as copies.
    layer = spec.layer("global")
    read, triad = layer.read_bandwidth_bytes_per_s, layer.triad_bandwidth_bytes_per_s
    if read is None or triad is None:
        return layer.bandwidth_bytes_per_s
    stored = {a.tensor.name: float(a.tensor.nbytes) for a in (batch.geometry.written, *_stores_of_row_program(batch))}
    written = sum(stored.values()) + 0.5 * _partial_result_bytes(batch)
    share = written / np.maximum(launch_bytes, 1.0)
    return np.asarray(np.interp(share, (0.0, 1 / 3, 0.5), (read, triad, layer.bandwidth_bytes_per_s)))


def _stores_of_row_program(batch: TileBatch) -> tuple[Access, ...]:
    return tuple(RowReadsAndReductions.of(batch.geometry).stores) if batch.traits.spreads_reductions else ()


def loads_in_flight(batch: TileBatch) -> Floats:
    """Return the number of 4-byte loads that a thread issues before it must wait."""
    # The published bandwidth table is for one load per thread; with more loads in flight, fewer warps saturate DRAM.
    # Threads of padding beyond the tensor load nothing. A pipeline has the loads of ``stages - 1`` steps in flight.
    if batch.traits.spreads_reductions:
        return words_in_flight(batch, ROW_LOADS_IN_FLIGHT)
    if batch.traits.slides_windows and not batch.staged:
        return np.minimum(words_in_flight_along_walk(batch), LOADS_IN_FLIGHT)
    most = ROW_LOADS_IN_FLIGHT if not batch.traits.reduces else LOADS_IN_FLIGHT
    return np.asarray(np.minimum(_loads_per_thread_and_step(batch), most) * _steps_in_flight(batch))


def _loads_per_thread_and_step(batch: TileBatch) -> Floats:
    """Return the 4-byte loads per thread and reduction step, shape ``(N,)``; less than one if threads are padding."""
    words = np.zeros(len(batch))
    for a in batch.geometry.reads:
        words = words + batch.elements_per_block_tile(a) * (a.tensor.itemsize_bytes / 4)
    return np.asarray(words / batch.threads_per_block)


def _steps_in_flight(batch: TileBatch) -> Ints:
    return np.asarray(np.maximum(1, np.minimum(batch.stages, batch.steps) - 1))


def memory_waits_per_block(batch: TileBatch) -> Floats:
    """Return how many times a block waits for memory, once per group of independent loads, shape ``(N,)``."""
    if batch.traits.spreads_reductions or batch.traits.slides_windows:
        return np.maximum(1.0, batch.steps)
    rounds = np.maximum(1.0, _loads_per_thread_and_step(batch) / LOADS_IN_FLIGHT)
    return np.asarray(np.maximum(1.0, batch.steps * rounds / _steps_in_flight(batch)))


def dram_time_s(
    batch: TileBatch, spec: DeviceSpec, wave_bytes: Floats, active: Ints, launch_bytes: Floats,
    details: dict[str, Any] | None = None,
) -> Floats:  # fmt: skip
    """Return the time, in seconds, that DRAM needs for the ``wave_bytes`` of ``active`` blocks, shape ``(2, N)``."""
    # Few loads achieve little bandwidth, because the thread waits for each of them. The time is therefore limited to
    # one latency per round of loads plus the bytes at peak bandwidth; otherwise a launch would take longer the fewer
    # elements it loads.
    layer, peak = spec.layer("global"), peak_bandwidth(batch, spec, launch_bytes)
    warps = -(-batch.threads_per_block // spec.teu.lanes) * loads_in_flight(batch) * active
    bandwidth = dram_bandwidth(spec, warps, peak)
    drawn = wave_bytes / bandwidth
    if details is not None:
        details.update(wave_bytes=wave_bytes, loading_warps=warps, bandwidth=bandwidth, drawn=drawn, peak=peak)
    if not layer.latency_s:
        return np.asarray(drawn)
    rounds = memory_waits_per_block(batch)
    waited = wave_bytes / peak + rounds * layer.latency_s
    if details is not None:
        details.update(rounds=rounds, waited=waited)
    return np.asarray(np.minimum(drawn, waited))


def load_store_line_bytes(spec: DeviceSpec) -> int:
    """Return the size, in bytes, of the line that a load and store pipe accesses at a time."""
    return spec.layer("l2").line_bytes or 4 * spec.layer("l2").transaction_bytes
