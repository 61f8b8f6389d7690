"""Which inputs of a kernel are in the shared cache when it starts, as somebody said of the calls before it."""

from __future__ import annotations

from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.tile.geometry import Access


def is_warm(access: Access, batch: TileBatch, spec: DeviceSpec) -> bool:
    """Whether an input comes from the shared cache, where whatever ran before left it.

    It lies there still where all that one call reads and writes fits together: so much comes between two uses of it.
    """
    tensors = (*batch.geometry.expr.inputs, *batch.geometry.expr.output_tensors)
    return access.tensor.name in batch.warm and sum(t.nbytes for t in tensors) <= spec.layer("l2").capacity_bytes
