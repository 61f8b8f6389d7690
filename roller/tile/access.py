"""Data tiles: the elements that tiles access, computed for many tiles at once (extents of shape ``(N, axes)``).

Along a dimension, a tile touches ``1 + sum(|coef| * (t - 1))`` elements, at most the positions of the whole axes.
Data tiles include the padding of guarded dimensions; a quasi-affine access (implicit GEMM) is gathered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from roller.expr import Bound, Index, Tensor
from roller.expr.sliding_windows import sliding_window_axes
from roller.tile.memory_strides import nonadjacent_share, tile_positions_along_dimension

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
#: Integers or floats.
_Number = TypeVar("_Number", np.int64, np.float64)

#: Widest memory access of a GPU thread (bytes).
VECTOR_BYTES = 16
#: Maximum number of possible tile-extent codes for which distinct ones are found in a table instead of by sorting.
_COUNTED_CODES = 1 << 16


def product_of_columns(table: NDArray[_Number], columns: Iterable[int]) -> NDArray[_Number]:
    """Return the product of selected columns for each row, shape ``(N,)``; faster than a reduction along short rows."""
    total: NDArray[_Number] | None = None
    for c in columns:
        total = table[:, c] if total is None else total * table[:, c]
    return np.ones(len(table), table.dtype) if total is None else total


@dataclass(frozen=True)
class Access:
    """One access to a tensor: a load or the store of the anchor, or a load of another stage.

    Parameters
    ----------
    coefficients
        Coefficients of the index, shape ``(dimensions, axes)``.
    uses
        Mask of the axes that the tensor depends on.
    gather
        Whether the access is quasi-affine; its data tile has one element per combination of the axes it uses.
    reloads
        Mask of the axes whose tiles each reload the data: an epilogue's operands are loaded once per output tile, not
        once per reduction step.
    spatial
        Mask of the spatial axes.
    """

    tensor: Tensor
    coefficients: Ints
    constants: Ints
    uses: NDArray[np.bool_]
    gather: bool
    index: tuple[Index, ...]
    guard: tuple[Bound, ...]
    axis_names: tuple[str, ...]
    axis_extents: Ints
    reloads: NDArray[np.bool_]
    spatial: NDArray[np.bool_]
    _memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def bounds(self) -> int:
        """Number of guards."""
        return len(self.guard)

    @cached_property
    def touched_axis_mask(self) -> NDArray[np.bool_]:
        """Mask of the axes that the loaded value depends on, through the tensor or a guard."""
        guarding = {x for b in self.guard for x in b.index.axes}
        return np.asarray(self.uses | np.array([n in guarding for n in self.axis_names], bool))

    @cached_property
    def lattice(self) -> Ints:
        """Spacing of the touched positions per dimension: the stride of an access without windows, else 1."""
        rows = self.coefficients
        if (np.count_nonzero(rows, axis=1) > 1).any():
            return np.ones(len(rows), np.int64)
        return np.array([max(1, int(np.abs(row).max(initial=1))) for row in rows], np.int64)

    @cached_property
    def shared(self) -> tuple[bool, ...]:
        """For each dimension, whether it is indexed by several axes that are not digits of one number."""
        # Bounds may cut a shared dimension, and a box contains all of it, whether windows overlap (`window_axes`) or
        # not.
        kinds = [
            {n: int(e) for n, e, s in zip(self.axis_names, self.axis_extents, self.spatial, strict=True) if s == kind}
            for kind in (True, False)
        ]
        return tuple(len(i.axes) > 1 and not any(i.is_digits(k) for k in kinds) for i in self.index)

    @cached_property
    def shared_axis_mask(self) -> NDArray[np.bool_]:
        """Mask of the axes that index shared dimensions: windows, overlapping or adjacent, and the axes along them."""
        return np.asarray((self.coefficients[np.array(self.shared, bool)] != 0).any(axis=0))

    @cached_property
    def window_axes(self) -> NDArray[np.bool_]:
        """Mask of window axes and of the spatial axes along which they slide."""
        extents = dict(zip(self.axis_names, self.axis_extents.tolist(), strict=True))
        spatial = {n: extents.pop(n) for n, s in zip(self.axis_names, self.spatial, strict=True) if s}
        sliding = {a for i in self.index if not self.gather for a in sliding_window_axes(i, spatial, extents)}
        return np.array([n in sliding for n in self.axis_names], bool)

    @cached_property
    def _steps(self) -> Ints:
        return np.abs(self.coefficients) // self.lattice[:, None]

    @cached_property
    def _max_lattice_positions(self) -> Ints:
        """Maximum number of lattice positions per dimension, for whole axes and including borders."""
        whole = self._steps @ (self.axis_extents - 1) + 1
        shape = np.array(self.tensor.shape, np.int64).reshape(-1)
        inside = (shape - 1) // self.lattice + 1 if len(shape) else shape
        return whole if self.bounds else np.minimum(whole, inside)

    def extents(self, tiles: Ints) -> Ints:
        """Return the extent (elements) of an affine access's data tile per dimension, shape ``(N, dimensions)``."""
        if not self.coefficients.shape[0]:
            return np.ones((len(tiles), 0), np.int64)
        return np.stack([self.extent(d, tiles) for d in range(len(self._steps))], axis=1)

    def extent(self, d: int, tiles: Ints) -> Ints:
        """Return the extent of the data tile along one dimension, shape ``(N,)``."""
        touched: Ints | None = None
        first = 1
        for a, step in self._axis_steps_per_dim[d]:
            part = tiles[:, a] if step == 1 else step * tiles[:, a]
            touched, first = part if touched is None else touched + part, first - step
        if touched is None:
            return np.ones(len(tiles), np.int64)
        extent: Ints = np.minimum(touched + first if first else touched, self._most[d])
        return extent

    @cached_property
    def _most(self) -> tuple[int, ...]:
        return tuple(self._max_lattice_positions.tolist())

    @cached_property
    def _axis_steps_per_dim(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each dimension, the axes that index it and their steps."""
        return tuple(tuple((int(a), int(row[a])) for a in np.flatnonzero(row)) for row in self._steps)

    def row_elements(self, tiles: Ints) -> Ints:
        """Return the number of elements per row (last dimension) of the data tile in the scratchpad, shape ``(N,)``."""
        if self.gather or not self._axis_steps_per_dim:
            return self.elements(tiles)
        return self.extent(len(self._axis_steps_per_dim) - 1, tiles)

    def elements(self, tiles: Ints) -> Ints:
        """Return the number of elements in the data tile, shape ``(N,)``."""
        total: Ints | None = None
        for d, moves in enumerate(() if self.gather else self._axis_steps_per_dim):
            if moves:
                extent = self.extent(d, tiles)
                total = extent if total is None else total * extent
        for a, most in self._used_axes_and_extents if self.gather else ():
            extent = np.minimum(tiles[:, a], most)
            total = extent if total is None else total * extent
        return np.ones(len(tiles), np.int64) if total is None else total

    @cached_property
    def used_axes(self) -> tuple[int, ...]:
        """Positions of the axes on which the tensor depends."""
        return tuple(int(a) for a in np.flatnonzero(self.uses))

    @cached_property
    def _used_axes_and_extents(self) -> tuple[tuple[int, int], ...]:
        """The axes on which the tensor depends, and their extents."""
        return tuple((a, int(self.axis_extents[a])) for a in self.used_axes)

    def points(self, tiles: Ints) -> Ints:
        """Return the number of distinct elements that a tile reads (not those a stride skips), shape ``(N,)``."""
        total = np.ones(len(tiles), np.int64)
        if self.gather:
            return self.elements(tiles)
        for d, moves in enumerate(self._axis_steps_per_dim):
            if moves:
                several = product_of_columns(tiles, (a for a, _ in moves))
                total *= np.minimum(self.extent(d, tiles), several)
        return total

    def runs(self, tiles: Ints) -> tuple[Ints, Ints]:
        """Return the number of contiguous rows in a data tile, and the span (elements) of one row."""
        # A row's length is the product of the fully covered trailing dimensions and the next extent.
        if self.gather:
            run = np.minimum(self._mean_gathered_run(tiles), self.elements(tiles))
            return -(-self.elements(tiles) // run), run
        rank = self.coefficients.shape[0]
        if rank == 0:
            one = np.ones(len(tiles), np.int64)
            return one, one
        shape = self.tensor.shape
        extents = [np.minimum(self.extent(d, tiles), n) for d, n in enumerate(shape)]
        span = (extents[-1] - 1) * int(self.lattice[-1]) + 1
        rows = np.ones(len(tiles), np.int64)
        for extent in extents[:-1]:
            rows = rows * extent
        whole = extents[-1] == shape[-1]
        for d in range(rank - 2, -1, -1):
            if not whole.any():
                break
            if self.lattice[d] == 1:
                step = np.where(whole, extents[d], 1)
                span = span * step
                rows = rows // step
            whole = whole & (extents[d] == shape[d])
        return rows, span

    def _mean_gathered_run(self, tiles: Ints) -> Ints:
        """Return the mean number of contiguous elements along the axis that indexes the last dimension."""
        # Where a row wraps around, the next row may or may not follow in memory (it does if all columns of an image are
        # read).
        position = {n: i for i, n in enumerate(self.axis_names)}
        for t in self.index[-1].terms if self.index else ():
            if abs(t.coef) == 1 and t.div == 1:
                width = tiles[:, position[t.axis]]
                return np.maximum(
                    1, np.rint(width / (1.0 + (width - 1) * self._nonadjacent_share_along(t.axis)))
                ).astype(np.int64)
        return np.ones(len(tiles), np.int64)

    def _nonadjacent_share_along(self, axis: str) -> float:
        """Return the fraction of neighbours along an axis that are not adjacent in memory."""
        key = ("breaks", axis)
        if key not in self._memo:
            extent = int(self.axis_extents[self.axis_names.index(axis)])
            self._memo[key] = nonadjacent_share(self.index, self.tensor.shape, axis, extent)
        return float(self._memo[key])

    def elements_loaded_per_launch(self, tiles: Ints) -> Floats:
        """Return the number of elements loaded over all tiles of the launch, excluding positions outside the tensor."""
        # Exact: the in-bounds lengths of all tile positions are summed per dimension; each axis that
        # the tensor does not depend on multiplies by its number of tiles, because no data survives from tile to tile.
        reload: Floats = np.ones(len(tiles))
        for a in self._reloading_axes:
            reload = reload * -(-self.axis_extents[a] // tiles[:, a])
        if self.gather:
            return np.asarray(reload * self._count_gathered_points)
        total = reload
        for dims, axes in self.groups:
            total = total * self._sum_over_group(dims, axes, tiles)
        return total

    @cached_property
    def _reloading_axes(self) -> tuple[int, ...]:
        """Axes whose tiles each reload the same data."""
        return tuple(int(a) for a in np.flatnonzero(~self.uses & self.reloads & (self.axis_extents > 1)))

    @cached_property
    def groups(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """Groups of dimensions that share an axis (a diagonal), and the axes that index them."""
        groups: list[tuple[set[int], set[int]]] = []
        for d, row in enumerate(self.coefficients):
            dims, axes = {d}, {int(a) for a in np.flatnonzero(row)}
            for other in [g for g in groups if g[1] & axes]:
                groups.remove(other)
                dims, axes = dims | other[0], axes | other[1]
            groups.append((dims, axes))
        return tuple((tuple(sorted(dims)), tuple(sorted(axes))) for dims, axes in groups)

    def _sum_over_group(self, dims: tuple[int, ...], axes: tuple[int, ...], tiles: Ints) -> Floats:
        """Return the number of in-bounds elements along the dimensions of one group, summed over all tile positions."""
        if not axes:
            return np.ones(len(tiles))
        if len(dims) == len(axes) == 1 and self.coefficients[dims[0], axes[0]] == 1 and self.constants[dims[0]] == 0:
            inside = min(int(self.axis_extents[axes[0]]), self.tensor.shape[dims[0]])  # guards may exclude the rest
            return np.full(len(tiles), float(inside))
        codes, span = tiles[:, axes[0]], int(tiles[:, axes[0]].max(initial=0)) + 1
        for a in axes[1:]:
            wide = int(tiles[:, a].max(initial=0)) + 1
            codes, span = codes * wide + tiles[:, a], span * wide
        if span > _COUNTED_CODES:
            unique, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        else:  # a table of all codes, without sorting
            where, inverse = np.full(span, -1), codes
            where[codes] = np.arange(len(codes))
            unique = np.flatnonzero(where >= 0)
            first = where[unique]
        sums = np.empty(len(unique) if inverse is not codes else span)
        for u, row in zip(range(len(unique)) if inverse is not codes else unique, first, strict=True):
            key = (dims, *tiles[row, list(axes)].tolist())
            if key not in self._memo:
                elements: Ints | int = 1
                for d in dims:
                    elements = elements * self.pieces(d, axes, tiles[row])[1]
                self._memo[key] = float(np.sum(elements))
            sums[u] = self._memo[key]
        return sums[inverse]

    def pieces(self, d: int, axes: tuple[int, ...], tile: Ints) -> tuple[Ints, Ints]:
        """Return the first position and the number of positions along a dimension, per tile position over ``axes``."""
        moves = [(int(tile[a]), int(self.coefficients[d, a]), int(self.axis_extents[a])) for a in axes]
        return tile_positions_along_dimension(int(self.constants[d]), moves, int(self.lattice[d]), self.tensor.shape[d])

    @cached_property
    def _count_gathered_points(self) -> float:
        """Number of in-bounds combinations of the axes on which a gathered access depends."""
        extents = dict(zip(self.axis_names, (int(e) for e in self.axis_extents), strict=True))
        total = 1.0
        for a, used in zip(self.axis_names, self.uses, strict=True):
            total *= extents[a] if used else 1
        for index, size in zip(self.index, self.tensor.shape, strict=True):
            if len(index.terms) < 2 and index.const == 0:
                continue
            values = np.array([index.const], np.int64)
            for t in index.terms:
                top = (extents[t.axis] - 1) // t.div + 1
                steps = np.arange(min(top, t.mod) if t.mod else top, dtype=np.int64)
                values = (values[:, None] + t.coef * steps[None, :]).ravel()
            total *= float(((values >= 0) & (values < size)).mean())
        return total
