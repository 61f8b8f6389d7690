"""MicroPerfModel: price batches and programs; the device's kind decides which half answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf import cpu, gpu
from roller.perf.accuracy import prediction_error
from roller.perf.batch import TileBatch
from roller.perf.estimate import Estimate
from roller.perf.terms import Term
from roller.tile.geometry import Floats, Geometry, Ints
from roller.tile.program import RProgram

#: Rows priced before bounds are compared.
_PRICED_FIRST = 192
#: Time terms that compete for the bottleneck.
_STAGES = ("compute_s", "copy_s", "dram_s", "l2_s", "l3_s", "latency_s", "launch_s")


def price(batch: TileBatch, spec: DeviceSpec) -> Mapping[str, Floats]:
    """Return ``seconds`` and every term of a batch, arrays of shape ``(N,)``."""
    return gpu.price(batch, spec) if spec.kind == "gpu" else cpu.price(batch, spec)


def best_rows(
    batch: TileBatch, spec: DeviceSpec, count: int, limit_s: float = float("inf"), always: bool = False
) -> list[tuple[float, int]]:
    """Return ``(seconds, row)`` of the ``count`` best programs that fit the device, best first.

    Exact, but most rows are only bounded from below: after the most promising have been priced in full, a row
    whose bound exceeds the ``count``-th best time, or ``limit_s``, cannot be among the best. With ``always`` the best
    program of all is found even where ``limit_s`` beats it.
    """
    rows, known = np.arange(len(batch)), batch.known_seconds(spec)
    if known is not None:
        seconds = known
    elif spec.kind == "gpu" and len(batch) > _PRICED_FIRST:
        bound = gpu.lower_bound_s(batch, spec)
        rows = rows if always else np.flatnonzero(bound <= limit_s)
        if len(rows) > _PRICED_FIRST:
            rows = rows[np.argpartition(bound[rows], _PRICED_FIRST - 1)]
        first, later = rows[:_PRICED_FIRST], rows[_PRICED_FIRST:]
        if not len(first):
            return []
        seconds = price(batch.take(first), spec)["seconds"]
        last = min(count, len(first)) - 1
        limit = min(limit_s, np.partition(seconds, last)[last])
        limit = max(limit, seconds.min()) if always else limit
        later = later[bound[later] <= limit]
        if len(later):
            seconds = np.concatenate([seconds, price(batch.take(later), spec)["seconds"]])
        rows = np.concatenate([first, later])
    else:
        seconds = np.asarray(price(batch, spec)["seconds"])
    order = np.lexsort((rows, seconds))[:count]
    return [(float(seconds[i]), int(rows[i])) for i in order if np.isfinite(seconds[i])]


def batch_of(programs: Sequence[RProgram]) -> TileBatch:
    """Return programs of one expression, structure and vector axis as a batch, all of them pipelines or none."""
    first = programs[0]
    g = Geometry.of(first.expr)
    layers = len(first.tiles)
    rows = [np.array([p.tiles[layer][1] for p in programs], np.int64) for layer in range(layers)]
    axis = None if first.vector_axis is None or first.kind == "gpu" else g.names.index(first.vector_axis)
    return TileBatch(
        g,
        first.structure,
        rows[0],
        rows[-1],
        np.array([p.split_k for p in programs], np.int64),
        first.staged,
        rows[1] if layers > 2 else None,
        axis,
        first.constants,
        first.nontemporal,
        _common([p.stages for p in programs]),
        _common([p.raster for p in programs]),
        first.fragment,
        first.matrix_axes,
    )


def _common(values: list[int]) -> int | Ints:
    return values[0] if min(values) == max(values) else np.array(values, np.int64)


def estimate_programs(programs: Sequence[RProgram], spec: DeviceSpec) -> list[Estimate]:
    """Return the estimates of programs, in order, with their storage padding, bank conflicts and transactions.

    Alike programs are priced together.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for n, p in enumerate(programs):
        axis = p.vector_axis if p.kind == "cpu" else None
        alike = (p.layers, p.constants, p.nontemporal, p.stages > 1, p.fragment, p.matrix_axes)
        groups.setdefault((id(p.expr), p.structure, p.staged, axis, *alike), []).append(n)
    out: dict[int, Estimate] = {}
    for members in groups.values():
        mine = [programs[n] for n in members]
        batch = batch_of(mine)
        terms = (
            gpu.price(batch, spec, gpu.LaidOut.of(batch, mine, spec)) if spec.kind == "gpu" else cpu.price(batch, spec)
        )
        out.update({n: _estimate(terms, row, spec, batch.fragment is not None) for row, n in enumerate(members)})
    return [out[n] for n in range(len(programs))]


def estimate_explained(
    program: RProgram, spec: DeviceSpec, block: Sequence[int] | None = None
) -> tuple[Estimate, Term]:
    """Return the estimate of one program and the terms its seconds were made of: the numbers of this very pricing.

    ``block`` as for :func:`estimate_block`, where blocks advance by less than their threads cover.
    """
    batch = batch_of([program])
    batch = batch if block is None else replace(batch, block=np.array([block], np.int64))
    if spec.kind == "gpu":
        told: list[gpu.Parts] = []
        terms = gpu.price(batch, spec, gpu.LaidOut.of(batch, [program], spec), told)
        return _estimate(terms, 0, spec, batch.fragment is not None), gpu.explained(told)
    parts: list[cpu.Parts] = []
    terms = cpu.price(batch, spec, parts)
    return _estimate(terms, 0, spec), cpu.explained(parts)


def estimate_block(program: RProgram, spec: DeviceSpec, block: Sequence[int]) -> Estimate:
    """Return the estimate of a GPU program whose blocks advance by ``block`` only, though their threads cover more."""
    batch = replace(batch_of([program]), block=np.array([block], np.int64))
    return _estimate(gpu.price(batch, spec, gpu.LaidOut.of(batch, [program], spec)), 0, spec)


def estimate_program(program: RProgram, spec: DeviceSpec) -> Estimate:
    """Return the estimate of one program."""
    return estimate_programs([program], spec)[0]


def _estimate(terms: Mapping[str, Floats], row: int, spec: DeviceSpec, matrix: bool = False) -> Estimate:
    values = {k: float(v[row]) for k, v in terms.items() if k != "seconds"}
    stages = {k: v for k, v in values.items() if k in _STAGES}
    bottleneck = max(stages, key=lambda k: stages[k])[:-2]
    error = prediction_error(spec, bottleneck, matrix)
    return Estimate(float(terms["seconds"][row]), bottleneck, tuple(values.items()), error)
