"""Calls to a compiled graph with PyTorch tensors; every call looks up the tensors' addresses."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from roller.errors import LaunchError
from roller.models.torch.tensor_addresses import ALL, ExpectedTensor, TensorAddresses
from roller_runtime.core.dtypes import DTYPES
from roller_runtime.session.cpu_session import Session
from roller_runtime.session.inputs_given_by_address import AddressedInputs

if TYPE_CHECKING:
    import torch

    from roller.models.torch.export_to_onnx import OwnedTensor


#: Index of an output, function that converts its array to a tensor, and the dtype and strides that the tensor must get,
#: if any.
_Result: TypeAlias = "tuple[int, Callable[[np.ndarray], torch.Tensor], torch.dtype | None, tuple[int, ...] | None]"


def array_to_tensor_converter(dtype: np.dtype[Any]) -> Callable[[np.ndarray], torch.Tensor]:
    """Return a function that converts arrays of a dtype to tensors without a copy."""
    import torch

    # PyTorch rejects dtypes that extend NumPy, so these are passed as bits.
    taken: Callable[[np.ndarray], torch.Tensor] = torch.from_numpy
    row = DTYPES.get(dtype.name)
    if row is None or not row.bits:
        return taken
    bits, named = np.dtype(f"i{row.itemsize_bytes}"), getattr(torch, row.name)
    return lambda array: torch.from_numpy(array.view(bits)).view(named)


def materialise(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor without lazy conjugation, negation or zeros; copy it if needed."""
    import torch

    if tensor._is_zerotensor():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


class GraphCall:
    """Runs a session on a graph's arguments and returns the graph's results.

    Parameters
    ----------
    positions
        Positions of the session's inputs among the arguments, in order.
    held
        Tensors that the graph owns, numbered after all arguments.
    outputs, dtypes, strides, checks
        See :class:`roller.models.torch.export_to_onnx.ExportedGraph`.
    eager
        The graph in PyTorch, which raises the error that a check detects.
    """

    def __init__(
        self,
        session: Session,
        positions: Sequence[int],
        held: Sequence[OwnedTensor],
        outputs: Sequence[int | None],
        dtypes: Sequence[torch.dtype | None],
        strides: Sequence[tuple[int, ...] | None],
        checks: Sequence[int] = (),
        eager: Callable[..., Any] | None = None,
    ) -> None:
        self._checks, self._eager, self._told = tuple(checks), eager, False
        self.session, self._positions, self._held = session, tuple(positions), tuple(held)
        self._results = tuple(map(self._result_conversion, outputs, dtypes, strides))
        wanted = [ExpectedTensor(p, s.shape, s.dtype) for p, s in zip(positions, session.feeds.inputs, strict=True)]
        self._places: TensorAddresses | None
        try:
            self._places = TensorAddresses(wanted)
        except (LookupError, OSError):  # an older release of PyTorch: all tensors are converted to arrays instead
            self._places = None

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Run the graph; if the values make PyTorch raise an error, run it in PyTorch to get PyTorch's own error."""
        try:
            return self.run_compiled(*arguments)
        except LaunchError as why:
            if self._eager is None:
                raise
            results = tuple(self._eager(*arguments))
            if not self._told:  # PyTorch did not raise
                self._told = True
                warnings.warn(f"roller: a call runs in PyTorch instead: {why}", RuntimeWarning, stacklevel=2)
            return results

    def run_compiled(self, *arguments: Any) -> tuple[Any, ...]:
        """Run the compiled graph; raise :class:`LaunchError` for a zero divisor or an index or class out of bounds."""
        if self._held:
            arguments += tuple(h.tensors[h.name] for h in self._held)
        if self._places is None:
            arrays = [self.array(arguments, n) for n in range(len(self._positions))]
            made = self.session.run(None, dict(zip(self.session.plan.program.inputs, arrays, strict=True)))
        else:
            made = self.session.run_on_addresses(_CallArguments(self, self._places, arguments))
        if self._checks and any(made[n] for n in self._checks):
            raise LaunchError("a graph of PyTorch: a divisor is zero, or an index or class is out of bounds.")
        return tuple([None if r is None else _to_tensor(made[r[0]], *r[1:]) for r in self._results])

    def match_strides(self, results: Sequence[Any], theirs: Sequence[Any]) -> tuple[Any, ...]:
        """Return results with the strides of PyTorch's results, and use these strides in later calls."""
        strides = [None if t is None else tuple(t.stride()) for t in theirs]
        sized = [r is not None and self.session.feeds.outputs[r[0]] is not None for r in self._results]
        # Strides of a result whose shape is known only at run time apply to this call only.
        self._results = tuple(
            (*r[:3], stride) if r is not None and known else r
            for r, stride, known in zip(self._results, strides, sized, strict=True)
        )
        return tuple(r if s is None else with_strides(r, s) for r, s in zip(results, strides, strict=True))

    def has_strides(self, strides: Sequence[tuple[int, ...] | None]) -> bool:
        """Return whether results have the given strides, along dimensions of more than one element."""
        for result, wanted in zip(self._results, strides, strict=True):
            slot = None if result is None else self.session.feeds.outputs[result[0]]
            if result is None or slot is None or result[3] is None or wanted is None:
                continue
            if any(n > 1 and a != b for n, a, b in zip(slot.shape, result[3], wanted, strict=True)):
                return False
        return True

    def _result_conversion(
        self, number: int | None, dtype: torch.dtype | None, stride: tuple[int, ...] | None
    ) -> _Result | None:
        if number is None:
            return None
        slot = self.session.feeds.outputs[number]
        if slot is None:  # its shape is known only at run time
            return number, lambda array: array_to_tensor_converter(array.dtype)(array), dtype, None
        make = array_to_tensor_converter(slot.dtype)
        return number, make, None if make(np.empty(0, slot.dtype)).dtype == dtype else dtype, stride

    def array(self, arguments: Sequence[Any], number: int) -> np.ndarray:
        """Return an input of the session as an array, copied if the input is strided."""
        tensor = arguments[self._positions[number]]
        feeds = self.session.feeds
        array: np.ndarray = feeds.taken(materialise(tensor).numpy(), feeds.inputs[number])
        return array


def _to_tensor(
    array: np.ndarray,
    make: Callable[[np.ndarray], torch.Tensor],
    dtype: torch.dtype | None,
    stride: tuple[int, ...] | None,
) -> torch.Tensor:
    made = make(array)
    if dtype is not None:
        made = made.to(dtype=dtype)
    return made if stride is None or made.stride() == stride else with_strides(made, stride)


def with_strides(made: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """Return a contiguous tensor with the given strides, as a view if possible, otherwise as a copy."""
    import torch

    shape = made.shape
    if made.stride() == stride or made.numel() == 0 or made.dim() != len(stride):
        return made if made.dim() != len(stride) else made.as_strided(shape, stride)
    if all(n == 1 or s == t for n, s, t in zip(shape, made.stride(), stride, strict=True)):
        return made.as_strided(shape, stride)
    reached = 1
    for s, n in sorted((s, n) for s, n in zip(stride, shape, strict=True) if n > 1):
        if s < reached:  # elements share memory, as in an expanded tensor
            return _with_overlapping_strides(made, stride)
        reached = s * (n - 1) + reached
    return torch.empty_strided(shape, stride, dtype=made.dtype).copy_(made)


def _with_overlapping_strides(made: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    import torch

    extent = 1 + sum(s * (n - 1) for s, n in zip(stride, made.shape, strict=True))
    memory, places = torch.zeros(extent, dtype=made.dtype), torch.arange(extent).as_strided(made.shape, stride)
    memory[places.reshape(-1)] = made.reshape(-1)
    return memory.as_strided(made.shape, stride)


class _CallArguments(AddressedInputs):
    """The arguments of one call."""

    def __init__(self, call: GraphCall, places: TensorAddresses, arguments: tuple[Any, ...]) -> None:
        self._call, self._places, self._arguments = call, places, arguments
        self._copies: dict[int, np.ndarray] | None = None

    def place(self, addresses: int) -> None:
        """Write the addresses; strided arguments are copied for this call."""
        number = self._places.write_addresses(self._arguments, addresses)
        while number != ALL:
            self._copies = {} if self._copies is None else self._copies
            array = self._copies[number] = self._call.array(self._arguments, number)
            ctypes.c_uint64.from_address(addresses + 8 * number).value = array.__array_interface__["data"][0]
            number = self._places.write_addresses(self._arguments, addresses, number + 1)

    def __getitem__(self, number: int) -> np.ndarray:
        found = None if self._copies is None else self._copies.get(number)
        return self._call.array(self._arguments, number) if found is None else found
