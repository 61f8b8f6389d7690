"""Candidate Winograd programs of a window product for a GPU: the best tilings of its product, for both tile sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roller.expr import OFFSET_ELEMENTS
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates import price_with_templates
from roller.templates.common.options import ConstructOptions
from roller.templates.gpu.common.convert_winograd_batches import (
    find_matrix_product,
    to_matrix_product_batch,
    to_window_product_batch,
)
from roller.templates.gpu.tiled.candidates import plain_tiled_candidates
from roller.templates.gpu.tiled.pipeline_and_order_variants import tiled_variants
from roller.tile.geometry import Geometry
from roller.tile.structures import STRUCTURES
from roller.tile.winograd import LEAST_CHANNELS, window_product
from roller.tile.winograd_batched_product import ELEMENT, batched_product

#: Numbers of tilings of a product to price, to try as pipelines and in other orders, and to keep.
_PRICED, _VARIED, _KEPT = 1024, 128, 64
#: Maximum time of a tile size that is tried as a pipeline, relative to the other size; no pipeline gains more.
_FAR_BEHIND = 1.3


def winograd_candidates(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return batches of the best tilings per output tile size, or none if Winograd's algorithm does not apply."""
    form = window_product(geometry.expr) if options.winograd and geometry.expr.allow_padding else None
    if form is None or form.converted or geometry.expr.anchor.extents[form.channel] < LEAST_CHANNELS:
        return []
    sided = [name for name, s in STRUCTURES.items() if s.output_side]
    unvaried = {name: _unpipelined_tilings(geometry, spec, options, name) for name in sided}
    best = {
        name: price_with_templates.price(b, spec)["seconds"].min()
        for name, b in unvaried.items()
        if b is not None and len(b)
    }
    found: list[TileBatch] = []
    for name, seconds in best.items():
        batch = unvaried[name]
        assert batch is not None
        vary = options.pipelining and seconds <= _FAR_BEHIND * min(best.values())
        found += _with_variants(batch, spec) if vary else [batch.take(np.arange(min(_KEPT, len(batch))))]
    return found


def _unpipelined_tilings(
    geometry: Geometry, spec: DeviceSpec, options: ConstructOptions, structure: str
) -> TileBatch | None:
    """Return the best tilings of one product as programs without a pipeline, best first; ``None`` if there are none."""
    product = batched_product(geometry.expr, structure)
    assert product is not None
    if any(t.elements >= OFFSET_ELEMENTS for t in product.expr.tensors.values()):
        return None
    share = replace(options, pool=max(options.count, _PRICED), constants=())
    inner = Geometry.of(product.expr)
    batch = plain_tiled_candidates(inner, spec, share)[0]
    # A block multiplies one element of the transformed tile.
    batch = batch.take(batch.block[:, inner.names.index(ELEMENT)] == 1)
    rows = np.array([row for _, row in price_with_templates.best_rows(batch, spec, _VARIED)], np.intp)
    return to_window_product_batch(batch.take(rows), product, geometry, structure)


def _with_variants(batch: TileBatch, spec: DeviceSpec) -> list[TileBatch]:
    """Return the best programs of a batch: as they are, as pipelines, and with other orders of blocks."""
    product = find_matrix_product(batch)
    assert product is not None
    inner = to_matrix_product_batch(batch, product)
    found = [inner, *tiled_variants(inner, spec)]
    best = sorted((s, n, row) for n, b in enumerate(found) for s, row in price_with_templates.best_rows(b, spec, _KEPT))
    kept: dict[int, list[int]] = {}
    for _, n, row in best[:_KEPT]:
        kept.setdefault(n, []).append(row)
    chosen = (found[n].take(np.array(rows, np.intp)) for n, rows in kept.items())
    return [to_window_product_batch(b, product, batch.geometry, batch.structure) for b in chosen]
