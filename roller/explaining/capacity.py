"""What keeps a program from running, or from being constructed: the capacity it exceeds, in numbers."""

from __future__ import annotations

import math

from roller import perf
from roller.hardware import DeviceSpec
from roller.perf.gpu import register_words, scratchpad_bytes, usable_registers
from roller.tile.program import RProgram
from roller.tile.winograd_products import products_program


def exceeded(program: RProgram, spec: DeviceSpec) -> str | None:
    """Return which budget of construction a program exceeds, ``None`` where it fits.

    Construction keeps to budgets (``usable_*``) below the hard limits that named programs may use up.
    """
    return _of_gpu(products_program(program) or program, spec) if spec.kind == "gpu" else _of_cpu(program, spec)


def _of_gpu(program: RProgram, spec: DeviceSpec) -> str | None:
    batch, lim = perf.batch_of([program]), spec.limits
    threads, lanes = program.threads_per_block, spec.teu.lanes
    if lim.threads_per_block is not None and threads > lim.threads_per_block:
        return f"{threads} threads of a block, limits.threads_per_block is {lim.threads_per_block}"
    words, usable = int(register_words(batch)[0]), int(usable_registers(batch, spec)[0])
    if words > usable:
        return f"{words} registers of a thread for results and operands, {usable} are usable"
    used, budget = int(scratchpad_bytes(batch)[0]), spec.layer("shared").budget_bytes
    if used > budget:
        return f"{used:,} bytes of scratchpad, {budget:,} are usable"
    if program.structure != "window" and threads % lanes:
        return f"{threads} threads fill no whole TEUs of {lanes}"
    if math.isinf(perf.estimate_program(program, spec).seconds):
        if program.stages > 2 and not spec.execution.async_copy_bytes:
            return f"{program.stages} stages: copies pass through registers here, which hold one step ahead (2 stages)"
        return f"{program.stages} stages leave too few registers, or copies of these tiles pass through them"
    return None


def _of_cpu(program: RProgram, spec: DeviceSpec) -> str | None:
    estimate = perf.estimate_program(program, spec)
    if math.isfinite(estimate.seconds):
        return None
    held = estimate.terms.get("vectors")
    vectors = "accumulators and operands" if held is None else f"{held:.0f} vectors of accumulators, beside operands"
    lim = spec.limits
    return f"{vectors}: {lim.usable_vector_registers} of {lim.vector_registers} vector registers are usable"
