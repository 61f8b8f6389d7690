"""An operator as the mappings see it: tensors by their schema names, and arguments with defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from roller.insight.trace.tensor_bytes import distinct_bytes, element_count, itemsize, total_bytes
from roller.insight.trace.trace import Operator, TensorRecord

__all__ = ["OperatorView", "distinct_bytes", "element_count", "itemsize", "total_bytes"]


class OperatorView:
    """A traced operator whose tensors and arguments can be accessed by their schema names."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator

    @cached_property
    def packet(self) -> str:
        """Name without the overload and the trailing underscore of an in-place operator, such as ``"aten.add"``."""
        space, _, rest = self.operator.name.partition(".")
        name = rest.split(".")[0]
        return f"{space}.{name if name.startswith('__') else name.rstrip('_') or name}"

    @property
    def in_place(self) -> bool:
        """Whether the operator writes to an input: its name ends in one underscore, or its overload is ``out``."""
        name, _, overload = self.operator.name.partition(".")[2].partition(".")
        return (name.endswith("_") and not name.endswith("__")) or overload.split("_")[-1] == "out"

    @property
    def inputs(self) -> tuple[TensorRecord, ...]:
        """Tensors that the operator reads."""
        return self.operator.inputs

    @property
    def outputs(self) -> tuple[TensorRecord, ...]:
        """Tensors that the operator returns."""
        return self.operator.outputs

    @property
    def out(self) -> TensorRecord:
        """The first returned tensor; the first input if nothing is returned."""
        return (self.outputs or self.inputs)[0]

    def argument(self, name: str, default: Any = None) -> Any:
        """Return an argument that is not a tensor; ``default`` if it is missing or ``None``."""
        value = self.operator.arguments.get(name)
        return default if value is None else value

    def has_tensor(self, name: str) -> bool:
        """Return whether a tensor is given for ``name``."""
        return self.tensor(name) is not None

    def tensor(self, name: str, position: int | None = None) -> TensorRecord | None:
        """Return the tensor named ``name`` (the input at ``position`` if no names are recorded), else ``None``."""
        if not self.operator.arguments and position is not None:
            return self.inputs[position] if position < len(self.inputs) else None
        return self._tensor_of_argument(self.operator.arguments.get(name))

    @property
    def overload(self) -> str:
        """Name of the overload, e.g. ``"default"``."""
        return self.operator.name.rpartition(".")[2]

    def required_tensor(self, name: str, position: int) -> TensorRecord:
        """Return the tensor named ``name``; raise ``KeyError`` if the operator does not have it."""
        found = self.tensor(name, position)
        if found is None:
            raise KeyError(f"{self.operator.name}: argument '{name}'")
        return found

    def tensors(self, name: str) -> tuple[TensorRecord, ...]:
        """Return the list of tensors named ``name``; empty if there is no such list."""
        found = self.operator.arguments.get(name) or ()
        if isinstance(found, Mapping):
            found = (found,)
        if not isinstance(found, Sequence):
            return ()
        return tuple(t for t in map(self._tensor_of_argument, found) if t is not None)

    def _tensor_of_argument(self, value: Any) -> TensorRecord | None:
        if isinstance(value, Mapping) and isinstance(value.get("tensor"), int):
            return self.inputs[value["tensor"]]
        return None
