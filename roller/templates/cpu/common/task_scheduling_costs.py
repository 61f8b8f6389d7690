"""Terms of the CPU model for tasks on cores: imbalance, combining split reductions, and starting parallel loops.

The vector unit is the TEU, cores are the units, a task (the ``l2`` tile) is the block, and the micro-kernel is the
register tile. Cores overlap arithmetic with cache traffic, so the larger time counts; the times for packing and for
starting tasks are added to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.cpu.common.cache_traffic import ACCUMULATOR_BYTES
from roller.templates.cpu.common.data_kept_in_caches import bandwidth_of_holding_layer
from roller.templates.cpu.decisions import decisions_for_device
from roller.tile.geometry import Floats, Ints

Terms = dict[str, Floats]
#: Intermediate values of a price, keyed by name.
Parts = dict[str, Any]
#: Terms among which the bottleneck is chosen.
BOTTLENECKS = ("compute_s", "dram_s", "l2_s", "l3_s", "launch_s")


def imbalance(batch: TileBatch, spec: DeviceSpec) -> tuple[Floats, Ints]:
    """Return the factor by which idle cores prolong the tasks, and the number of tasks (including reduction parts)."""
    d = decisions_for_device(batch, spec)
    tasks, chunks = d.count_tasks, d.split_chunks
    parts = tasks * d.parts  # the last part may be smaller
    whole = -(-parts // spec.units) * spec.units * d.share / (tasks * chunks)
    return np.where(parts > 1, whole * _first_core_excess(batch, spec), whole), parts


def _first_core_excess(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the ratio of the first core's work to its share: above 1 if the last tasks of an axis are smaller."""
    # Every core takes a run of adjacent tasks, so the last core gets all smaller tasks at the end of the outermost
    # axis; smaller tasks of other axes are evenly distributed.
    d, rows = decisions_for_device(batch, spec), np.arange(len(batch))
    outer = np.argmax(d.tasks > 1, axis=1)
    return np.asarray(d.tasks[rows, outer] * d.per_task[rows, outer] / d.tiles[rows, outer])


def combine_reduction_parts_s(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the time, in seconds, that one core takes to combine a reduction's parts, each written and read once."""
    results = decisions_for_device(batch, spec).parts * float(batch.geometry.store.tensor.elements) * ACCUMULATOR_BYTES
    return np.where(batch.split_k > 1, 2 * results * spec.units / bandwidth_of_holding_layer(results, spec), 0.0)


def start_parallel_loops_s(tasks: Ints, loops: int | Ints, spec: DeviceSpec) -> Floats:
    """Return the time, in seconds, to call the kernel and to fork and join its parallel loops; one task forks none."""
    return spec.execution.launch_s + np.where(tasks > 1, loops, 0) * (spec.execution.fork_s or 0.0)
