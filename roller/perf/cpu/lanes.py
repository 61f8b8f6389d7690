"""Vectors and caches as the CPU templates use them: lanes, effective register tiles, room in a layer."""

from __future__ import annotations

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.tile.geometry import Access, Ints

#: Distance of elements that a template copies in vectors, two loads and a shuffle each, and the fewest that make one.
HALVED, FEWEST_HALVES = 2, 4
#: Multiply-adds (vectors) up to which short inner reductions are unrolled into the micro-kernel: the templates' rule.
UNROLL_LIMIT = 160
#: Broadcast values up to which more than one reduction axis is unrolled: they do not change from tile to tile, so LLVM
#: keeps all of them in registers, and what does not fit goes through the stack.
UNROLLED_BROADCASTS = 12


def lane_count(spec: DeviceSpec, itemsize_bytes: int) -> int:
    """Return elements of one vector register."""
    return max(1, spec.teu.lanes * 4 // itemsize_bytes)


def rate_of(spec: DeviceSpec, instruction_class: str, dtype: str) -> float:
    """Return operations per cycle of a core: those of the data type where it has a rate of its own."""
    rates = spec.compute.ops_per_cycle_per_unit
    return rates.get(f"{instruction_class}.{dtype}", rates[instruction_class])


def lane_distance(access: Access, axis: int) -> int:
    """Return the distance in memory (elements) between neighbouring lanes along ``axis``; 0 is a broadcast."""
    if not access.uses[axis]:
        return 0
    pitch, step = 1, 0
    for d in range(len(access.tensor.shape) - 1, -1, -1):
        for t in access.index[d].terms:
            if access.axis_names[axis] == t.axis:
                # A quasi-affine axis is contiguous where its fastest part walks the last dimension.
                step = pitch * abs(t.coef) if not step else min(step, pitch * abs(t.coef))
        pitch *= access.tensor.shape[d]
    return step


def vector_operations(batch: TileBatch, lanes: int) -> Ints:
    """Return vector registers of accumulators of one micro-kernel, ``(N,)``."""
    v = batch.vector_axis
    register = np.where(batch.geometry.spatial, effective_register(batch, lanes), 1)
    outputs: Ints = register.prod(axis=1)
    return outputs if v is None else outputs // register[:, v] * -(-register[:, v] // lanes)


def effective_register(batch: TileBatch, lanes: int) -> Ints:
    """Return register tiles as the template uses them: inside their axis, whole vectors, all of equal size.

    56 columns by a tile of 48 are two tiles of 32: the last tile overlaps its neighbour instead of being padded.
    """
    g, v = batch.geometry, batch.vector_axis
    tile = np.minimum(batch.register, g.extents)
    unit = np.ones_like(tile)
    if v is not None:
        unit[:, v] = np.minimum(lanes, 1 << np.log2(tile[:, v]).astype(np.int64))
        if g.extents[v] < lanes and reads_past_the_end(batch):
            unit[:, v] = 1 << int(g.extents[v] - 1).bit_length()
            tile[:, v] = unit[:, v]
        tile[:, v] = tile[:, v] // unit[:, v] * unit[:, v]
    even = -(-g.extents // -(-g.extents // tile))
    return np.asarray(-(-even // unit) * unit)


def reads_past_the_end(batch: TileBatch) -> bool:
    """Whether lanes may lie beyond the vector axis: all its operands are boxes of the task."""
    v, g = batch.vector_axis, batch.geometry
    operands = [a for a in g.loads if v is not None and a.uses[v]]
    return (
        batch.structure == "tiled"
        and v is not None
        and bool(g.spatial[v])
        and all(a.tensor.name in batch.staged and copies_box(a) and (a.coefficients >= 0).all() for a in operands)
    )


def operand_vectors(batch: TileBatch, lanes: int) -> Ints:
    """Return vector registers that hold one row of the vector operand while the rows pass, ``(N,)``."""
    v = batch.vector_axis
    if v is None:
        return np.ones(len(batch), np.int64)
    return np.asarray(-(-effective_register(batch, lanes)[:, v] // lanes))


def task_count(batch: TileBatch, spec: DeviceSpec) -> Ints:
    """Return the tasks the outputs make, ``(N,)``."""
    tiles = -(-batch.geometry.extents // effective_register(batch, lane_count(spec, 4)))
    return np.asarray(np.where(batch.geometry.spatial, -(-tiles // tiles_per_task(batch, tiles)), 1).prod(axis=1))


def tiles_per_task(batch: TileBatch, tiles: Ints) -> Ints:
    """Return register tiles of one task along every axis, ``(N, axes)``: all ``tiles`` where the task covers the axis.

    A short axis is cut into more effective tiles than the program's register tile would be: nine elements are two of
    eight, and still one task of sixteen.
    """
    g = batch.geometry
    some = np.maximum(1, np.minimum(batch.block // batch.register, tiles))
    return np.asarray(np.where(g.spatial & (batch.block >= g.extents), tiles, some))


def chunk_extents(batch: TileBatch) -> Ints:
    """Return per axis what one chunk of the reductions covers; spatial axes whole."""
    g = batch.geometry
    whole = np.broadcast_to(g.extents, batch.block.shape)
    return whole if batch.panel is None else np.where(g.spatial, whole, np.minimum(batch.panel, whole))


def chunk_count(batch: TileBatch) -> Ints:
    """Return the chunks all reductions are cut into together, ``(N,)``."""
    counts = -(-batch.geometry.extents // chunk_extents(batch))
    return np.asarray(counts[:, ~batch.geometry.spatial].prod(axis=1))


def copies_box(access: Access) -> bool:
    """Whether staging copies the box of the tensor (strides or windows) instead of gathering a panel."""
    steps = np.abs(access.coefficients)
    strided = (np.count_nonzero(steps, axis=1) == 1) & (steps > 1).any(axis=1)
    return not access.gather and (any(access.windows) or bool(strided.any()))


def room(spec: DeviceSpec, name: str) -> int:
    """Return bytes of a cache that reused data can hold while streams pass through it."""
    layer = spec.layer(name)
    return layer.usable_bytes or layer.capacity_bytes
