"""MicroPerfModel: price batches and programs; the device's kind decides which half answers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf import cpu, gpu
from roller.perf.batch import TileBatch
from roller.perf.estimate import Estimate
from roller.tile.geometry import Floats, Geometry
from roller.tile.program import RProgram

#: Time terms that compete for the bottleneck.
_STAGES = ("compute_s", "dram_s", "l2_s", "l3_s", "latency_s", "launch_s")


def price(batch: TileBatch, spec: DeviceSpec) -> Mapping[str, Floats]:
    """Return ``seconds`` and every term of a batch, arrays of shape ``(N,)``."""
    return gpu.price(batch, spec) if spec.kind == "gpu" else cpu.price(batch, spec)


def batch_of(program: RProgram) -> TileBatch:
    """Return a program as a batch of one."""
    g = Geometry.of(program.expr)
    rows = [np.array([extents], np.int64) for _, extents in program.tiles]
    axis = None if program.vector_axis is None or program.kind == "gpu" else g.names.index(program.vector_axis)
    return TileBatch(
        g,
        program.structure,
        rows[0],
        rows[-1],
        np.array([program.split_k], np.int64),
        bool(program.staged),
        rows[1] if len(rows) > 2 else None,
        axis,
    )


def estimate_program(program: RProgram, spec: DeviceSpec) -> Estimate:
    """Return the estimate of one program, storage padding included."""
    batch = batch_of(program)
    if spec.kind == "gpu":
        padding = {t: np.array([p], np.int64) for t, p in program.storage_padding}
        terms: Mapping[str, Floats] = gpu.price(batch, spec, gpu.scratchpad_bytes(batch, padding))
    else:
        terms = cpu.price(batch, spec)
    values = {k: float(v[0]) for k, v in terms.items() if k != "seconds"}
    stages = {k: v for k, v in values.items() if k in _STAGES}
    return Estimate(float(terms["seconds"][0]), max(stages, key=lambda k: stages[k])[:-2], tuple(values.items()))
