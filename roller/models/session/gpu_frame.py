"""Memory of one call on a GPU, and a model's steps as work for the streams of the call."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from roller.artifact import KernelArtifact
from roller.errors import LaunchError, ModelError
from roller.models.session.gpu_device import Device, Event, Kernel, Memory, Stream
from roller_runtime.core.dtypes import storage_dtype
from roller_runtime.plan.execution_plan import ARENA, CONSTANT, INPUT, OUTPUT, Plan
from roller_runtime.plan.program_steps import Call, Copy, Foreign, ParallelGroup, Run, Step
from roller_runtime.session.array_functions import FUNCTIONS
from roller_runtime.session.fallback_runtime import run_fallback_step

#: Function that enqueues a step on a stream.
Work = Callable[[Stream], None]
#: Key of packed panels: the kernel and the constants that it packs.
PanelKey = tuple[str, tuple[str, ...]]
#: Alignment in bytes of buffers within a larger allocation.
ALIGN_BYTES = 256


@dataclass(frozen=True)
class LoadedModel:
    """A model on a device, shared by all calls.

    Parameters
    ----------
    constants
        Memory of constants that calls read in unpacked form, by name.
    panels
        Memory of packed constants by argument name, for each kernel and each set of constants that it packs.
    """

    plan: Plan
    artifacts: Mapping[str, KernelArtifact]
    kernels: Mapping[str, Kernel]
    constants: Mapping[str, Memory]
    panels: Mapping[PanelKey, Mapping[str, Memory]]


def storage_bytes(shape: Sequence[int], dtype: str) -> int:
    """Return the size of an array in device storage, in bytes."""
    return int(np.prod(shape, dtype=np.int64)) * storage_dtype(dtype).itemsize


def panel_key(run: Run, artifact: KernelArtifact) -> PanelKey:
    """Return the key of the panels that a run reads."""
    return run.kernel, tuple(run.inputs[c.position] for c in artifact.constants)


def workspace_bytes(artifact: KernelArtifact) -> int:
    """Return the size of a kernel's workspaces in bytes."""
    own = (storage_bytes(a.shape, a.dtype) for a in artifact.arguments if a.role == "workspace")
    return sum(-(-n // ALIGN_BYTES) * ALIGN_BYTES for n in own)


class Frame:
    """Arena, inputs, outputs and streams of one call; one thread at a time may use them."""

    def __init__(self, loaded: LoadedModel, device: Device) -> None:
        self._loaded, self._device = loaded, device
        program = loaded.plan.program
        lanes = max((len(s.lanes) for s in program.steps if isinstance(s, ParallelGroup)), default=1)
        self.stream, self._others = device.stream(), [device.stream() for _ in range(lanes - 1)]
        self._arena = device.allocate(loaded.plan.arena_bytes)
        self._ends = {
            space: [device.allocate(program.values[n].nbytes if n in program.values else 0) for n in names]
            for space, names in ((INPUT, program.inputs), (OUTPUT, program.outputs))
        }
        # Concurrent steps must not share a workspace; steps of one stream may.
        self._scratch = [device.allocate(most) for most in _workspace_bytes_per_lane(program.steps, loaded.artifacts)]
        self._marks: dict[int, tuple[Event, Event]] | None = None
        self._work = [self._with_timing_events(s, self._of(s, 0)) for s in program.steps]
        #: Outputs of the last run whose shape is known only at run time, by output index.
        self.found: dict[int, np.ndarray] = {}
        self._graph: Any = None
        #: Reason why steps are launched one by one; empty if there is a graph or none was requested.
        self.no_graph = ""

    def make_frame_wait_for_stream(self, stream: Stream) -> None:
        """Make all later work wait for the work submitted to a stream so far."""
        self._make_stream_wait_for(stream, self.stream)

    def make_stream_wait_for_frame(self, stream: Stream) -> None:
        """Make a stream wait for all work submitted so far."""
        self._make_stream_wait_for(self.stream, stream)

    def _make_stream_wait_for(self, first: Stream, then: Stream) -> None:
        event = self._device.event()
        self._device.record(event, first)
        self._device.wait(event, then)

    def upload(self, arrays: Sequence[np.ndarray]) -> None:
        """Upload the inputs, in their storage dtypes, to the memory that steps read."""
        for number, (array, name) in enumerate(zip(arrays, self._loaded.plan.program.inputs, strict=True)):
            self.put(number, array, name)

    def put(self, number: int, array: Any, name: str) -> None:
        """Copy one input, a contiguous host or device array, to the memory that steps read."""
        device, memory = self._device, self._ends[INPUT][number]
        value = self._loaded.plan.program.values[name]
        if array.shape != value.shape or array.dtype.itemsize != storage_dtype(value.dtype).itemsize:
            got = f"{array.dtype} of {array.shape}"
            raise LaunchError(f"input '{name}': expected {value.dtype} of shape {value.shape}, got {got}. Convert it.")
        if device.holds(array):
            device.copy(memory.ptr, value.nbytes, device.address(array), value.nbytes, value.nbytes, 1, self.stream)
        else:
            device.upload(memory.ptr, array, self.stream)

    def get(self, number: int, target: Any, dtype: np.dtype[Any]) -> Any:
        """Return one output: copied into ``target`` if given, on the device or the host, otherwise downloaded."""
        program, device = self._loaded.plan.program, self._device
        value = program.values[program.outputs[number]]
        source = self._ends[OUTPUT][number].ptr
        if target is not None and device.holds(target):
            to = device.address(device.viewed(target, f"output '{value.name}'"))
            device.copy(to, value.nbytes, source, value.nbytes, value.nbytes, 1, self.stream)
            return target
        found = device.download(source, value.nbytes, self.stream).view(dtype).reshape(value.shape)
        if target is None:
            return found
        target[...] = found
        return target

    def download(self) -> list[np.ndarray]:
        """Wait for the call; return its outputs in their storage dtypes."""
        program = self._loaded.plan.program
        return [self.found[n] if name in program.loose else
                self.get(n, None, storage_dtype(program.values[name].dtype))
                for n, name in enumerate(program.outputs)]  # fmt: skip

    def launch(self) -> None:
        """Launch all steps one by one, asynchronously."""
        for work in self._work:
            work(self.stream)

    def capture(self) -> bool:
        """Capture all steps as a graph if the device supports it; return whether there is a graph."""
        host = [s for s in _steps_including_lanes(self._loaded.plan.program.steps) if isinstance(s, (Call, Foreign))]
        if host:
            self.no_graph = f"{len(host)} steps are functions of arrays, which no graph holds"
        elif self._graph is None:
            try:
                self._graph = self._device.capture(self.launch, self.stream)
            except LaunchError as err:
                self.no_graph = str(err)
        return self._graph is not None

    def replay(self) -> None:
        """Launch all steps, as a graph if there is one."""
        if self._graph is None:
            self.launch()
        else:
            self._device.replay(self._graph, self.stream)

    def time(self, run: Callable[[], None], count: int) -> list[float]:
        """Return the time that each of ``count`` runs takes, in seconds, measured with events."""
        device, out = self._device, []
        for _ in range(count):
            start, end = device.event(timing=True), device.event(timing=True)
            device.record(start, self.stream)
            run()
            device.record(end, self.stream)
            device.synchronize(self.stream)
            out.append(device.elapsed_s(start, end))
        return out

    def profile(self, count: int) -> dict[int, float]:
        """Return each step's median time in seconds by ``id``, lanes included; steps are launched one by one."""
        seconds: dict[int, list[float]] = {}
        for _ in range(count):
            self._marks = {}
            try:
                self.launch()
                self._device.synchronize(self.stream)
            finally:
                marks, self._marks = self._marks, None
            for step, (start, end) in marks.items():
                seconds.setdefault(step, []).append(self._device.elapsed_s(start, end))
        return {step: statistics.median(times) for step, times in seconds.items()}

    def _with_timing_events(self, step: Step, work: Work) -> Work:
        """Return work that records timing events around ``work`` while the frame is profiled."""

        def run(stream: Stream) -> None:
            if self._marks is None:
                return work(stream)
            start, end = (self._device.event(timing=True) for _ in range(2))
            self._device.record(start, stream)
            work(stream)
            self._device.record(end, stream)
            self._marks[id(step)] = start, end

        return run

    def _address(self, name: str) -> tuple[int, Memory]:
        """Return the address of a value and the memory that contains it."""
        place = self._loaded.plan.places.get(name)
        if place is None:
            raise ModelError(f"a plan: value '{name}' has no place. Make the plan with memory_plan.plan_memory.")
        memory = (
            self._arena if place.space == ARENA
            else self._loaded.constants[place.name] if place.space == CONSTANT
            else self._ends[place.space][place.index]
        )  # fmt: skip
        return memory.ptr + place.offset_bytes, memory

    def _of(self, step: Step, lane: int) -> Work:
        if isinstance(step, Run):
            return self._run(step, lane)
        if isinstance(step, Copy):
            return self._copy(step)
        if isinstance(step, Call):
            return self._call(step)
        if isinstance(step, Foreign):
            return self._fallback_work(step)
        if isinstance(step, ParallelGroup):
            return self._parallel_work(step)
        raise ModelError(
            f"a plan: expected no step of kind {type(step).__name__}. Make the plan with memory_plan.plan_memory."
        )

    def _run(self, step: Run, lane: int) -> Work:
        kernel, pointers = self._loaded.kernels[step.kernel], self._pointers(step, lane)
        return lambda stream: kernel.launch(pointers, stream)

    def _pointers(self, step: Run, lane: int) -> dict[str, int]:
        """Return the addresses of a kernel's arguments by name."""
        loaded, artifact = self._loaded, self._loaded.artifacts[step.kernel]
        pointers = {n: m.ptr for n, m in loaded.panels.get(panel_key(step, artifact), {}).items()}
        free = self._scratch[lane].ptr
        for argument in artifact.arguments:
            if argument.role == "workspace":
                pointers[argument.name] = free
                free += -(-storage_bytes(argument.shape, argument.dtype) // ALIGN_BYTES) * ALIGN_BYTES
        read = {n for launch in artifact.launches for n in launch.arguments}
        sides = ((artifact.inputs, step.inputs), (artifact.outputs, step.outputs))
        if any(len(arguments) != len(names) for arguments, names in sides):
            raise ModelError(f"{step.label}: the kernel takes other values than the step has. Compile it again.")
        for arguments, names in sides:
            for argument, name in zip(arguments, names, strict=True):
                if argument.name not in read:  # a constant that is read in packed form
                    continue
                expected, got = storage_bytes(argument.shape, argument.dtype), loaded.plan.program.values[name].nbytes
                if expected != got:
                    raise ModelError(f"{step.label}: '{name}': expected {expected} bytes, got {got}. Compile it again.")
                pointers[argument.name] = self._address(name)[0]
        return pointers

    def _copy(self, step: Copy) -> Work:
        target = self._address(step.target)[0] + step.target_offset_bytes
        source = self._address(step.source)[0] + step.source_offset_bytes
        pitches, copy = (step.target_pitch_bytes, step.source_pitch_bytes), self._device.copy
        return lambda stream: copy(target, pitches[0], source, pitches[1], step.row_bytes, step.rows, stream)

    def _array(self, name: str) -> Any:
        address, owner = self._address(name)
        value = self._loaded.plan.program.values[name]
        return self._device.array(address, value.shape, storage_dtype(value.dtype), owner)

    def _call(self, step: Call) -> Work:
        function, xp = FUNCTIONS.get(step.function), self._device.xp
        if function is None:
            raise LaunchError(f"{step.label}: no function '{step.function}' in this version of roller. Upgrade it.")
        inputs = [self._array(n) if n else None for n in step.inputs]
        outputs = [self._array(n) if n else None for n in step.outputs]

        def compute() -> None:
            for result, out in zip(function(xp, inputs, step.attributes), outputs, strict=False):
                if out is not None:
                    out[...] = result

        return lambda stream: self._device.call(compute, stream)

    def _fallback_work(self, step: Foreign) -> Work:
        """Return work that waits for the stream and runs the subgraph on the host."""

        def work(stream: Stream) -> None:
            arrays = []
            for name in step.inputs:
                value = self._loaded.plan.program.values[name]
                raw = self._device.download(self._address(name)[0], value.nbytes, stream)
                arrays.append(raw.view(storage_dtype(value.dtype)).reshape(value.shape))
            for name, result in zip(step.outputs, run_fallback_step(step, arrays), strict=True):
                if name in self._loaded.plan.program.loose:
                    self.found[self._loaded.plan.places[name].index] = result
                elif name:
                    value = self._loaded.plan.program.values[name]
                    if result.shape != value.shape or result.nbytes != value.nbytes:
                        raise LaunchError(
                            f"{', '.join(step.nodes)}: '{name}': expected {value.dtype} of shape {value.shape}, got "
                            f"{result.dtype} of shape {result.shape}. Compile the model for the shapes it runs with."
                        )
                    self._device.upload(self._address(name)[0], result, stream)

        return work

    def _parallel_work(self, step: ParallelGroup) -> Work:
        """Return work that runs lanes on separate streams and synchronizes these with the first, before and after."""
        device = self._device
        lanes = [[self._with_timing_events(s, self._of(s, n)) for s in lane] for n, lane in enumerate(step.lanes)]
        start, ends = device.event(), [device.event() for _ in lanes[1:]]

        def work(stream: Stream) -> None:
            streams = [stream, *self._others[: len(lanes) - 1]]
            device.record(start, stream)
            for other in streams[1:]:
                device.wait(start, other)
            for works in zip_longest(*lanes):  # interleaved, so that no lane waits for the launches of another
                for one, own in zip(works, streams, strict=True):
                    if one is not None:
                        one(own)
            for end, other in zip(ends, streams[1:], strict=True):
                device.record(end, other)
                device.wait(end, stream)

        return work


def _workspace_bytes_per_lane(steps: Sequence[Step], artifacts: Mapping[str, KernelArtifact]) -> list[int]:
    """Return the number of workspace bytes that each lane needs."""
    most = [0]
    for step in steps:
        lanes = step.lanes if isinstance(step, ParallelGroup) else ((step,),)
        most += [0] * (len(lanes) - len(most))
        for n, lane in enumerate(lanes):
            own = (workspace_bytes(artifacts[s.kernel]) for s in lane if isinstance(s, Run))
            most[n] = max(most[n], *own, 0)
    return most


def _steps_including_lanes(steps: Sequence[Step]) -> list[Step]:
    return [
        s
        for step in steps
        for s in (_steps_including_lanes(sum(step.lanes, ())) if isinstance(step, ParallelGroup) else [step])
    ]
