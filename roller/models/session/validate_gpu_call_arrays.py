"""Validation of callers' arrays for a model on a GPU, in host memory or on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roller.errors import LaunchError
from roller.models.session.gpu_device import Device
from roller_runtime.core.dtypes import storage_dtype
from roller_runtime.cpu.check_caller_arrays import ArgumentSlot
from roller_runtime.plan.program_steps import Program
from roller_runtime.session.caller_arrays import Feeds


class GpuFeeds(Feeds):
    """Validates callers' arrays; device arrays are used without a copy."""

    def __init__(self, program: Program, device: Device) -> None:
        super().__init__(program)
        self._device = device
        ends = (*program.inputs, *program.outputs)
        self._names = {n: program.values[n].dtype for n in ends if n in program.values}

    def taken(self, array: Any, slot: ArgumentSlot) -> Any:
        """Return one validated array of a caller."""
        if not self._device.holds(array):
            return super().taken(array, slot)
        self._check(array, slot, f"{self.name}: argument '{slot.name}'")
        return array

    def given(self, out: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return, for each output, the array in ``out``; ``None`` for outputs without one."""
        del inputs  # outputs may overlap inputs, which are copied before any write
        found = self.numbered(out)
        arrays: list[Any] = []
        for n, slot in enumerate(self.outputs):
            array = found.get(n)
            if array is None or slot is None:
                arrays.append(None)
                continue
            if self._device.holds(array):
                where = f"{self.name}: argument 'out': '{slot.name}'"
                self._check(array, slot, where)
                if not self._device.viewed(array, where).flags.c_contiguous:
                    raise LaunchError(f"{where}: expected a C-contiguous array, got one that is not. Copy the result.")
            else:
                array = slot.output(array, self.name)
            arrays.append(array)
        return arrays

    def _check(self, array: Any, slot: ArgumentSlot, where: str) -> None:
        dtype = self._names[slot.name]
        bits = str(storage_dtype(dtype))
        got = str(getattr(array, "dtype", type(array).__name__)).removeprefix("torch.")
        shape = tuple(getattr(array, "shape", ()))
        if got not in (dtype, bits) or shape != slot.shape:
            raise LaunchError(f"{where}: expected {dtype} of shape {slot.shape}, got {got} of {shape}. Convert it.")
