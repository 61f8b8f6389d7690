"""Runs the plan of a model on a GPU: constants uploaded and packed once, a frame per call, graphs where they can be."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from roller.artifact import KernelArtifact
from roller.backends.periodic import storage_dtype
from roller.errors import LaunchError, ModelError
from roller.model.constants import constant_of, steps_of
from roller.model.gpu_device import Device, Memory, Stream
from roller.model.gpu_frame import Frame, Loaded, PanelKey, nbytes_of, panel_key
from roller.model.packs import check_packs, pack_key, packs_of
from roller.model.plan import CONSTANT, Plan
from roller.model.steps import Call, Copy, Foreign, Run, Together, reads
from roller.packed import PackedKernel


class GpuSession:
    """A model on a GPU.

    Calls are re-entrant: each has a frame of its own, and frames are kept for later calls.

    Parameters
    ----------
    plan
        With the arrays of its constants; its program has no views and no joins.
    artifacts
        Built kernels by key.
    device
        Where it runs.
    graphs
        Whether steps are launched as a graph where that is possible.
    packs
        Built kernels of the plan's packs.

    Raises
    ------
    LaunchError
        Where a kernel does not load, or the device has too little memory.
    ModelError
        Where a kernel is missing or does not fit the values of its step.
    """

    def __init__(
        self, plan: Plan, artifacts: Mapping[str, KernelArtifact], device: Device, *, graphs: bool = True,
        packs: Mapping[str, PackedKernel] | None = None,
    ) -> None:  # fmt: skip
        self.plan, self._device, self._graphs = plan, device, graphs
        self._runs = [s for s in steps_of(plan.program.steps) if isinstance(s, Run)]
        missing = sorted({r.kernel for r in self._runs} - artifacts.keys())
        if missing:
            raise ModelError(f"{plan.program.name}: expected a kernel for every key, got none for {missing[:5]}.")
        check_packs(plan.program.name, plan.program.steps, packs or {})
        used = {r.kernel: artifacts[r.kernel] for r in self._runs}
        together = packs_of(plan.program.steps)
        single = [s for s in plan.program.steps if not (isinstance(s, Together) and s.packed)]
        alone = {s.kernel for s in steps_of(single) if isinstance(s, Run)}
        kernels = {key: device.load(a) for key, a in used.items() if key in alone or a.prepare is not None}
        packed = {pack_key(step): packs[pack_key(step)] for step in together} if packs else {}
        loaded = {key: device.load_packed(p) for key, p in packed.items()}
        stream = device.stream()
        kept = self._kept(used)
        constants = {n: self._uploaded(np.asarray(plan.program.constants[n]), stream) for n in sorted(kept)}
        self._loaded = Loaded(plan, used, kernels, constants, {}, loaded)
        panels = {key: self._packed(run, constants, stream) for key, run in self._packing(used).items()}
        self._loaded = Loaded(plan, used, kernels, constants, panels, loaded)
        device.synchronize(stream)
        self._free: list[Frame] = []
        self._lock = threading.Lock()

    def frame(self) -> Frame:
        """Return a frame of its own."""
        return Frame(self._loaded, self._device)

    def run(self, feeds: Mapping[str, np.ndarray] | Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run the model.

        Parameters
        ----------
        feeds
            Host arrays of the inputs, by name or in order; bfloat16 as its bits.

        Returns
        -------
        list of numpy.ndarray
            Outputs in order, on the host.

        Raises
        ------
        LaunchError
            Where an input is missing, or its shape or dtype is another one.
        """
        arrays = self.checked(feeds)
        with self._lock:
            frame = self._free.pop() if self._free else None
        if frame is None:
            frame = self.frame()
            if self._graphs:
                frame.capture()
        frame.upload(arrays)
        frame.replay()
        outputs = frame.download()
        with self._lock:
            self._free.append(frame)
        return outputs

    def checked(self, feeds: Mapping[str, np.ndarray] | Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the arrays of the inputs in order, as the device stores them."""
        program = self.plan.program
        named = feeds if isinstance(feeds, Mapping) else dict(zip(program.inputs, feeds, strict=True))
        out = []
        for name in program.inputs:
            value = program.values[name]
            array = np.asarray(named[name]) if name in named else None
            dtype = storage_dtype(value.dtype)
            if array is None or array.shape != value.shape or array.dtype.itemsize != dtype.itemsize:
                got = "nothing" if array is None else f"{array.dtype} of {array.shape}"
                raise LaunchError(
                    f"{program.name}: input '{name}': expected {value.dtype} of shape {value.shape}, got {got}."
                )
            out.append(np.ascontiguousarray(array).view(dtype) if value.dtype == "bfloat16" else array)
            if out[-1].dtype != dtype:
                raise LaunchError(f"{program.name}: input '{name}': expected {value.dtype}, got {array.dtype}.")
        return out

    def _kept(self, artifacts: Mapping[str, KernelArtifact]) -> set[str]:
        """Return the constants that calls read as they are; the others are read as panels only."""
        found: set[str] = set()
        for step in steps_of(self.plan.program.steps):
            names: Sequence[str] = ()
            if isinstance(step, Run):
                artifact = artifacts[step.kernel]
                read = {n for launch in artifact.launches for n in launch.arguments}
                names = [n for a, n in zip(artifact.inputs, step.inputs, strict=False) if a.name in read]
            elif isinstance(step, (Copy, Call, Foreign)):
                names = reads(step)
            found |= {p.name for n in names if (p := self.plan.places[n]).space == CONSTANT}
        return found

    def _packing(self, artifacts: Mapping[str, KernelArtifact]) -> dict[PanelKey, Run]:
        """Return one run for every set of panels."""
        return {panel_key(r, artifacts[r.kernel]): r for r in reversed(self._runs) if artifacts[r.kernel].prepare}

    def _packed(self, run: Run, constants: Mapping[str, Memory], stream: Stream) -> dict[str, Memory]:
        """Let a kernel pack the constants of a run; what is only packed is on the device for that long."""
        artifact, kernel = self._loaded.artifacts[run.kernel], self._loaded.kernels[run.kernel]
        own = (a for a in artifact.arguments if a.role == "panel")
        panels = {a.name: self._device.allocate(nbytes_of(a.shape, a.dtype)) for a in own}
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
            held.append(self._uploaded(constant_of(name, self.plan, self.plan.program.constants), stream))
            pointers[argument.name] = held[-1].ptr
        kernel.prepare(pointers, stream)
        if held:
            self._device.synchronize(stream)  # before their memory is free again
        return panels

    def _uploaded(self, array: np.ndarray, stream: Stream) -> Memory:
        memory = self._device.allocate(array.nbytes)
        self._device.upload(memory.ptr, array, stream)
        return memory
