"""Conversion between batches of ``winograd`` structures and batches of the matrix products that their programs tile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roller.perf.tile_batch import TileBatch
from roller.tile.geometry import Geometry, Ints
from roller.tile.winograd_batched_product import WinogradProduct, batched_product


def find_matrix_product(batch: TileBatch) -> WinogradProduct | None:
    """Return the matrix product that the programs of a GPU batch tile, or ``None`` if its structure has none."""
    if not batch.traits.output_side or batch.panel is not None:
        return None
    return batched_product(batch.geometry.expr, batch.structure)


def to_matrix_product_batch(batch: TileBatch, found: WinogradProduct) -> TileBatch:
    """Return a batch of a ``winograd`` structure as the tiled batch of its product."""
    one = np.ones(len(batch), np.int64)

    def tiles(outer: Ints) -> Ints:
        return np.stack(found.to_product_extents(list(outer.T), one), axis=1)

    register, block = tiles(batch.register), tiles(batch.block)
    inner = replace(batch.without_vectors(), geometry=Geometry.of(found.expr), structure="tiled")
    return replace(inner, register=register, block=block)


def to_window_product_batch(batch: TileBatch, found: WinogradProduct, geometry: Geometry, structure: str) -> TileBatch:
    """Return a tiled batch of a product as a batch of the window product with the given ``geometry``."""
    one = np.ones(len(batch), np.int64)

    def tiles(inner: Ints) -> Ints:
        return np.stack(found.to_window_extents(list(inner.T), one), axis=1)

    register, block = tiles(batch.register), tiles(batch.block)
    return replace(batch, geometry=geometry, structure=structure, register=register, block=block)
