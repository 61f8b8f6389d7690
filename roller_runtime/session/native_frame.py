"""Bound steps as tables for native_runner.c, and frames that run them with under a microsecond of overhead per step."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from roller_runtime.cpu.tvm_libraries import argument_table, tensor_table
from roller_runtime.errors import LaunchError
from roller_runtime.plan.execution_plan import ARENA, INPUT
from roller_runtime.session.call_frame import Frame
from roller_runtime.session.inputs_given_by_address import AddressedInputs
from roller_runtime.session.interpreter import call_label, interpret_steps, run_call_step
from roller_runtime.session.native_runner import FrameStruct, Runner
from roller_runtime.session.plan_binding import Bound, BoundCall, BoundCopy, BoundParallelGroup, BoundRun, Operand

#: Layouts of structures in native_runner.c.
STEP_FIELDS = (
    "kind", "first", "count", "rows", "row_bytes", "source_offset", "source_pitch", "target_offset", "target_pitch",
    "function", "cuts", "cut_count",
)  # fmt: skip
_STEP = np.dtype([(n, "u8" if n in ("function", "cuts") else "i8") for n in STEP_FIELDS])
_CALL, _COPY, _TOGETHER, _GATHER = range(4)
#: Maximum number of tasks per thread, and the minimum time, in seconds, that a task should take: starting one costs
#: some ten nanoseconds.
_TASKS_PER_THREAD, _LEAST_TASK_S = 8, 1e-5

#: A range of rows of the tables, or a step that Python runs.
Segment: TypeAlias = "tuple[int, int] | BoundCall"


@dataclass(frozen=True)
class RunnerTables:
    """Tables shared by all frames.

    Parameters
    ----------
    steps, lanes
        Tables of steps and lanes, as in native_runner.c.
    tensors
        Template of the tensors: data pointers for constants, and offsets for tensors in the arena.
    in_arena
        Indices of the tensors in the arena.
    patches
        Tensors in the caller's arrays: index of the tensor, index of the array, and byte offset.
    segments
        Segments in order of execution.
    bound
        The bound step for each row of ``steps``.
    shapes, cuts
        Dimensions of all tensors, and numbers of tasks, which the other tables point into.
    kept
        Constants that the tables point into.
    operands
        The operand for each row of ``tensors``.
    """

    steps: np.ndarray
    lanes: np.ndarray
    tensors: np.ndarray
    in_arena: np.ndarray
    patches: np.ndarray
    segments: tuple[Segment, ...]
    bound: tuple[Bound, ...]
    shapes: np.ndarray
    cuts: np.ndarray
    kept: tuple[Any, ...] = field(repr=False)
    operands: tuple[Operand, ...] = field(repr=False)


class _TableWriter:
    """Collects rows of the tables."""

    def __init__(self, input_count: int, threads: int, gathers: bool) -> None:
        self.input_count, self.threads, self.gathers = input_count, threads, gathers
        self.steps: list[tuple[int, ...]] = []
        self.bound: list[Bound] = []
        self.lanes: list[tuple[int, int]] = []
        self.tensors: list[Operand] = []
        self.cuts: list[int] = []

    def tensor(self, operand: Operand) -> int:
        """Add a tensor; return its index."""
        self.tensors.append(operand)
        return len(self.tensors) - 1

    def sequence(self, steps: Sequence[Bound]) -> list[Segment]:
        """Add steps as contiguous rows, followed by the rows of the steps' lanes; return the segments."""
        segments: list[Segment] = []
        start, later = len(self.steps), list[tuple[int, BoundParallelGroup]]()
        for bound in _flatten_serial_lanes(steps):
            if isinstance(bound, BoundCall) and not (self.gathers and bound.gather is not None):
                segments += [(start, len(self.steps))] if len(self.steps) > start else []
                segments.append(bound)
                start = len(self.steps)
                continue
            if isinstance(bound, BoundParallelGroup):
                later.append((len(self.steps), bound))
            self.bound.append(bound)
            self.steps.append(self._step_row(bound))
        segments += [(start, len(self.steps))] if len(self.steps) > start else []
        for number, together in later:
            self._add_lanes(number, together)
        return segments

    def _step_row(self, bound: Bound) -> tuple[int, ...]:
        if isinstance(bound, BoundRun):
            numbers = [self.tensor(o) for o in bound.operands]
            first = numbers[0] if numbers else 0
            code, start = bound.kernel.code, len(self.cuts)
            self.cuts += [
                count_tasks_of_loop(extent, self.threads, code.seconds / len(code.tasks)) for extent in code.tasks
            ]
            return _CALL, first, len(numbers), 0, 0, 0, 0, 0, 0, bound.kernel.address, start, len(code.tasks)
        if isinstance(bound, BoundCopy):
            s = bound.step
            source, target = self.tensor(bound.source), self.tensor(bound.target)
            return (_COPY, source, target, s.rows, s.row_bytes, s.source_offset_bytes, s.source_pitch_bytes,
                    s.target_offset_bytes, s.target_pitch_bytes, 0, 0, 0)  # fmt: skip
        if isinstance(bound, BoundCall):
            assert bound.gather is not None
            first, start = len(self.tensors), len(self.cuts)
            for operand in (*bound.inputs, *bound.outputs):
                assert operand is not None
                self.tensor(operand)
            self.cuts += bound.gather.flat()
            return _GATHER, first, 0, 0, 0, 0, 0, 0, 0, 0, start, 0
        return _TOGETHER, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0

    def _add_lanes(self, number: int, together: BoundParallelGroup) -> None:
        spans = []
        for lane in together.lanes:
            start = len(self.steps)
            for bound in lane:
                self.bound.append(bound)
                self.steps.append(self._step_row(bound))
            spans.append((start, len(self.steps)))
        self.steps[number] = (_TOGETHER, len(self.lanes), len(spans), 0, 0, 0, 0, 0, 0, 0, 0, 0)
        self.lanes += spans


def count_tasks_of_loop(extent: int, threads: int, seconds: float) -> int:
    """Return the number of tasks that a parallel loop is divided into.

    TVM gives each of ``n`` tasks ``ceil(extent / n)`` iterations, except that the last ones get fewer or none.
    Disturbed threads take fewer tasks than others, so there are several tasks per thread, but never so many that an
    undisturbed thread has more iterations than in an even division.

    Examples
    --------
    >>> (count_tasks_of_loop(56, 2, 1e-3), count_tasks_of_loop(49, 2, 1e-3), count_tasks_of_loop(9, 2, 1e-3),
    ...  count_tasks_of_loop(2, 2, 1e-3), count_tasks_of_loop(56, 2, 1e-5))
    (14, 10, 9, 2, 2)
    """
    even = -(-extent // threads)
    most = max(1, min(_TASKS_PER_THREAD, int(seconds / _LEAST_TASK_S)))
    for each in range(max(1, -(-extent // (most * threads))), even):
        count = -(-extent // each)
        if -(-count // threads) * each <= even:
            return count
    return threads


def _flatten_serial_lanes(steps: Sequence[Bound]) -> list[Bound]:
    """Return the steps, with each serial group replaced by the steps of its lanes."""
    found: list[Bound] = []
    for step in steps:
        if isinstance(step, BoundParallelGroup) and not step.apart:
            for lane in step.lanes:
                found += _flatten_serial_lanes(lane)
        else:
            found.append(step)
    return found


def make_runner_tables(steps: Sequence[Bound], input_count: int, threads: int, *, gathers: bool = True) -> RunnerTables:
    """Return the tables of all bound steps; outputs are numbered after the ``input_count`` inputs."""
    writer = _TableWriter(input_count, threads, gathers)
    segments = writer.sequence(steps)
    cuts = np.array(writer.cuts or [0], np.int64)
    rows = np.array(writer.steps, _STEP)
    rows["cuts"] = cuts.ctypes.data + 8 * rows["cuts"]
    in_arena, patches, kept, data = [], [], list[np.ndarray](), list[int]()
    for n, operand in enumerate(writer.tensors):
        place = operand.place
        if place is None:
            assert operand.held is not None
            data.append(operand.held.__array_interface__["data"][0])  # faster than ctypes.data
            kept.append(operand.held)
        elif place.space == ARENA:
            data.append(place.offset_bytes)
            in_arena.append(n)
        else:
            data.append(0)
            number = place.index + (0 if place.space == INPUT else input_count)
            patches.append((n, number, place.offset_bytes))
    tensors, shapes = tensor_table([(value, o.shape, o.dtype) for value, o in zip(data, writer.tensors, strict=True)])
    return RunnerTables(
        rows, np.array(writer.lanes, np.int64).reshape(-1, 2), tensors,
        np.array(in_arena, np.intp), np.array(patches, np.int64).reshape(-1, 3), tuple(segments), tuple(writer.bound),
        shapes, cuts, tuple(kept), tuple(writer.tensors),
    )  # fmt: skip


class NativeFrame(Frame):
    """A frame whose steps the native runner runs.

    Parameters
    ----------
    array_count
        Number of inputs and outputs.
    thread_count
        Number of threads per call, including the calling thread.
    """

    def __init__(
        self, steps: Sequence[Bound], arena_bytes: int, shared: RunnerTables, runner: Runner, array_count: int,
        thread_count: int, arena: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        super().__init__(steps, arena_bytes, arena)
        self._shared, self._runner = shared, runner
        self._tensors = shared.tensors.copy()
        self._tensors["data"][shared.in_arena] += np.uint64(self.arena.ctypes.data)
        self._arguments = argument_table(self._tensors)
        self._count = array_count
        self._arrays = np.zeros(max(1, array_count), np.uint64)
        self._struct = FrameStruct(
            *(a.ctypes.data for a in (shared.steps, shared.lanes, self._arguments, self._tensors, shared.patches)),
            len(shared.patches), self._arrays.ctypes.data, None, ctypes.addressof(runner.hooks), thread_count,
            None, -1,
        )  # fmt: skip
        self._address = ctypes.addressof(self._struct)

    def execute(self, seconds: dict[int, float] | None) -> None:
        """Run all steps on the current arrays."""
        if isinstance(self.inputs, AddressedInputs):
            self.inputs.place(self._struct.arrays)
            arrays = tuple(self.outputs)
        else:
            arrays = (*self.inputs, *self.outputs)
        self._arrays[self._count - len(arrays) : self._count] = [
            0 if a is None else a.__array_interface__["data"][0] for a in arrays
        ]
        self._runner.point(self._address)
        if seconds is not None:
            self._execute_timed(seconds)
            return
        for segment in self._shared.segments:
            if isinstance(segment, BoundCall):
                run_call_step(segment, self.memory, self.keep)
            elif self._runner.run(self._address, *segment):
                self._raise_failure()

    def _execute_timed(self, seconds: dict[int, float]) -> None:
        taken = np.zeros(len(self._shared.steps))
        self._struct.seconds = taken.ctypes.data
        try:
            for segment in self._shared.segments:
                if isinstance(segment, BoundCall):
                    interpret_steps((segment,), self.memory, self.keep, seconds)
                elif self._runner.run(self._address, *segment):
                    self._raise_failure()
        finally:
            self._struct.seconds = None
        for bound, value in zip(self._shared.bound, taken.tolist(), strict=True):
            seconds[id(bound)] = value
        # The time of a serial group is the sum of its steps' times.
        for bound in self.steps:
            if isinstance(bound, BoundParallelGroup) and not bound.apart:
                seconds[id(bound)] = sum(seconds.get(id(b), 0.0) for lane in bound.lanes for b in lane)

    def _raise_failure(self) -> None:
        bound = self._shared.bound[self._struct.failed_step]
        if isinstance(bound, BoundCall):  # its function says which positions are wrong
            run_call_step(bound, self.memory, self.keep)
            raise LaunchError(
                f"{call_label(bound)}: the indices changed during the call. Give each call its own arrays."
            )
        what = bound.step.label if isinstance(bound, BoundRun) else type(bound).__name__
        raise LaunchError(f"{what}: {self._runner.take_error_text(self._struct)}")
