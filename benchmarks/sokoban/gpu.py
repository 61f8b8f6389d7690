"""GPU programs of one canonical form, exhaustively: register tiles, blocks, reduction steps, pruned by lower bounds.

Three bounds, all asked of the model itself, each of a problem that is easier than the program: *one block of the whole
problem* on one unit without limits bounds a register tile (splitting work over blocks and units never makes it less);
a *block with the whole reduction in one step* on units without limits bounds all steps of a block; the model's
own lower bound of a finished program the rest. Bounds hold per class of the step's alignment, of which the width of
vector reads is a function, so the least of the classes is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.sokoban.space import (
    Tally,
    all_products,
    axis_multiples,
    axis_sizes,
    bounded_products,
    tile_counts,
)
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.options import ConstructOptions
from roller.templates.common.padding_limit import allowed_padding_mask
from roller.templates.gpu import (
    arithmetic_bound_s,
    lower_bound_s,
    operand_registers,
    programs_of_form,
    scratchpad_bytes,
)
from roller.templates.gpu.tiled.candidates import split_part_counts, with_split_reductions
from roller.templates.gpu.winograd.candidates import winograd_candidates
from roller.tile.geometry import Floats, Geometry, Ints
from roller.tile.program import RProgram
from roller.tile.structures import Structure, structure_of

#: Rows (programs) expanded at a time: bounds memory.
_ROWS = 1 << 16
#: Alignments of a step that the model's vector reads of the scratchpad tell apart (elements).
_ALIGNMENTS = (4, 2, 1)
_UNLIMITED = 1 << 60

Limit = Callable[[], float]


@dataclass(frozen=True)
class _Space:
    """What the tiles of one form are made of."""

    geometry: Geometry
    structure: Structure
    spec: DeviceSpec
    options: ConstructOptions

    def __post_init__(self) -> None:
        assert self.spec.limits.threads_per_block and self.spec.limits.usable_registers_per_thread

    @property
    def threads(self) -> int:
        return self.spec.limits.threads_per_block or 1

    @property
    def axes(self) -> Ints:
        """Axes that threads are spread over."""
        g = self.geometry
        return np.arange(len(g.names)) if self.structure.spreads_reductions else np.flatnonzero(g.spatial)

    @property
    def steps(self) -> Ints:
        """Axes that are walked in steps."""
        return np.setdiff1d(np.arange(len(self.geometry.names)), self.axes)

    def sizes(self, axis: int) -> tuple[int, ...]:
        g = self.geometry
        most = self.threads * (self.spec.limits.usable_registers_per_thread or 1)
        return axis_sizes(int(g.extents[axis]), axis_multiples(g, axis, self.spec), most)

    def batch(self, register: Ints, block: Ints) -> TileBatch:
        staged = self.geometry.load_names if self.structure.reuses else ()
        ones, constants = np.ones(len(block), np.int64), self.options.constants
        return TileBatch(self.geometry, self.structure.name, register, block, ones, staged, constants=constants)


def gpu_batches(
    geometry: Geometry, spec: DeviceSpec, options: ConstructOptions, limit_s: Limit, tally: Tally
) -> Iterator[TileBatch]:
    """Yield all programs of a form that may take at most ``limit_s()`` seconds, in batches of bounded size."""
    space = _Space(geometry, structure_of(geometry), spec, options)
    for batch in [*winograd_candidates(geometry, spec, options), *_constructed(space)]:
        tally.tilings += len(batch)
        yield replace(batch, constants=options.constants)
    registers = register_tiles(space)
    bounds = _register_bounds(space, registers) if space.structure.reuses else np.zeros(len(registers))
    tally.bounded += len(registers)
    blocks: list[tuple[Ints, Ints]] = []
    waiting = 0
    for n in np.argsort(bounds, kind="stable"):
        found = _blocks(space, registers[n], float(bounds[n]), limit_s(), tally)
        if len(found):
            blocks.append((np.broadcast_to(registers[n], found.shape), found))
            waiting += len(found)
        if waiting > _ROWS:
            yield from _programs(space, blocks, limit_s, tally)
            blocks, waiting = [], 0
    if blocks:
        yield from _programs(space, blocks, limit_s, tally)


def register_tiles(space: _Space) -> Ints:
    """Return every register tile that fits the register budget, ``(N, axes)``.

    Reduction extents are 1 where steps are walked point by point; a window alone is unrolled whole with the outputs,
    as the template does.
    """
    g, usable = space.geometry, space.spec.limits.usable_registers_per_thread or 1
    vectors = {1, 2, 4, 8} if not space.structure.reuses else set[int]()  # up to 16 bytes, beyond a short axis too
    choices = [
        np.array(sorted({s for s in space.sizes(int(a)) if s <= usable} | (vectors if a == space.axes[-1] else set())))
        for a in space.axes
    ]
    tiles = bounded_products(choices, usable)
    rows = np.ones((len(tiles), len(g.names)), np.int64)
    rows[:, space.axes] = tiles
    if space.structure.reuses and len(space.steps) and g.window_axes[space.steps].all():
        wide = rows.copy()
        wide[:, space.steps[-1]] = g.extents[space.steps[-1]]
        rows = np.concatenate([rows, wide])
    return rows[operand_registers(space.batch(rows, rows)) <= usable]


def _whole_steps(space: _Space) -> list[tuple[Ints, float]]:
    """Return the whole reduction as one step, per alignment, and the share of it that is not padding."""
    out = []
    extents = space.geometry.extents[space.steps]
    for unit in _ALIGNMENTS:
        whole = -(-extents // unit) * unit
        if unit < _ALIGNMENTS[0]:
            whole = np.where(whole % (2 * unit) == 0, whole + unit, whole)
        out.append((whole, float((extents / whole).prod())))
    return out


def _bound_over_steps(space: _Space, register: Ints, block: Ints, spec: DeviceSpec) -> Floats:
    """Return a time no step of the blocks can beat, ``(N,)``."""
    found = []
    for whole, share in _whole_steps(space):
        wide = block.copy()
        base = register[:, space.steps]
        wide[:, space.steps] = -(-whole // base) * base  # whole register tiles
        padded = share * (whole / wide[:, space.steps]).prod(axis=1)
        found.append(arithmetic_bound_s(space.batch(register, wide), spec) * padded)
    return np.asarray(np.minimum.reduce(found))


def _without_limits(spec: DeviceSpec, banks: int | None = None) -> DeviceSpec:
    """Return the device with room for any number of blocks on a unit (and a scratchpad of so many banks).

    Blocks that share a unit hide each other's latency, so one wave of all of them bounds every number of waves.
    """
    layers = tuple(
        replace(x, capacity_bytes=_UNLIMITED, usable_bytes=_UNLIMITED, banks=banks or x.banks)
        if x.name == "shared"
        else x
        for x in spec.memory_layers
    )
    limits = replace(
        spec.limits,
        threads_per_block=_UNLIMITED,
        threads_per_unit=_UNLIMITED,
        blocks_per_unit=_UNLIMITED,
        registers_per_unit=_UNLIMITED,
    )
    return replace(spec, memory_layers=layers, limits=limits)


def _register_bounds(space: _Space, registers: Ints) -> Floats:
    """Return a time no program of a register tile can beat: its work as one block, shared evenly by all units."""
    whole = -(-space.geometry.extents // registers) * registers
    alone = replace(_without_limits(space.spec, banks=1 << 40), units=1)  # any TEU's shape reads without conflict
    return _bound_over_steps(space, registers, whole, alone) / space.spec.units


def _thread_counts(space: _Space, register: Ints) -> list[Ints]:
    """Return the threads a block may have along every axis that threads are spread over."""
    useful = -(-space.geometry.extents[space.axes] // register[space.axes])
    few = int(np.prod([1 << int(n - 1).bit_length() for n in useful])) < space.spec.teu.lanes
    counts = []
    for a in space.axes:
        # Where the problem does not fill a TEU the last axis is padded; blocks of other structures may be idle too.
        room = space.spec.teu.lanes if few and a == space.axes[-1] else 1
        room = room if space.structure.reuses else space.threads
        extent, sizes = int(space.geometry.extents[a]), space.sizes(int(a))
        counts.append(tile_counts(extent, int(register[a]), sizes, space.threads, room, space.spec.teu.lanes))
    return counts


def _blocks(space: _Space, register: Ints, bound_s: float, limit_s: float, tally: Tally) -> Ints:
    """Return the blocks of one register tile, reduction steps not chosen yet, that may be among the best."""
    g, lanes = space.geometry, space.spec.teu.lanes
    useful = -(-g.extents // register)
    threads = bounded_products(_thread_counts(space, register), space.threads)
    tally.tilings += len(threads) * int(np.prod([len(s) for s in _step_choices(space, register)], dtype=np.int64))
    if bound_s > limit_s:
        return threads[:0]
    block = np.ones((len(threads), len(g.names)), np.int64)
    block[:, space.axes] = threads * register[space.axes]
    # Padding and idle lanes are work like any other: the bound of the register tile grows with them.
    tiles = (g.counts(block)[:, space.axes].astype(np.float64) * threads).prod(axis=1)
    used = threads.prod(axis=1)
    padded = tiles / useful[space.axes].astype(np.float64).prod() * (-(-used // lanes) * lanes / used)
    block = np.asarray(block[bound_s * padded <= limit_s])
    return np.asarray(block[allowed_padding_mask(g, block, space.options)])


def _step_choices(space: _Space, register: Ints) -> list[Ints]:
    """Return the sizes of a step along every axis that is walked in steps."""
    return [np.array([s for s in space.sizes(int(a)) if s % int(register[a]) == 0]) for a in space.steps]


def _programs(space: _Space, blocks: list[tuple[Ints, Ints]], limit_s: Limit, tally: Tally) -> Iterator[TileBatch]:
    """Yield the programs of the blocks with every reduction step that fits and may be among the best."""
    register, block = (np.concatenate(x) for x in zip(*blocks, strict=True))
    if not len(space.steps):
        yield from _promising(space, [space.batch(register, block)], limit_s, tally)
        return
    bound = _bound_over_steps(space, register, block, _without_limits(space.spec))
    if space.options.split_k:  # a split program is at most as many times faster as it has parts
        few = space.geometry.blocks(block) < space.spec.units
        bound = np.where(few, bound / max(split_part_counts(space.spec)), bound)
    tally.bounded += len(block)
    keep = bound <= limit_s()
    register, block = register[keep], block[keep]
    bases = register[:, space.steps]
    for base in np.unique(bases, axis=0):
        mine = np.flatnonzero((bases == base).all(axis=1))
        steps = all_products(_step_choices(space, register[mine[0]]))
        some = max(1, _ROWS // len(steps))
        for start in range(0, len(mine), some):
            rows = mine[start : start + some]
            wide = np.repeat(block[rows], len(steps), axis=0)
            wide[:, space.steps] = np.tile(steps, (len(rows), 1))
            batch = space.batch(np.repeat(register[rows], len(steps), axis=0), wide)
            keep = scratchpad_bytes(batch) <= space.spec.layer("shared").budget_bytes
            keep &= allowed_padding_mask(space.geometry, wide, space.options)
            batch = batch.take(np.flatnonzero(keep))
            variants = with_split_reductions(batch, space.spec) if space.options.split_k else []
            yield from _promising(space, [batch, *variants], limit_s, tally)


def _promising(space: _Space, batches: list[TileBatch], limit_s: Limit, tally: Tally) -> Iterator[TileBatch]:
    """Yield of each batch the programs whose own lower bound is within the limit."""
    for batch in batches:
        tally.bounded += len(batch)
        yield batch.take(np.flatnonzero(lower_bound_s(batch, space.spec) <= limit_s()))


def _constructed(space: _Space) -> list[TileBatch]:
    """Return construction's programs without reuse: tiles of a whole row, and reductions split over blocks."""
    return [] if space.structure.reuses else programs_of_form(space.geometry, space.spec, space.options)


def gpu_contains(program: RProgram, spec: DeviceSpec, options: ConstructOptions) -> bool:
    """Whether the tiles of a program are among those enumerated for its form."""
    geometry = Geometry.of(program.expr)
    space = _Space(geometry, structure_of(geometry), spec, options)
    register, block = (np.array(program.tiles[n][1], np.int64) for n in (0, -1))
    pools = [*winograd_candidates(geometry, spec, options), *_constructed(space)]
    for b in pools:
        same = ((b.register == register) & (b.block == block)).all(axis=1) & (b.split_k == program.split_k)
        if b.traits == program.traits and same.any():
            return True
    if program.traits.output_side:
        return False
    threads = block[space.axes] // register[space.axes]
    return (
        program.traits == space.structure
        and program.split_k in (1, *split_part_counts(spec))
        and bool((register_tiles(space) == register).all(axis=1).any())
        and int(threads.prod()) <= space.threads
        and all(n in c for n, c in zip(threads, _thread_counts(space, register), strict=True))
        and all(n in c for n, c in zip(block[space.steps], _step_choices(space, register), strict=True))
    )
