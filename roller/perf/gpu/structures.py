"""The price of a batch by its structure: one kernel, or Winograd's kernels in sequence."""

from __future__ import annotations

from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.gpu import winograd
from roller.perf.gpu.laid_out import LaidOut
from roller.perf.gpu.price import Parts, Terms
from roller.perf.gpu.price import price as kernel_price
from roller.tile.winograd import STRUCTURES


def price(
    batch: TileBatch, spec: DeviceSpec, laid: LaidOut | None = None, told: list[Parts] | None = None
) -> Terms:
    """Price a batch of any GPU structure; see :func:`roller.perf.gpu.price.price`."""
    return (winograd.price if batch.structure in STRUCTURES else kernel_price)(batch, spec, laid, told)
