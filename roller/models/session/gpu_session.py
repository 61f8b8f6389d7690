"""Runs a model's plan on a GPU, with constants uploaded and packed once, one frame per call, and device graphs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from roller.artifact import KernelArtifact
from roller.backends.build import build
from roller.errors import ArtifactError, LaunchError, ModelError, shown
from roller.models.session.gpu_bundle import Expected, ModelBundle, write_bundle
from roller.models.session.gpu_device import Device, Memory, Stream, open_device
from roller.models.session.gpu_frame import Frame, LoadedModel, PanelKey, panel_key, storage_bytes
from roller.models.session.validate_gpu_call_arrays import GpuFeeds
from roller.targets import target_of_language
from roller_runtime.core.display import one_line_repr
from roller_runtime.core.validation import validate_path as path_of
from roller_runtime.cpu.check_caller_arrays import ArgumentSlot
from roller_runtime.plan.execution_plan import CONSTANT, Plan
from roller_runtime.plan.program_steps import Call, Copy, Foreign, Run, values_read
from roller_runtime.session.call_metrics import CallMeter
from roller_runtime.session.packed_constants import constant_bytes, flatten_lanes
from roller_runtime.session.session_interface import ModelCalls, describe_signature


class GpuSession(ModelCalls):
    """A model that runs on a GPU.

    Calls are re-entrant: each uses its own frame, which later calls reuse.

    Parameters
    ----------
    plan
        Plan with the arrays of its constants; its program has no views or joins.
    artifacts
        Built kernels by key.
    device
        Device that runs the model.
    graphs
        Whether steps are launched as a graph if possible.
    built_for, target
        Name and target of the specification that the kernels were built for; by default the device's own.

    Raises
    ------
    LaunchError
        If a kernel does not load, or the device has too little memory.
    ModelError
        If a kernel is missing or does not fit the values of its step.
    """

    waits_for_device = True

    def __init__(
        self, plan: Plan, artifacts: Mapping[str, KernelArtifact], device: Device, *, graphs: bool = True,
        built_for: str = "", target: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.plan, self._device, self._graphs = plan, device, graphs
        self._built_for, self._target = built_for, target
        #: Built kernels by key, with their programs, estimates and sources.
        self.artifacts = artifacts
        self._runs = [s for s in flatten_lanes(plan.program.steps) if isinstance(s, Run)]
        missing = sorted({r.kernel for r in self._runs} - artifacts.keys())
        if missing:
            raise ModelError(f"{plan.program.name}: expected a kernel for every key, got none for {missing[:5]}.")
        with device.entered():
            self._loaded = self._load_model({r.kernel: artifacts[r.kernel] for r in self._runs})
        self._free: list[Frame] = []
        self._meter = CallMeter()

    def _load_model(self, used: Mapping[str, KernelArtifact]) -> LoadedModel:
        """Load the kernels, upload the constants and pack them."""
        plan, device, stream = self.plan, self._device, self._device.stream()
        kernels = {key: device.load(a) for key, a in used.items()}
        kept = self._unpacked_constants(used)
        constants = {n: self._upload_array(np.asarray(plan.program.constants[n]), stream) for n in sorted(kept)}
        loaded = LoadedModel(plan, used, kernels, constants, {})
        panels = {key: self._pack_panels(run, loaded, stream) for key, run in self._one_run_per_panel_key(used).items()}
        device.synchronize(stream)
        return replace(loaded, panels=panels)

    def frame(self) -> Frame:
        """Return a new frame."""
        return Frame(self._loaded, self._device)

    @cached_property
    def feeds(self) -> GpuFeeds:
        """Validation of callers' arrays."""
        # Created at first use: a model with bfloat16 values may run without ml_dtypes.
        return GpuFeeds(self.plan.program, self._device)

    def _call(self, inputs: list[Any], out: Any, on_device: bool) -> list[Any]:
        """Run on validated arrays; results that stay on the device are not synchronized."""
        device, feeds = self._device, self.feeds
        targets = [None] * len(feeds.outputs) if out is None else feeds.given(out, inputs)
        theirs = [a for a in (*inputs, *targets) if a is not None and device.holds(a)]
        with device.entered(theirs) as caller:
            if on_device:
                targets = [self._new_output(s, theirs) if t is None and s is not None else t
                           for t, s in zip(targets, feeds.outputs, strict=True)]  # fmt: skip
            frame = self._upload_inputs_to_frame(inputs, caller)
            frame.replay()
            outputs = [frame.get(n, t, s.dtype) if s is not None else frame.found[n]
                       for n, (t, s) in enumerate(zip(targets, feeds.outputs, strict=True))]  # fmt: skip
            # The caller's later uses of these arrays, including freeing their memory, wait for this call.
            frame.make_stream_wait_for_frame(caller)
            if on_device:
                outputs = [self._upload_output(a, theirs, caller) if s is None else a
                           for a, s in zip(outputs, feeds.outputs, strict=True)]  # fmt: skip
        self._free.append(frame)
        return outputs

    def _new_output(self, slot: ArgumentSlot, like: Sequence[Any]) -> Any:
        return self._device.made(slot.shape, self.plan.program.values[slot.name].dtype, like)

    def _upload_output(self, array: np.ndarray, like: Sequence[Any], stream: Stream) -> Any:
        """Return a device array with an output that the host computed."""
        device = self._device
        made = device.made(array.shape, array.dtype.name, like)
        device.upload(device.address(device.viewed(made, "an output")), array, stream)
        return made

    def _upload_inputs_to_frame(self, inputs: Sequence[Any], caller: Stream) -> Frame:
        """Copy the inputs into a free frame, after all work on the caller's stream; return the frame."""
        device, slots = self._device, self.feeds.inputs
        given = [device.contiguous(device.viewed(a, f"{self.name}: argument '{s.name}'")) if device.holds(a) else a
                 for a, s in zip(inputs, slots, strict=True)]  # fmt: skip
        frame = self._take_free_frame()
        frame.make_frame_wait_for_stream(caller)
        for n, (array, slot) in enumerate(zip(given, slots, strict=True)):
            frame.put(n, array, slot.name)
        return frame

    def _take_free_frame(self) -> Frame:
        """Return a free frame or, if there is none, a new one, captured as a graph if possible."""
        try:
            return self._free.pop()  # atomic
        except IndexError:
            frame = self.frame()
            if self._graphs:
                frame.capture()
            return frame

    @property
    def said(self) -> dict[str, tuple[float | None, str]]:
        """Predicted seconds and bottleneck by kernel key."""
        return {key: (a.estimate.get("seconds"), str(a.estimate.get("bottleneck", "")))
                for key, a in self.artifacts.items()}  # fmt: skip

    def time_steps(self, feeds: Mapping[str, Any], count: int) -> dict[int, float]:
        """Return each step's median time in seconds, launched one by one; see :meth:`ModelCalls.time_steps`."""
        with self._device.entered() as caller:
            frame = self._upload_inputs_to_frame(self.feeds.arrays_by_name(feeds), caller)
            found = frame.profile(count)
        self._free.append(frame)
        return found

    def save(self, folder: str | os.PathLike[str], expected: Sequence[Expected] = ()) -> Path:
        """Write the model as a bundle, which :func:`roller.load_model` loads on any GPU of this kind.

        Parameters
        ----------
        folder
            Folder that does not exist or is empty.
        expected
            Inputs and expected outputs that ``python -m roller.models.session.bundle run`` checks before timing.

        Raises
        ------
        ArtifactError
            If the folder is not empty or cannot be written.
        """
        place = path_of(folder, "folder", error=ArtifactError)
        said = self._device.properties()
        target = {"arch": said["arch"]} if self._target is None else self._target
        write_bundle(place, self.plan, self.artifacts, device=self._built_for or said["name"], target=target,
                     expected=expected)  # fmt: skip
        return place

    def __repr__(self) -> str:
        """Return the name, device, inputs and outputs on one line."""
        return one_line_repr(
            "GpuSession", f"{self.name} on {self._device.properties()['name']}: {describe_signature(self)}"
        )

    def _unpacked_constants(self, artifacts: Mapping[str, KernelArtifact]) -> set[str]:
        """Return the names of the constants that steps read in unpacked form."""
        found: set[str] = set()
        for step in flatten_lanes(self.plan.program.steps):
            names: Sequence[str] = ()
            if isinstance(step, Run):
                artifact = artifacts[step.kernel]
                read = {n for launch in artifact.launches for n in launch.arguments}
                names = [n for a, n in zip(artifact.inputs, step.inputs, strict=False) if a.name in read]
            elif isinstance(step, (Copy, Call, Foreign)):
                names = values_read(step)
            found |= {p.name for n in names if (p := self.plan.places[n]).space == CONSTANT}
        return found

    def _one_run_per_panel_key(self, artifacts: Mapping[str, KernelArtifact]) -> dict[PanelKey, Run]:
        """Return one run for each key of packed panels."""
        return {panel_key(r, artifacts[r.kernel]): r for r in reversed(self._runs) if artifacts[r.kernel].prepare}

    def _pack_panels(self, run: Run, loaded: LoadedModel, stream: Stream) -> dict[str, Memory]:
        """Pack the constants of a run; originals that no step reads stay on the device only during packing."""
        artifact, kernel, constants = loaded.artifacts[run.kernel], loaded.kernels[run.kernel], loaded.constants
        own = (a for a in artifact.arguments if a.role == "panel")
        panels = {a.name: self._device.allocate(storage_bytes(a.shape, a.dtype)) for a in own}
        held: list[Memory] = []
        pointers = {n: m.ptr for n, m in panels.items()}
        assert artifact.prepare is not None
        for argument, name in zip(artifact.inputs, run.inputs, strict=True):
            if argument.name not in artifact.prepare.arguments:
                continue
            place = self.plan.places[name]
            if place.name in constants and place.space == CONSTANT:
                pointers[argument.name] = constants[place.name].ptr + place.offset_bytes
                continue
            held.append(self._upload_array(constant_bytes(name, self.plan, self.plan.program.constants), stream))
            pointers[argument.name] = held[-1].ptr
        kernel.prepare(pointers, stream)
        if held:
            self._device.synchronize(stream)  # before their memory is freed
        return panels

    def _upload_array(self, array: np.ndarray, stream: Stream) -> Memory:
        memory = self._device.allocate(array.nbytes)
        self._device.upload(memory.ptr, array, stream)
        return memory


def load_bundle(folder: Path, device: str | Device | None = None) -> GpuSession:
    """Load a bundle's model for a GPU of this machine; build kernels that have no image."""
    bundle = ModelBundle(folder)
    if device is None:
        language = bundle.manifest["target"].get("language", "cuda")  # older bundles lack the key
        device = target_of_language(language, str(folder), ArtifactError).first_device
    if not (isinstance(device, str) or hasattr(device, "properties")):
        raise LaunchError(f"device: expected a name such as 'cuda:0', or an open device, got {shown(device)}.")
    opened = open_device(device, bundle.arch) if isinstance(device, str) else device
    bundle.check(opened.properties())
    plan, artifacts = bundle.plan(), bundle.artifacts()
    if opened.needs_images:
        artifacts = {k: a if a.binary is not None else build(a) for k, a in artifacts.items()}
    return GpuSession(plan, artifacts, opened, built_for=bundle.device, target=bundle.manifest["target"])
