"""Inputs that are already in the shared cache when a kernel starts."""

from __future__ import annotations

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.tile.geometry import Access


def is_in_shared_cache(access: Access, batch: TileBatch, spec: DeviceSpec) -> bool:
    """Return whether an input comes from the shared cache, because an earlier kernel left it there."""
    # It stays there if all tensors of one call fit in the cache, because a call touches all of them between two uses.
    tensors = (*batch.geometry.expr.inputs, *batch.geometry.expr.output_tensors)
    return access.tensor.name in batch.warm and sum(t.nbytes for t in tensors) <= spec.layer("l2").capacity_bytes
