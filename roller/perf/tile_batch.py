"""TileBatch: many programs of one expression as arrays, priced together; one program is a batch of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roller.core.matrix_instruction_fragment import Fragment
from roller.hardware import DeviceSpec
from roller.targets import KINDS
from roller.tile.geometry import Access, Floats, Geometry, Ints, product_of_columns
from roller.tile.program import RProgram
from roller.tile.staged_tile_layout import is_read_from_scratchpad
from roller.tile.structures import Structure, structure_named


@dataclass(frozen=True)
class TileBatch:
    """Programs of one expression as arrays, with the fields of RProgram; a field that is no array applies to all.

    Parameters
    ----------
    register, block
        Tiles, shape ``(N, axes)``; ``block`` is the tile of the slowest tiled layer: a thread block (GPU) or a task
        (CPU).
    split_k, stages, raster
        Values of shape ``(N,)``; ``stages`` and ``raster`` may be one value for all programs.
    panel
        The L1 tile of a CPU, shape ``(N, axes)``; ``None`` on a GPU.
    warm
        Inputs that the previous kernel left in the shared cache.
    moments_together
        Whether the kernels (of other compilers) compute two dependent sums over one row in one pass.
    vectors
        Number of elements per access of a GPU thread along every axis, shape ``(N, axes)``; if ``None``, the template
        chooses.
    """

    geometry: Geometry
    structure: str
    register: Ints
    block: Ints
    split_k: Ints
    staged: tuple[str, ...]
    panel: Ints | None = None
    vector_axis: int | None = None
    constants: tuple[str, ...] = ()
    nontemporal: bool = False
    stages: int | Ints = 1
    raster: int | Ints = 1
    fragment: Fragment | None = None
    matrix_axes: tuple[str, ...] = ()
    warm: tuple[str, ...] = ()
    moments_together: bool = False
    vectors: Ints | None = None
    open_axes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return the number of programs."""
        return len(self.block)

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> TileBatch:
        """Return the selected programs, which share the results of :meth:`cached_arrays`."""
        stages = self.stages if isinstance(self.stages, int) else self.stages[index]
        return self.chosen(index, stages, self.raster if isinstance(self.raster, int) else self.raster[index])

    def without_vectors(self) -> TileBatch:
        """Return the programs without their vectors, as a basis for tiles of different sizes."""
        return replace(self, vectors=None)

    def with_stages_and_rasters(self, stages: int | Sequence[int], raster: int | Sequence[int] = 1) -> TileBatch:
        """Return all programs once per choice of stages and raster; a single value belongs to every choice."""
        times, n = max(np.size(stages), np.size(raster)), len(self)
        return self.chosen(np.tile(np.arange(n), times), _repeat_per_program(stages, n), _repeat_per_program(raster, n))

    def chosen(self, index: NDArray[np.intp] | NDArray[np.bool_], stages: int | Ints, raster: int | Ints) -> TileBatch:
        """Return the selected programs with the given stages and rasters: shape ``(N,)``, or one value for all."""
        found = replace(
            self,
            register=self.register[index],
            block=self.block[index],
            split_k=self.split_k[index],
            panel=None if self.panel is None else self.panel[index],
            vectors=None if self.vectors is None else self.vectors[index],
            stages=stages,
            raster=raster,
        )
        found._memo["source"] = self, index
        return found

    def cached_arrays(
        self, spec: DeviceSpec, key: Any, compute: Callable[[], tuple[NDArray[Any], ...]]
    ) -> tuple[NDArray[Any], ...]:
        """Return ``compute()``, run once per batch: arrays of shape ``(N,)`` from device, tiles and ``split_k``."""
        found = self._kept(spec, key)
        if found is None:
            found = compute()
            self._memo[key] = spec, found
        return found

    def _kept(self, spec: DeviceSpec, key: Any) -> tuple[NDArray[Any], ...] | None:
        """Return the arrays if known for these programs or for the batch they were taken from; otherwise ``None``."""
        own: tuple[DeviceSpec, tuple[NDArray[Any], ...]] | None = self._memo.get(key)
        if own is not None and own[0] is spec:
            return own[1]
        source: tuple[TileBatch, NDArray[Any]] | None = self._memo.get("source")
        known = source[0]._kept(spec, key) if source else None
        if source is None or known is None:
            return None
        found = tuple(x[source[1]] for x in known)
        self._memo[key] = spec, found
        return found

    def priced(self, spec: DeviceSpec, seconds: Floats) -> TileBatch:
        """Store the times predicted for a device in this batch (not in its copies) and return the batch."""
        self._memo["seconds"] = (spec, seconds)
        return self

    def stored_seconds(self, spec: DeviceSpec) -> Floats | None:
        """Return the times that :meth:`priced` stored for a device, shape ``(N,)``, or ``None`` if there are none."""
        known: tuple[DeviceSpec | None, Floats | None] = self._memo.get("seconds", (None, None))
        return known[1] if known[0] is spec else None

    @cached_property
    def traits(self) -> Structure:
        """Traits of the programs' structure."""
        return structure_named(self.structure)

    @cached_property
    def is_open(self) -> NDArray[np.bool_]:
        """Whether the extent of each axis may differ from call to call, shape ``(axes,)``."""
        return np.array([n in self.open_axes for n in self.geometry.names], bool)

    @cached_property
    def staged_loads(self) -> tuple[Access, ...]:
        """The anchor's loads that have a tile in the scratchpad."""
        return tuple(a for a in self.geometry.loads if is_read_from_scratchpad(a.tensor.name, a.index, self.staged))

    @property
    def sums_along_vectors(self) -> bool:
        """Whether the vectors run along a reduction axis."""
        return self.vector_axis is not None and not self.geometry.spatial[self.vector_axis]

    @cached_property
    def is_pipelined(self) -> bool:
        """Whether several copies of staged tiles are in flight, in all programs or in none."""
        return bool(np.max(self.stages, initial=1) > 1)

    @cached_property
    def _spatial_axes(self) -> tuple[int, ...]:
        return self.geometry.spatial_axes

    @cached_property
    def _reduced_axes(self) -> tuple[int, ...]:
        return self.geometry.reduced_axes

    @cached_property
    def thread_axis_mask(self) -> NDArray[np.bool_]:
        """Mask of the axes over which threads are spread: spatial axes, and reductions in ``rows``."""
        spatial = self.geometry.spatial
        return np.ones_like(spatial) if self.traits.spreads_reductions else spatial

    @cached_property
    def threads(self) -> Ints:
        """Number of GPU threads (``matrix``: groups of ``fragment.threads``) per axis, shape ``(N, axes)``."""
        threads = -(-self.block // self.register)
        return threads if self.traits.spreads_reductions else np.where(self.thread_axis_mask, threads, 1)

    @cached_property
    def threads_per_block(self) -> Ints:
        """Number of GPU threads per block, shape ``(N,)``."""
        together = self.fragment.threads if self.fragment else 1
        axes = range(self.block.shape[1]) if self.traits.spreads_reductions else self._spatial_axes
        return product_of_columns(self.threads, axes) * together

    @cached_property
    def running_steps(self) -> int | Ints:
        """Number of reduction steps whose products are still running when the next step starts."""
        f = self.fragment
        if f is None:
            return 0
        if isinstance(self.stages, int):
            return f.running_steps(self.stages)
        return np.array([f.running_steps(n) for n in self.stages.tolist()], np.int64)

    @property
    def copy_steps_in_flight(self) -> int | Ints:
        """Number of reduction steps whose tiles are being copied while one step is computed."""
        return self.stages - 1 - self.running_steps

    @cached_property
    def counts(self) -> Ints:
        """Number of block tiles per axis, shape ``(N, axes)``."""
        return self.geometry.counts(self.block)

    @cached_property
    def blocks(self) -> Ints:
        """Number of blocks in the launch, including split-K parts, shape ``(N,)``."""
        return product_of_columns(self.counts, self._spatial_axes) * self.split_k

    @cached_property
    def steps(self) -> Ints:
        """Number of reduction steps per block, shape ``(N,)``."""
        return -(-product_of_columns(self.counts, self._reduced_axes) // self.split_k)

    @cached_property
    def reduction_points_per_step(self) -> Ints:
        """Number of reduction points per step, shape ``(N,)``."""
        return product_of_columns(self.block, self._reduced_axes)

    @cached_property
    def accumulators_per_thread(self) -> Ints:
        """Number of accumulators per thread or micro-kernel, shape ``(N,)``."""
        return product_of_columns(self.register, self._spatial_axes)

    @cached_property
    def unrolled_reduction_points(self) -> Ints:
        """Number of reduction points unrolled in registers, shape ``(N,)``."""
        return product_of_columns(self.register, self._reduced_axes)

    @cached_property
    def _memo(self) -> dict[Any, Any]:
        return {}

    def elements_per_register_tile(self, access: Access) -> Ints:
        """Return the number of elements in the data tile of a register tile, shape ``(N,)``."""
        key = ("register", id(access))
        if key not in self._memo:
            self._memo[key] = access.elements(self.register)
        found: Ints = self._memo[key]
        return found

    def elements_per_block_tile(self, access: Access) -> Ints:
        """Return the number of elements in the data tile of a block tile, shape ``(N,)``."""
        key = ("block", id(access))
        if key not in self._memo:
            self._memo[key] = access.elements(self.block)
        found: Ints = self._memo[key]
        return found

    def lanes(self, width: int) -> Ints:
        """Return a TEU's number of lanes per axis, shape ``(N, axes)``: reductions first, then contiguous outputs."""
        if width not in self._memo:
            self._memo[width] = self._lanes(width)
        found: Ints = self._memo[width]
        return found

    def _lanes(self, width: int) -> Ints:
        out = np.ones_like(self.block)
        left = np.full(len(self.block), width, np.int64)
        reductions = [
            a for a in range(self.block.shape[1]) if not self.geometry.spatial[a] and self.thread_axis_mask[a]
        ]
        for a in reversed((*self.geometry.order, *reductions)):
            out[:, a] = np.minimum(self.threads[:, a], left)
            left = np.maximum(1, left // out[:, a])
        return out


def _repeat_per_program(values: int | Sequence[int], programs: int) -> int | Ints:
    """Return a single value unchanged, or several values, each repeated ``programs`` times."""
    return values if isinstance(values, int) else np.repeat(np.asarray(values, np.int64), programs)


def batch_of(programs: Sequence[RProgram]) -> TileBatch:
    """Return a batch of programs that share expression, structure and vector axis and are all pipelined or all not."""
    first = programs[0]
    g = Geometry.of(first.expr)
    layers = len(first.tiles)
    rows = [np.array([p.tiles[layer][1] for p in programs], np.int64) for layer in range(layers)]
    axis = shared_vector_axis(first)
    return TileBatch(
        g,
        first.structure,
        rows[0],
        rows[-1],
        np.array([p.split_k for p in programs], np.int64),
        first.staged,
        rows[1] if layers > 2 else None,
        None if axis is None else g.names.index(axis),
        first.constants,
        first.nontemporal,
        _scalar_if_equal([p.stages for p in programs]),
        _scalar_if_equal([p.raster for p in programs]),
        first.fragment,
        first.matrix_axes,
        vectors=None if KINDS[first.kind].simd else _vector_elements_per_axis(programs, g),
        open_axes=first.open_axes,
    )


def shared_vector_axis(program: RProgram) -> str | None:
    """Return the vector axis that the programs of a batch must share: the program's on a SIMD device, else ``None``."""
    return program.vector_axis if KINDS[program.kind].simd else None


def _vector_elements_per_axis(programs: Sequence[RProgram], g: Geometry) -> Ints:
    """Return the number of elements per vector along every axis: 1 where vectors do not divide the register tile."""
    found = np.ones((len(programs), len(g.names)), np.int64)
    for row, p in zip(found, programs, strict=True):
        if p.vector_axis is not None and p.tile("register")[p.vector_axis] % p.vector_elements == 0:
            row[g.names.index(p.vector_axis)] = p.vector_elements
    return found


def _scalar_if_equal(values: list[int]) -> int | Ints:
    return values[0] if min(values) == max(values) else np.array(values, np.int64)
