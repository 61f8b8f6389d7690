"""Validation of callers' arrays for the inputs and outputs of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roller_runtime.cpu.check_caller_arrays import ArgumentSlot
from roller_runtime.errors import LaunchError, counted, did_you_mean, shown
from roller_runtime.plan.program_steps import Program

_NDARRAY = np.ndarray
#: ONNX's names for dtypes, where they differ from NumPy's.
_ONNX_TYPES = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class TensorDescription:
    """Description of an input or output, with the attribute names of ONNX Runtime's ``NodeArg``.

    A dimension that calls choose is given by the name of its size. A dimension known only at run time is ``None``, as
    is the whole shape if the rank is unknown.

    Examples
    --------
    >>> TensorDescription("x", (1, 3), "float32").type
    'tensor(float)'
    """

    name: str
    shape: tuple[int | str | None, ...] | None
    dtype: str

    @property
    def type(self) -> str:
        """The type, as ONNX Runtime writes it."""
        return f"tensor({_ONNX_TYPES.get(self.dtype, self.dtype)})"


def describe_value(program: Program, name: str) -> TensorDescription:
    """Return the description of an input or output."""
    if name in program.loose:
        return TensorDescription(name, program.loose[name].dims, program.loose[name].dtype)
    value = program.values[name]
    return TensorDescription(name, value.shape, value.dtype)


class Feeds:
    """Validates the arrays that callers pass, and allocates outputs."""

    def __init__(self, program: Program) -> None:
        self.name = program.name or "model"
        self.inputs = tuple(ArgumentSlot(program.values[n], program.values[n].shape) for n in program.inputs)
        #: ``None`` for outputs whose shape is known only at run time.
        self.outputs = tuple(None if n in program.loose else ArgumentSlot(program.values[n], program.values[n].shape)
                             for n in program.outputs)  # fmt: skip
        self._output_names = program.outputs
        self._input_names = program.inputs
        self._numbers = {n: i for i, n in reversed(list(enumerate(program.outputs)))}

    def arrays_by_name(self, feeds: Mapping[str, Any]) -> list[np.ndarray]:
        """Return the validated input arrays in order, given a mapping by name."""
        for name in feeds:
            if name not in self._input_names:
                raise LaunchError(
                    f"{self.name}: {shown(name)} is not an input{did_you_mean(name, self._input_names) or '.'} "
                    f"Inputs are {_quote_names(self._input_names)}."
                )
        missing = [n for n in self._input_names if n not in feeds]
        if missing:
            raise LaunchError(f"{self.name}: expected all inputs, got none for {_quote_names(missing)}. Feed them.")
        return self.arrays_by_position([feeds[n] for n in self._input_names])

    def arrays_by_position(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """Return the validated input arrays, with non-contiguous ones copied."""
        if len(arrays) != len(self.inputs):
            raise LaunchError(
                f"{self.name}: expected {counted(len(self.inputs), 'array')} ({_quote_names(self._input_names)}), "
                f"got {len(arrays)}. "
                "Call run(arrays in order), run({name: array}), or run([output names], {name: array})."
            )
        return [
            a if _needs_no_conversion(a, slot) else self.taken(a, slot)
            for a, slot in zip(arrays, self.inputs, strict=True)
        ]

    def taken(self, array: Any, slot: ArgumentSlot) -> Any:
        """Return one validated array, copied if it is not contiguous."""
        return slot.input(array, self.name)

    def made(self) -> list[Any]:
        """Return new arrays for all outputs; ``None`` for shapes known only at run time."""
        return [None if s is None else np.empty(s.shape, s.dtype) for s in self.outputs]

    def given(self, out: Any, inputs: Sequence[np.ndarray]) -> list[Any]:
        """Return an array for each output: that in ``out`` or a new one; ``None`` for shapes known only at run time."""
        found = self.numbered(out)
        taken = list(zip((s.name for s in self.inputs), inputs, strict=True))
        arrays: list[Any] = []
        for n, slot in enumerate(self.outputs):
            if found.get(n) is None or slot is None:
                arrays.append(None if slot is None else np.empty(slot.shape, slot.dtype))
                continue
            array = found[n] if _needs_no_conversion(found[n], slot) else slot.output(found[n], self.name)
            for other, memory in taken:
                if np.may_share_memory(array, memory):
                    raise LaunchError(
                        f"{self.name}: argument 'out': '{slot.name}' overlaps '{other}' in memory. "
                        "Pass an array of its own."
                    )
            taken.append((slot.name, array))
            arrays.append(array)
        return arrays

    def numbered(self, out: Any) -> dict[int, Any]:
        """Return the arrays of ``out`` by output index."""
        if isinstance(out, Mapping):
            return self._refuse_dynamic_outputs({self.output_index_of_name(name): array for name, array in out.items()})
        listed = out if isinstance(out, (tuple, list)) else (out,)
        if len(listed) != len(self.outputs):
            raise LaunchError(
                f"{self.name}: argument 'out': expected {counted(len(self.outputs), 'array')}, got {len(listed)}."
            )
        return self._refuse_dynamic_outputs(dict(enumerate(listed)))

    def _refuse_dynamic_outputs(self, found: dict[int, Any]) -> dict[int, Any]:
        for n, array in found.items():
            if array is not None and self.outputs[n] is None:
                raise LaunchError(
                    f"{self.name}: argument 'out': the shape of '{self._output_names[n]}' is known only at run time. "
                    "Pass None for it."
                )
        return found

    def output_index_of_name(self, name: str) -> int:
        """Return the index of the output called ``name``."""
        if name not in self._numbers:
            known = tuple(self._numbers)[::-1]
            hint = did_you_mean(name, known) or "."
            raise LaunchError(f"{self.name}: {shown(name)} is not an output{hint} Outputs are {_quote_names(known)}.")
        return self._numbers[name]


def _needs_no_conversion(array: Any, slot: ArgumentSlot) -> bool:
    """Return whether an array needs no conversion; a fast test for the common case."""
    return (
        type(array) is _NDARRAY and array.dtype is slot.dtype and array.shape == slot.shape and bool(array.flags.carray)
    )


def _quote_names(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"'{n}'" for n in names[:most]) + more
