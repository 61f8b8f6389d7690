"""Inputs and targets of a step: tensors in tuples, lists, mappings, data classes and other objects."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import ModuleType
from typing import Any

import torch

from roller.insight.trace.pytorch import known_values

#: Depth to which objects are searched for tensors.
_DEPTH = 4


def iterate_tensors(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    """Yield all tensors of a nested value, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from iterate_tensors(part, depth)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from iterate_tensors(part, depth)
    elif depth:
        for part in _tensor_attributes(value).values():
            yield from iterate_tensors(part, depth - 1)


def map_tensors(
    value: Any, change: Callable[[torch.Tensor], torch.Tensor], copied: dict[int, tuple[Any, Any]] | None = None
) -> Any:
    """Return a nested value with ``change`` applied to every tensor; each object with tensors is copied once."""
    copied = {} if copied is None else copied
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        parts = [map_tensors(part, change, copied) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if type(value) is dict or (isinstance(value, Mapping) and not isinstance(value, MutableMapping)):
        return {key: map_tensors(part, change, copied) for key, part in value.items()}
    if isinstance(value, MutableMapping):  # a subclass may have methods of its own
        twin = copy.copy(value)
        for key in list(value):
            twin[key] = map_tensors(value[key], change, copied)
        return twin
    if id(value) in copied:  # objects may refer to one another
        return copied[id(value)][1]
    held = {name: part for name, part in _tensor_attributes(value).items() if any(True for _ in iterate_tensors(part))}
    if not held:
        return value
    twin = copy.copy(value)
    copied[id(value)] = value, twin
    for name, part in held.items():
        object.__setattr__(twin, name, map_tensors(part, change, copied))
    return twin


def move_to_device(value: Any, *, copies: bool = True) -> Any:
    """Return a nested value whose tensors are on the device; small ones keep their known values.

    ``copies`` says whether tensors that are already on the device are copied.
    """

    def move_tensor(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta and not copies:
            return tensor
        if tensor.layout is not torch.strided:
            return tensor.to("meta")
        twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        values = known_values.known_value(tensor)
        if values is not None and tensor.numel() <= known_values.MOST_FOLLOWED:
            known_values.set_known_value(twin, values.detach())
        return twin.requires_grad_(tensor.requires_grad)

    return map_tensors(value, move_tensor)


def resize_batch(value: Any, old: int, new: int, axis: int = 0) -> Any:
    """Return a nested value with ``new`` instead of ``old`` samples on an axis; small tensors repeat their values."""

    def resize_tensor(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() <= axis or tensor.shape[axis] != old:
            return tensor
        shape = [new if n == axis else size for n, size in enumerate(tensor.shape)]
        order = sorted(range(tensor.dim()), key=lambda n: (-tensor.stride()[n], n))
        twin = torch.empty([shape[n] for n in order], dtype=tensor.dtype, device="meta")
        twin = twin.permute([order.index(n) for n in range(tensor.dim())])
        values = known_values.known_value(tensor)
        if values is not None and max(tensor.numel(), twin.numel()) <= known_values.MOST_FOLLOWED:
            known_values.set_known_value(twin, values.detach().index_select(axis, torch.arange(new) % old))
        return twin.requires_grad_(tensor.requires_grad)

    return map_tensors(value, resize_tensor)


def to_channels_last(value: Any) -> Any:
    """Return a nested value whose images are in the channels-last format."""
    return map_tensors(value, lambda t: t.to(memory_format=torch.channels_last) if t.dim() == 4 else t)


def split_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return inputs as positional and keyword arguments."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def call_step(step: Callable[..., Any], inputs: Any) -> Any:
    """Call a step with the items of a tuple, or with a mapping, unless its signature requires otherwise."""
    args, kwargs = step_arguments(step, inputs)
    return step(*args, **kwargs)


def step_arguments(step: Callable[..., Any], inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments with which :func:`call_step` calls a step."""
    args, kwargs = split_arguments(inputs)
    if isinstance(inputs, Mapping):
        whole = _accepts_call_with_arguments(step, inputs) and not _has_parameters_named(step, kwargs)
        return ((inputs,), {}) if whole or not _accepts_call_with_arguments(step, **kwargs) else ((), kwargs)
    whole = not _accepts_call_with_arguments(step, *args) and _accepts_call_with_arguments(step, inputs)
    return ((inputs,) if whole else args), {}


def _has_parameters_named(function: Callable[..., Any], given: Mapping[str, Any]) -> bool:
    """Return whether a function's parameters have exactly the given names."""
    try:
        return set(inspect.signature(function).parameters) == set(given)
    except (TypeError, ValueError):  # a builtin has no signature
        return False


def _accepts_call_with_arguments(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # a builtin has no signature
        return True
    return True


def _tensor_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that may contain tensors."""
    if isinstance(value, (type, ModuleType, torch.nn.Module, str, bytes)) or callable(value):
        return {}
    held = getattr(value, "__dict__", None)
    slots = (name for base in type(value).__mro__ for name in getattr(base, "__slots__", ()))
    found = dict(held) if isinstance(held, dict) else {}
    for name in slots if type(value).__module__ not in ("builtins", "numpy") else ():
        if isinstance(name, str) and not name.startswith("__") and hasattr(value, name):
            found[name] = getattr(value, name)
    return found
