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
    """Return batches of the best tilings per output tile size.

    None where the option is off, the expression is no window product of enough channels, its workspaces are too
    large for 32-bit offsets, or it forbids padding.
    """
    form = window_product(geometry.expr) if options.winograd and geometry.expr.allow_padding else None
    if form is None or geometry.expr.anchor.extents[form.channel] < LEAST_CHANNELS:
        return []
    return [b for structure in STRUCTURES for b in _batches(geometry, spec, options, structure)]


def _batches(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions, structure: str) -> list[TileBatch]:
    product = products(geometry.expr, structure)
    assert product is not None
    if any(t.elements >= _MOST_ELEMENTS for t in product.expr.tensors.values()):
        return []
    share = replace(options, pool=max(options.count, _PRICED), constants=())
    inner = Geometry.of(product.expr)
    element = inner.names.index(ELEMENT)
    batches = [b for b in pool(inner, spec, share) if b.structure == "tiled"]
    # A block multiplies for one element of the transformed tile.
    batches = [b.take(b.block[:, element] == 1) for b in batches]
    best = [(s, n, row) for n, b in enumerate(batches) if len(b) for s, row in perf.best_rows(b, spec, _KEPT)]
    kept: dict[int, list[int]] = {}
    for _, n, row in sorted(best)[:_KEPT]:
        kept.setdefault(n, []).append(row)
    return [outer_batch(batches[n].take(np.array(r)), product, geometry, structure) for n, r in kept.items()]
