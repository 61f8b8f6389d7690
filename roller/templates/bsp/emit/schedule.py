"""Builds the schedule (:mod:`roller.tile.superstep_schedule`) of a program from the counts that its price uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from roller.expr import Stage, TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import batch_of
from roller.templates.bsp.common.tile_and_superstep_counts import count_tiles_and_supersteps, results_per_worker_piece
from roller.tile.program import RProgram
from roller.tile.superstep_schedule import AxisPlan, Schedule, StagePlan, TensorPlan, codelet_name
from roller.tile.tensor_boxes import WORD_BYTES, Box, boxes_of
from roller_runtime.core.dtypes import DTYPE_BYTES


def build_schedule(program: RProgram, spec: DeviceSpec, entry: str) -> Schedule:
    """Return the schedule of a program on a device."""
    expr, batch = program.expr, batch_of([program])
    decision = count_tiles_and_supersteps(batch, spec)
    tile, steps, split = program.block_tile, int(decision.steps[0]), program.split_k
    keeps = steps > 1 or split > 1
    tensors = tuple(_tensor_plan(expr, box, tile) for box in boxes_of(expr).values())
    vector = _results_per_worker_vector(program)
    stages = tuple(_stage_plan(expr, s, f"{entry}_{codelet_name(s.name)}", keeps and s is expr.anchor, split > 1,
                               vector)
                   for s in expr.stages)  # fmt: skip
    several = max(1, WORD_BYTES // DTYPE_BYTES[expr.anchor.acc_dtype])
    sums = int(np.prod([tile[a.name] for a in expr.anchor.spatial_axes], dtype=np.int64)) if keeps else 0
    axes = tuple(AxisPlan(a.name, a.extent, tile[a.name], a.name in program.grid) for a in program.axes)
    parted = split > 1
    return Schedule(
        spec.units, spec.limits.threads_per_unit or 1, axes, tensors, stages, program.blocks, split, steps,
        -(-sums // several) * several, expr.anchor.acc_dtype,
        _combine_parts_plan(expr, f"combine_{entry}", "", vector) if parted else None,
        _combine_parts_plan(expr, f"finish_{entry}", expr.anchor.name, vector) if parted else None,
    )  # fmt: skip


def _results_per_worker_vector(program: RProgram) -> int:
    """Return the number of neighbouring results that a worker computes at a time."""
    axis = program.vector_axis
    return 1 if axis is None else program.tile(program.layers[0])[axis]


def _tensor_plan(expr: TensorExpr, box: Box, tile: Mapping[str, int]) -> TensorPlan:
    t = box.tensor
    role = "input" if t in expr.inputs else "output" if t.name in expr.outputs else "local"
    accesses = tuple(
        tuple((i.const, tuple((x.axis, x.coef, x.div, x.mod) for x in i.terms)) for i in access)
        for access in box.accesses
    )
    return TensorPlan(t.name, role, t.shape, t.dtype, box.lattice, _int_tuple(box.counts(tile)),
                      _int_tuple(box.pitches(tile)),
                      accesses)  # fmt: skip


def _int_tuple(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(v) for v in values)


def _stage_plan(expr: TensorExpr, s: Stage, entry: str, keeps: bool, parted: bool, vector: int) -> StagePlan:
    reads = tuple(dict.fromkeys(load.tensor for load in s.loads))
    writes = "" if keeps and parted else s.name
    return StagePlan(entry, reads, writes, _tile_place_entries(expr, s, (*reads, s.name), keeps),
                     _axis_names_and_extents(s),
                     s is expr.anchor, keeps,
                     results_per_worker_piece(vector, s.output.itemsize_bytes))  # fmt: skip


def _combine_parts_plan(expr: TensorExpr, entry: str, writes: str, vector: int) -> StagePlan:
    """Return the plan of the codelet that combines parts or, if ``writes`` names a tensor, converts their sum."""
    s = expr.anchor
    written = s.output.itemsize_bytes if writes else DTYPE_BYTES[s.acc_dtype]
    return StagePlan(entry, (), writes, _tile_place_entries(expr, s, (s.name,), False), _axis_names_and_extents(s),
                     False, True,
                     results_per_worker_piece(vector, written))  # fmt: skip


def _axis_names_and_extents(s: Stage) -> tuple[tuple[str, int], ...]:
    return tuple((a.name, a.extent) for a in s.axes)


def _tile_place_entries(expr: TensorExpr, s: Stage, tensors: Sequence[str], keeps: bool) -> tuple[str, ...]:
    """Return the names in ``place``: first (``f_``), count (``n_``), maximum (``m_``) per axis; then boxes (``b_``)."""
    numbers = [f"{word}_{a.name}" for a in s.axes for word in ("f", "n", "m")]
    numbers += [f"b_{t}_{d}" for t in tensors for d in range(len(expr.tensors[t].shape))]
    return (*numbers, *(("first", "last") if keeps else ()))
