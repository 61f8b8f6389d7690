"""Copies of input tiles in the scratchpad: their shape, how threads fill them, and where elements lie.

A tile is a *box* of the tensor or (implicit GEMM, strided loads without windows) indexed by *axes*: the im2col tile,
gathered on the fly (:mod:`roller.tile.staged_tile_layout`). Elements outside the tensor or beyond a padded axis hold a
fixed value, so that the compute loop needs no predicate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roller.expr import COMBINERS, Axis, Cast, Index, Load, Stage, Tensor
from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import constant, emit_bounds, emit_index
from roller.templates.gpu.emit.kernel_tensor_context import KernelContext, bounds_to_check, compute_dtype
from roller.templates.gpu.emit.tir_statements import (
    Buffer,
    Expr,
    Stmt,
    VaryingCount,
    declare_buffer,
    dtype_name,
    guarded_value,
    if_all,
    int32_literal,
    load,
    loop,
    store,
    unravel_index,
)
from roller.tile import RProgram
from roller.tile.scratchpad_bytes import STATIC_SHARED_BYTES, round_up_to_vectors
from roller.tile.staged_tile_layout import TileLayout, copy_rounds, tile_layout
from roller.tile.vector_access_widths import elements_per_tile_copy
from roller_runtime.core.dtypes import DTYPE_BYTES

#: Maximum number of a thread's elements in flight to the scratchpad: an unrolled copy holds them and their addresses in
#: registers in addition to the accumulators.
_IN_FLIGHT = 16


@dataclass(frozen=True)
class TileDomain:
    """Extents of a stage's axes, in elements: real, and per tile; the extents of ``open_axes`` differ between calls."""

    real: Mapping[str, int]
    tile: Mapping[str, int]
    open_axes: Collection[str] = ()

    @classmethod
    def of(cls, stage: Stage, program: RProgram) -> TileDomain:
        """Return the domain of the stage for which a program is made."""
        return cls(stage.extents, program.block_tile, program.open_axes)

    @property
    def padded(self) -> dict[str, int]:
        """Extents rounded up to whole tiles, plus one tile for axes whose extents differ between calls."""
        return {a: (-(-n // self.tile[a]) + (a in self.open_axes)) * self.tile[a] for a, n in self.real.items()}

    def steps(self, axis: str) -> int:
        """Return the number of tiles along an axis."""
        return VaryingCount.of(-(-self.real[axis] // self.tile[axis]), axis in self.open_axes)

    def count_tiles_along_axes(self, axes: Sequence[Axis]) -> int:
        """Return the number of tiles along several axes together."""
        return VaryingCount.of(math.prod(self.steps(a.name) for a in axes), any(a.name in self.open_axes for a in axes))

    def overhangs(self, axis: str) -> bool:
        """Return whether tiles reach past the end of an axis."""
        return axis in self.open_axes or self.real[axis] % self.tile[axis] != 0


@dataclass(frozen=True)
class StagedTile:
    """One load's tile in the scratchpad.

    Parameters
    ----------
    padding
        Elements appended to each row of ``layout``.
    fill
        Value outside the tensor.
    target
        Buffer of one or more copies of the tile (*slots*), each of ``slot_elements``, starting at element ``first``.
    """

    load: Load
    tensor: Tensor
    layout: TileLayout
    padding: int
    fill: float
    target: Buffer
    slot_elements: int
    first: int = 0

    @property
    def is_indexed_by_axes(self) -> bool:
        """Whether the tile is indexed by axes instead of tensor dimensions."""
        return bool(self.layout.axes)

    @property
    def pitch(self) -> tuple[int, ...]:
        """Elements between neighbours along each tile dimension, including storage padding."""
        return self.layout.pitches(self.padding)

    def offset(self, local: Mapping[str, Expr]) -> Expr:
        """Return the flat position of a point given by its axis coordinates within the tile."""
        total: Any = int32_literal(0)
        for i, p in zip(self.layout.dims, self.pitch, strict=True):
            total = total + emit_index(i, local) * p
        return total

    def slot_start(self, number: Expr) -> Expr:
        """Return the start of a slot in ``target``."""
        return number * self.slot_elements + self.first

    @property
    def constant(self) -> int:
        """Flat position of the point whose axis coordinates are all zero."""
        return sum(i.const * p for i, p in zip(self.layout.dims, self.pitch, strict=True))

    def masked(self, axis: str, domain: TileDomain) -> bool:
        """Return whether every element beyond the end of ``axis`` holds ``fill``."""
        if self.is_indexed_by_axes:
            return axis in self.layout.axes
        for d, i in enumerate(self.load.index):
            if len(i.terms) == 1 and i.axes == (axis,) and i.terms[0].coef > 0:
                high = min([self.tensor.shape[d], *(b.high for b in self.load.guard if b.index == i)])
                return bool(i({axis: domain.real[axis]}) >= high)
        return False


def value_outside_tensor(ld: Load, stage: Stage) -> float:
    """Return the value outside the tensor: the guard's own value, else the neutral value for the stage's body."""
    if ld.guard:
        return ld.outside
    body = stage.body
    while isinstance(body, Cast):
        body = body.arg
    return COMBINERS[stage.combiner].neutral if body == ld and stage.combiner is not None else 0.0


def lay_out_staged_tile(
    ctx: KernelContext, stage: Stage, ld: Load, domain: TileDomain, padding: int, name: str, slots: int = 1
) -> StagedTile:
    """Lay out ``slots`` copies of the tile of one load; ``padding`` elements are appended to each row."""
    tensor = ctx.expr.tensors[ld.tensor]
    layout = tile_layout(stage, ld, tensor, domain.tile)
    elements = math.prod(layout.extents[:-1]) * (layout.extents[-1] + padding)
    dtype = tensor.dtype if ctx.is_in_global_memory(ld.tensor) else compute_dtype(tensor.dtype)
    if slots > 1:  # every slot starts where vectors may start
        elements = round_up_to_vectors(elements, DTYPE_BYTES[dtype])
    target = declare_buffer(name, (slots * elements,), dtype, "shared")
    return StagedTile(ld, tensor, layout, padding, value_outside_tensor(ld, stage), target, elements)


def place_in_scratchpad(tiles: Mapping[Load, StagedTile]) -> dict[Load, StagedTile]:
    """Return the tiles in static scratchpad, or all in dynamic scratchpad if they do not fit there."""
    if sum(int(t.target.shape[0]) * DTYPE_BYTES[dtype_name(t.target)] for t in tiles.values()) <= STATIC_SHARED_BYTES:
        return dict(tiles)
    # Tiles of one dtype share a buffer: TVM gives separate buffers the same memory if it does not see accesses to both,
    # and named addresses hide accesses.
    kinds = {dtype_name(t.target) for t in tiles.values()}
    if len(kinds) > 1:
        return {
            ld: replace(t, target=declare_buffer(t.target.name, t.target.shape, dtype_name(t.target), "shared.dyn"))
            for ld, t in tiles.items()
        }
    (kind,) = kinds
    sizes = [round_up_to_vectors(int(t.target.shape[0]), DTYPE_BYTES[kind]) for t in tiles.values()]
    pool = declare_buffer("tiles", (sum(sizes),), kind, "shared.dyn")
    return {ld: replace(t, target=pool, first=sum(sizes[:n])) for n, (ld, t) in enumerate(tiles.items())}


@dataclass(frozen=True)
class CopyChunk:
    """Copy of ``width`` elements by one thread in round ``number``: tensor ``index`` to slot ``offset``."""

    number: Expr
    conditions: list[Expr]
    index: list[Expr]
    offset: Expr
    width: int


@dataclass(frozen=True)
class CopyRounds:
    """How the threads of a block share a staged tile: vectors of ``width`` elements, in rounds.

    Parameters
    ----------
    counts, lead
        Number of vectors per dimension of the tile, and of leading dimensions that the rounds step over.
    count
        Number of rounds; values that depend only on the thread are equal in all rounds.
    """

    tile: StagedTile
    width: int
    counts: tuple[int, ...]
    lead: int
    threads: int
    count: int

    @classmethod
    def of(cls, ctx: KernelContext, t: StagedTile, domain: TileDomain, threads: int) -> CopyRounds:
        """Return the rounds in which ``threads`` copy a tile."""
        width = _elements_per_copy(ctx, t, domain)
        counts = (*t.layout.extents[:-1], t.layout.extents[-1] // width)
        lead, count = copy_rounds(np.array([counts]), np.array([threads]))
        return cls(t, width, counts, int(lead[0]), threads, int(count[0]))

    @property
    def rows(self) -> int:
        """Number of rows, each of which neighbouring threads copy."""
        return math.prod(self.counts[: self.lead])

    @property
    def columns(self) -> int:
        """Number of vectors per row."""
        return math.prod(self.counts[self.lead :])

    @property
    def rows_per_round(self) -> int:
        """Number of rows copied in one round."""
        return self.threads // self.columns

    def statement(
        self,
        domain: TileDomain,
        base: Mapping[str, Expr],
        thread: Expr,
        each: Callable[[CopyChunk], Stmt],
        *,
        whole: bool,
    ) -> Stmt:
        """Return ``each`` of a thread's chunks, unrolled all at once (``whole``) or in groups that fit in registers."""
        groups = 1 if whole else -(-self.count // max(1, _IN_FLIGHT // self.width))
        unrolled = -(-self.count // groups)
        used = self.rows_per_round * self.columns
        idle = [thread < used] if used < self.threads else []
        column = tirx.floormod(thread, self.columns) if self.rows > 1 or idle else thread
        inner = unravel_index(column, self.counts[self.lead :])

        def one(r: Expr) -> Stmt:
            row = r * self.rows_per_round + tirx.floordiv(thread, self.columns)
            coords = [*unravel_index(row, self.counts[: self.lead]), *inner]
            coords[-1] = coords[-1] * self.width
            offset: Any = int32_literal(0)
            for c, p in zip(coords, self.tile.pitch, strict=True):
                offset = offset + c * p
            conditions, index = _source_conditions_and_index(self.tile, domain, base, coords)
            body = each(CopyChunk(r, conditions, index, offset, self.width))
            return if_all(
                [*idle, *([row < self.rows] if groups * unrolled * self.rows_per_round > self.rows else [])], body
            )

        return loop("copy", groups, lambda g: loop("c", unrolled, lambda c: one(g * unrolled + c), unroll=True))


def emit_tile_copy(
    ctx: KernelContext, t: StagedTile, domain: TileDomain, base: Mapping[str, Expr], thread: Expr, threads: int
) -> Stmt:
    """Return the cooperative copy of one tile by all threads; ``base`` maps axes to the start of the tile."""
    rounds = CopyRounds.of(ctx, t, domain, threads)
    return rounds.statement(
        domain, base, thread, lambda c: emit_chunk_copy(ctx, t, c, int32_literal(t.first)), whole=False
    )


def _source_conditions_and_index(
    t: StagedTile, domain: TileDomain, base: Mapping[str, Expr], coords: Sequence[Expr]
) -> tuple[list[Expr], list[Expr]]:
    """Return the conditions under which a tile element exists in the tensor, and the element's index in the tensor."""
    conditions: list[Expr] = []
    if t.is_indexed_by_axes:
        env = {**base, **{a: base[a] + c for a, c in zip(t.layout.axes, coords, strict=True)}}
        conditions = [env[a] < domain.real[a] for a in t.layout.axes if domain.overhangs(a)]
        conditions += emit_bounds(t.load.guard, env)
        return conditions, [emit_index(i, env) for i in t.load.index]
    index = []
    for d, (i, local, c) in enumerate(zip(t.load.index, t.layout.dims, coords, strict=True)):
        value = emit_index(Index(i.terms, i.const - local.const), base) + c
        guards = [b for b in t.load.guard if b.index == i]
        low, high = max([0, *(b.low for b in guards)]), min([t.tensor.shape[d], *(b.high for b in guards)])
        # Rows may start before and end after the needed elements, at vector boundaries.
        first, last = local.range(domain.tile)
        conditions += bounds_to_check(i, value, domain.padded, low, high, (first, t.layout.extents[d] - 1 - last))
        index.append(value)
    return conditions, index


def chunk_element(ctx: KernelContext, t: StagedTile, chunk: CopyChunk) -> Expr:
    """Return the element of a chunk of width 1, or the fill value."""
    dtype = dtype_name(t.target)
    if ctx.is_in_global_memory(t.load.tensor):
        value = load(ctx.buffers[t.load.tensor], *chunk.index)
    else:
        value = ctx.readers()[t.load.tensor](*chunk.index).astype(dtype)
    return guarded_value(chunk.conditions, value, constant(t.fill, dtype))


def emit_chunk_copy(
    ctx: KernelContext,
    t: StagedTile,
    chunk: CopyChunk,
    slot: Expr,
    target: Buffer | None = None,
    at: Expr | None = None,
) -> Stmt:
    """Copy one chunk, or the fill value, to the slot at element ``slot``, or to ``target`` at ``at``."""
    to, offset = (t.target, slot + chunk.offset) if target is None else (target, at)
    if chunk.width == 1:
        return store(to, chunk_element(ctx, t, chunk), offset)
    source, index = ctx.buffers[t.load.tensor], chunk.index
    # However the tile is indexed, the last dimension moves with the vector, so a chunk is one run.
    copy = _vector_loop(chunk, lambda v: store(to, load(source, *index[:-1], index[-1] + v), offset + v))
    if not chunk.conditions:
        return copy
    return if_all(chunk.conditions, copy, emit_chunk_fill(t, chunk, to, offset))


def emit_chunk_fill(t: StagedTile, chunk: CopyChunk, target: Buffer, offset: Expr) -> Stmt:
    """Write the fill value to all elements of a chunk."""
    return _vector_loop(chunk, lambda v: store(target, constant(t.fill, dtype_name(t.target)), offset + v))


def _vector_loop(chunk: CopyChunk, body: Callable[[Expr], Stmt]) -> Stmt:
    return loop("v", chunk.width, body, vector=True)


def _elements_per_copy(ctx: KernelContext, t: StagedTile, domain: TileDomain) -> int:
    """Return the number of elements of a tile that are copied at once."""
    if not ctx.is_in_global_memory(t.load.tensor) or ctx.is_scalar(t.load):
        return 1
    last = t.layout.dims[-1]
    row = (
        (t.layout.axes[-1], t.layout.extents[-1], 0) if t.is_indexed_by_axes else ("", t.layout.extents[-1], last.const)
    )
    return int(elements_per_tile_copy(t.load, t.tensor, domain.real, domain.tile, row, t.padding))
