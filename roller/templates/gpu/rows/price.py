"""Price of row programs: accesses pass through the load and store pipe one by one, and a block waits row by row."""

from __future__ import annotations

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.price import Parts, Phases
from roller.templates.gpu.rows.block_work import row_block_work, row_load_store_pipe_s, row_memory_waits_s
from roller.tile.geometry import Floats


def _block_latency_chain_s(batch: TileBatch, spec: DeviceSpec, alone: Floats, parts: Parts) -> Floats:
    """Return the time, in seconds, that one block takes if it has its unit to itself."""
    parts["waits"] = row_memory_waits_s(batch, spec)
    return np.asarray(alone + parts["waits"])


PHASES = Phases(work=row_block_work, chain=_block_latency_chain_s, access=row_load_store_pipe_s)
