"""Kernels of hand-made programs for a GPU, and a session of them on the emulated device."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from roller.artifact import KernelArtifact
from roller.compiler.pipeline import lower
from roller.construction.constructor import construct_candidates
from roller.emulator.emulated_device import EmulatedDevice
from roller.expr import TensorExpr
from roller.hardware import load_spec
from roller.models.graph.memory_plan import plan_memory
from roller.models.session.gpu_session import GpuSession
from roller.templates.common.options import ConstructOptions
from roller_runtime.plan.program_steps import Program
from tests.models.session.reference import evaluate_program

DEVICE = "h200"


@functools.cache
def lowered(expression: TensorExpr, constants: tuple[str, ...] = (), structure: str = "") -> KernelArtifact:
    """The best prediction (of a structure, where one is named), not built."""
    spec = load_spec(DEVICE)
    found = construct_candidates(expression, spec, ConstructOptions(constants=constants))
    best = next(c for c in found if structure in ("", c.program.structure))
    return replace(lower(best.program, expression, spec), estimate=best.estimate.to_dict())


def kernels(program: Program) -> dict[str, KernelArtifact]:
    return {key: lowered(source.expression, source.constants) for key, source in program.kernels.items()}


def session(program: Program, device: EmulatedDevice, **options) -> GpuSession:
    return GpuSession(plan_memory(program, value_align_bytes=16), kernels(program), device, **options)


def assert_right(program: Program, outputs, given) -> None:
    wanted = evaluate_program(program, given)
    for got, name in zip(outputs, program.outputs, strict=True):
        np.testing.assert_allclose(got, wanted[name], rtol=2e-5, atol=2e-5)
