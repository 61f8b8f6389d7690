"""Price of vector programs: the anchor costs the same as any other stage."""

from __future__ import annotations

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.bsp.common.price import Parts, Terms, price_batch, stage_cycles


def price(batch: TileBatch, spec: DeviceSpec, details: list[Parts] | None = None) -> Terms:
    """Price a batch; return ``seconds`` and its terms as arrays of shape ``(N,)``."""
    return price_batch(batch, spec, stage_cycles(batch.geometry.expr.anchor, batch, spec), details)
