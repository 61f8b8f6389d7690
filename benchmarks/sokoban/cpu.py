"""CPU programs of one canonical form, exhaustively: micro-kernels, chunks of the reduction, tasks, packing, stores.

Arithmetic bounds: a micro-kernel with its chunks, priced as one task of all outputs, takes its cycles on one core;
split evenly over the cores, and with nothing to wait for, no other task makes them fewer. Tasks that leave cores idle
take so much longer. What is left is priced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from benchmarks.sokoban.space import (
    Tally,
    all_products,
    axis_sizes,
    bounded_products,
)
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.options import ConstructOptions
from roller.templates.common.padding_limit import allowed_padding_mask
from roller.templates.cpu import decisions_for_device, lane_count, price
from roller.templates.cpu.common.candidate_axes_and_task_shapes import candidate_vector_axes
from roller.templates.cpu.dots.candidates import dot_product_axes
from roller.templates.cpu.streaming.candidates import batches_by_kind_of_store
from roller.templates.cpu.tiled.candidates import packed_input_choices
from roller.templates.cpu.tiled.split_reduction_candidates import split_reduction_batches
from roller.templates.cpu.winograd.winograd_choice import winograd_programs
from roller.tile.geometry import Floats, Geometry, Ints
from roller.tile.program import RProgram
from roller.tile.structures import Structure, structure_of

#: Rows (programs) expanded at a time: bounds memory.
_ROWS = 1 << 15

Limit = Callable[[], float]


@dataclass(frozen=True)
class _Family:
    """Programs of one form that share structure, vector axis, packing and stores."""

    geometry: Geometry
    structure: Structure
    vector_axis: int
    staged: tuple[str, ...]
    spec: DeviceSpec
    options: ConstructOptions

    def batch(self, register: Ints, block: Ints) -> TileBatch:
        """Assemble programs; the panel (l1 tile) is the register tile over the task's chunk of the reduction."""
        g = self.geometry
        panel, ones = np.where(g.spatial, register, block), np.ones(len(block), np.int64)
        return TileBatch(
            g, self.structure.name, register, block, ones, self.staged, panel, self.vector_axis, self.options.constants
        )

    @property
    def dots(self) -> bool:
        """Whether lanes lie along a reduction axis of a tiled structure."""
        return self.structure.reuses and not self.geometry.spatial[self.vector_axis]


def cpu_batches(
    geometry: Geometry, spec: DeviceSpec, options: ConstructOptions, limit_s: Limit, tally: Tally
) -> Iterator[TileBatch]:
    """Yield all programs of a form that may take at most ``limit_s()`` seconds, in batches of bounded size."""
    for family in families(geometry, spec, options):
        kernels, chunks = kernels_of(family)
        tally.bounded += len(kernels)
        yield from _programs(family, kernels, chunks, limit_s, tally)
    for batch in winograd_programs(geometry, spec, options):
        tally.tilings += len(batch)
        yield replace(batch.take(allowed_padding_mask(geometry, batch.block, options)), constants=options.constants)


def families(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> list[_Family]:
    """Return the choices common to many programs: the same that construction has."""
    structure = structure_of(geometry)
    found = []
    for v in candidate_vector_axes(geometry, structure):
        for staged in packed_input_choices(geometry, v, options.constants) if structure.reuses else [()]:
            found.append(_Family(geometry, structure, v, staged, spec, options))
    if structure.reuses:
        found += [_Family(geometry, structure, v, (), spec, options) for v in dot_product_axes(geometry, spec)]
    return found


def kernels_of(family: _Family) -> tuple[Ints, Ints]:
    """Return every micro-kernel with every chunk of the reduction: register tiles and chunks, ``(N, axes)`` each."""
    g, v = family.geometry, family.vector_axis
    lanes, usable = lane_count(family.spec, 4), family.spec.limits.usable_vector_registers or 1
    grows = g.spatial if family.structure.reuses else np.zeros_like(g.spatial)
    most = np.where(grows, g.extents, 1)
    most[v] = -(-int(g.extents[v]) // lanes)
    choices = [np.arange(1, min(int(n), usable) + 1, dtype=np.int64) for n in most]
    choices[v] = np.union1d(choices[v], [min(1 << int(most[v] - 1).bit_length(), usable)])  # a power of two covers it
    register = bounded_products(choices, usable)
    register[:, v] *= lanes
    whole = np.where(g.spatial, 1, -(-g.extents // register) * register)
    pieces = _chunks(family)
    registers, chunks = [register], [whole]
    for axis, sizes in pieces:
        for size in sizes:
            fits = register[:, axis] <= size
            some = register[fits][size % register[fits, axis] == 0]
            piece = np.where(g.spatial, 1, -(-g.extents // some) * some)
            piece[:, axis] = size
            registers.append(some)
            chunks.append(piece)
    return np.concatenate(registers), np.concatenate(chunks)


def _chunks(family: _Family) -> list[tuple[int, list[int]]]:
    """Return the axes whose reduction may come in pieces, and the pieces, all of it excluded.

    Of lanes along a reduction axis that axis; else the only deep one. Windows are unrolled or walked whole. Pieces are
    divisors, powers of two, and of the multiples of a vector, for every number of pieces, the one that is most even.
    """
    g = family.geometry
    if not family.structure.reuses:
        return []
    deep = np.flatnonzero(~g.spatial & (g.extents > 1))
    axes = [family.vector_axis] if family.dots else [int(a) for a in deep if len(deep) == 1 and not g.window_axes[a]]
    found = []
    for a in axes:
        extent = int(g.extents[a])
        lanes = lane_count(family.spec, 4)
        even = {int(n) * lanes for n in task_counts(-(-extent // lanes))}
        sizes = sorted({*axis_sizes(extent, (), extent), *even})
        found.append((a, [s for s in sizes if 1 < s < extent and (2 * s <= extent or family.dots)]))
    return found


def _kernel_bounds(family: _Family, register: Ints, chunk: Ints) -> Floats:
    """Return the seconds the arithmetic of each micro-kernel takes at least, on all cores evenly."""
    g = family.geometry
    block = np.where(g.spatial, -(-g.extents // register) * register, chunk)
    terms = price(family.batch(register, block), family.spec)
    fits = np.isfinite(terms["seconds"])
    return np.where(fits, terms["compute_s"] / family.spec.units, np.inf)


@lru_cache(maxsize=65536)
def task_counts(tiles: int) -> Ints:
    """Return the register tiles one task may hold of an axis of ``tiles``: powers of two, divisors, even splits.

    Of the numbers that make equally many tasks, the one that splits the axis most evenly.

    Examples
    --------
    >>> task_counts(12).tolist()
    [1, 2, 3, 4, 6, 8, 12]
    """
    even = {-(-tiles // n) for n in range(1, int(tiles**0.5) + 2)}
    small = {n for n in range(1, int(tiles**0.5) + 2) if -(-tiles // -(-tiles // n)) == n}
    powers = {1 << p for p in range(tiles.bit_length()) if 1 << p <= tiles}
    divisors = {d for n in range(1, int(tiles**0.5) + 1) if tiles % n == 0 for d in (n, tiles // n)}
    return np.array(sorted(even | small | powers | divisors), np.int64)


def _programs(family: _Family, register: Ints, chunk: Ints, limit_s: Limit, tally: Tally) -> Iterator[TileBatch]:
    """Yield the tasks of every micro-kernel that may be among the best, the most promising micro-kernels first."""
    g = family.geometry
    bound = _kernel_bounds(family, register, chunk)
    for n in np.argsort(bound, kind="stable"):
        tiles = np.where(g.spatial, -(-g.extents // register[n]), 1)
        choices = [task_counts(int(t)) for t in tiles]
        tally.tilings += int(np.prod([len(c) for c in choices], dtype=np.int64))
        if bound[n] > limit_s():
            continue
        counts = all_products(choices)
        for start in range(0, len(counts), _ROWS):
            per_task = counts[start : start + _ROWS]
            block = np.where(g.spatial, register[n] * per_task, chunk[n])
            batch = family.batch(np.broadcast_to(register[n], block.shape), block)
            yield from _promising(family, batch, float(bound[n]), limit_s, tally)


def _promising(family: _Family, batch: TileBatch, bound_s: float, limit_s: Limit, tally: Tally) -> Iterator[TileBatch]:
    """Yield the programs of one micro-kernel whose tasks keep the cores busy enough, and with split reductions."""
    spec = family.spec
    batch = batch.take(allowed_padding_mask(family.geometry, batch.block, family.options))
    tasks = decisions_for_device(batch, spec).count_tasks
    tally.bounded += len(batch)
    idle = -(-tasks // spec.units) * spec.units / tasks
    busy = batch.take(bound_s * idle <= limit_s())
    yield from batches_by_kind_of_store(busy, spec)
    if (
        family.options.split_k
        and family.structure.reuses
        and (family.geometry.extents[family.geometry.spatial] > 1).any()
    ):
        yield from split_reduction_batches(batch, spec)


def cpu_contains(program: RProgram, spec: DeviceSpec, options: ConstructOptions) -> bool:
    """Whether the tiles of a program are among those enumerated for its form."""
    geometry = Geometry.of(program.expr)
    register, _, block = (np.array(extents, np.int64) for _, extents in program.tiles)
    if program.traits.output_side:
        offered = winograd_programs(geometry, spec, replace(options, winograd=True))
        pools = [b for b in offered if b.traits == program.traits]
        return any(bool(((b.register == register) & (b.block == block)).all(axis=1).any()) for b in pools)
    for family in families(geometry, spec, replace(options, constants=program.constants)):
        same = program.traits == family.structure and program.staged == family.staged
        if not same or program.vector_axis != geometry.names[family.vector_axis]:
            continue
        kernels, chunks = kernels_of(family)
        known = (kernels == register).all(axis=1) & (chunks == np.where(geometry.spatial, 1, block)).all(axis=1)
        tiles = np.where(geometry.spatial, -(-geometry.extents // register), 1)
        per_task = np.where(geometry.spatial, block // register, 1)
        if known.any() and all(n in task_counts(int(t)) for n, t in zip(per_task, tiles, strict=True)):
            return True
    return False
