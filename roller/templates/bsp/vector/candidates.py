"""Programs whose workers compute in vectors along the contiguous axis of the results."""

from __future__ import annotations

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.bsp.common.tile_growth import TileGrain, grow_programs, growable_program_mask
from roller.templates.common.options import ConstructOptions
from roller.tile.geometry import Geometry


def vector_candidates(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return the programs of one form; every expression has such programs."""
    return grow_programs(geometry, _vector_grain(geometry, spec), spec, options)


def vector_candidate_mask(batch: TileBatch, spec: DeviceSpec) -> np.ndarray:
    """Return the mask of the programs of a batch that construction offers."""
    return growable_program_mask(batch, _vector_grain(batch.geometry, spec).step)


def _vector_grain(g: Geometry, spec: DeviceSpec) -> TileGrain:
    """Return one vector of a worker, or a scalar if the axis has no whole vectors and may not be padded."""
    step, axes = np.ones(len(g.names), np.int64), g.order or g.reduced_axes
    if not axes:  # a scalar
        return TileGrain(step, None)
    a = axes[-1]
    lanes = spec.teu.lanes * 4 // max(4, g.store.tensor.itemsize_bytes)
    step[a] = lanes if g.expr.allow_padding or g.extents[a] % lanes == 0 else 1
    return TileGrain(step, a)
