"""Limits of a block: its threads, and the registers per thread."""

from __future__ import annotations

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.occupancy import operand_register_limit, operand_registers


def fills_whole_teus(batch: TileBatch, spec: DeviceSpec) -> np.ndarray:
    """Return the mask of programs within the thread and register limits whose blocks fill whole TEUs (rule 1)."""
    return np.asarray(within_thread_and_register_limits(batch, spec) & (batch.threads_per_block % spec.teu.lanes == 0))


def within_thread_and_register_limits(batch: TileBatch, spec: DeviceSpec) -> np.ndarray:
    """Return the mask of programs within the thread and register limits."""
    assert spec.limits.threads_per_block
    fits = batch.threads_per_block <= spec.limits.threads_per_block
    return np.asarray(fits & (operand_registers(batch) <= operand_register_limit(batch, spec)))
