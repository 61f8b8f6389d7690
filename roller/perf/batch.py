"""TileBatch: many programs of one expression as arrays, priced together.

Construction prices thousands of programs in milliseconds; pricing one program is a batch of one, so
there is one model and one code path.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roller.fragment import Fragment
from roller.tile.geometry import Access, Geometry, Ints, product


@dataclass(frozen=True)
class TileBatch:
    """Programs as arrays: ``register`` and ``block`` tiles ``(N, axes)``, ``split_k`` ``(N,)``.

    ``block`` is the tile of the slowest tiled layer: a thread block (GPU) or a task (CPU). ``panel`` is
    the CPU's l1 tile, absent on a GPU. ``structure``, ``staged``, ``constants``, ``nontemporal``, ``stages``,
    ``raster``, ``fragment`` and ``matrix_axes`` are as in RProgram and common to the batch.
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
    stages: int = 1
    raster: int = 1
    fragment: Fragment | None = None
    matrix_axes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return the number of programs."""
        return len(self.block)

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> TileBatch:
        """Return the selected programs."""
        return replace(
            self,
            register=self.register[index],
            block=self.block[index],
            split_k=self.split_k[index],
            panel=None if self.panel is None else self.panel[index],
        )

    @cached_property
    def _spatial(self) -> tuple[int, ...]:
        return tuple(int(a) for a in np.flatnonzero(self.geometry.spatial))

    @cached_property
    def _reduced(self) -> tuple[int, ...]:
        return tuple(int(a) for a in np.flatnonzero(~self.geometry.spatial))

    @cached_property
    def thread_axes(self) -> NDArray[np.bool_]:
        """Axes that threads are spread over: the spatial ones, and reductions in ``rows``."""
        spatial = self.geometry.spatial
        return np.ones_like(spatial) if self.structure == "rows" else spatial

    @cached_property
    def threads(self) -> Ints:
        """GPU threads per axis (of a ``matrix`` program: groups of ``fragment.threads``), ``(N, axes)``."""
        return np.where(self.thread_axes, -(-self.block // self.register), 1)

    @cached_property
    def threads_per_block(self) -> Ints:
        """GPU threads per block, ``(N,)``."""
        together = self.fragment.threads if self.fragment else 1
        return product(self.threads, np.flatnonzero(self.thread_axes)) * together

    @property
    def steps_ahead(self) -> int:
        """Reduction steps whose tiles are on their way while one is computed."""
        running = self.fragment.running_steps(self.stages) if self.fragment else 0
        return self.stages - 1 - running

    @cached_property
    def counts(self) -> Ints:
        """Block tiles per axis, ``(N, axes)``."""
        return self.geometry.counts(self.block)

    @cached_property
    def blocks(self) -> Ints:
        """Blocks of the launch, split-K parts included, ``(N,)``."""
        return product(self.counts, self._spatial) * self.split_k

    @cached_property
    def steps(self) -> Ints:
        """Reduction steps one block takes, ``(N,)``."""
        return -(-product(self.counts, self._reduced) // self.split_k)

    @cached_property
    def step_points(self) -> Ints:
        """Reduction points in one step, ``(N,)``."""
        return product(self.block, self._reduced)

    @cached_property
    def register_outputs(self) -> Ints:
        """Accumulators of one thread or micro-kernel, ``(N,)``."""
        return product(self.register, self._spatial)

    @cached_property
    def register_points(self) -> Ints:
        """Reduction points unrolled in registers, ``(N,)``."""
        return product(self.register, self._reduced)

    @cached_property
    def _memo(self) -> dict[Any, Any]:
        return {}

    def register_elements(self, access: Access) -> Ints:
        """Elements of the data tile of a register tile, ``(N,)``."""
        key = ("register", id(access))
        if key not in self._memo:
            self._memo[key] = access.elements(self.register)
        found: Ints = self._memo[key]
        return found

    def block_elements(self, access: Access) -> Ints:
        """Elements of the data tile of a block tile, ``(N,)``."""
        key = ("block", id(access))
        if key not in self._memo:
            self._memo[key] = access.elements(self.block)
        found: Ints = self._memo[key]
        return found

    def lanes(self, width: int) -> Ints:
        """Lanes of one TEU per axis: reductions fastest, then the axis contiguous in the output, ``(N, axes)``."""
        if width not in self._memo:
            self._memo[width] = self._lanes(width)
        found: Ints = self._memo[width]
        return found

    def _lanes(self, width: int) -> Ints:
        out = np.ones_like(self.block)
        left = np.full(len(self.block), width, np.int64)
        reductions = [a for a in range(self.block.shape[1]) if not self.geometry.spatial[a] and self.thread_axes[a]]
        for a in reversed((*self.geometry.order, *reductions)):
            out[:, a] = np.minimum(self.threads[:, a], left)
            left = np.maximum(1, left // out[:, a])
        return out
