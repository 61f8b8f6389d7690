"""The caller's arrays: what a model takes and gives, and how they are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roller.backends.cpu.slots import Slot
from roller.errors import LaunchError, counted, did_you_mean, shown
from roller.models.graph.steps import Program

_NDARRAY = np.ndarray
#: What ONNX calls dtypes.
_ONNX_TYPES = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class Described:
    """An input or output as a caller sees it; the names are those of ONNX Runtime's ``NodeArg``.

    A dimension that calls choose is the name of its size. One that only a run knows is ``None``, as is the shape where
    not even their number is known.

    Examples
    --------
    >>> Described("x", (1, 3), "float32").type
    'tensor(float)'
    """

    name: str
    shape: tuple[int | str | None, ...] | None
    dtype: str

    @property
    def type(self) -> str:
        """Its type as ONNX Runtime spells it."""
        return f"tensor({_ONNX_TYPES.get(self.dtype, self.dtype)})"


def described(program: Program, name: str) -> Described:
    """Return what a caller has to know of an input or output."""
    if name in program.loose:
        return Described(name, program.loose[name].dims, program.loose[name].dtype)
    value = program.values[name]
    return Described(name, value.shape, value.dtype)


class Feeds:
    """Checks what a caller passes to a model, and makes what it gets.

    Parameters
    ----------
    program
        The model.
    """

    def __init__(self, program: Program) -> None:
        self.name = program.name or "model"
        self.inputs = tuple(Slot(program.values[n], program.values[n].shape) for n in program.inputs)
        #: ``None`` for outputs whose shape only a run knows.
        self.outputs = tuple(None if n in program.loose else Slot(program.values[n], program.values[n].shape)
                             for n in program.outputs)  # fmt: skip
        self._output_names = program.outputs
        self._input_names = program.inputs
        self._numbers = {n: i for i, n in reversed(list(enumerate(program.outputs)))}

    def named(self, feeds: Mapping[str, Any]) -> list[np.ndarray]:
        """Return the arrays of the inputs in order, from a mapping by name."""
        for name in feeds:
            if name not in self._input_names:
                raise LaunchError(
                    f"{self.name}: {shown(name)} is no input{did_you_mean(name, self._input_names) or '.'} "
                    f"Inputs are {_listed(self._input_names)}."
                )
        missing = [n for n in self._input_names if n not in feeds]
        if missing:
            raise LaunchError(f"{self.name}: expected all inputs, got none for {_listed(missing)}. Feed them.")
        return self.positional([feeds[n] for n in self._input_names])

    def positional(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """Return the arrays of the inputs, checked; copies of those that are not contiguous."""
        if len(arrays) != len(self.inputs):
            raise LaunchError(
                f"{self.name}: expected {counted(len(self.inputs), 'array')} ({_listed(self._input_names)}), "
                f"got {len(arrays)}. "
                "Call run(arrays in order), run({name: array}), or run([output names], {name: array})."
            )
        return [a if _fits(a, slot) else self.taken(a, slot) for a, slot in zip(arrays, self.inputs, strict=True)]

    def taken(self, array: Any, slot: Slot) -> Any:
        """Return one array of a caller, checked; a copy where it is not contiguous."""
        return slot.input(array, self.name)

    def made(self) -> list[Any]:
        """Return new arrays for all outputs; ``None`` for those whose shape only a run knows."""
        return [None if s is None else np.empty(s.shape, s.dtype) for s in self.outputs]

    def given(self, out: Any, inputs: Sequence[np.ndarray]) -> list[Any]:
        """Return the arrays of all outputs: the caller's, and new ones for outputs it does not name."""
        found = self.numbered(out)
        taken = list(zip((s.name for s in self.inputs), inputs, strict=True))
        arrays: list[Any] = []
        for n, slot in enumerate(self.outputs):
            if found.get(n) is None or slot is None:
                arrays.append(None if slot is None else np.empty(slot.shape, slot.dtype))
                continue
            array = found[n] if _fits(found[n], slot) else slot.output(found[n], self.name)
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
        """Return the caller's output arrays, as they are, by the number of the output."""
        if isinstance(out, Mapping):
            return self._possible({self.number(name): array for name, array in out.items()})
        listed = out if isinstance(out, (tuple, list)) else (out,)
        if len(listed) != len(self.outputs):
            raise LaunchError(
                f"{self.name}: argument 'out': expected {counted(len(self.outputs), 'array')}, got {len(listed)}."
            )
        return self._possible(dict(enumerate(listed)))

    def _possible(self, found: dict[int, Any]) -> dict[int, Any]:
        for n, array in found.items():
            if array is not None and self.outputs[n] is None:
                raise LaunchError(
                    f"{self.name}: argument 'out': only a run knows the shape of '{self._output_names[n]}', so that no "
                    "array can be given for it. Pass None there."
                )
        return found

    def number(self, name: str) -> int:
        """Return the number of an output."""
        if name not in self._numbers:
            known = tuple(self._numbers)[::-1]
            hint = did_you_mean(name, known) or "."
            raise LaunchError(f"{self.name}: {shown(name)} is no output{hint} Outputs are {_listed(known)}.")
        return self._numbers[name]


def _fits(array: Any, slot: Slot) -> bool:
    """Whether an array can be taken as it is: the common case, by one look."""
    return (
        type(array) is _NDARRAY and array.dtype is slot.dtype and array.shape == slot.shape and bool(array.flags.carray)
    )


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"'{n}'" for n in names[:most]) + more
