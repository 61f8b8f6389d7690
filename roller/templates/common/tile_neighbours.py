"""Neighbours of a program of any template: programs with tiles that are one aligned step larger or smaller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.options import ConstructOptions
from roller.tile.geometry import Geometry, Ints


@dataclass(frozen=True)
class NeighbourContext:
    """One program as a batch, with the device and options on which its neighbours depend."""

    batch: TileBatch
    spec: DeviceSpec
    options: ConstructOptions

    @classmethod
    def of(cls, batch: TileBatch, spec: DeviceSpec, options: ConstructOptions) -> NeighbourContext:
        """Return the context of the single program in a batch."""
        return cls(batch, spec, options)

    @property
    def geometry(self) -> Geometry:
        """Axes, extents and accesses of the expression."""
        return self.batch.geometry

    @property
    def register(self) -> Ints:
        """Register tile of the program."""
        return np.asarray(self.batch.register[0])

    @property
    def stages(self) -> int:
        """Number of copies of a staged tile in flight."""
        return int(np.max(self.batch.stages))

    @property
    def raster(self) -> int:
        """Number of tiles along the slower axis that blocks cover before they advance along the faster axis."""
        return int(np.max(self.batch.raster))

    @property
    def block(self) -> Ints:
        """Block tile, or task, of the program."""
        return np.asarray(self.batch.block[0])

    def tiles(self) -> Iterator[TileBatch]:
        """Yield the programs with a larger or smaller tile as one batch, so that they are priced together."""
        found = [*self._block_neighbours(), *(() if self.batch.traits.output_side else self._register_neighbours())]
        if found:
            yield self.program_with_tiles(found)

    def program_with_tiles(self, tiles: list[tuple[Ints, Ints]], **changes: object) -> TileBatch:
        """Return the program with each of the given pairs of register and block tiles, as one batch."""
        register, block = (np.stack([t[n] for t in tiles]) for n in (0, 1))
        panel = None if self.batch.panel is None else np.where(self.geometry.spatial, register, block)
        split = np.full(len(tiles), self.batch.split_k[0])
        return replace(self.batch, register=register, block=block, panel=panel, split_k=split, **changes)  # type: ignore[arg-type]

    def _block_neighbours(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield pairs of register and block tiles with one axis of the block tile one step larger or smaller."""
        g, per = self.geometry, self.block // self.register
        for a in range(len(g.names)):
            most = -(-int(g.extents[a]) // int(self.register[a]))
            if not g.spatial[a] and not self._may_step_reduction(a):
                continue
            if self._register_tile_multiple(a) == 0:
                continue
            for n in (
                _neighbouring_extents(int(per[a]), 1, most)
                if g.spatial[a]
                else _neighbouring_reduction_steps(int(per[a]), most)
            ):
                block = self.block.copy()
                block[a] = n * self.register[a]
                yield self.register, block

    def _may_step_reduction(self, a: int) -> bool:
        """Return whether programs of this structure may take a reduction axis in steps of any size."""
        return not self.batch.traits.slides_windows and (self.spec.traits.blocks or self.batch.traits.reuses)

    def _register_neighbours(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield pairs of register and block tiles with one axis of the register tile one step larger or smaller."""
        g = self.geometry
        for a in range(len(g.names)):
            unit = self.spec.teu.lanes if a == self.batch.vector_axis else self._register_tile_multiple(a)
            if unit == 0 or (self.batch.fragment is not None and not g.spatial[a]):
                continue  # one fragment along k, one point along all other reduction axes
            if self.spec.traits.simd and not g.spatial[a] and a != self.batch.vector_axis:
                continue  # a micro-kernel takes one point at a time
            if self.batch.traits.slides_windows and not g.spatial[a]:
                continue  # a thread that moves along windows takes them whole
            whole = -(-int(g.extents[a]) // unit) * unit
            for n in _neighbouring_extents(int(self.register[a]), unit, whole):
                register = self.register.copy()
                register[a] = n
                yield from ((register, block) for block in self.blocks_for_register_tile(register))

    def _register_tile_multiple(self, a: int) -> int:
        """Return the number that must divide the register tile's extent along an axis; 0 if the extent must stay 1."""
        f = self.batch.fragment
        if f is None:
            return 1
        return dict(zip(self.batch.matrix_axes, (f.m, f.n, f.k), strict=True)).get(self.geometry.names[a], 0)

    def blocks_for_register_tile(self, register: Ints) -> list[Ints]:
        """Return block tiles for a new register tile: with as many register tiles as before, or of a similar extent."""
        g = self.geometry
        most = -(-g.extents // register)
        counts = np.minimum(self.block // self.register, most)
        extents = np.clip(np.rint(self.block / register).astype(np.int64), 1, most)
        if self.spec.traits.simd and not self.batch.traits.reuses:  # a task takes reductions whole
            counts, extents = (np.where(g.spatial, n, most) for n in (counts, extents))
        return [register * n for n in np.unique(np.stack([counts, extents]), axis=0)]


def adjacent_values(now: int, values: tuple[int, ...]) -> list[int]:
    """Return the values adjacent to ``now`` in ``values``; if ``now`` is not among them, the first two."""
    at = values.index(now) if now in values else 0
    return [v for v in values[max(0, at - 1) : at + 2] if v != now]


def _neighbouring_reduction_steps(now: int, most: int) -> list[int]:
    """Return half and twice a reduction step, and the whole axis, if they are aligned and differ from ``now``."""
    return sorted({n for n in (now // 2 if now % 2 == 0 else now, min(2 * now, most), most) if n != now})


def _neighbouring_extents(now: int, unit: int, most: int) -> list[int]:
    """Return the extents one step from ``now``, at most ``most``: one unit less or more, half, and double.

    Examples
    --------
    >>> _neighbouring_extents(6, 1, 100), _neighbouring_extents(16, 16, 64), _neighbouring_extents(4, 1, 4)
    ([3, 5, 7, 12], [32], [2, 3])
    """
    near = {now - unit, now + unit, 2 * now, now // 2 if now % (2 * unit) == 0 else now, min(most, 2 * now)}
    return sorted(n for n in near if unit <= n <= most and n != now)
