"""Price of byte products: the tiled price, with cycles counted per word instead of per reduction point."""

from __future__ import annotations

from typing import Any

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.cpu.common.task_scheduling_costs import Parts, Terms
from roller.templates.cpu.decisions import IN_PLACE, Mask, decisions_for_device
from roller.templates.cpu.matrix.byte_products import broadcast_and_packed_operands, needs_sign_move
from roller.templates.cpu.tiled import price as tiled
from roller.tile.geometry import Floats, Ints

#: Number of AMX tile registers, which hold the fragments of both operands and of the sums (Intel SDM, volume 1).
TILE_REGISTERS = 8
#: Number of cycles that a micro-kernel takes to compute the start of a row that it reads in place.
_ROW_CYCLES = 1.0


def price(batch: TileBatch, spec: DeviceSpec, parts: Parts) -> Terms:
    """Price a batch: return ``seconds`` and its terms as arrays of shape ``(N,)``."""
    assert batch.fragment is not None
    if batch.fragment.m > 1:
        return tiled.price(batch, spec, parts, _fragment_cycles, _fits_tile_registers)
    return tiled.price(batch, spec, parts, _word_cycles, _fits_vector_registers)


def count_tile_registers(rows: Any, columns: Any) -> Any:
    """Return the number of tile registers needed for given numbers of row and column fragments."""
    return rows * columns + rows + columns


def _fragments_per_register_tile(batch: TileBatch, spec: DeviceSpec) -> tuple[Ints, Ints]:
    """Return the number of fragments in a register tile along m and the number along n, each of shape ``(N,)``."""
    f, d, at = batch.fragment, decisions_for_device(batch, spec), batch.geometry.names.index
    assert f is not None
    m, n = (at(x) for x in batch.matrix_axes[:2])
    return -(-d.tile[:, m] // f.m), d.tile[:, n] // f.n


def _fits_tile_registers(batch: TileBatch, spec: DeviceSpec) -> Mask:
    return np.asarray(count_tile_registers(*_fragments_per_register_tile(batch, spec)) <= TILE_REGISTERS)


def _fits_vector_registers(batch: TileBatch, spec: DeviceSpec) -> Mask:
    held = count_vector_registers(batch, spec) < (spec.limits.vector_registers or np.inf)
    return np.asarray(tiled.fits_vector_registers(batch, spec) & held)


def _fragment_cycles(batch: TileBatch, spec: DeviceSpec) -> tuple[Floats, Floats]:
    """Return the cycles per reduction point, and the cycles of the write-back, with fragments in tile registers."""
    # A step loads every row of the fragments of both operands, and takes a cycle per row of every product. Results
    # reach the epilogue through memory.
    g, d, f = batch.geometry, decisions_for_device(batch, spec), batch.fragment
    assert f is not None
    rate, width = spec.compute.ops_per_cycle_per_unit, spec.teu.lanes
    at = g.names.index
    rows = d.tile[:, at(batch.matrix_axes[0])].astype(np.float64)
    _, columns = _fragments_per_register_tile(batch, spec)
    extent = int(g.extents[at(batch.matrix_axes[2])])
    depth = f.depth(extent)
    products = rows / f.m * columns * f.m * f.n * f.k / rate[f"{f.rate}.{f.operand}"]
    loads = (rows + columns * depth / 4) * width / rate["load_store"]
    step = np.maximum(np.maximum(products, loads), f.latency_cycles)
    step = step + spec.execution.step_issue_s * spec.clock_hz
    return step * -(-extent // depth) / extent, tiled.write_back_cycles(batch, spec) + 2.0 * d.vectors


def count_vector_registers(batch: TileBatch, spec: DeviceSpec) -> Ints:
    """Return the number of vector registers that a micro-kernel uses."""
    # They hold sums, packed words, a row's word and, if an operand is offset by 128, sums of packed words and ones.
    # Products followed by a separate addition use the register of the word, in the last row that reads it.
    d, packed = decisions_for_device(batch, spec), count_packed_vectors(batch, spec)
    return np.asarray(d.vectors + packed + 1 + (packed + 1 if needs_sign_move(batch) else 0))


def count_packed_vectors(batch: TileBatch, spec: DeviceSpec) -> Ints:
    """Return the number of vectors of packed words per step, shape ``(N,)``."""
    _, b = broadcast_and_packed_operands(batch)
    d = decisions_for_device(batch, spec)
    return np.asarray(np.where(b.uses & b.spatial, d.tile, 1).prod(axis=1) // d.lanes)


def _word_cycles(batch: TileBatch, spec: DeviceSpec) -> tuple[Floats, Floats]:
    """Return the cycles of one micro-kernel per reduction point, and the cycles of its write-back."""
    # A step is one word of ``fragment.k`` elements: a load per vector of packed words, a broadcast per row, and a dot
    # product per vector of sums. If both operands have the same signedness, the row's word is also offset by 128, and
    # the packed words are summed.
    g, d, f = batch.geometry, decisions_for_device(batch, spec), batch.fragment
    assert f is not None
    rate, width, (a, _) = spec.compute.ops_per_cycle_per_unit, spec.teu.lanes, broadcast_and_packed_operands(batch)
    vectors, packed = d.vectors.astype(np.float64), count_packed_vectors(batch, spec).astype(np.float64)
    rows = np.where(a.uses & a.spatial, d.tile, 1).prod(axis=1).astype(np.float64)
    moved = needs_sign_move(batch)
    dots = (vectors + (packed if moved else 0)) * f.m * f.n * f.k / rate[f"{f.rate}.{f.operand}"]
    if moved:
        dots = dots + rows * width / rate["add"]
    load = (rows + packed) * width / rate["load_store"]
    issue = (vectors * f.instructions + packed + rows * (2 if moved else 1)) * width / rate["issue"]
    issue = issue + spec.execution.step_issue_s * spec.clock_hz
    latency = np.full(len(batch), spec.execution.step_latency_s * spec.clock_hz)
    step = np.maximum.reduce([dots, load, issue, latency])
    k = int(g.extents[g.names.index(batch.matrix_axes[2])])
    words = -(-k // f.k) / k  # of a point
    start = _ROW_CYCLES * rows if d.staging(a) == IN_PLACE else 0.0
    # Results stored element by element have an epilogue per element, which is long for bytes.
    apart = np.where(d.stores_vectors, 0.0, tiled.epilogue_cycles(batch, spec) * (d.lanes - 1))
    return step * words, tiled.write_back_cycles(batch, spec) + apart + start
