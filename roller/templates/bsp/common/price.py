"""Price of programs for a bulk-synchronous device: the sum of compute, exchange, synchronization and streaming times.

Phases do not overlap. Streaming is traffic to and from the memory outside the device, for tensors that do not fit in
all scratchpads together; it passes through the exchange, so it does not overlap with other phases either.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from roller.expr import Stage
from roller.expr.dtype_conversion_rates import dtypes_by_tensor, instruction_mix_by_dtype, ops_per_cycle
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.bsp.common.tile_and_superstep_counts import (
    count_other_stage_phases,
    count_tiles_and_supersteps,
    fits_scratchpad,
    pieces_per_tile,
    stage_points_per_step,
)
from roller.tile.geometry import Floats, Ints

Terms = dict[str, Floats]
#: Intermediate values of a price, by name, for its explanation (:mod:`roller.templates.bsp.price_terms`).
Parts = dict[str, Any]
#: Terms among which the bottleneck is chosen.
BOTTLENECKS = ("compute_s", "exchange_s", "sync_s", "streaming_s", "launch_s")


def price_batch(batch: TileBatch, spec: DeviceSpec, step: Floats, details: list[Parts] | None = None) -> Terms:
    """Price a batch whose anchor takes ``step`` cycles per reduction step; ``details`` collects intermediate values."""
    d, home = count_tiles_and_supersteps(batch, spec), spec.home
    share = home.bandwidth_bytes_per_s / spec.units
    once = _other_stage_and_combine_cycles(batch, spec)
    cycles = d.waves * (d.steps * step + once)
    moved = d.waves * (d.steps * d.received_bytes + d.other_bytes + d.partial_bytes + d.result_bytes)
    # One synchronization before every exchange (data tiles of each step, parts, results), and one per further stage.
    meetings = (d.supersteps + d.waves).astype(float)
    behind = spec.memory_layers[-1]
    terms: Terms = {
        "compute_s": cycles / spec.clock_hz,
        "exchange_s": moved / share,
        "sync_s": meetings * spec.execution.barrier_s,
        "streaming_s": d.streamed_bytes / behind.bandwidth_bytes_per_s,
        "launch_s": np.full(len(batch), spec.execution.launch_s),
    }
    total = terms["compute_s"] + terms["exchange_s"] + terms["sync_s"] + terms["streaming_s"] + terms["launch_s"]
    terms["seconds"] = np.where(fits_scratchpad(batch, spec), total, np.inf)
    terms |= {
        "tasks": d.tasks.astype(float), "waves": d.waves.astype(float), "supersteps": d.supersteps.astype(float),
        f"{home.name}_bytes": moved * np.minimum(d.tasks, spec.units), "scratchpad_bytes": d.working_bytes,
        "streaming_bytes": d.streamed_bytes, "resident_bytes": np.full(len(batch), d.resident_bytes),
    }  # fmt: skip
    if details is not None:
        details.append({"spec": spec, "terms": terms, "decided": d, "step": step, "once": once, "cycles": cycles,
                     "moved": moved, "meetings": meetings, "share": share})  # fmt: skip
    return terms


def _other_stage_and_combine_cycles(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the number of cycles per tile for the other stages and for combining parts, shape ``(N,)``."""
    expr = batch.geometry.expr
    others = [s for s in expr.stages if s is not expr.anchor]
    cycles = sum((stage_cycles(s, batch, spec) for s in others), np.zeros(len(batch)))
    added = stage_points_per_step(expr.anchor, batch) / np.maximum(1, batch.reduction_points_per_step)
    rate = _operations_per_cycle(spec, "add", expr.anchor.acc_dtype)
    return np.asarray(cycles + np.where(batch.split_k > 1, (batch.split_k - 1) * added / rate, 0.0))


def stage_cycles(stage: Stage, batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the cycles that a unit's workers need for one stage of its tile; arithmetic and loads overlap."""
    mix = instruction_mix_by_dtype(stage.body, stage.combiner, dtypes_by_tensor(batch.geometry.expr), stage.acc_dtype)
    arithmetic = sum(n / ops_per_cycle(spec.compute.ops_per_cycle_per_unit, *kind) for kind, n in mix.items())
    loads = max(1, len(stage.loads)) / spec.compute.ops_per_cycle_per_unit["load_store"]
    issue = spec.execution.step_issue_s * spec.clock_hz / spec.teu.lanes
    each = max(arithmetic, loads) + issue
    latency = spec.execution.step_latency_s * spec.clock_hz  # the last worker's last instruction
    idle = worker_imbalance_factor(pieces_per_tile(stage, batch), spec)
    return np.asarray(
        stage_points_per_step(stage, batch) * each * idle + latency * (1 + count_other_stage_phases(batch))
    )


def worker_imbalance_factor(pieces: Ints, spec: DeviceSpec) -> Floats:
    """Return the factor by which a tile takes longer if its pieces do not divide evenly among a unit's workers."""
    workers = spec.limits.threads_per_unit or 1
    return np.asarray(-(-pieces // workers) * workers / pieces)


def _operations_per_cycle(spec: DeviceSpec, operation: str, dtype: str) -> float:
    rates = spec.compute.ops_per_cycle_per_unit
    return rates.get(f"{operation}.{dtype}", rates[operation])
