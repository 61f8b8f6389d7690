"""Prices a framework's GPU library kernel as the fastest program that its policy describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from roller.construction.constructor import nothing_fits_error, program_from_row
from roller.construction.layouts_for_named_tiles import scratchpad_layouts
from roller.errors import RollerError, shown
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.estimate import Estimate
from roller.perf.tile_batch import TileBatch
from roller.templates import price_with_templates
from roller.templates.common.library_kernel_limits import POLICIES, LibraryPolicy
from roller.templates.common.options import ConstructOptions
from roller.templates.gpu.tiled.layout_time_lower_bounds import LayoutBounds
from roller.templates.registry import programs_of
from roller.tile.geometry import Floats
from roller.tile.structures import TILED

#: Seconds, position (batch, row, layout) and estimate of a program.
_Best: TypeAlias = tuple[float, tuple[int, int, int], Estimate]


def library_estimate(expr: TensorExpr, spec: DeviceSpec, policy: str, warm: tuple[str, ...] = ()) -> Estimate:
    """Return the estimate of a policy's fastest program, including the overhead of the call."""
    _check_policy(policy, spec)
    options = ConstructOptions(policy=policy)
    batches = [replace(b, warm=warm) if warm else b for b in programs_of(expr, spec, options)]
    spec = spec_with_call_overhead(expr, spec, policy, any(b.moments_together for b in batches))
    fastest = _fastest_estimate([b for b in batches if len(b)], spec)
    if fastest is None:
        raise nothing_fits_error(expr, spec, options)
    return fastest


def library_program_pricer(expr: TensorExpr, spec: DeviceSpec, policy: str) -> Callable[[DeviceSpec], Estimate]:
    """Return a function that prices, on any device, the program that :func:`library_estimate` finds for ``spec``."""
    _check_policy(policy, spec)
    options = ConstructOptions(policy=policy)
    batches = [b for b in programs_of(expr, spec, options) if len(b)]
    if not batches:
        raise nothing_fits_error(expr, spec, options)
    moments = any(b.moments_together for b in batches)
    here = spec_with_call_overhead(expr, spec, policy, moments)
    chosen = min((_pricer_of_fastest(b, here) for b in batches), key=lambda price: price(here).seconds)
    return lambda other: chosen(spec_with_call_overhead(expr, other, policy, moments))


def _pricer_of_fastest(batch: TileBatch, spec: DeviceSpec) -> Callable[[DeviceSpec], Estimate]:
    """Return a function that prices, on any device, the program of the batch that is fastest on ``spec``."""
    if batch.structure != TILED.name:
        row = batch.take(np.array([int(np.argmin(price_with_templates.price(batch, spec)["seconds"]))]))
        return lambda other: price_with_templates.estimate_best(row, other)
    programs = [p for n in range(len(batch)) for p in scratchpad_layouts(program_from_row(batch, n, spec), spec)]
    seconds = [e.seconds for e in price_with_templates.estimate_programs(programs, spec)]
    program = programs[seconds.index(min(seconds))]
    return lambda other: price_with_templates.estimate_program(program, other)


def spec_with_call_overhead(expr: TensorExpr, spec: DeviceSpec, policy: str, moments: bool = False) -> DeviceSpec:
    """Return the device with its launch time raised to that of a policy's whole call with nothing queued."""
    called_s = _check_policy(policy, spec).call_s * _count_allocated_tensors(expr, moments)
    if called_s <= spec.execution.launch_s:
        return spec  # the same object: batches cache results by device
    return replace(spec, execution=replace(spec.execution, launch_s=called_s))


def _check_policy(policy: str, spec: DeviceSpec) -> LibraryPolicy:
    chosen = POLICIES.get(policy) if isinstance(policy, str) else None
    if chosen is None:
        known = [name for name, p in POLICIES.items() if p is not None]
        raise RollerError(f"policy: expected one of {known}, got {shown(policy)}. Leave it out to price tiles.")
    if not spec.traits.blocks:
        raise RollerError(f"policy: expected a GPU, got {spec.name}. Libraries of a CPU are not described yet.")
    return chosen


def _count_allocated_tensors(expr: TensorExpr, moments: bool) -> int:
    """Return the number of tensors that a framework call allocates: results, and row moments for the backward pass."""
    sums = sum(s.combiner == "sum" for s in expr.stages) if moments else 0
    return len(expr.output_tensors) + sums


#: Number of rows per batch to lay out before bounds are compared, and number of rows in the first round after that.
#: The number doubles from round to round, because pricing several programs takes little longer than pricing one.
_FIRST, _TOGETHER = 4, 8


def _fastest_estimate(batches: Sequence[TileBatch], spec: DeviceSpec) -> Estimate | None:
    """Return the fastest program's estimate, with staged tiles in their best layout, or ``None`` without programs."""
    # Laying out a program takes as long as pricing hundreds of programs, so only tiles whose lower bound does not
    # exceed the best price so far are laid out.
    best: _Best | None = None
    tiled: dict[int, tuple[LayoutBounds, Floats]] = {}
    for n, batch in enumerate(batches):
        if batch.structure != TILED.name:
            estimate = price_with_templates.estimate_best(batch, spec)
            best = _faster_of_two(best, (estimate.seconds, (n, 0, 0), estimate))
        else:
            bounds = LayoutBounds(batch, spec)
            tiled[n] = bounds, bounds.bounds_without_padding_s()
    done = {}
    for n, (_, likely) in sorted(tiled.items(), key=lambda x: float(x[1][1].min())):
        rows = np.argsort(likely, kind="stable")[:_FIRST]
        done[n] = rows if best is None else rows[likely[rows] <= best[0]]
        best = _better_layout_of_rows(n, batches[n], done[n], spec, best)
    left: list[tuple[float, int, int]] = []
    for n, (bounds, likely) in tiled.items():
        limit = float("inf") if best is None else best[0]
        seconds = bounds.least_s(likely, limit)
        seconds[done[n]] = np.inf
        rows = np.flatnonzero(np.isfinite(seconds) & (seconds <= limit))
        left += [(float(seconds[row]), n, int(row)) for row in rows]
    left.sort()
    at, together = 0, _TOGETHER
    while at < len(left):
        rows_by_batch: dict[int, list[int]] = {}
        for seconds_, n, row in left[at : at + together]:
            if best is None or seconds_ <= best[0]:
                rows_by_batch.setdefault(n, []).append(row)
        if not rows_by_batch:
            break
        for n, some in rows_by_batch.items():
            best = _better_layout_of_rows(n, batches[n], np.array(some), spec, best)
        at, together = at + together, 2 * together
    return None if best is None else best[2]


def _faster_of_two(one: _Best | None, other: _Best) -> _Best:
    return other if one is None or other[:2] < one[:2] else one


def _better_layout_of_rows(
    n: int, batch: TileBatch, rows: NDArray[np.intp], spec: DeviceSpec, best: _Best | None
) -> _Best | None:
    """Return the better of ``best`` and the best layout of the ``n``-th batch's given rows; ``None`` without either."""
    placed = [
        ((n, row, which), program)
        for row in sorted(rows.tolist())
        for which, program in enumerate(scratchpad_layouts(program_from_row(batch, row, spec), spec))
    ]
    if not placed:
        return best
    place, estimate = price_with_templates.estimate_fastest([p for _, p in placed], spec, batch.warm)
    return _faster_of_two(best, (estimate.seconds, placed[place][0], estimate))
