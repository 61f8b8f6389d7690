"""Calls of a compiled graph with PyTorch's tensors: where each lies is looked up in every call, and nothing is kept."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from roller.core.dtypes import DTYPES
from roller.errors import LaunchError
from roller.models.session.placed import Placed
from roller.models.session.session import Session
from roller.models.torch.places import ALL, Places, Wanted

if TYPE_CHECKING:
    import torch

    from roller.models.torch.export import Held


#: Number of an output, what makes a tensor of its array, and the dtype and strides to convert that to, if any.
_Result: TypeAlias = "tuple[int, Callable[[np.ndarray], torch.Tensor], torch.dtype | None, tuple[int, ...] | None]"


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
    outputs, dtypes, strides, checks
        As of :class:`roller.models.torch.export.Exported`.
    eager
        The graph in PyTorch, which raises where a check says so.
    """

    def __init__(
        self,
        session: Session,
        positions: Sequence[int],
        held: Sequence[Held],
        outputs: Sequence[int | None],
        dtypes: Sequence[torch.dtype | None],
        strides: Sequence[tuple[int, ...] | None],
        checks: Sequence[int] = (),
        eager: Callable[..., Any] | None = None,
    ) -> None:
        self._checks, self._eager, self._told = tuple(checks), eager, False
        self.session, self._positions, self._held = session, tuple(positions), tuple(held)
        self._results = tuple(map(self._result, outputs, dtypes, strides))
        wanted = [Wanted(p, s.shape, s.dtype) for p, s in zip(positions, session.feeds.inputs, strict=True)]
        self._places: Places | None
        try:
            self._places = Places(wanted)
        except (LookupError, OSError):  # an older release: arrays are made of all tensors instead
            self._places = None

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Run the graph; PyTorch runs it where values are such that it raises, and says so in its own words."""
        try:
            return self.alone(*arguments)
        except LaunchError as why:
            if self._eager is None:
                raise
            results = tuple(self._eager(*arguments))
            if not self._told:  # PyTorch does not raise
                self._told = True
                warnings.warn(f"roller: a call runs in PyTorch instead: {why}", RuntimeWarning, stacklevel=2)
            return results

    def alone(self, *arguments: Any) -> tuple[Any, ...]:
        """Run the graph without PyTorch."""
        if self._held:
            arguments += tuple(h.tensors[h.name] for h in self._held)
        if self._places is None:
            arrays = [self.array(arguments, n) for n in range(len(self._positions))]
            made = self.session.run(None, dict(zip(self.session.plan.program.inputs, arrays, strict=True)))
        else:
            made = self.session.run_placed(_Arguments(self, self._places, arguments))
        if self._checks and any(made[n] for n in self._checks):
            raise LaunchError("a graph of PyTorch: a divisor is zero, or an index or class is out of bounds.")
        return tuple([None if r is None else _tensor(made[r[0]], *r[1:]) for r in self._results])

    def like(self, results: Sequence[Any], theirs: Sequence[Any]) -> tuple[Any, ...]:
        """Return results laid out as PyTorch's are, and lay out those of further calls so."""
        strides = [None if t is None else tuple(t.stride()) for t in theirs]
        sized = [r is not None and self.session.feeds.outputs[r[0]] is not None for r in self._results]
        # Strides of a result whose shape only a run knows are of this call alone.
        self._results = tuple(
            (*r[:3], stride) if r is not None and known else r
            for r, stride, known in zip(self._results, strides, sized, strict=True)
        )
        return tuple(r if s is None else laid_out(r, s) for r, s in zip(results, strides, strict=True))

    def _result(self, number: int | None, dtype: torch.dtype | None, stride: tuple[int, ...] | None) -> _Result | None:
        if number is None:
            return None
        slot = self.session.feeds.outputs[number]
        if slot is None:  # only a run knows its shape, and makes its array
            return number, lambda array: maker(array.dtype)(array), dtype, None
        make = maker(slot.dtype)
        return number, make, None if make(np.empty(0, slot.dtype)).dtype == dtype else dtype, stride

    def array(self, arguments: Sequence[Any], number: int) -> np.ndarray:
        """Return an input of the session as an array; a copy where it is strided."""
        tensor = arguments[self._positions[number]]
        feeds = self.session.feeds
        array: np.ndarray = feeds.taken(in_memory(tensor).numpy(), feeds.inputs[number])
        return array


def _tensor(
    array: np.ndarray,
    make: Callable[[np.ndarray], torch.Tensor],
    dtype: torch.dtype | None,
    stride: tuple[int, ...] | None,
) -> torch.Tensor:
    made = make(array)
    if dtype is not None:
        made = made.to(dtype=dtype)
    return made if stride is None or made.stride() == stride else laid_out(made, stride)


def laid_out(made: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """Return a contiguous tensor with these strides: the same memory where they mean the same, else a copy."""
    import torch

    shape = made.shape
    if made.stride() == stride or made.numel() == 0 or made.dim() != len(stride):
        return made if made.dim() != len(stride) else made.as_strided(shape, stride)
    if all(n == 1 or s == t for n, s, t in zip(shape, made.stride(), stride, strict=True)):
        return made.as_strided(shape, stride)
    reached = 1
    for s, n in sorted((s, n) for s, n in zip(stride, shape, strict=True) if n > 1):
        if s < reached:  # elements share memory, as those of an expanded tensor do
            return _overlapping(made, stride)
        reached = s * (n - 1) + reached
    return torch.empty_strided(shape, stride, dtype=made.dtype).copy_(made)


def _overlapping(made: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    import torch

    extent = 1 + sum(s * (n - 1) for s, n in zip(stride, made.shape, strict=True))
    memory, places = torch.zeros(extent, dtype=made.dtype), torch.arange(extent).as_strided(made.shape, stride)
    memory[places.reshape(-1)] = made.reshape(-1)
    return memory.as_strided(made.shape, stride)


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
