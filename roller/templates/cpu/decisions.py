"""The CPU templates' decisions for programs, made in one place for pricing (arrays) and code generation (one row).

No axis is padded: the last register tile of an axis starts at ``extent - tile`` and overlaps its neighbour. Points in
both tiles get the same value twice, so loops and stores need no predicate, and panels need no neutral padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from roller.expr import Index, StridedRun, stride_between_neighbours, strided_run_along
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.cpu.narrow_floats import (
    computed_itemsize_bytes,
    panel_stays_stored,
    rows_are_converted,
    rows_are_copied,
)
from roller.templates.cpu.staging_and_contiguity_checks import is_read_once, is_staged_as_box, words_are_readable
from roller.templates.cpu.window_clipping import (
    computed_point_shares,
    end_tiles_at_segments,
    segments_of_equal_clipping,
    shortest_segment,
)
from roller.tile.geometry import Access, Floats, Ints
from roller.tile.program import ALIGNED_TILES
from roller_runtime.core.dtypes import DTYPE_BYTES

Mask = NDArray[np.bool_]

#: Staging of an operand: read in place, from a panel gathered in the order of reading, or from a copy of the box of the
#: tensor that a task touches.
IN_PLACE, PANEL, BOX = "in place", "panel", "box"
#: Stride that packing copies in vectors with two loads and a shuffle, and the minimum number of elements in such a
#: vector.
HALVED, FEWEST_HALVES = 2, 4
#: Maximum number of multiply-adds (vectors) for which short inner reductions are unrolled into the micro-kernel.
_UNROLL_LIMIT = 160
#: Maximum number of broadcast values for which more than one reduction axis is unrolled. These values do not change
#: from tile to tile, so LLVM keeps all of them in registers and spills the rest.
_UNROLLED_BROADCASTS = 12
#: Number of a windowed operand's lines that stay in L1 between two taps while other data stream through L1.
_HELD_LINES = 128
#: Number of float32 elements per cache line, and the length of the shortest block that is worth a loop.
_LINE_ELEMENTS, _SHORTEST_BLOCK = 16, 4
#: Maximum size (bytes) of a panel that is packed once before the tasks if several tasks would pack it otherwise.
_UPFRONT_LIMIT_BYTES = 1 << 28


def vector_elements(batch: TileBatch, spec: DeviceSpec) -> int:
    """Return the number of elements in a vector of results; accumulators take at least four bytes per element."""
    return spec.teu.lanes * 4 // max(4, batch.geometry.store.tensor.itemsize_bytes)


def decisions_for_device(batch: TileBatch, spec: DeviceSpec) -> CpuDecisions:
    """Return the templates' decisions for programs of a device."""
    return decisions_for_lanes(batch, vector_elements(batch, spec))


def decisions_for_lanes(batch: TileBatch, elements: int) -> CpuDecisions:
    """Return the cached decisions for programs whose vectors have ``elements`` elements."""
    key = ("decisions", elements)
    if key not in batch._memo:
        batch._memo[key] = _decide_for_batch(batch, elements)
    found: CpuDecisions = batch._memo[key]
    return found


@dataclass(frozen=True)
class CpuDecisions:
    """Decisions for a batch: arrays of shape ``(N, axes)``, except ``lanes`` and ``chains`` of shape ``(N,)``.

    Parameters
    ----------
    lanes
        Number of elements per vector; 1 without vectors.
    chains
        Number of accumulator vectors per output, if the lanes run along a reduction.
    tile, tiles
        Extents of the effective register tiles (elements, whole vectors), and the number of tiles that cover an axis;
        both are 1 along reductions.
    per_task
        Number of register tiles per task.
    chunk
        Number of elements along a reduction axis that one tile of a task processes before the next tile's turn; the
        whole extent along a spatial axis.
    segments
        Positions within an axis at which tiles also end
        (:func:`~roller.templates.cpu.window_clipping.segments_of_equal_clipping`).
    """

    batch: TileBatch
    lanes: Ints
    chains: Ints
    tile: Ints
    tiles: Ints
    per_task: Ints
    chunk: Ints
    segments: Mapping[int, tuple[int, ...]]

    @cached_property
    def tasks(self) -> Ints:
        """Number of tasks along each axis, excluding the parts of a split reduction."""
        return -(-self.tiles // self.per_task)

    @cached_property
    def count_tasks(self) -> Ints:
        """Number of tasks over all outputs, shape ``(N,)``."""
        return np.asarray(self.tasks.prod(axis=1))

    @cached_property
    def chunks(self) -> Ints:
        """Number of chunks along each axis."""
        return -(-self.batch.geometry.extents // self.chunk)

    @cached_property
    def chunk_count(self) -> Ints:
        """Number of chunks of all reductions together, shape ``(N,)``."""
        return np.asarray(self.chunks.prod(axis=1))

    @cached_property
    def split_axis(self) -> Ints:
        """Reduction axis whose chunks are divided among parts: the axis with the most chunks, shape ``(N,)``."""
        order = np.array(self.batch.geometry.reduction_order or (0,))
        return np.asarray(order[np.argmax(self.chunks[:, order], axis=1)])

    @cached_property
    def split_chunks(self) -> Ints:
        """Number of chunks that are divided among the parts, shape ``(N,)``."""
        return np.asarray(self.chunks[np.arange(len(self.batch)), self.split_axis])

    @cached_property
    def share(self) -> Ints:
        """Number of chunks per part of a split reduction, shape ``(N,)``."""
        return np.asarray(-(-self.split_chunks // self.batch.split_k))

    @cached_property
    def parts(self) -> Ints:
        """Number of non-empty parts of a split reduction, at most ``split_k``, shape ``(N,)``."""
        return np.asarray(-(-self.split_chunks // self.share))

    @cached_property
    def vectors(self) -> Ints:
        """Number of vector registers that hold a micro-kernel's accumulators, shape ``(N,)``."""
        v, outputs = self.batch.vector_axis, self.tile.prod(axis=1)
        if v is None or not self.batch.geometry.spatial[v]:
            return np.asarray(outputs * self.chains)
        return np.asarray(outputs // self.lanes)

    @cached_property
    def operand_vectors(self) -> Ints:
        """Number of vector registers that hold a row of one operand while rows of the other pass, shape ``(N,)``."""
        v = self.batch.vector_axis
        return np.ones_like(self.lanes) if v is None else np.asarray(self.tile[:, v] // self.lanes)

    @cached_property
    def live(self) -> Floats:
        """Average share of each axis's points that micro-kernels compute; the other points lie in the padding."""
        return computed_point_shares(self.batch.geometry, self.tile, self.chunk, self.segments)

    @cached_property
    def unrolled(self) -> Mask:
        """Mask of the reduction axes unrolled into the micro-kernel, from the innermost outwards up to the limits."""
        b, g = self.batch, self.batch.geometry
        out = np.zeros(self.tile.shape, bool)
        work, inner, sizes = self.vectors.astype(np.float64), np.ones(len(b), bool), b.register.copy()
        for n, a in enumerate(reversed(g.reduction_order)):
            work, sizes[:, a] = work * g.extents[a], g.extents[a]
            inner = inner & (self.chunk[:, a] == g.extents[a]) & (work <= _UNROLL_LIMIT) & (self.live[:, a] == 1.0)
            inner = inner & (self._broadcast_value_count(sizes) <= _UNROLLED_BROADCASTS) if n else inner
            out[:, a] = inner = inner & ~b.is_open[a]
        return out

    @cached_property
    def block(self) -> Ints:
        """Length of the innermost reduction axis's blocks, outside the window loops, shape ``(N,)``; 0: none."""
        # The window loops are outside the inner axis, so every tap reads the whole inner axis; if a block of it fits
        # in L1, all taps but the first read from L1.
        g, none = self.batch.geometry, np.zeros(len(self.batch), np.int64)
        if len(g.reduction_order) < 2:
            return none
        inner = g.reduction_order[-1]
        # Blocked channels are not a window, yet they count here: smaller blocks of them have not been measured.
        several = [(x, np.count_nonzero(x.coefficients, axis=1) > 1) for x in g.loads if not x.gather]
        windowed = [x for x, rows in several if rows.any()]
        if not windowed or any(x.coefficients[rows, inner].any() for x, rows in several):
            return none
        sizes, lines = np.where(g.spatial, self.tile, g.extents), none
        sizes[:, inner] = 1
        for x in windowed:
            spans = 1 + (sizes - 1) @ np.abs(x.coefficients).T
            lines = lines + spans[:, :-1].prod(axis=1) * (1 + spans[:, -1] // _LINE_ELEMENTS)
        extent = g.extents[inner]
        blocks = -(-extent // np.maximum(_SHORTEST_BLOCK, _HELD_LINES // lines))
        whole = (blocks == 1) | self.unrolled[:, inner] | (self.chunk[:, inner] < extent)
        return np.where(whole, 0, -(-extent // blocks))

    def _broadcast_value_count(self, sizes: Ints) -> Ints:
        """Return the number of distinct broadcast values in a micro-kernel that spans ``sizes`` points of the axes."""
        v, none = self.batch.vector_axis, np.zeros(len(sizes), np.int64)
        loads = [x for x in self.batch.geometry.loads if v is None or not x.uses[v]]
        return sum((np.where(x.uses, sizes, 1).prod(axis=1) for x in loads), none)

    def staging(self, access: Access) -> str:
        """Return the staging of an operand: in place, in a panel or in a box."""
        # A staged operand whose elements are each read once, as vectors or as scalars, is read in place: packing would
        # move it two more times.
        if id(access) not in self._staging:
            self._staging[id(access)] = access, self._choose_staging(access)
        return self._staging[id(access)][1]

    @cached_property
    def _staging(self) -> dict[int, tuple[Access, str]]:
        """Cache of :meth:`staging` by identity, because comparing two accesses takes longer."""
        return {}

    def _choose_staging(self, access: Access) -> str:
        name, b = access.tensor.name, self.batch
        if name not in b.staged:
            return IN_PLACE
        if b.fragment is not None:  # the operand along the lanes is packed; the other's words may be in a box
            k = b.geometry.names.index(b.matrix_axes[2])
            rows = is_staged_as_box(access) or (b.fragment.widens_operands and rows_are_copied(access, b.constants))
            return (
                BOX if rows and not access.uses[b.vector_axis] and words_are_readable(access, k, b.fragment) else PANEL
            )
        if is_staged_as_box(access) or rows_are_converted(access, self._vector_axis, b.constants):
            return BOX
        return PANEL if name in b.constants or not is_read_once(access, self._vector_axis) else IN_PLACE

    def staged(self, how: str) -> list[Access]:
        """Return the operands whose staging is ``how``."""
        return [a for a in self.batch.geometry.loads if self.staging(a) == how]

    def upfront(self, access: Access) -> Mask:
        """Return the mask of programs that pack a whole (shared or constant) panel before the tasks, shape ``(N,)``."""
        small = self.panel_bytes(access) <= _UPFRONT_LIMIT_BYTES
        return np.asarray(
            ((self._tasks_sharing_panel(access) > 1) & small) | (access.tensor.name in self.batch.constants)
        )

    def packers(self, access: Access) -> Ints:
        """Return the number of tiles of a panel that are packed in parallel before the tasks, or 1, shape ``(N,)``."""
        return np.where(self.upfront(access), np.where(access.touched_axis_mask, self.tiles, 1).prod(axis=1), 1)

    def packing_count(self, access: Access) -> Ints:
        """Return how often a whole panel is packed, shape ``(N,)``: once up front, or by every task that shares it."""
        return np.where(self.upfront(access), 1, self._tasks_sharing_panel(access))

    def _tasks_sharing_panel(self, access: Access) -> Ints:
        """Return the number of tasks that read the same part of a panel, shape ``(N,)``."""
        return np.asarray(np.where(access.touched_axis_mask, 1, self.tasks).prod(axis=1))

    def panel_bytes(self, access: Access, tiles: Ints | None = None) -> Floats:
        """Return the size (bytes) of a panel with ``tiles`` tiles (default: all) along each axis, shape ``(N,)``."""
        g, size = self.batch.geometry, self.held_itemsize_bytes(access)
        elements = np.where(g.spatial, (self.tiles if tiles is None else tiles) * self.tile, g.extents)
        return np.asarray(np.where(access.touched_axis_mask, elements, 1).astype(np.float64).prod(axis=1) * size)

    def panel_keeps_stored_dtype(self, access: Access) -> bool:
        """Return whether a panel keeps narrow floats in their stored dtype; other panels, and boxes, are converted."""
        v, b = self._vector_axis, self.batch
        return panel_stays_stored(access, v, b.constants) and b.fragment is None and self.staging(access) == PANEL

    def held_itemsize_bytes(self, access: Access) -> int:
        """Return the number of bytes per element of a panel or box."""
        if self.batch.fragment is not None:
            return DTYPE_BYTES[self.batch.fragment.packed_dtype(access.tensor.dtype)]
        stored = self.panel_keeps_stored_dtype(access)
        return access.tensor.itemsize_bytes if stored else computed_itemsize_bytes(access)

    def phases(self, access: Access) -> int:
        """Return the number of phases by which columns of a box are sorted, so that strided lanes are adjacent."""
        v = self._vector_axis
        return 1 if v is None else phases(access, v)

    @cached_property
    def _vector_axis(self) -> int | None:
        """Axis along which vectors run, or ``None`` without vectors."""
        return self.batch.vector_axis if (self.lanes > 1).any() else None

    @cached_property
    def loop_order(self) -> Ints:
        """Spatial axes in the loop order of a task's register tiles, outermost first, shape ``(N, spatial axes)``."""
        b, g, v = self.batch, self.batch.geometry, self._vector_axis
        axes = np.array(g.spatial_axes, np.int64)
        if v is not None and not g.spatial[v]:
            # The longest axis is outermost: its operand streams once while the others stay in a cache. Axes that index
            # every operand (a batch) come first, because no data are reused along them.
            shared = np.all([a.uses for a in g.loads], axis=0)[axes]
            keys = np.where(shared, np.iinfo(np.int64).min, 0) - self.tiles[:, axes]
            return np.asarray(axes[np.argsort(keys, axis=1, kind="stable")])
        # All other tiles reuse a packed vector panel from L1 or L2, so its axis is outermost.
        if v is not None and any(a.touched_axis_mask[v] for a in self.staged(PANEL)):
            axes = np.array([v, *(a for a in axes if a != v)])
        return np.broadcast_to(axes, (len(b), len(axes)))

    @cached_property
    def stores_vectors(self) -> Mask:
        """Mask of programs that store vectors, shape ``(N,)``: their lanes are adjacent in memory, or in runs."""
        v, store = self.batch.vector_axis, self.batch.geometry.store
        if v is None:
            return np.ones(len(self.batch), bool)
        name, shape = store.axis_names[v], store.tensor.shape
        if stride_between_neighbours(store.index, shape, name) == 1:
            return np.ones(len(self.batch), bool)
        run = strided_run_along(store.index, shape, name, int(store.axis_extents[v]))
        return np.asarray((run.length if run is not None and run.step == 1 else 0) >= self.lanes)


def stores_start_at_lines(lanes: Ints | int, tiles: Ints | int, step: int | None) -> Mask:
    """Return whether non-temporal vector stores begin at cache lines: rows must be contiguous and long enough."""
    return np.asarray((np.asarray(lanes) > 1) & (np.asarray(tiles) >= ALIGNED_TILES) & (step == 1))


def run_copied_in_vectors(
    index: Sequence[Index], shape: Sequence[int], axis: str, extent: int, lanes: int
) -> StridedRun | None:
    """Return the runs of ``axis`` that packing copies in whole vectors, or ``None`` if it copies single elements."""
    run = strided_run_along(index, shape, axis, extent)
    if run is None or not run.step or lanes == 1:
        return None
    return run if run.length >= (FEWEST_HALVES if run.step == HALVED else lanes) else None


def phases(access: Access, v: int) -> int:
    """Return the stride of axis ``v`` in rows of a box if at most one other axis, of stride 1, indexes them; else 1."""
    row, others = access.coefficients[-1], np.delete(access.coefficients[-1], v)
    return int(row[v]) if row[v] > 1 and others.sum() <= 1 and (others >= 0).all() else 1


def may_exceed_vector_axis(batch: TileBatch) -> bool:
    """Return whether lanes may lie beyond the vector axis, because all operands along it are boxes of the task."""
    # A row of 11 is then one vector of 16, of which 11 elements are stored, instead of two overlapping vectors of 8.
    v, g = batch.vector_axis, batch.geometry
    if not batch.traits.reuses or v is None or not g.spatial[v]:
        return False
    operands = [a for a in g.loads if a.uses[v]]
    return all(a.tensor.name in batch.staged and is_staged_as_box(a) and (a.coefficients >= 0).all() for a in operands)


def _decide_for_batch(batch: TileBatch, elements: int) -> CpuDecisions:
    g, v = batch.geometry, batch.vector_axis
    lanes = chains = ones = np.ones(len(batch), np.int64)
    tile = np.where(g.spatial, np.minimum(batch.register, g.extents), 1)
    cut = segments_of_equal_clipping(g, batch.staged) if batch.traits.reuses and (v is None or g.spatial[v]) else {}
    segments = {a: ends for a, ends in cut.items() if not batch.is_open[a]}
    for a, ends in segments.items():
        tile[:, a] = np.minimum(tile[:, a], shortest_segment(ends))
    whole = np.broadcast_to(g.extents, tile.shape)
    step = whole if batch.panel is None else np.where(batch.is_open, batch.panel, np.minimum(batch.panel, whole))
    chunk = np.where(g.spatial, whole, step)
    if v is not None and g.spatial[v]:
        lanes = _power_of_two_below(np.minimum(elements, tile[:, v]))
        if g.extents[v] < elements and may_exceed_vector_axis(batch):
            lanes = ones << int(g.extents[v] - 1).bit_length()
            tile[:, v] = lanes
        tile[:, v] = tile[:, v] // lanes * lanes
    elif v is not None:
        register = batch.register[:, v]
        lanes = _power_of_two_below(np.minimum(np.minimum(elements, register), g.extents[v]))
        chains = np.maximum(1, np.minimum(register // lanes, chunk[:, v] // lanes))
    extents = np.where(g.spatial, g.extents, 1)
    tiles = -(-extents // tile)
    # The same number of tiles, but of equal size: 56 in tiles of up to 48 is two tiles of 32, which overlap least.
    even = -(-extents // tiles)
    unit = np.ones_like(tile)
    if v is not None and g.spatial[v]:
        unit[:, v] = lanes
    tile = np.where(batch.is_open, tile, -(-even // unit) * unit)
    chunk = end_tiles_at_segments(segments, g, tile, tiles, chunk, unit) if segments else chunk
    # A short axis may have more effective tiles than its block has register tiles: nine elements are two tiles of
    # eight, and still one task of sixteen.
    held = np.maximum(1, batch.block // batch.register)
    some = np.where(batch.block >= g.extents, tiles, np.minimum(held, tiles))
    per_task = np.where(g.spatial, np.where(batch.is_open, held, some), 1)
    return CpuDecisions(batch, lanes, chains, tile, tiles, per_task, chunk, segments)


def _power_of_two_below(n: Ints) -> Ints:
    """Return the largest powers of two not exceeding ``n``."""
    return np.asarray(1 << (np.frexp(n.astype(np.float64))[1].astype(np.int64) - 1))
