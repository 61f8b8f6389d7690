"""Vectors and caches of a CPU: lanes, rates, distances in memory, and usable bytes of a layer."""

from __future__ import annotations

import numpy as np

from roller.expr import Stage, instruction_mix
from roller.hardware import DeviceSpec
from roller.tile.geometry import Access, Floats, Ints


def lane_count(spec: DeviceSpec, itemsize_bytes: int) -> int:
    """Return the number of elements in one vector register."""
    return max(1, spec.teu.lanes * 4 // itemsize_bytes)


def ops_per_cycle(spec: DeviceSpec, instruction_class: str, dtype: str) -> float:
    """Return how many operations per cycle a core performs, at the dtype's separate rate if it has one."""
    rates = spec.compute.ops_per_cycle_per_unit
    return rates.get(f"{instruction_class}.{dtype}", rates[instruction_class])


def arithmetic_cycles(
    stage: Stage, vectors: Floats, spec: DeviceSpec, elements: int, loaded_conversions: int = 0
) -> Floats:
    """Return how many cycles a stage's arithmetic takes on ``vectors`` vectors of ``elements`` elements."""
    rates, width, dtype = spec.compute.ops_per_cycle_per_unit, spec.teu.lanes, stage.acc_dtype
    mix = instruction_mix(stage.body, stage.combiner)
    mix["convert"] = mix.get("convert", 0.0) - loaded_conversions
    # Rates count elements of four bytes, unless the dtype has a separate rate and fewer elements per vector.
    return np.asarray(sum(
        vectors * n * (elements if f"{c}.{dtype}" in rates else width) / ops_per_cycle(spec, c, dtype) for c,
        n in mix.items()
    ))  # fmt: skip


def relative_partial_vector_cost(lanes: Ints, spec: DeviceSpec, elements: int) -> Floats:
    """Return the cost of an instruction on ``lanes`` lanes relative to a vector of ``elements``, shape ``(N,)``."""
    # A datapath as wide as the vector processes any vector at once; a narrower one takes a pass for each part.
    narrow = (spec.teu.datapath_lanes or spec.teu.lanes) / spec.teu.lanes
    return np.asarray(np.clip(lanes / elements, narrow, 1.0))


def lane_distance(access: Access, axis: int) -> int:
    """Return the distance in memory (elements) between adjacent lanes along ``axis``; 0 means a broadcast."""
    if not access.uses[axis]:
        return 0
    pitch, step = 1, 0
    for d in range(len(access.tensor.shape) - 1, -1, -1):
        for t in access.index[d].terms:
            if access.axis_names[axis] == t.axis:
                # A quasi-affine axis is contiguous if its fastest part indexes the last dimension.
                step = pitch * abs(t.coef) if not step else min(step, pitch * abs(t.coef))
        pitch *= access.tensor.shape[d]
    return step


def usable_cache_bytes(spec: DeviceSpec, name: str) -> int:
    """Return how many bytes of a cache reused data can occupy while streams pass through it."""
    layer = spec.layer(name)
    return layer.usable_bytes or layer.capacity_bytes
