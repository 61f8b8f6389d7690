"""The operations of a launch on each arithmetic pipe, and their time at that pipe's peak rate."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from roller.expr import TensorExpr
from roller.expr.scalar import FUNCTIONS, Call, walk_scalar_tree
from roller.hardware import DeviceSpec
from roller.hardware.peak_rates import peak_flops_and_instruction_class
from roller.insight.cost.count_multiplications import multiplication_count
from roller.insight.cost.kernel_launch_types import FusedKernel, Kernel, Launch
from roller_runtime.core.display import bytes_text

#: Arithmetic pipes: for scalar multiply-adds, for matrix products, and for functions such as ``exp``.
Pipe = Literal["fma", "matrix", "special"]


class PipeWork(NamedTuple):
    """The operations of a launch on its slowest pipe, the one that needs the most time for them at its peak rate."""

    pipe: Pipe
    #: Number of operations; a multiply-add counts as two.
    operations: float
    #: Time of the operations at the pipe's peak rate and the device's clock, in seconds.
    at_peak_s: float


def describe_launch(launch: Launch) -> str:
    """Return a description of a launch: the expressions that its kernels compute, or the bytes that they move."""
    if isinstance(launch, Kernel):
        return str(launch.expr)
    if isinstance(launch, FusedKernel):
        return " -> ".join(str(p) for p in launch.products)
    moved = [f"{word} {bytes_text(int(n))}" for word, n in _bytes_by_direction(launch) if n]
    return ", ".join(moved) or "launch"


def _bytes_by_direction(launch: Launch) -> tuple[tuple[str, float], ...]:
    return ("read", getattr(launch, "read_bytes", 0.0)), ("write", getattr(launch, "written_bytes", 0.0))


def slowest_pipe_work(launch: Launch, spec: DeviceSpec) -> PipeWork | None:
    """Return a launch's work on its slowest pipe; ``None`` if only its bytes are known or ``spec`` gives no rate."""
    # Products of two tensors are counted on the fastest pipe for their dtype. All other arithmetic is counted by the
    # function calls in the expression.
    if isinstance(launch, Kernel):
        found = _expression_work_by_pipe(launch.expr, launch.count, spec)
    elif isinstance(launch, FusedKernel):
        found = [work for p in launch.products for work in _expression_work_by_pipe(p, launch.share, spec)]
        products = [w for w in found if w.pipe != "special"]
        if products:
            operations, at_peak_s = sum(w.operations for w in products), sum(w.at_peak_s for w in products)
            found = [PipeWork(products[0].pipe, operations, at_peak_s)]
        found += _function_call_work(launch.exponentials, "special", spec)
    else:
        return None
    return max(found, key=lambda work: work.at_peak_s, default=None)


def _expression_work_by_pipe(expr: TensorExpr, times: float, spec: DeviceSpec) -> list[PipeWork]:
    products = multiplication_count(expr)
    found = []
    if products:
        peak = peak_flops_and_instruction_class(spec, expr.inputs[0].dtype)
        if peak is not None:
            rate, unit = peak
            pipe: Pipe = "fma" if unit == "fma" else "matrix"
            found.append(PipeWork(pipe, 2.0 * products * times, 2.0 * products * times / rate))
    calls = {"fma": 0.0, "special": 0.0}
    for stage in expr.stages:
        points = math.prod(axis.extent for axis in stage.axes)
        for node in walk_scalar_tree(stage.body):
            if isinstance(node, Call):
                calls["special" if FUNCTIONS[node.fn].instruction_class == "special" else "fma"] += points
    found += _function_call_work(times * calls["special"], "special", spec)
    if not products:
        found += _function_call_work(times * calls["fma"], "fma", spec)
    return found


def _function_call_work(count: float, pipe: Pipe, spec: DeviceSpec) -> list[PipeWork]:
    rate = spec.compute.ops_per_cycle_per_unit.get(pipe, 0.0) * spec.units * spec.clock_hz
    return [PipeWork(pipe, count, count / rate)] if count and rate else []
