"""What a framework's library kernel takes on a GPU: the fastest of the programs that its policy says they are like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from roller import perf
from roller.errors import RollerError, shown
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.estimate import Estimate
from roller.search.constructor import nothing_fits, program_of
from roller.search.named_layouts import layouts
from roller.templates.common.options import ConstructOptions
from roller.templates.common.policy import POLICIES, LibraryPolicy
from roller.templates.registry import programs_of
from roller.tile.structures import TILED


def library_estimate(expr: TensorExpr, spec: DeviceSpec, policy: str, warm: tuple[str, ...] = ()) -> Estimate:
    """Return the estimate of the fastest program of a policy, with what a call adds to it.

    Parameters
    ----------
    expr, spec
        What is computed, and the GPU.
    policy
        A key of :data:`~roller.templates.common.policy.POLICIES` that is not ours.
    warm
        Inputs that are in the shared cache already.

    Raises
    ------
    RollerError
        Where there is no such policy, or the device is no GPU.
    NoCandidateError
        Where no program fits the device.
    """
    _policy(policy, spec)
    options = ConstructOptions(policy=policy)
    batches = [replace(b, warm=warm) for b in programs_of(expr, spec, options)]
    spec = called(expr, spec, policy, any(b.moments_together for b in batches))
    found = [_fastest(b, spec) for b in batches if len(b)]
    if not found:
        raise nothing_fits(expr, spec, options)
    return min(found, key=lambda e: e.seconds)


def library_program(expr: TensorExpr, spec: DeviceSpec, policy: str) -> Callable[[DeviceSpec], Estimate]:
    """Return what prices the program of :func:`library_estimate` on other devices: the same kernel, other numbers.

    Raises
    ------
    RollerError
        Where there is no such policy, or the device is no GPU.
    NoCandidateError
        Where no program fits the device.
    """
    _policy(policy, spec)
    options = ConstructOptions(policy=policy)
    batches = [b for b in programs_of(expr, spec, options) if len(b)]
    if not batches:
        raise nothing_fits(expr, spec, options)
    moments = any(b.moments_together for b in batches)
    here = called(expr, spec, policy, moments)
    chosen = min((_chosen(b, here) for b in batches), key=lambda price: price(here).seconds)
    return lambda other: chosen(called(expr, other, policy, moments))


def _chosen(batch: TileBatch, spec: DeviceSpec) -> Callable[[DeviceSpec], Estimate]:
    """Return what prices the fastest program of a batch on other devices."""
    if batch.structure != TILED.name:
        row = batch.take(np.array([int(np.argmin(perf.price(batch, spec)["seconds"]))]))
        return lambda other: perf.estimate_best(row, other)
    programs = [p for n in range(len(batch)) for p in layouts(program_of(batch, n, spec), spec)]
    seconds = [e.seconds for e in perf.estimate_programs(programs, spec)]
    program = programs[seconds.index(min(seconds))]
    return lambda other: perf.estimate_program(program, other)


def called(expr: TensorExpr, spec: DeviceSpec, policy: str, moments: bool = False) -> DeviceSpec:
    """Return the device as a policy's calls find it: a launch takes as long as a call where nothing is queued before.

    Raises
    ------
    RollerError
        Where there is no such policy, or the device is no GPU.
    """
    called_s = _policy(policy, spec).call_s * _tensors_made(expr, moments)
    return replace(spec, execution=replace(spec.execution, launch_s=max(spec.execution.launch_s, called_s)))


def _policy(policy: str, spec: DeviceSpec) -> LibraryPolicy:
    chosen = POLICIES.get(policy) if isinstance(policy, str) else None
    if chosen is None:
        known = [name for name, p in POLICIES.items() if p is not None]
        raise RollerError(f"policy: expected one of {known}, got {shown(policy)}. Leave it out to price tiles.")
    if not spec.traits.blocks:
        raise RollerError(f"policy: expected a GPU, got {spec.name}. Libraries of a CPU are not described yet.")
    return chosen


def _tensors_made(expr: TensorExpr, moments: bool) -> int:
    """Return the tensors a framework's call makes: results, and moments of rows, which their gradient needs."""
    sums = sum(s.combiner == "sum" for s in expr.stages) if moments else 0
    return len(expr.output_tensors) + sums


def _fastest(batch: TileBatch, spec: DeviceSpec) -> Estimate:
    """Return the estimate of a batch's fastest program; tiles in the scratchpad as they are laid out best."""
    if batch.structure != TILED.name:
        return perf.estimate_best(batch, spec)
    programs = [p for n in range(len(batch)) for p in layouts(program_of(batch, n, spec), spec)]
    return min(perf.estimate_programs(programs, spec, batch.warm), key=lambda e: e.seconds)
