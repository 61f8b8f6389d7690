"""The CPU half of the micro performance model: micro-kernel cycles, cache traffic, packing, cores.

The same terms as on a GPU under other names: the vector unit is the TEU, cores are the units, a task
(the ``l2`` tile) is the block, the micro-kernel is the register tile. Per reduction point a micro-kernel
needs the largest of its FMA, load, issue and dependence cycles; per task its panels come through the
caches; packing is traffic. Tiles at the end of an axis overlap their neighbour instead of padding, so
work is counted in whole register tiles. Out-of-order cores overlap arithmetic with cache traffic, hence
``max``; packing and handing tasks to the workers come before it and are added. A program of one task keeps to its
caller: it forks nothing, and packs alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.templates.cpu.common.caches import holding_bandwidth
from roller.templates.cpu.common.traffic import ACCUMULATOR_BYTES
from roller.templates.cpu.decide import decided
from roller.tile.geometry import Floats, Ints

Terms = dict[str, Floats]
#: Numbers on the way to a price, by name.
Parts = dict[str, Any]
#: Terms that compete for the bottleneck.
BOTTLENECKS = ("compute_s", "dram_s", "l2_s", "l3_s", "launch_s")


def imbalance(batch: TileBatch, spec: DeviceSpec) -> tuple[Floats, Ints]:
    """Return cores' idle factor for whole tasks, and the number of tasks; parts of a reduction are tasks."""
    d = decided(batch, spec)
    tasks, chunks = d.task_count, d.split_chunks
    parts = tasks * d.parts  # the last part may get less
    whole = -(-parts // spec.units) * spec.units * d.share / (tasks * chunks)
    return np.where(parts > 1, whole * _uneven(batch, spec), whole), parts


def _uneven(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return how much more than its share the first core gets because the last tasks of an axis are smaller.

    Every core takes a run of neighbouring tasks: the smaller ones at the end of the outermost axis are all the last
    core's. Those of the other axes come evenly.
    """
    d, rows = decided(batch, spec), np.arange(len(batch))
    outer = np.argmax(d.tasks > 1, axis=1)
    return np.asarray(d.tasks[rows, outer] * d.per_task[rows, outer] / d.tiles[rows, outer])


def combine_s(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return seconds one core takes to combine the parts of a split reduction: written once, read once."""
    results = decided(batch, spec).parts * float(batch.geometry.store.tensor.elements) * ACCUMULATOR_BYTES
    return np.where(batch.split_k > 1, 2 * results * spec.units / holding_bandwidth(results, spec), 0.0)


def start_s(tasks: Ints, loops: int | Ints, spec: DeviceSpec) -> Floats:
    """Return seconds to call the kernel and to fork and join its ``loops`` parallel loops; one task forks none."""
    return spec.execution.launch_s + np.where(tasks > 1, loops, 0) * (spec.execution.fork_s or 0.0)
