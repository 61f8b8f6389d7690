"""Price of a matrix unit's programs: one operand stays in the unit while the other streams through it."""

from __future__ import annotations

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.bsp.common.price import Parts, Terms, price_batch, worker_imbalance_factor
from roller.templates.bsp.common.tile_and_superstep_counts import stage_points_per_step
from roller.tile.geometry import Floats


def price(batch: TileBatch, spec: DeviceSpec, details: list[Parts] | None = None) -> Terms:
    """Price a batch; return ``seconds`` and its terms as arrays of shape ``(N,)``."""
    return price_batch(batch, spec, _step_cycles(batch, spec), details)


def _step_cycles(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the cycles that a unit needs for the anchor in one reduction step of its tile, shape ``(N,)``."""
    anchor, f, rates = batch.geometry.expr.anchor, batch.fragment, spec.compute.ops_per_cycle_per_unit
    assert f is not None  # the template matches no others
    points = stage_points_per_step(anchor, batch).astype(float)
    m = batch.geometry.names.index(batch.matrix_axes[0])
    # One operand stays in the unit along the m axis: it is loaded once per run along m.
    operand = batch.geometry.loads[0].tensor.itemsize_bytes
    loaded = points / batch.block[:, m] * operand / _read_bytes_per_cycle(spec)
    vectors = points / (f.m * f.n * f.k)
    spatial = batch.geometry.spatial
    passes = (-(-batch.block // batch.register))[:, spatial].prod(axis=1)
    rate = rates[f"{f.rate}.{f.operand}"]
    issued = vectors / f.n * spec.execution.step_issue_s * spec.clock_hz
    return np.asarray((points / rate + loaded) * worker_imbalance_factor(passes, spec) + issued)


def _read_bytes_per_cycle(spec: DeviceSpec) -> float:
    """Return the number of bytes that one unit reads from its scratchpad per cycle."""
    return spec.layer(spec.traits.scratchpad).bandwidth_bytes_per_s / spec.units / spec.clock_hz
