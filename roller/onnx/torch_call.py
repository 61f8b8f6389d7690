"""Calls of a compiled graph with PyTorch's tensors: where each lies is looked up in every call, and nothing is kept."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from roller.core.dtypes import DTYPES
from roller.model.placed import Placed
from roller.model.session import Session
from roller.onnx.torch_places import ALL, Places, Wanted

if TYPE_CHECKING:
    import torch

    from roller.onnx.torch_export import Held


#: Number of an output, what makes a tensor of its array, and the dtype to convert that to, if any.
_Result: TypeAlias = "tuple[int, Callable[[np.ndarray], torch.Tensor], torch.dtype | None]"


def maker(dtype: np.dtype[Any]) -> Callable[[np.ndarray], torch.Tensor]:
    """Return what makes a tensor of an array of this dtype, without a copy.

    PyTorch takes none of the dtypes that extend NumPy: they pass by their bits.
    """
    import torch

    taken: Callable[[np.ndarray], torch.Tensor] = torch.from_numpy
    row = DTYPES.get(dtype.name)
    if row is None or not row.bits:
        return taken
    bits, named = np.dtype(f"i{row.itemsize_bytes}"), getattr(torch, row.name)
    return lambda array: torch.from_numpy(array.view(bits)).view(named)


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose contiguous memory is what it is; a copy where strides, a negation or zeros are noted."""
    import torch

    if tensor._is_zerotensor():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


class GraphCall:
    """A session that takes a graph's arguments and returns its results.

    Parameters
    ----------
    session
        Its inputs are tensors among the arguments.
    positions
        Of these, in order.
    held
        What the graph holds itself, numbered after all arguments.
    outputs, dtypes
        As of :class:`roller.onnx.torch_export.Exported`.
    """

    def __init__(
        self,
        session: Session,
        positions: Sequence[int],
        held: Sequence[Held],
        outputs: Sequence[int | None],
        dtypes: Sequence[torch.dtype | None],
    ) -> None:
        self.session, self._positions, self._held = session, tuple(positions), tuple(held)
        self._results = tuple(self._result(n, dtype) for n, dtype in zip(outputs, dtypes, strict=True))
        wanted = [Wanted(p, s.shape, s.dtype) for p, s in zip(positions, session.feeds.inputs, strict=True)]
        self._places: Places | None
        try:
            self._places = Places(wanted)
        except (LookupError, OSError):  # an older release: arrays are made of all tensors instead
            self._places = None

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Run the graph."""
        if self._held:
            arguments += tuple(h.tensors[h.name] for h in self._held)
        if self._places is None:
            arrays = [self.array(arguments, n) for n in range(len(self._positions))]
            made = self.session.run(None, dict(zip(self.session.plan.program.inputs, arrays, strict=True)))
        else:
            made = self.session.run_placed(_Arguments(self, self._places, arguments))
        return tuple([None if r is None else _tensor(made[r[0]], *r[1:]) for r in self._results])

    def _result(self, number: int | None, dtype: torch.dtype | None) -> _Result | None:
        if number is None:
            return None
        slot = self.session.feeds.outputs[number]
        if slot is None:  # only a run knows its shape, and makes its array
            return number, lambda array: maker(array.dtype)(array), dtype
        make = maker(slot.dtype)
        return number, make, None if make(np.empty(0, slot.dtype)).dtype == dtype else dtype

    def array(self, arguments: Sequence[Any], number: int) -> np.ndarray:
        """Return an input of the session as an array; a copy where it is strided.

        Raises
        ------
        LaunchError
            Where it has another shape or dtype.
        """
        tensor = arguments[self._positions[number]]
        feeds = self.session.feeds
        array: np.ndarray = feeds.taken(in_memory(tensor).numpy(), feeds.inputs[number])
        return array


def _tensor(array: np.ndarray, make: Callable[[np.ndarray], torch.Tensor], dtype: torch.dtype | None) -> torch.Tensor:
    made = make(array)
    return made if dtype is None else made.to(dtype=dtype)


class _Arguments(Placed):
    """The arguments of one call."""

    def __init__(self, call: GraphCall, places: Places, arguments: tuple[Any, ...]) -> None:
        self._call, self._places, self._arguments = call, places, arguments
        self._copies: dict[int, np.ndarray] | None = None

    def place(self, addresses: int) -> None:
        """Write the addresses; what is strided is copied for this call."""
        number = self._places.look(self._arguments, addresses)
        while number != ALL:
            self._copies = {} if self._copies is None else self._copies
            array = self._copies[number] = self._call.array(self._arguments, number)
            ctypes.c_uint64.from_address(addresses + 8 * number).value = array.__array_interface__["data"][0]
            number = self._places.look(self._arguments, addresses, number + 1)

    def __getitem__(self, number: int) -> np.ndarray:
        """Return an input as an array."""
        found = None if self._copies is None else self._copies.get(number)
        return self._call.array(self._arguments, number) if found is None else found
