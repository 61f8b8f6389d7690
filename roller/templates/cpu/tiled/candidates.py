"""Candidate CPU programs for one canonical form: micro-kernels, panel steps, and tasks."""

from __future__ import annotations

import itertools

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.options import ConstructOptions
from roller.templates.common.scale_up import unique_rows
from roller.templates.cpu.common.candidate_axes_and_task_shapes import (
    batch_of_register_tiles,
    candidate_row_axes,
    candidate_task_shapes,
    candidate_vector_axes,
    register_tiles_per_axis,
)
from roller.templates.cpu.common.lanes_and_cache_room import lane_count, lane_distance, usable_cache_bytes
from roller.templates.cpu.narrow_floats import is_computed_in_float32
from roller.templates.cpu.staging_and_contiguity_checks import is_read_once
from roller.templates.cpu.tiled.price import price
from roller.templates.cpu.window_clipping import segments_of_equal_clipping, slides_over_padding
from roller.tile.geometry import Access, Floats, Geometry, Ints
from roller.tile.structures import TILED, structure_of

#: Candidate numbers of rows of a micro-kernel along a scalar (broadcast) axis.
_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
#: Maximum number of equal parts of a short axis whose length is also a candidate, and candidates along two axes.
_SPLITS, _PAIRS = 4, (2, 3, 4, 7, 12)
#: Candidate numbers of vectors of a micro-kernel along the vector axis.
VECTORS = (1, 2, 3, 4, 6, 8)
#: Number of micro-kernels per vector axis to combine with tasks, and maximum slowdown of an axis relative to the best.
_KERNELS, _NEAR = 24, 1.8
#: Candidate chunks (elements) of a deep reduction, and n for the tasks tried with them: the first n, then every n-th.
CHUNKS, _CHUNKED_TASKS = (8, 16, 256, 512, 1024), 6
#: Chunks below this size are only for a single row of outputs: storing several rows costs more than computing them.
_SHORT_CHUNK = 64


def tiled_candidates(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return a batch per vector axis and choice of packed operands."""
    if not structure_of(geometry).reuses:
        return []
    batches = []
    for v, registers in promising_register_tiles(geometry, spec, options.constants).items():
        register, block = np.split(register_and_task_tiles(geometry, spec, registers), 2, axis=1)
        for staged in packed_input_choices(geometry, v, options.constants):
            batches.append(batch_of_register_tiles(geometry, TILED, register, block, staged, v))
    return batches


def packed_input_choices(geometry: Geometry, v: int, constants: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the sets of inputs to pack for vector axis ``v``: required inputs, with and without optional inputs."""
    # Required: accesses with guards or gathers, and vectors whose lanes are not adjacent in memory. Optional: a vector
    # operand with adjacent lanes that is read repeatedly (its rows then cannot conflict in a cache), and a broadcast
    # operand that every read would convert. Other broadcast operands cost nothing in place and are packed only as
    # ``constants``, which are packed before all calls.
    must, may = set[str](), set[str]()
    for a in geometry.loads:
        step = lane_distance(a, v)
        if a.bounds or a.gather or step > 1:
            must.add(a.tensor.name)
        elif a.tensor.name in constants or (not is_read_once(a, v) and (step == 1 or is_computed_in_float32(a))):
            may.add(a.tensor.name)
    sets = [must, must | (may & set(constants)), must | may]
    guarded = {a.tensor.name for a in geometry.loads if a.bounds}
    if guarded and not any(a.gather or lane_distance(a, v) > 1 for a in geometry.loads if a.bounds):
        sets += [s - guarded for s in sets if segments_of_equal_clipping(geometry, tuple(s - guarded))]
    return list(dict.fromkeys(tuple(n for n in geometry.load_names if n in chosen) for chosen in sets))


def promising_register_tiles(geometry: Geometry, spec: DeviceSpec, constants: tuple[str, ...]) -> dict[int, Ints]:
    """Return the register tiles worth trying with many tasks, shape ``(N, axes)`` per vector axis."""
    # Construction goes from the fastest layer outwards: micro-kernels are compared first, each as one task; only the
    # best ones, along axes close to the best axis, are combined with tasks.
    found, best = dict[int, tuple[Ints, Floats]](), np.inf
    for v in candidate_vector_axes(geometry, TILED):
        register = candidate_register_tiles(geometry, spec, v)
        block = np.where(geometry.spatial, -(-geometry.extents // register) * register, geometry.extents)
        choices = packed_input_choices(geometry, v, constants)
        priced = [
            price(batch_of_register_tiles(geometry, TILED, register, block, s, v), spec, {})["seconds"] for s in choices
        ]
        seconds = np.minimum.reduce(priced)
        found[v] = register, seconds
        best = min(best, float(seconds.min()))
    near = {v: f for v, f in found.items() if f[1].min() <= _NEAR * best} or found
    return {v: register[np.sort(np.argsort(s, kind="stable")[:_KERNELS])] for v, (register, s) in near.items()}


def candidate_register_tiles(geometry: Geometry, spec: DeviceSpec, v: int) -> Ints:
    """Return the candidate register tiles with lanes along axis ``v``, shape ``(N, axes)``."""
    lanes = lane_count(spec, 4)
    usable = spec.limits.usable_vector_registers or 1  # the schema requires it for CPUs
    others, found = candidate_row_axes(geometry, v), []
    for vectors in VECTORS:
        if vectors > 1 and vectors * lanes > int(geometry.extents[v]):
            continue
        for rows in candidate_kernel_rows(geometry, others, max(1, usable // vectors)):
            register = np.ones(len(geometry.names), np.int64)
            register[v] = vectors * lanes
            register[others] = rows
            found.append(register)
    return np.stack(found)


def register_and_task_tiles(geometry: Geometry, spec: DeviceSpec, registers: Ints) -> Ints:
    """Return distinct rows, each a register tile followed by a task tile, shape ``(N, 2 * axes)``."""
    steps = [np.where(geometry.spatial, 1, geometry.extents), *candidate_reduction_chunks(geometry, spec)]
    found, known = [], dict[bytes, tuple[Ints, Ints]]()
    for register in registers:
        tiles = register_tiles_per_axis(geometry, register)
        key = tiles.tobytes()
        if key not in known:
            tasks = candidate_task_shapes(tiles, spec)
            known[key] = tasks, _tasks_worth_chunking(tasks)
        rows = register.prod() // register.max()
        for n, step in enumerate(steps):
            if n and rows > 1 and step.prod() < _SHORT_CHUNK:
                continue
            block = np.where(geometry.spatial, register * known[key][n > 0], -(-step // register) * register)
            found.append(np.concatenate([np.broadcast_to(register, block.shape), block], axis=1))
    return unique_rows(np.concatenate(found))


def candidate_reduction_chunks(geometry: Geometry, spec: DeviceSpec) -> list[Ints]:
    """Return the candidate chunks of a deep reduction, as steps of all axes."""
    # The tiles of a task alternate chunk by chunk, so they read operands whose lines and pages are still in a cache.
    # With a window, the outermost axis outside the window is chunked if the image exceeds L2 and its taps have gaps,
    # because the next tap then reuses no line of the previous one.
    deep = [int(a) for a in np.flatnonzero(~geometry.spatial & (geometry.extents > 1))]
    windowed = [a for a in geometry.loads if not a.gather and a.shared_axis_mask.any()]
    apart = any(s.gap > s.step for s in slides_over_padding(geometry))
    if len(deep) > 1 and apart and any(_bytes_under_windows(a) > usable_cache_bytes(spec, "l2") for a in windowed):
        deep = [a for a in geometry.reduction_order if a in deep and not any(x.shared_axis_mask[a] for x in windowed)]
    elif len(deep) != 1:
        return []
    if not deep:
        return []
    behind = int(geometry.extents[deep[1:]].prod())
    out = []
    for c in CHUNKS:
        if c % behind == 0 and 2 * c <= geometry.extents[deep[0]] * behind:
            steps = np.where(geometry.spatial, 1, geometry.extents)
            steps[deep[0]] = c // behind
            out.append(steps)
    return out


def _bytes_under_windows(access: Access) -> float:
    """Return the number of bytes over which windows slide: all channels of one image in a batch."""
    images = access.uses & access.spatial & ~access.shared_axis_mask
    return access.tensor.nbytes / float(access.axis_extents[images].prod())


def _tasks_worth_chunking(tasks: Ints) -> Ints:
    """Return the largest tasks, which share the most, and some of the others; single-tile tasks share nothing."""
    sizes = tasks.prod(axis=1)
    several = tasks[np.argsort(-sizes, kind="stable")][: int((sizes > 1).sum())]
    return np.concatenate([several[:_CHUNKED_TASKS], several[_CHUNKED_TASKS::_CHUNKED_TASKS]])


def candidate_kernel_rows(geometry: Geometry, others: list[int], most_rows: int) -> list[tuple[int, ...]]:
    """Return candidate numbers of micro-kernel rows along the scalar axes, at most two of them larger than 1."""
    out = {tuple(1 for _ in others)}
    for i, a in enumerate(others):
        extent = int(geometry.extents[a])
        most = min(most_rows, extent)
        for n in {*_ROWS, *(-(-extent // parts) for parts in range(max(1, -(-extent // most_rows)), _SPLITS + 1))}:
            if n <= most:
                out.add(tuple(n if j == i else 1 for j in range(len(others))))
        for k in range(i + 1, len(others)):
            for n, m in itertools.product(_PAIRS, _PAIRS):
                if n * m <= most_rows and n <= geometry.extents[a] and m <= geometry.extents[others[k]]:
                    out.add(tuple(n if j == i else m if j == k else 1 for j in range(len(others))))
    return sorted(out)
