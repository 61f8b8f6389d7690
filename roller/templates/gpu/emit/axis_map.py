"""Mapping of an axis's elements to blocks, threads and registers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roller.expr import Axis
from roller.te.compat import tirx
from roller.templates.gpu.emit.tir_statements import (
    Expr,
    Stmt,
    VaryingCount,
    int32_literal,
    is_always_one,
    loop,
    nested_loops,
    unravel_index,
)
from roller.tile import RProgram


@dataclass(frozen=True)
class AxisMap:
    """Layout of one axis over blocks, threads and registers, in elements.

    Parameters
    ----------
    vector
        Number of contiguous elements in a chunk of a thread's registers. Chunks are ``vector`` apart, or ``threads *
        vector`` apart if ``interleaved``.
    slack
        Maximum number of positions that are not elements (:mod:`roller.templates.gpu.rows.emit_shifted_columns`).
    differs
        Whether the extent differs from call to call, while the code is the same for all calls.
    """

    name: str
    extent: int
    threads: int
    registers: int
    vector: int = 1
    interleaved: bool = False
    slack: int = 0
    differs: bool = False

    @property
    def certain_positions(self) -> int:
        """Number of positions that are certainly elements, apart from those that the first chunk may lack."""
        return self.extent - self.slack

    @property
    def tile(self) -> int:
        """Number of elements per block tile."""
        return self.threads * self.registers

    @property
    def steps(self) -> int:
        """Number of block tiles along the axis."""
        return VaryingCount.of(-(-self.extent // self.tile), self.differs)

    @property
    def padded(self) -> bool:
        """Whether the last tile reaches beyond the axis."""
        return self.differs or self.certain_positions % self.tile != 0

    @property
    def chunks(self) -> int:
        """Number of vector chunks per thread."""
        return self.registers // self.vector

    def local(self, thread: Expr, chunk: Expr) -> Expr:
        """Return the position within the tile where a thread's chunk starts."""
        if self.interleaved:
            return (chunk * self.threads + thread) * self.vector
        return thread * self.registers + chunk * self.vector


def axis_map(program: RProgram, axis: Axis, *, interleaved: bool | None = None) -> AxisMap:
    """Return the map that a program gives an axis of its anchor; ``interleaved`` overrides the program's choice."""
    register, block = program.tile("register")[axis.name], program.block_tile[axis.name]
    wanted = program.vector_elements if axis.name == program.vector_axis else 1
    vector = wanted if register % wanted == 0 else 1
    order = program.interleaved if interleaved is None else interleaved
    differs = axis.name in program.open_axes
    return AxisMap(axis.name, axis.extent, block // register, register, vector, order, differs=differs)


def block_coordinates(flat: Expr, steps: Sequence[int], raster: int) -> list[Expr]:
    """Return a block's position among the block tiles along each axis, from the block's flat index in the launch."""
    wide = [n for n, e in enumerate(steps) if not is_always_one(e)][-2:]
    if raster == 1 or len(wide) < 2:
        return unravel_index(flat, steps)
    # Blocks cover ``raster`` tiles of the slower axis before they advance along the faster one, so that blocks that run
    # together share more loads.
    slow, fast = wide
    differs = isinstance(steps[slow], VaryingCount)
    depth = raster if differs else min(raster, steps[slow])
    groups = VaryingCount.of(-(-steps[slow] // depth), differs)
    rest = list(steps)
    rest[slow] = rest[fast] = 1
    both = steps[slow] * steps[fast]
    out = unravel_index(tirx.floordiv(flat, both), rest)
    within = flat if all(map(is_always_one, rest)) else tirx.floormod(flat, both)
    group = int32_literal(0) if is_always_one(groups) else tirx.floordiv(within, depth * steps[fast])
    tile = within if is_always_one(groups) else tirx.floormod(within, depth * steps[fast])
    # If the depth does not divide the steps, the last group is shorter.
    here = (
        tirx.min(int32_literal(depth), int32_literal(steps[slow]) - group * depth)
        if differs or steps[slow] % depth
        else int32_literal(depth)
    )
    out[slow] = group * depth + tirx.floormod(tile, here)
    out[fast] = tirx.floordiv(tile, here)
    return out


def with_whole_vectors(m: AxisMap) -> AxisMap:
    """Return the map with vectors that divide its axis, so that no chunk straddles the axis's end."""
    return replace(m, vector=math.gcd(m.vector, m.extent))


@dataclass(frozen=True)
class RegisterPoint:
    """A point of the register tile: a chunk and an offset in it per axis; ``edges`` are axes with partial chunks."""

    chunk: dict[str, Expr]
    offset: dict[str, Expr]
    edges: frozenset[str] = frozenset()


def register_tile_loops(
    maps: Sequence[AxisMap], body: Callable[[RegisterPoint], Stmt], *, vector: str | None = None
) -> Stmt:
    """Return unrolled loops over the register tile, but not into chunks of axis ``vector`` (``"*"``: any axis)."""

    def chunk(env: dict[str, Expr]) -> Stmt:
        inner = [(m.name, m.vector) for m in maps if m.vector > 1 and vector not in (m.name, "*")]
        fixed = {m.name: int32_literal(0) for m in maps}
        names = [(f"v_{n}", e) for n, e in inner]
        chunks = {m.name: env[f"r_{m.name}"] for m in maps}

        def point(at: dict[str, Expr]) -> Stmt:
            offsets = {n: at[f"v_{n}"] for n, _ in inner}
            return body(RegisterPoint(chunks, {**fixed, **offsets}))

        return nested_loops(names, point, unroll=True)

    return nested_loops([(f"r_{m.name}", m.chunks) for m in maps], chunk, unroll=True)


def register_index_of_point(maps: Sequence[AxisMap], at: RegisterPoint) -> Expr:
    """Return the flat position of a register point among ``maps`` (last axis fastest)."""
    total: Any = int32_literal(0)
    for m in maps:
        total = total * m.registers + at.chunk[m.name] * m.vector + at.offset[m.name]
    return total


def count_register_elements(maps: Sequence[AxisMap]) -> int:
    """Return the number of elements in the register tile over ``maps``."""
    n = 1
    for m in maps:
        n *= m.registers
    return n


def vector_loop(width: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """Return a vectorized loop over one chunk."""
    return loop("v", width, body, vector=True)
