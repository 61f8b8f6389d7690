"""How the threads of a block copy a staged tile: elements copied at once, and rounds, as arrays over programs.

The templates apply the same rules (:mod:`roller.tile.vector_access_widths`, :mod:`roller.tile.staged_tile_layout`) to
one program.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roller.expr import Load
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.tile.geometry import Access, Ints
from roller.tile.staged_tile_layout import copy_rounds, staged_axes
from roller.tile.vector_access_widths import elements_per_tile_copy, is_in_memory


@dataclass(frozen=True)
class StagedCopy:
    """Copies of one staged tile, as arrays over programs.

    Parameters
    ----------
    width
        Number of elements copied at once.
    counts
        Number of copies per dimension of the tile, shape ``(N, dimensions)``.
    lead
        Number of leading dimensions that the rounds step over.
    """

    width: Ints
    counts: Ints
    lead: Ints
    rounds: Ints

    @classmethod
    def in_vectors(cls, width: Ints, extents: Ints, threads: Ints) -> StagedCopy:
        """Return the copies of tiles with ``extents`` per dimension, shape ``(N, dimensions)``."""
        counts = extents.copy()
        if counts.shape[1]:
            counts[:, -1] = -(-counts[:, -1] // width)
        return cls(width, counts, *copy_rounds(counts, threads))

    @classmethod
    def of(cls, access: Access, batch: TileBatch, axes: tuple[str, ...], padding: Ints | int = 0) -> StagedCopy:
        """Return the copies of tiles indexed by ``axes`` (empty: boxes of the tensor), with padding per row."""
        extents = tile_extents(access, batch, axes)
        return cls.in_vectors(elements_per_staged_copy(access, batch, axes, padding), extents, batch.threads_per_block)


def elements_per_staged_copy(access: Access, batch: TileBatch, axes: tuple[str, ...], padding: Ints | int = 0) -> Ints:
    """Return the elements copied at once for tiles whose rows have ``padding`` extra elements, shape ``(N,)``."""
    expr = batch.geometry.expr
    if not is_in_memory(expr, access.tensor.name) or not (axes or access.coefficients.shape[0]):
        return np.ones(len(batch), np.int64)
    tile = dict(zip(batch.geometry.names, batch.block.T, strict=True))
    if axes:
        row = (axes[-1], tile[axes[-1]], 0)
    else:
        steps, distance = access.coefficients[-1], batch.block - 1
        row = ("", 1 + distance @ np.abs(steps), -distance @ np.minimum(steps, 0))
    found = elements_per_tile_copy(
        load_of_access(access, batch), access.tensor, expr.anchor.extents, tile, row, padding
    )
    return np.broadcast_to(np.asarray(found), len(batch))


def load_of_access(access: Access, batch: TileBatch) -> Load:
    """Return the load of the anchor from which an access was made."""
    anchor = batch.geometry.expr.anchor
    mine = (access.tensor.name, access.index, access.guard)
    return next(x for x in anchor.loads if (x.tensor, x.index, x.guard) == mine)


def staged_tile_axes(access: Access, batch: TileBatch) -> tuple[str, ...]:
    """Return the axes that index the staged tile of an access; empty if it is a box of the tensor."""
    if "staged_axes" not in access._memo:
        anchor = batch.geometry.expr.anchor
        access._memo["staged_axes"] = staged_axes(anchor, load_of_access(access, batch), access.tensor)
    found: tuple[str, ...] = access._memo["staged_axes"]
    return found


def tile_extents(access: Access, batch: TileBatch, axes: tuple[str, ...]) -> Ints:
    """Return the extents of staged tiles indexed by ``axes``, or of boxes, shape ``(N, dimensions)``."""
    if axes:
        return batch.block[:, [batch.geometry.names.index(a) for a in axes]]
    # The extents cover a whole tile, because rounds beyond the end of an axis are issued too.
    touched: Ints = 1 + (batch.block - 1) @ np.abs(access.coefficients).T
    return touched


def staged_copy(access: Access, batch: TileBatch, spec: DeviceSpec) -> StagedCopy:
    """Return the copies of an operand without storage padding, computed once for a batch and its parts."""

    def compute() -> tuple[Ints, Ints, Ints, Ints]:
        found = StagedCopy.of(access, batch, staged_tile_axes(access, batch))
        return found.width, found.counts, found.lead, found.rounds

    return StagedCopy(*batch.cached_arrays(spec, ("copy", id(access)), compute))
