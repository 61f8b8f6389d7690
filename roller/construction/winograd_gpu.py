"""Winograd programs of a window product for a GPU: the best tilings of its batched matrix product, both tile sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roller import perf
from roller.construction.gpu_pool import pool
from roller.construction.options import ConstructOptions
from roller.construction.winograd import LEAST_CHANNELS
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.gpu import outer_batch
from roller.tile.geometry import Geometry
from roller.tile.winograd import STRUCTURES, window_product
from roller.tile.winograd_products import ELEMENT, products

#: Tilings of a product that are priced, and those of them that are kept.
_PRICED, _KEPT = 2048, 64
#: Elements that 32-bit offsets of a workspace reach.
_MOST_ELEMENTS = 2**31


def winograd_gpu_pool(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return a batch per output tile size.

    None where the option is off, the expression is no window product of enough channels, its workspaces are too
    large for 32-bit offsets, or it forbids padding.
    """
    form = window_product(geometry.expr) if options.winograd and geometry.expr.allow_padding else None
    if form is None or geometry.expr.anchor.extents[form.channel] < LEAST_CHANNELS:
        return []
    found = (_batch(geometry, spec, options, structure) for structure in STRUCTURES)
    return [b for b in found if b is not None]


def _batch(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions, structure: str) -> TileBatch | None:
    product = products(geometry.expr, structure)
    assert product is not None
    if any(t.elements >= _MOST_ELEMENTS for t in product.expr.tensors.values()):
        return None
    share = replace(options, pool=max(options.count, _PRICED), constants=())
    rows: list[tuple[float, TileBatch, int]] = []
    inner = Geometry.of(product.expr)
    element = inner.names.index(ELEMENT)
    for batch in pool(inner, spec, share):
        if batch.structure == "tiled":  # a block multiplies for one element of the transformed tile
            batch = batch.take(batch.block[:, element] == 1)
            rows += [(s, batch, n) for s, n in perf.best_rows(batch, spec, _KEPT)]
    if not rows:
        return None
    rows.sort(key=lambda r: r[0])
    first = rows[0][1]  # what the batch of the best has in common, all kept ones have
    kept = first.take(np.array([n for _, b, n in rows[:_KEPT] if b is first]))
    return outer_batch(kept, product, geometry, structure)
