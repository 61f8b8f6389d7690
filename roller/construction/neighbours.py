"""Programs one step away from a program: a tile one aligned step up or down, other vectors, staging or splits.

Construction walks few roads from many starts; around one measured program it pays to look at every step. The steps
are those of the pools, so that every neighbour is a program they could have made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from roller import perf
from roller.construction.constructor import Candidate, candidates_of, program_of, target_units
from roller.construction.cpu_pool import staged_choices, store_choices, vector_axes
from roller.construction.cpu_split import split_batches
from roller.construction.gpu_pool import padding_allowed, register_limits
from roller.construction.gpu_variants import RASTERS, stage_choices
from roller.construction.matrix_pool import REGISTER_STAGES, STAGES
from roller.construction.options import ConstructOptions
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.cpu import lane_count
from roller.perf.gpu import are_async
from roller.perf.model import batch_of
from roller.tile.geometry import Geometry, Ints
from roller.tile.program import RProgram
from roller.tile.winograd import STRUCTURES as WINOGRAD
from roller.tile.winograd_products import ELEMENT, products

#: Parts a reduction is split into on a GPU.
_SPLITS = (1, 2, 4, 8, 16)


def neighbours(
    program: RProgram, expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions
) -> tuple[Candidate, ...]:
    """Return the programs one step from ``program`` that fit the device, best estimate first.

    Parameters
    ----------
    program
        Of ``expr``, on whichever canonical form.
    expr, spec, options
        As ``program`` was constructed for.

    Examples
    --------
    >>> import roller
    >>> expr, spec = roller.ops.matmul(256, 256, 256), roller.load_spec("cpu-avx512")
    >>> best = roller.construct(expr, spec, top_k=1)[0].program
    >>> found = neighbours(best, expr, spec, roller.ConstructOptions())
    >>> len(found) > 10, best in [c.program for c in found]
    (True, False)
    """
    target = target_units(spec, options)
    multiplies = program.kind == "gpu" and program.structure in WINOGRAD
    product = products(program.expr, program.structure) if multiplies else None
    place = _Place.of(program if product is None else product.inner(program), target, options)
    batches = [b for b in place.batches() if len(b)]
    rows = [program_of(b, int(n), target) for b in batches for n in np.flatnonzero(_allowed(b, target, options))]
    if product is not None:
        rows = [product.outer(p, program.expr, program.structure) for p in rows if p.block_tile[ELEMENT] == 1]
    found = {str(p): p for p in rows}
    found.pop(str(replace(program, relaxed=())), None)
    programs = list(found.values())
    priced = zip(programs, perf.estimate_programs(programs, target), strict=True)
    fitting = sorted((e.seconds, str(p), p, e) for p, e in priced if np.isfinite(e.seconds))
    return candidates_of([(p, e) for _, _, p, e in fitting], expr, spec, options)


def _allowed(batch: TileBatch, spec: DeviceSpec, options: ConstructOptions) -> np.ndarray:
    """Return which programs of a batch keep to the limits and the padding construction keeps to."""
    allowed = padding_allowed(batch.geometry, batch.block, options)
    return allowed & register_limits(batch, spec) if spec.kind == "gpu" else allowed


@dataclass(frozen=True)
class _Place:
    """A program as arrays, and what its steps depend on."""

    batch: TileBatch
    spec: DeviceSpec
    options: ConstructOptions

    @classmethod
    def of(cls, program: RProgram, spec: DeviceSpec, options: ConstructOptions) -> _Place:
        return cls(batch_of([program]), spec, options)

    @property
    def geometry(self) -> Geometry:
        return self.batch.geometry

    @property
    def register(self) -> Ints:
        return np.asarray(self.batch.register[0])

    @property
    def stages(self) -> int:
        return int(np.max(self.batch.stages))

    @property
    def raster(self) -> int:
        return int(np.max(self.batch.raster))

    @property
    def block(self) -> Ints:
        return np.asarray(self.batch.block[0])

    def batches(self) -> Iterator[TileBatch]:
        """Yield the neighbours, those that are priced together in one batch each."""
        tiles = [*self._block_steps(), *(() if self.batch.structure in WINOGRAD else self._register_steps())]
        if tiles:
            yield self._batch(tiles)
        if self.spec.kind == "gpu":
            yield from self._gpu_splits()
            yield from self._gpu_variants()
            yield from self._rings()
        elif self.batch.structure == "tiled":
            yield from self._stagings()
            yield from self._vectors()
            yield from self._cpu_splits()
        else:
            yield from store_choices(replace(self.batch, nontemporal=False), self.spec)

    def _batch(self, tiles: list[tuple[Ints, Ints]], **changes: object) -> TileBatch:
        register, block = (np.stack([t[n] for t in tiles]) for n in (0, 1))
        panel = None if self.batch.panel is None else np.where(self.geometry.spatial, register, block)
        split = np.full(len(tiles), self.batch.split_k[0])
        return replace(self.batch, register=register, block=block, panel=panel, split_k=split, **changes)  # type: ignore[arg-type]

    def _block_steps(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield the tiles with one axis of the block a step larger or smaller."""
        g, per = self.geometry, self.block // self.register
        for a in range(len(g.names)):
            most = -(-int(g.extents[a]) // int(self.register[a]))
            if not g.spatial[a] and not self._steps_reduction(a):
                continue
            if self._fragment_unit(a) == 0:
                continue
            for n in _steps(int(per[a]), 1, most) if g.spatial[a] else _halves(int(per[a]), most):
                block = self.block.copy()
                block[a] = n * self.register[a]
                yield self.register, block

    def _steps_reduction(self, a: int) -> bool:
        """Whether programs of this structure may take a reduction axis in steps of any size."""
        return self.batch.structure != "window" and (self.spec.kind == "gpu" or self.batch.structure == "tiled")

    def _register_steps(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield the tiles with one axis of the register tile a step larger or smaller.

        The block keeps its number of register tiles (a GPU's threads), or its extent, whichever it may.
        """
        g = self.geometry
        for a in range(len(g.names)):
            unit = lane_count(self.spec, 4) if a == self.batch.vector_axis else self._fragment_unit(a)
            if unit == 0 or (self.batch.fragment is not None and not g.spatial[a]):
                continue  # one fragment along k, one point along all other axes
            if self.spec.kind == "cpu" and not g.spatial[a] and a != self.batch.vector_axis:
                continue  # a micro-kernel takes one point of it at a time
            if self.batch.structure == "window" and not g.spatial[a]:
                continue  # a walk takes its windows whole
            whole = -(-int(g.extents[a]) // unit) * unit
            for n in _steps(int(self.register[a]), unit, whole):
                register = self.register.copy()
                register[a] = n
                yield from ((register, block) for block in self._blocks_for(register))

    def _fragment_unit(self, a: int) -> int:
        """Return what the register tile of an axis is a multiple of: the fragment's extent, 0 where it stays 1."""
        f = self.batch.fragment
        if f is None:
            return 1
        return dict(zip(self.batch.matrix_axes, (f.m, f.n, f.k), strict=True)).get(self.geometry.names[a], 0)

    def _rings(self) -> Iterator[TileBatch]:
        """Yield the program of a matrix unit with a stage more or less, and with blocks in another order."""
        if self.batch.fragment is None:
            return
        most = max(STAGES if are_async(self.batch, self.spec).all() else REGISTER_STAGES)
        for stages in {max(1, self.stages - 1), min(self.stages + 1, most)} - {self.stages}:
            yield replace(self.batch, stages=stages)
        for raster in {max(1, self.raster // 2), self.raster * 2} - {self.raster}:
            yield replace(self.batch, raster=raster)

    def _blocks_for(self, register: Ints) -> list[Ints]:
        g = self.geometry
        most = -(-g.extents // register)
        counts = np.minimum(self.block // self.register, most)
        extents = np.clip(np.rint(self.block / register).astype(np.int64), 1, most)
        if self.spec.kind == "cpu" and self.batch.structure != "tiled":  # a task takes reductions whole
            counts, extents = (np.where(g.spatial, n, most) for n in (counts, extents))
        return [register * n for n in np.unique(np.stack([counts, extents]), axis=0)]

    def _gpu_splits(self) -> Iterator[TileBatch]:
        if self.batch.structure not in ("tiled", "matrix") or not self.options.split_k:
            return
        now, steps = int(self.batch.split_k[0]), int(self.batch.steps[0] * self.batch.split_k[0])
        for parts in (now // 2, now * 2):
            if parts in _SPLITS and parts <= steps:
                yield replace(self.batch, split_k=np.array([parts], np.int64))

    def _gpu_variants(self) -> Iterator[TileBatch]:
        """Yield the program with a tile more or less in flight, and with other orders of blocks."""
        if self.batch.structure != "tiled" or not self.options.pipelining or ELEMENT in self.geometry.names:
            return
        for stages in _beside(self.stages, (1, *stage_choices(self.spec))):
            yield replace(self.batch, stages=stages)
        for raster in _beside(self.raster, (1, *RASTERS)):
            yield replace(self.batch, raster=raster)

    def _stagings(self) -> Iterator[TileBatch]:
        """Yield the program with other operands packed; what runs along a reduction packs none, a split one neither."""
        v = self.batch.vector_axis
        if v is None or not self.geometry.spatial[v] or self.batch.split_k[0] > 1:
            return
        for staged in staged_choices(self.geometry, v, self.batch.constants):
            yield replace(self.batch, staged=staged)

    def _vectors(self) -> Iterator[TileBatch]:
        """Yield the program with its vectors along another axis, whose rows then go along this one."""
        g, lanes, v = self.geometry, lane_count(self.spec, 4), self.batch.vector_axis
        if v is None or not g.spatial[v]:
            return
        for other in vector_axes(g, "tiled"):
            register = self.register.copy()
            register[v], register[other] = self.register[other], -(-int(self.register[v]) // lanes) * lanes
            if other != v:
                for staged in staged_choices(g, other, self.batch.constants):
                    yield replace(
                        self._batch([(register, b) for b in self._blocks_for(register)], vector_axis=other),
                        staged=staged,
                        split_k=np.ones(len(self._blocks_for(register)), np.int64),
                    )

    def _cpu_splits(self) -> Iterator[TileBatch]:
        if not self.options.split_k:
            return
        whole = replace(self.batch, split_k=np.ones(1, np.int64))
        yield whole
        yield from split_batches(whole, self.spec)


def _beside(now: int, values: tuple[int, ...]) -> list[int]:
    """Return the values next to ``now`` among those it may have."""
    at = values.index(now) if now in values else 0
    return [v for v in values[max(0, at - 1) : at + 2] if v != now]


def _halves(now: int, most: int) -> list[int]:
    """Return half, double and all: steps of a reduction stay multiples of what is aligned."""
    return sorted({n for n in (now // 2 if now % 2 == 0 else now, min(2 * now, most), most) if n != now})


def _steps(now: int, unit: int, most: int) -> list[int]:
    """Return the values a step from ``now``: one unit, half and double; multiples of ``unit`` up to ``most``.

    Examples
    --------
    >>> _steps(6, 1, 100), _steps(16, 16, 64), _steps(4, 1, 4)
    ([3, 5, 7, 12], [32], [2, 3])
    """
    near = {now - unit, now + unit, 2 * now, now // 2 if now % (2 * unit) == 0 else now, min(most, 2 * now)}
    return sorted(n for n in near if unit <= n <= most and n != now)
