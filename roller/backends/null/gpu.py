"""Simulated GPU for whole models: kernels evaluate their expressions and take their predicted times."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from roller.artifact import KernelArtifact
from roller.backends.null.device import NullKernel
from roller.emulator.emulated_device import EmulatedDevice, Event, Stream
from roller_runtime.core.dtypes import storage_dtype
from roller_runtime.core.kernel_argument import Argument


class NullGpuKernel:
    """Kernel that works on a null device's memory; ``roller.models.session.gpu_device`` defines the interface."""

    def __init__(self, device: NullGpu, artifact: KernelArtifact) -> None:
        self._device, self._artifact = device, artifact
        self._kernel = NullKernel(replace(artifact, constants=()))  # the session stores constants
        self._panels = [a.name for a in artifact.arguments if a.role == "panel"]
        #: Copies of the constants by argument name, keyed by the addresses of their panels.
        self._packed: dict[tuple[int, ...], dict[str, np.ndarray]] = {}

    def prepare(self, pointers: Mapping[str, int], stream: Stream) -> None:
        """Queue work that copies the constants, which a real kernel would pack."""
        held, key = dict(pointers), self._key(pointers)

        def keep() -> None:
            arguments = [a for a in self._artifact.inputs if a.name in held]
            self._packed[key] = {a.name: _array_at_pointer(held[a.name], a).copy() for a in arguments}

        self._device.push(stream, keep)

    def launch(self, pointers: Mapping[str, int], stream: Stream) -> None:
        """Queue the evaluation of the expression."""
        held, key = dict(pointers), self._key(pointers)

        def compute() -> None:
            packed, expression = self._packed.get(key, {}), self._artifact.expression
            inputs = [
                (packed[a.name] if a.name in packed else _array_at_pointer(held[a.name], a)).reshape(t.shape)
                for a, t in zip(self._artifact.inputs, expression.inputs, strict=True)
            ]
            outputs = [
                _array_at_pointer(held[a.name], a).reshape(t.shape)
                for a, t in zip(self._artifact.outputs, expression.output_tensors, strict=True)
            ]
            self._kernel(*inputs, out=tuple(outputs))
            self._device.clock_s += float(self._artifact.estimate.get("seconds", 0.0))

        self._device.push(stream, compute)

    def _key(self, pointers: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(pointers[n] for n in self._panels if n in pointers)


class NullGpu(EmulatedDevice):
    """``roller.models.session.gpu_device`` without hardware: results come from the reference, and times from estimates.

    Examples
    --------
    >>> NullGpu(arch="sm_70").properties()["name"]
    'null device'
    """

    def __init__(self, arch: str = "sm_90") -> None:
        super().__init__("first", arch=arch)
        #: Predicted time in seconds of all kernels that have run.
        self.clock_s = 0.0

    def properties(self) -> dict[str, Any]:
        """Return the properties of the device."""
        return {**super().properties(), "name": "null device"}

    def load(self, artifact: KernelArtifact) -> NullGpuKernel:
        """Return ``artifact`` as a kernel of this device."""
        return NullGpuKernel(self, artifact)

    def record(self, event: Event, stream: Stream) -> None:
        """Record the stream's work so far in an event; the event gets the predicted time at which that work ends."""
        event.work = self.push(stream, lambda: setattr(event, "time_s", self.clock_s), counts=False)


def _array_at_pointer(pointer: int, argument: Argument) -> np.ndarray:
    """View memory as an array of the argument's shape in its storage dtype."""
    dtype = storage_dtype(argument.dtype)
    raw = (ctypes.c_char * (math.prod(argument.shape) * dtype.itemsize)).from_address(pointer)
    found: np.ndarray = np.ndarray(argument.shape, dtype, memoryview(raw))
    return found
