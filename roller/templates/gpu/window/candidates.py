"""Candidate ``window`` programs: each thread computes a strip of outputs from rows that are read in place or staged."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.options import ConstructOptions
from roller.templates.common.padding_limit import allowed_padding_mask
from roller.templates.common.scale_up import unique_rows
from roller.templates.gpu.common.occupancy import operand_registers, scratchpad_bytes
from roller.templates.gpu.common.stored_results import fits_one_kernel
from roller.templates.gpu.common.thread_limits import within_thread_and_register_limits
from roller.tile.access import VECTOR_BYTES
from roller.tile.geometry import Geometry, Ints, product_of_columns
from roller.tile.sliding_windows import Slide, slide_of
from roller.tile.structures import WINDOW, structure_of

#: Maximum number of outputs of a thread along its strip, and along any other axis.
_STRIP, _ACROSS = 32, 8
#: Maximum number of products per thread: its straight-line code has about two instructions per product and should fit
#: in the smallest instruction cache of all devices (46 KiB of 16-byte instructions on sm_75; Jia et al. 2019).
_PRODUCTS = 1024
#: Numbers of even pieces of an axis, further numbers of threads along the contiguous axis, and target numbers of
#: threads per block.
_PIECES, _RUNS, _THREADS = (1, 2, 3, 4), (16, 32, 64), (64, 128, 256)
#: Minimum share of a block's TEUs that its threads fill: partly filled TEUs are priced, but nearly empty ones never
#: win.
_FILLED = 0.7


def window_candidates(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return the window programs that read rows in place and those that stage them, or none for other reductions."""
    expr = geometry.expr
    slide = slide_of(expr.anchor) if options.windows and structure_of(geometry).reuses else None
    if slide is None or not fits_one_kernel(expr):
        return []
    register, block = _register_and_block_tiles(geometry, slide, spec)
    batch = TileBatch(geometry, WINDOW.name, register, block, np.ones(len(block), np.int64), ())
    staged = replace(batch, staged=(slide.source.tensor,))
    fits = scratchpad_bytes(staged) <= spec.layer("shared").budget_bytes
    found = batch.take(np.arange(min(len(batch), options.pool))), staged.take(np.flatnonzero(fits)[: options.pool])
    return [b.take(allowed_padding_mask(geometry, b.block, options)) for b in found]


def window_candidate_mask(batch: TileBatch, spec: DeviceSpec) -> np.ndarray:
    """Return the mask of programs within the limits whose TEUs are filled well enough and whose code is short."""
    whole = filled_teu_mask(batch.threads_per_block, spec.teu.lanes) & short_walk_mask(batch.register)
    return np.asarray(within_thread_and_register_limits(batch, spec) & whole)


def _register_and_block_tiles(geometry: Geometry, slide: Slide, spec: DeviceSpec) -> tuple[Ints, Ints]:
    """Return register and block tiles, each of shape ``(N, axes)``."""
    register = _register_tiles(geometry, slide)
    one = np.ones(len(register), np.int64)
    words = operand_registers(TileBatch(geometry, WINDOW.name, register, register, one, ()))
    register = register[words <= (spec.limits.usable_registers_per_thread or 0)]
    states = [np.ones((0, 2 * register.shape[1]), np.int64)]
    limit = spec.limits.threads_per_block or 0
    for row in register:
        threads = _threads_per_axis(geometry, slide, row, limit)
        states.append(np.concatenate([np.broadcast_to(row, threads.shape), threads], axis=1))
    both = unique_rows(np.concatenate(states))
    axes = register.shape[1]
    threads = product_of_columns(both[:, axes:], range(axes))
    both = both[(threads <= limit) & filled_teu_mask(threads, spec.teu.lanes)]
    return both[:, :axes], both[:, :axes] * both[:, axes:]


def filled_teu_mask(threads: Ints, lanes: int) -> np.ndarray:
    """Return the mask of blocks whose threads fill their TEUs well enough for their programs to be considered."""
    return np.asarray(threads >= _FILLED * -(-threads // lanes) * lanes)


def short_walk_mask(register: Ints) -> np.ndarray:
    """Return the mask of register tiles that are small enough for straight-line code; the smallest always are."""
    products = register.prod(axis=1)
    return np.asarray(products <= max(_PRODUCTS, int(products.min(initial=_PRODUCTS))))


def _axes_under_windows(geometry: Geometry, slide: Slide) -> list[int]:
    """Return the spatial axes that share a dimension of the source with a window, the slide's axis first."""
    names = [t.axis for i in slide.source.index if len(i.terms) > 1 for t in i.terms]
    axes = [geometry.names.index(n) for n in dict.fromkeys(names) if geometry.spatial[geometry.names.index(n)]]
    return sorted(axes, key=lambda a: geometry.names[a] != slide.axis)


def _register_tiles(geometry: Geometry, slide: Slide) -> Ints:
    """Return register tiles: strips along the slide times outputs along other windows times vectors."""
    sizes: list[Iterable[int]] = [[1] for _ in geometry.names]
    fast = geometry.order[-1]
    widest = max(1, VECTOR_BYTES // geometry.store.tensor.itemsize_bytes)
    sizes[fast] = [v for v in (1, 2, 4, 8) if v <= widest and geometry.extents[fast] % v == 0]
    windowed = _axes_under_windows(geometry, slide)
    for a in windowed:
        extent, limit = int(geometry.extents[a]), _STRIP if geometry.names[a] == slide.axis else _ACROSS
        even = {-(-extent // p) for p in range(1, 9 if len(windowed) > 1 and fast not in windowed else 13)}
        sizes[a] = sorted({e for e in (1, 2, 4, *even) if e <= min(limit, extent)})
    for reduced in np.flatnonzero(~geometry.spatial):
        sizes[reduced] = [int(geometry.extents[reduced])]
    table = np.array(list(itertools.product(*sizes)), np.int64)
    return np.asarray(table[short_walk_mask(table)])


def _threads_per_axis(geometry: Geometry, slide: Slide, register: Ints, limit: int) -> Ints:
    """Return the threads per axis: even pieces of windows and of the contiguous axis; other axes fill the block."""
    useful, fast = -(-geometry.extents // register), geometry.order[-1]
    windows = [a for a in _axes_under_windows(geometry, slide) if a != fast]
    fixed, few = [fast, *windows], len(windows) > 1  # few pieces each for two slow windows: the numbers multiply
    sizes = []
    for a in fixed:
        most = int(useful[a])
        pieces = {-(-most // p) for p in (_PIECES[:2] if few else _PIECES)}
        sizes.append({p for p in pieces | ({p for p in _RUNS if p < most} if a == fast else {1}) if p <= limit} or {1})
    rest = [a for a in reversed(geometry.order) if a not in fixed]
    table = np.array(list(itertools.product(*map(sorted, sizes), _THREADS)), np.int64)
    used = table[:, :-1].prod(axis=1)
    threads = np.ones((len(table), len(useful)), np.int64)
    threads[:, fixed] = table[:, :-1]
    left = np.maximum(1, table[:, -1] // used)
    for a in rest:
        threads[:, a] = np.minimum(left, useful[a])
        left //= threads[:, a]
    return np.asarray(threads[used <= limit])
