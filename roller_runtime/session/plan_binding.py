"""Binds a plan to kernels and constants, so that an executor needs no look-ups."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from roller_runtime.core.dtypes import numpy_dtype, storage_dtype
from roller_runtime.errors import ModelError
from roller_runtime.plan.execution_plan import ARENA, CONSTANT, INPUT, OUTPUT, Place, Plan
from roller_runtime.plan.program_steps import Call, Copy, Foreign, ParallelGroup, Run, Step
from roller_runtime.session.cpu_kernel_loading import CallArgument, LoadedKernel, view_as_argument
from roller_runtime.session.gather_numbers import GatherNumbers, numbers_of_gather
from roller_runtime.session.packed_constants import Constants, check_all_kernels_present, panel_key

#: Copies of at least this many bytes are spread over threads, as in native_runner.c.
SHARED_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class Operand:
    """Memory that a step accesses.

    Parameters
    ----------
    shape, dtype
        Shape and dtype as the step sees them; a kernel sees bfloat16 as bits.
    place
        Location of the memory; ``None`` if ``held`` is given.
    held
        The array itself, for constants, packed constants and dynamic sizes.
    loose
        Whether the shape is known only at run time; the step then creates the output array.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    place: Place | None = None
    held: np.ndarray | None = field(default=None, repr=False)
    loose: bool = False

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class BoundRun:
    """A kernel with its operands."""

    step: Run
    kernel: LoadedKernel
    operands: tuple[Operand, ...]


@dataclass(frozen=True)
class BoundCopy:
    """A copy between two operands."""

    step: Copy
    source: Operand
    target: Operand


@dataclass(frozen=True)
class BoundCall:
    """A call to a library function or another runtime; ``None`` denotes an absent input or output.

    Parameters
    ----------
    gather
        Numbers with which the native runner computes the step, or ``None`` if only Python can.
    """

    step: Call | Foreign
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand | None, ...]
    gather: GatherNumbers | None = None


@dataclass(frozen=True)
class BoundParallelGroup:
    """Lanes; if ``apart``, no step calls Python or starts threads, and the lanes may run on separate threads."""

    lanes: tuple[tuple[Bound, ...], ...]
    apart: bool


Bound: TypeAlias = "BoundRun | BoundCopy | BoundCall | BoundParallelGroup"


def bind_plan(plan: Plan, kernels: Mapping[str, LoadedKernel], constants: Constants) -> tuple[Bound, ...]:
    """Return the steps of a plan, each bound to its kernel and operands."""
    check_all_kernels_present(plan, kernels)
    binder = _Binder(plan, kernels, constants)
    return tuple(binder.bound(step) for step in plan.program.steps)


@dataclass(frozen=True)
class _Binder:
    plan: Plan
    kernels: Mapping[str, LoadedKernel]
    constants: Constants

    def bound(self, step: Step) -> Bound:
        if isinstance(step, ParallelGroup):
            lanes = tuple(tuple(self.bound(s) for s in lane) for lane in step.lanes)
            return BoundParallelGroup(lanes, all(_is_serial(s) for lane in lanes for s in lane))
        if isinstance(step, Run):
            return self._run(step)
        if isinstance(step, Copy):
            return BoundCopy(
                step, self._checked_copy_operand(step, step.source), self._checked_copy_operand(step, step.target)
            )
        if isinstance(step, (Call, Foreign)):
            inputs, outputs = (
                tuple(self.operand(n) if n else None for n in names) for names in (step.inputs, step.outputs)
            )
            return BoundCall(step, inputs, outputs, _numbers_of_gather(step, inputs, outputs))
        raise ModelError(
            f"a plan: expected no step of kind {type(step).__name__}. Make the plan with memory_plan.plan_memory."
        )

    def operand(self, name: str) -> Operand:
        """Return the operand of a value as the device's array module sees it."""
        program = self.plan.program
        if name in program.loose:
            return Operand((), numpy_dtype(program.loose[name].dtype), self.plan.places[name], loose=True)
        value, place = self.plan.program.values.get(name), self.plan.places.get(name)
        if value is None or place is None:
            raise ModelError(f"a plan: value '{name}' has no place. Make the plan with memory_plan.plan_memory.")
        dtype = numpy_dtype(value.dtype)
        if place.offset_bytes < 0 or place.offset_bytes + value.nbytes > self._space_bytes(place):
            raise ModelError(
                f"a plan: value '{name}' lies outside its {place.space}. Make the plan with memory_plan.plan_memory."
            )
        if place.space != CONSTANT:
            return Operand(value.shape, dtype, place)
        flat = self.constants.arrays[place.name].reshape(-1).view(np.uint8)
        part = flat[place.offset_bytes : place.offset_bytes + value.nbytes]
        return Operand(value.shape, dtype, None, part.view(dtype).reshape(value.shape))

    def _space_bytes(self, place: Place) -> int:
        """Return the size in bytes of the memory that contains ``place``; -1 if there is no such memory."""
        program = self.plan.program
        if place.space == ARENA:
            return self.plan.arena_bytes
        if place.space == CONSTANT:
            held = self.constants.arrays.get(place.name)
            return held.nbytes if held is not None else -1
        ends = {INPUT: program.inputs, OUTPUT: program.outputs}.get(place.space, ())
        value = program.values.get(ends[place.index]) if 0 <= place.index < len(ends) else None
        return value.nbytes if value is not None else -1

    def _checked_copy_operand(self, step: Copy, name: str) -> Operand:
        operand = self.operand(name)
        at, pitch = (
            (step.source_offset_bytes, step.source_pitch_bytes)
            if name == step.source
            else (step.target_offset_bytes, step.target_pitch_bytes)
        )
        last = at + (step.rows - 1) * pitch + step.row_bytes if step.rows else 0
        if min(at, pitch, step.rows, step.row_bytes) < 0 or last > operand.nbytes:
            raise ModelError(
                f"copying '{step.source}' to '{step.target}' leaves the {operand.nbytes} bytes of '{name}'."
            )
        return operand

    def _run(self, step: Run) -> BoundRun:
        kernel = self.kernels[step.kernel]
        try:
            return BoundRun(
                step, kernel, tuple(self._argument_operand(step, kernel, taken) for taken in kernel.code.taken)
            )
        except IndexError as err:
            raise ModelError(f"{step.label}: the step lacks values its kernel takes. Compile it again.") from err

    def _argument_operand(self, step: Run, kernel: LoadedKernel, taken: CallArgument) -> Operand:
        if taken.role == "size":
            return Operand(taken.shape, storage_dtype(taken.dtype), None, np.empty(taken.shape, taken.dtype))
        if taken.role == "panel":
            panel = self.constants.panels[panel_key(step, kernel)][taken.position]
            return Operand(taken.shape, storage_dtype(taken.dtype), None, view_as_argument(panel, taken, step.label))
        name = (step.inputs if taken.role == "input" else step.outputs)[taken.position]
        operand = self.operand(name)
        if operand.held is not None:
            return Operand(
                taken.shape, storage_dtype(taken.dtype), None, view_as_argument(operand.held, taken, step.label)
            )
        found = Operand(taken.shape, storage_dtype(taken.dtype), operand.place)
        if found.nbytes != operand.nbytes:
            raise ModelError(
                f"{step.label}: value '{name}' has {operand.nbytes} bytes, the kernel takes {found.nbytes}. "
                "Compile the kernel again."
            )
        return found


def _numbers_of_gather(
    step: Call | Foreign, inputs: tuple[Operand | None, ...], outputs: tuple[Operand | None, ...]
) -> GatherNumbers | None:
    """Return the numbers of a gather whose result has the planned size; ``None`` for any other step."""
    if not isinstance(step, Call) or len(inputs) != 2 or len(outputs) != 1:
        return None
    data, positions = inputs
    (target,) = outputs
    if data is None or positions is None or target is None or data.loose or positions.loose or target.loose:
        return None
    found = numbers_of_gather(
        step.function, step.attributes, data.shape, positions.shape, positions.dtype.name, data.dtype.itemsize
    )
    return found if found is not None and found.nbytes == target.nbytes and data.dtype == target.dtype else None


def may_run_on_other_threads(bound: Bound) -> bool:
    """Return whether a step also runs on threads other than its caller's."""
    if isinstance(bound, BoundParallelGroup):
        return bound.apart or any(may_run_on_other_threads(b) for lane in bound.lanes for b in lane)
    if isinstance(bound, BoundCopy):
        return bound.step.rows * bound.step.row_bytes >= SHARED_COPY_BYTES
    if isinstance(bound, BoundCall):
        return bound.gather is not None and bound.gather.nbytes >= SHARED_COPY_BYTES
    return isinstance(bound, BoundRun) and bound.kernel.code.parallel


def _is_serial(bound: Bound) -> bool:
    if isinstance(bound, BoundParallelGroup):
        return False
    return isinstance(bound, BoundCopy) or (isinstance(bound, BoundRun) and not bound.kernel.code.parallel)
