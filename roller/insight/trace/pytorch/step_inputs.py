"""Inputs and targets of a step: tensors in tuples, lists, mappings, data classes and other objects that hold some."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import ModuleType
from typing import Any

import torch

from roller.insight.trace.pytorch import known_values

#: How deep objects are searched for tensors.
_DEPTH = 4


def leaves(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    """Yield all tensors, in their order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from leaves(part, depth)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from leaves(part, depth)
    elif depth:
        for part in _attributes(value).values():
            yield from leaves(part, depth - 1)


def mapped(
    value: Any, change: Callable[[torch.Tensor], torch.Tensor], copied: dict[int, tuple[Any, Any]] | None = None
) -> Any:
    """Return a value with every tensor changed; what holds none is itself, and objects are copied, each once."""
    copied = {} if copied is None else copied
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        parts = [mapped(part, change, copied) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if type(value) is dict or (isinstance(value, Mapping) and not isinstance(value, MutableMapping)):
        return {key: mapped(part, change, copied) for key, part in value.items()}
    if isinstance(value, MutableMapping):  # what others make of a mapping has methods of its own
        twin = copy.copy(value)
        for key in list(value):
            twin[key] = mapped(value[key], change, copied)
        return twin
    if id(value) in copied:  # objects may refer to one another
        return copied[id(value)][1]
    held = {name: part for name, part in _attributes(value).items() if any(True for _ in leaves(part))}
    if not held:
        return value
    twin = copy.copy(value)
    copied[id(value)] = value, twin
    for name, part in held.items():
        object.__setattr__(twin, name, mapped(part, change, copied))
    return twin


def moved(value: Any, *, copies: bool = True) -> Any:
    """Return a value whose tensors are on the device; small ones keep what is known of their values.

    ``copies`` says whether one that is there already is another one then.
    """

    def there(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta and not copies:
            return tensor
        if tensor.layout is not torch.strided:
            return tensor.to("meta")
        twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        values = known_values.value_of(tensor)
        if values is not None and tensor.numel() <= known_values.MOST_FOLLOWED:
            known_values.know(twin, values.detach())
        return twin.requires_grad_(tensor.requires_grad)

    return mapped(value, there)


def resized(value: Any, old: int, new: int, axis: int = 0) -> Any:
    """Return a value whose tensors have ``new`` for ``old`` samples on an axis; small ones repeat their values."""

    def grown(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() <= axis or tensor.shape[axis] != old:
            return tensor
        shape = [new if n == axis else size for n, size in enumerate(tensor.shape)]
        order = sorted(range(tensor.dim()), key=lambda n: (-tensor.stride()[n], n))
        twin = torch.empty([shape[n] for n in order], dtype=tensor.dtype, device="meta")
        twin = twin.permute([order.index(n) for n in range(tensor.dim())])
        values = known_values.value_of(tensor)
        if values is not None and max(tensor.numel(), twin.numel()) <= known_values.MOST_FOLLOWED:
            known_values.know(twin, values.detach().index_select(axis, torch.arange(new) % old))
        return twin.requires_grad_(tensor.requires_grad)

    return mapped(value, grown)


def channels_last(value: Any) -> Any:
    """Return a value whose images have their channels innermost."""
    return mapped(value, lambda t: t.to(memory_format=torch.channels_last) if t.dim() == 4 else t)


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return inputs as arguments by place and by name."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def called(step: Callable[..., Any], inputs: Any) -> Any:
    """Run a step on inputs: a tuple is its arguments, a mapping is one, unless it takes them otherwise alone."""
    args, kwargs = arguments(inputs)
    if isinstance(inputs, Mapping):
        whole = _takes(step, inputs) and not _named(step, kwargs)
        return step(inputs) if whole or not _takes(step, **kwargs) else step(**kwargs)
    return step(inputs) if not _takes(step, *args) and _takes(step, inputs) else step(*args)


def _named(function: Callable[..., Any], given: Mapping[str, Any]) -> bool:
    """Whether a function's parameters are called as what is given."""
    try:
        return set(inspect.signature(function).parameters) == set(given)
    except (TypeError, ValueError):  # what is built in says nothing
        return False


def _takes(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # what is built in says nothing
        return True
    return True


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that may hold tensors."""
    if isinstance(value, (type, ModuleType, torch.nn.Module, str, bytes)) or callable(value):
        return {}
    held = getattr(value, "__dict__", None)
    slots = (name for base in type(value).__mro__ for name in getattr(base, "__slots__", ()))
    found = dict(held) if isinstance(held, dict) else {}
    for name in slots if type(value).__module__ not in ("builtins", "numpy") else ():
        if isinstance(name, str) and not name.startswith("__") and hasattr(value, name):
            found[name] = getattr(value, name)
    return found
